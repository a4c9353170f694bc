package transport

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config has the properties of a QP that never change.
type Config struct {
	Type      verbs.QPType // 0 stands for QPTypeRC
	SignalAll bool
	Standard  bool // the QP and its peers use only the features that the specification has
	Shown     bool // the device shows its packets: no message piggybacks an acknowledgement, either way
	QPN       verbs.QPN
	Cap       verbs.QPCap             // as granted; MaxSendWR is a power of two
	Control   verbs.CongestionControl // until SetCongestionControl
	opcodes   wire.Opcode             // wire.XRC for an XRC QP, else 0: by how much its opcodes differ from those of the code
	Turn      int32                   // packets of a turn, or 0 for no limit: see QP.Turn
	Routing   verbs.AdaptiveRouting   // until SetAdaptiveRouting
	LineRate  uint64                  // bytes in a second that the port sends at most; 0 if that is not known
	PD        *mem.PD                 // the memory that the QP and its peer may use
	Receives  queue.Receives          // where the peer's SENDs take receives from
	Buffers   Buffers                 // for packets that come before others; without Buffers each packet gets memory of its own
	User      *verbs.QP               // the QP that completions name
	XRC       XRC                     // of a QPTypeXRCRecv, what its messages name
}

// QP is the transport of one queue pair.
type QP struct {
	cfg      Config
	attr     verbs.QPAttr // State and all attributes that Modify took
	mtu      uint32
	left     int32 // of this turn's packets
	sq       sendQueue
	receiver receiver
	service  service

	rate    recovery.Rate
	routing verbs.AdaptiveRouting

	outputs
	failure  error // why State is QPStateErr
	counters Counters
	work     Work

	timeline
	notify  notify
	out     wire.Packet // the packet that Transmit makes
	lending lending
	run     run         // of the packet that is handled
	memory  *mem.Keeper // nil unless packets follow one another
}

// service is the part of a QP in which RC, UC and UD differ.
type service interface {
	reset()
	startReceiving() // RTR: the receive side starts, with the attributes as they are
	startSending()   // RTS: the send queue starts
	attributesChanged(time.Duration)

	idle() bool // transmit has no packet to make
	transmit(now time.Duration, buf []byte) int
	handle(now time.Duration, p *wire.Packet) (progress bool) // packets of the connected services
	expect(p *wire.Packet) (fit Expectation, base wire.PSN)
	nextTimeout() time.Duration
	handleTimeout(now time.Duration)

	underway(limit uint64) bool // see QP.Underway
	pending() bool              // Transmit has stopped because the turn is over
	drained() bool              // every work request that was started is complete
	abandon()                   // drop the responses that are due
	stop()                      // the QP is in error: nothing is sent again
}

// New makes a QP in the state RESET.
func New(cfg Config) *QP {
	q := &QP{cfg: cfg, left: cfg.Turn}
	q.receiver.qp = q
	switch cfg.Type {
	case verbs.QPTypeUC:
		q.service = newUC(q)
	case verbs.QPTypeUD:
		q.service = newUD(q)
	case verbs.QPTypeXRCSend, verbs.QPTypeXRCRecv:
		q.cfg.opcodes, q.cfg.Standard = wire.XRC, true
		q.service = newRC(q)
	default:
		q.cfg.Type = verbs.QPTypeRC
		q.service = newRC(q)
	}
	q.reset()
	return q
}

// State returns the QP's state.
func (q *QP) State() verbs.QPState { return q.attr.State }

// DestQPN returns the number of the peer's QP.
func (q *QP) DestQPN() verbs.QPN { return q.attr.DestQPN }

// PKeyIndex returns the place of the QP's P_Key in the port's table.
func (q *QP) PKeyIndex() int { return q.attr.PKeyIndex }

// Attr returns the QP's attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.CurState = a.State
	a.Cap = q.cfg.Cap
	a.SQDraining = a.State == verbs.QPStateSQD && !q.service.drained()
	if a.State >= verbs.QPStateRTR {
		a.RQPSN = verbs.PSN(q.receiver.epsn)
		a.SQPSN = verbs.PSN(psn(q.sq.nextSeq))
	}
	return a
}

func (q *QP) reset() {
	if f := q.TakeFlush(); f != nil {
		f.span.Release()
	}
	q.attr = verbs.QPAttr{State: verbs.QPStateReset}
	q.mtu = 0
	q.sq = sendQueue{}
	q.receiver = receiver{qp: q}
	q.established, q.failure = false, nil
	q.notify = notify{}
	q.service.reset()
	q.rate.Reset()
	q.setControl(q.cfg.Control)
	q.routing = q.cfg.Routing
}

