package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config is what stays the same for a QP's whole life.
type Config struct {
	Type      verbs.QPType // 0 stands for QPTypeRC
	QPN       verbs.QPN
	Cap       verbs.QPCap // as granted; MaxSendWR is a power of two
	SignalAll bool
	Turn      int // packets of a turn, or 0 for no limit: see QP.Turn
}

// QP is the transport of one queue pair.
type QP struct {
	host     Host
	cfg      Config
	attr     verbs.QPAttr // State and all that Modify took
	mtu      uint32
	counters Counters

	sq  sendQueue
	req requester
	com completer
	res responder
	unr unreliable // UC and UD, in place of req and com

	out  wire.Packet // the packet that Transmit makes
	left int         // of this turn's packets
}

// Counters count what went otherwise than planned.
type Counters struct {
	Retransmits  uint64 // packets sent again
	Timeouts     uint64 // acknowledge timeouts
	RNRNAKs      uint64 // received
	SequenceNAKs uint64 // received
	ImpliedNAKs  uint64 // gaps in the responses
	Duplicates   uint64 // requests that came again
	OutOfOrder   uint64 // requests dropped because an earlier one was missing
	Unexpected   uint64 // packets dropped because nothing waited for them

	QKeyViolations uint64 // UD: datagrams with another Q_Key than the QP's
	NoReceive      uint64 // UC and UD: messages for which no receive was posted
}

// New makes a QP in the state RESET.
func New(host Host, cfg Config) *QP {
	q := &QP{host: host, cfg: cfg, left: cfg.Turn}
	if q.cfg.Type == 0 {
		q.cfg.Type = verbs.QPTypeRC
	}
	q.req.qp, q.com.qp, q.res.qp, q.unr.qp = q, q, q, q
	q.reset()
	return q
}

// State returns the QP's state.
func (q *QP) State() verbs.QPState { return q.attr.State }

// Attr returns the QP's attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.CurState = a.State
	a.Cap = q.cfg.Cap
	a.SQDraining = a.State == verbs.QPStateSQD && !q.drained()
	if a.State >= verbs.QPStateRTR {
		a.RQPSN = verbs.PSN(q.res.epsn)
		a.SQPSN = verbs.PSN(psn(q.sq.nextSeq))
	}
	return a
}

// Counters returns the QP's counters.
func (q *QP) Counters() Counters { return q.counters }

func (q *QP) reset() {
	q.attr = verbs.QPAttr{State: verbs.QPStateReset}
	q.mtu = 0
	q.sq = sendQueue{}
	q.req.reset()
	q.com.reset()
	q.res.reset()
	q.unr = unreliable{qp: q}
}

// copied lists for each attribute how Modify takes it over.
var copied = []struct {
	mask verbs.QPAttrMask
	set  func(to, from *verbs.QPAttr)
}{
	{verbs.MaskAccessFlags, func(to, from *verbs.QPAttr) { to.Access = from.Access }},
	{verbs.MaskPKeyIndex, func(to, from *verbs.QPAttr) { to.PKeyIndex = from.PKeyIndex }},
	{verbs.MaskPort, func(to, from *verbs.QPAttr) { to.Port = from.Port }},
	{verbs.MaskQKey, func(to, from *verbs.QPAttr) { to.QKey = from.QKey }},
	{verbs.MaskAV, func(to, from *verbs.QPAttr) { to.AH = from.AH }},
	{verbs.MaskPathMTU, func(to, from *verbs.QPAttr) { to.PathMTU = from.PathMTU }},
	{verbs.MaskTimeout, func(to, from *verbs.QPAttr) { to.Timeout = from.Timeout }},
	{verbs.MaskRetryCnt, func(to, from *verbs.QPAttr) { to.RetryCnt = from.RetryCnt }},
	{verbs.MaskRNRRetry, func(to, from *verbs.QPAttr) { to.RNRRetry = from.RNRRetry }},
	{verbs.MaskRQPSN, func(to, from *verbs.QPAttr) { to.RQPSN = from.RQPSN }},
	{verbs.MaskSQPSN, func(to, from *verbs.QPAttr) { to.SQPSN = from.SQPSN }},
	{verbs.MaskMaxRDAtomic, func(to, from *verbs.QPAttr) { to.MaxRDAtomic = from.MaxRDAtomic }},
	{verbs.MaskMaxDestRDAtomic, func(to, from *verbs.QPAttr) { to.MaxDestRDAtomic = from.MaxDestRDAtomic }},
	{verbs.MaskMinRNRTimer, func(to, from *verbs.QPAttr) { to.MinRNRTimer = from.MinRNRTimer }},
	{verbs.MaskDestQPN, func(to, from *verbs.QPAttr) { to.DestQPN = from.DestQPN }},
	{verbs.MaskEnSQDAsyncNotify, func(to, from *verbs.QPAttr) { to.EnSQDAsyncNotify = from.EnSQDAsyncNotify }},
	{verbs.MaskAltPath, func(to, from *verbs.QPAttr) {
		to.AltAH, to.AltPKeyIndex, to.AltPort, to.AltTimeout = from.AltAH, from.AltPKeyIndex, from.AltPort, from.AltTimeout
	}},
	{verbs.MaskPathMigState, func(to, from *verbs.QPAttr) { to.PathMigState = from.PathMigState }},
	{verbs.MaskRateLimit, func(to, from *verbs.QPAttr) { to.RateLimit = from.RateLimit }},
}