// Modify changes attributes and state. The caller has checked the values. Modify checks whether they belong to the
// transition, against the state that the QP has now.
func (q *QP) Modify(now time.Duration, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	now = q.notBefore(now)
	from := q.attr.State
	to, err := verbs.CheckModify(q.cfg.Type, from, attr, mask)
	if err != nil {
		return err
	}
	switch to {
	case verbs.QPStateReset:
		q.reset()
		return nil
	case verbs.QPStateErr:
		q.service.abandon()
		q.enterError(errModified)
		return nil
	}
	for _, c := range copied {
		if mask&c.mask != 0 {
			c.set(&q.attr, attr)
		}
	}
	q.attr.State = to
	if from == to {
		if to == verbs.QPStateSQD {
			q.service.attributesChanged(now)
		}
		return nil
	}
	switch to {
	case verbs.QPStateRTR:
		q.mtu = uint32(q.attr.PathMTU.Bytes())
		if q.cfg.Type == verbs.QPTypeUD {
			q.mtu = maxPacketData // the caller checks against the port's
		}
		q.rate.SetMTU(q.mtu)
		q.receiver.start(wire.PSN(q.attr.RQPSN))
		q.service.startReceiving()
	case verbs.QPStateRTS:
		if from == verbs.QPStateRTR {
			q.sq = newSendQueue(q.cfg.Type, q.cfg.Cap, uint64(q.attr.SQPSN)+seqBase)
			q.service.startSending()
		}
		q.service.attributesChanged(now)
	case verbs.QPStateSQD:
		q.drainReported = false
		q.reportDrained()
	}
	return nil
}

// Post appends a work request to the send queue. When the QP is in an error state the work request completes at once
// with WCFlushErr. The caller has checked its values.
func (q *QP) Post(wr *verbs.SendWR) error {
	if q.attr.State != verbs.QPStateRTS {
		if err := q.startPost(); err != nil {
			return err
		}
	}
	if err := q.sq.full(); err != nil {
		return err
	}
	w := q.sq.push(wr, q.mtu)
	if wr.Flags&verbs.SendInline != 0 && wr.InlineData == nil {
		if err := q.gatherInline(w); err != nil {
			return err
		}
	}
	if r, ok := q.service.(*rc); ok && r.requester.splits(w) {
		w.split = true
		if q.routing.Send {
			w.mark = q.routing.Mark
		}
		q.sq.countSplit(w)
	}
	q.posted(w)
	if q.attr.State == verbs.QPStateErr || q.attr.State == verbs.QPStateSQE {
		q.flushSend()
	}
	return nil
}

// posted takes note of whether w, the latest in the send queue, is signaled.
func (q *QP) posted(w *sendWQE) {
	if q.cfg.SignalAll {
		w.flags |= verbs.SendSignaled
	}
	if w.flags&verbs.SendSignaled != 0 {
		q.sq.lastSignaled = q.sq.tail
	}
}

// startPost is the beginning of a Post in other states than RTS.
func (q *QP) startPost() error {
	switch q.attr.State {
	case verbs.QPStateErr, verbs.QPStateSQE:
		if len(q.sq.wqes) == 0 { // the error came before RTS, when there was no ring yet
			q.sq = newSendQueue(q.cfg.Type, q.cfg.Cap, seqBase)
			q.mtu = max(q.mtu, uint32(verbs.MTU256.Bytes()))
		}
	case verbs.QPStateSQD:
	default: // IBTA C10-96
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: sends need RTS (Modify, or Init, RTR and RTS)", q.attr.State)
	}
	return nil
}

// gatherInline copies the inline data of w, which was pushed last, from its SGEs. If it cannot, it takes w back.
func (q *QP) gatherInline(w *sendWQE) error {
	// A card's driver reads inline data with the program's own rights, at once: a bad
	// SGE is therefore the post's error here, not the completion's.
	if err := q.fillInline(w); err != nil {
		q.sq.unpush(w)
		return verbs.Errorf(verbs.ErrInvalid, "inline data: %v", err)
	}
	return nil
}

// fillInline fills the inline data of w, which was pushed last, from its SGEs.
func (q *QP) fillInline(w *sendWQE) error {
	w.inline = q.sq.inlineSpace((q.sq.tail-1)&uint64(len(q.sq.wqes)-1), w.length)
	return q.cfg.PD.Gather(w.inline, w.sg, 0)
}