// Modify changes attributes and state. The caller has checked the values; whether they belong
// to the transition is checked here, against the state the QP has now.
func (q *QP) Modify(now time.Duration, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
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
		q.res.abandon()
		q.enterError()
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
			q.req.resize()
			q.res.resize()
			q.com.restartTimer(now) // with the timeout that holds now
		}
		return nil
	}
	switch to {
	case verbs.QPStateRTR:
		q.mtu = uint32(q.attr.PathMTU.Bytes())
		if q.cfg.Type == verbs.QPTypeUD {
			q.mtu = maxPacketData // the caller checks against the port's
		}
		q.res.start()
	case verbs.QPStateRTS:
		if from == verbs.QPStateRTR {
			q.sq = newSendQueue(q.cfg.Cap, uint64(q.attr.SQPSN)+seqBase)
			q.req.start(q.sq.nextSeq)
			q.com.start(q.sq.nextSeq)
		}
		q.req.resize()
		q.com.restartTimer(now)
	case verbs.QPStateSQD:
		q.req.drainReported = false
		q.reportDrained()
	}
	return nil
}

// seqBase keeps sequence numbers away from 0, so that a PSN before the first one is no wrap.
const seqBase = 1 << 24

// psn is the PSN of a sequence number.
func psn(seq uint64) wire.PSN { return wire.PSN(seq) & wire.PSNMask }

// Polled tells the QP that the places of the first n work requests since RESET are free.
func (q *QP) Polled(n uint64) { q.sq.polled = max(q.sq.polled, min(n, q.sq.head)) }

// Post appends a work request to the send queue, or completes it at once with WCFlushErr when
// the QP is in the error state. Its values have been checked.
func (q *QP) Post(wr *verbs.SendWR) error {
	switch q.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
	case verbs.QPStateErr, verbs.QPStateSQE:
		if len(q.sq.wqes) == 0 { // the error came before RTS, when there was no ring yet
			q.sq = newSendQueue(q.cfg.Cap, seqBase)
			q.mtu = max(q.mtu, uint32(verbs.MTU256.Bytes()))
		}
	default:
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: sends need RTS (Modify, or Init, RTR and RTS)", q.attr.State)
	}
	if err := q.sq.full(); err != nil {
		return err
	}
	w := q.sq.push(wr, q.mtu)
	if q.cfg.SignalAll {
		w.flags |= verbs.SendSignaled
	}
	if wr.Flags&verbs.SendInline != 0 && wr.InlineData == nil {
		w.inline = q.sq.inlineSpace((q.sq.tail-1)&uint64(len(q.sq.wqes)-1), w.length)
		// A card's driver reads inline data with the program's own rights, at once: a bad
		// SGE is therefore the post's error here, not the completion's.
		if f := q.host.Gather(w.inline, w.sg, 0); f != nil {
			q.sq.tail--
			q.sq.nextSeq, q.sq.messages = w.seq, w.message
			return verbs.Errorf(verbs.ErrInvalid, "inline data: %v", f.Cause)
		}
	}
	if w.flags&verbs.SendSignaled != 0 {
		q.sq.lastSignaled = q.sq.tail
	}
	if q.attr.State == verbs.QPStateErr || q.attr.State == verbs.QPStateSQE {
		q.flushSend()
	}
	return nil
}

// Transmit writes the next packet that is due into buf, from the BTH to the space for the
// ICRC, and returns its length, or 0 if none is or the turn is over: see Pending. buf must have
// MaxDatagram bytes.
func (q *QP) Transmit(now time.Duration, buf []byte) int {
	if q.cfg.Type != verbs.QPTypeRC {
		return q.unr.transmit(buf)
	}
	if n := q.res.transmit(buf); n > 0 {
		return n
	}
	return q.req.transmit(now, buf)
}