// Transmit writes the next packet that is due into buf, from the BTH to the space for the ICRC, and
// returns its length. It returns 0 if none is due, or the turn is over: see Pending. buf must have
// MaxDatagram bytes.
func (q *QP) Transmit(now time.Duration, buf []byte) int {
	q.lending.loan.Packets = 0
	if q.notify.due {
		return q.sendCNP(buf)
	}
	return q.service.transmit(q.notBefore(now), buf)
}

// KeepMemory has the packets up to ReleaseMemory use memory by k, which the caller owns: see [mem.Keeper]. They are
// few, and all of them at hand.
func (q *QP) KeepMemory(k *mem.Keeper) {
	q.ReleaseMemory()
	q.memory = k
}

// ReleaseMemory releases the memory that was kept since KeepMemory, if any.
func (q *QP) ReleaseMemory() {
	if q.memory != nil {
		q.memory.Release()
		q.memory = nil
	}
}

// HasPackets reports whether Transmit may have something to do. It is cheap, and never false when Transmit has.
func (q *QP) HasPackets() bool { return q.notify.due || !q.service.idle() }

// HandlePacket takes a packet of a connected QP. The caller has checked its ICRC, destination QPN, P_Key and source.
// ecn is the ECN field of the packet's IP header. HandlePacket reports whether the packet made progress: it had the
// PSN that was expected next and was executed, or it acknowledged something. A packet from a stranger, who does not
// know the PSNs, makes no progress.
func (q *QP) HandlePacket(now time.Duration, p *wire.Packet, ecn ECN) (progress bool) {
	now = q.notBefore(now)
	if ecn == CongestionExperienced {
		q.counters.CongestionMarks++
		q.marked(now, p)
	}
	return q.service.handle(now, p)
}

// ECN is the explicit congestion notification field of an IP header (RFC 3168).
type ECN uint8

// CongestionExperienced is the mark that a congested switch puts on a packet.
const CongestionExperienced ECN = 3

// NextTimeout returns when HandleTimeout wants to be called, or Never.
func (q *QP) NextTimeout() time.Duration { return q.service.nextTimeout() }

// HandleTimeout acts on the timeouts that have come.
func (q *QP) HandleTimeout(now time.Duration) { q.service.handleTimeout(q.notBefore(now)) }

// Fail takes the QP to the error state for a cause outside of the QP, such as a CQ that lost its completions. The
// event has the cause.
func (q *QP) Fail(cause error) {
	if q.attr.State == verbs.QPStateReset || q.attr.State == verbs.QPStateErr {
		return
	}
	q.service.abandon()
	q.enterError(cause)
	q.raise(verbs.EventQPFatal, cause)
}

// errModified is why a QP is in the error state that its program took there.
var errModified = verbs.Errorf(verbs.ErrState, "this end has taken the QP to the error state")

// Failure returns why the QP is in the error state, or nil if it is not there. errors.Is finds the
// completion status in a failure that has one.
func (q *QP) Failure() error { return q.failure }

// fail completes the oldest send work request with an error and takes the QP to the error
// state, which flushes all others.
func (q *QP) fail(f *fault) {
	if q.sq.head == q.sq.tail {
		q.failUnposted(f)
		return
	}
	q.completeSend(f.status, f.cause)
	q.service.abandon()
	q.enterError(f.err())
}

// failUnposted takes the QP to the error state for a failure that no work request can report. An event reports it.
func (q *QP) failUnposted(f *fault) {
	q.service.abandon()
	q.enterError(f.err())
	q.raise(verbs.EventQPFatal, f.err())
}

// enterError goes to the error state and flushes every work request.
func (q *QP) enterError(why error) {
	if q.attr.State != verbs.QPStateErr {
		q.failure = why
	}
	q.attr.State = verbs.QPStateErr
	q.notify.due = false
	q.flushSend()
	q.service.stop()
	q.receiver.flush()
}

func (q *QP) flushSend() {
	for q.sq.head != q.sq.tail {
		q.completeSend(verbs.WCFlushErr, nil)
	}
}

// reportDrained raises the event of a send queue that has drained, once.
func (q *QP) reportDrained() {
	if q.attr.State != verbs.QPStateSQD || q.drainReported || !q.service.drained() {
		return
	}
	q.drainReported = true
	if q.attr.EnSQDAsyncNotify {
		q.raise(verbs.EventSQDrained, nil)
	}
}

// fault is why a work request fails at this end: a completion status, and an error that explains it.
type fault struct {
	status verbs.WCStatus
	cause  error
}

func (f *fault) err() error { return fmt.Errorf("%w (%w)", f.status, f.cause) }