// HandlePacket takes a packet whose ICRC, destination QPN, P_Key and source have been checked.
func (q *QP) HandlePacket(now time.Duration, p *wire.Packet) {
	if service := p.Opcode.Service(); service != wire.ServiceRC || q.cfg.Type != verbs.QPTypeRC {
		if service == wire.ServiceUC && q.cfg.Type == verbs.QPTypeUC {
			q.handleUC(p)
		} else {
			q.counters.Unexpected++
		}
		return
	}
	if p.Opcode.IsRequest() {
		switch q.attr.State {
		case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD:
			q.res.handle(p)
		}
		return
	}
	switch q.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
		q.com.handle(now, p)
	}
}

// NextTimeout returns when HandleTimeout wants to be called, or Never.
func (q *QP) NextTimeout() time.Duration { return min(q.com.ackDeadline, q.req.resumeAt) }

// HandleTimeout acts on the timeouts that have come.
func (q *QP) HandleTimeout(now time.Duration) {
	if now >= q.req.resumeAt {
		q.req.resumeAt = Never
		q.com.restartTimer(now)
	}
	if now >= q.com.ackDeadline {
		q.com.timeout(now)
	}
}

// Fail takes the QP to the error state for a cause that is not its own, such as a CQ that lost
// its completions.
func (q *QP) Fail() {
	if q.attr.State == verbs.QPStateReset || q.attr.State == verbs.QPStateErr {
		return
	}
	q.res.abandon()
	q.enterError()
	q.host.Event(verbs.EventQPFatal)
}

// fail completes the oldest send work request with an error and takes the QP to the error
// state, which flushes all others.
func (q *QP) fail(status verbs.WCStatus, cause error) {
	w := q.sq.at(q.sq.head)
	q.sq.head++
	q.attr.State = verbs.QPStateErr // the Host may look
	q.complete(w, status, cause)
	q.res.abandon()
	q.enterError()
}

// enterError goes to the error state and flushes every work request.
func (q *QP) enterError() {
	q.attr.State = verbs.QPStateErr
	q.com.ackDeadline, q.req.resumeAt = Never, Never
	q.flushSend()
	q.res.flush()
}

func (q *QP) flushSend() {
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		q.sq.head++
		q.complete(w, verbs.WCFlushErr, nil)
	}
	q.req.cur = q.sq.head
}

var wcOpcodes = [...]verbs.WCOpcode{
	verbs.OpRDMAWrite:        verbs.WCRDMAWrite,
	verbs.OpRDMAWriteWithImm: verbs.WCRDMAWrite,
	verbs.OpSend:             verbs.WCSend,
	verbs.OpSendWithImm:      verbs.WCSend,
	verbs.OpRDMARead:         verbs.WCRDMARead,
	verbs.OpAtomicCmpSwap:    verbs.WCCompSwap,
	verbs.OpAtomicFetchAdd:   verbs.WCFetchAdd,
	verbs.OpSendWithInv:      verbs.WCSend,
	verbs.OpLocalInv:         verbs.WCLocalInv,
	verbs.OpBindMW:           verbs.WCBindMW,
}

// complete makes the completion of w, whose place is the one before sq.head. Unsignaled
// successes make none; their places are freed with the next completion's.
func (q *QP) complete(w *sendWQE, status verbs.WCStatus, cause error) {
	if status == verbs.WCSuccess && w.flags&verbs.SendSignaled == 0 {
		return
	}
	wc := verbs.WC{ID: w.id, Status: status, Op: wcOpcodes[w.op], QPN: q.cfg.QPN, Cause: cause}
	if w.answered() && status == verbs.WCSuccess {
		wc.ByteLen = w.length
	}
	q.host.CompleteSend(wc, q.sq.head)
}

// drained reports whether every work request that was started is complete.
func (q *QP) drained() bool {
	if q.cfg.Type == verbs.QPTypeRC {
		return q.req.drained()
	}
	return q.unr.sent == 0
}

// reportDrained raises the event of a send queue that has drained, once.
func (q *QP) reportDrained() {
	if q.attr.State != verbs.QPStateSQD || q.req.drainReported || !q.drained() {
		return
	}
	q.req.drainReported = true
	if q.attr.EnSQDAsyncNotify {
		q.host.Event(verbs.EventSQDrained)
	}
}
