package iwarp

import (
	"errors"
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config configures a QP.
type Config struct {
	QPN       verbs.QPN
	User      *verbs.QP // for completions
	Cap       verbs.QPCap
	SignalAll bool
	PD        *mem.PD
	Receives  queue.Receives
}

// QP is one end of an iWARP connection. Its methods are called by one goroutine at a time.
type QP struct {
	cfg   Config
	attr  verbs.QPAttr
	terms mpa.Terms // from Attach on
	sq    sendQueue
	tx    sender
	rx    receiver

	copies bool // see Copies

	done    []queue.CQE
	events  []Event
	failure error
	Counters
}

// Counters are the counters of a QP.
type Counters struct {
	FPDUsSent, FPDUsReceived           uint64
	BytesSent, BytesReceived           uint64 // of payload
	TerminatesSent, TerminatesReceived uint64
	CRCErrors                          uint64
}

// Event is an asynchronous event of the QP. Cause is the cause of a failure, if the event is one.
type Event struct {
	Type  verbs.EventType
	Cause error
}

// New makes a QP in the state RESET.
func New(cfg Config) *QP {
	q := &QP{cfg: cfg}
	q.reset()
	return q
}

func (q *QP) reset() {
	q.attr = verbs.QPAttr{State: verbs.QPStateReset}
	q.terms, q.sq, q.tx, q.rx, q.failure = mpa.Terms{}, sendQueue{}, sender{}, receiver{}, nil
	q.copies = false
}

// State returns the QP's state.
func (q *QP) State() verbs.QPState { return q.attr.State }

// Failure returns why the QP is in the error state, or nil if it is not there.
func (q *QP) Failure() error { return q.failure }

// Terms returns the terms on which the ends have agreed.
func (q *QP) Terms() mpa.Terms { return q.terms }

// Attr returns the QP's attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.CurState, a.Cap = a.State, q.cfg.Cap
	a.MaxRDAtomic, a.MaxDestRDAtomic = q.terms.ORD, q.terms.IRD
	a.SQDraining = a.State == verbs.QPStateSQD && !q.drained()
	return a
}

// Modify changes attributes and state, as far as iWARP leaves that to the program.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	from := q.attr.State
	to, err := verbs.TransportIWARP.CheckModify(verbs.QPTypeRC, from, attr, mask)
	if err != nil {
		return err
	}
	if mask&verbs.MaskAccessFlags != 0 {
		q.attr.Access = attr.Access
	}
	if mask&verbs.MaskPort != 0 {
		q.attr.Port = attr.Port
	}
	switch to {
	case verbs.QPStateReset:
		q.reset()
		return nil
	case verbs.QPStateErr:
		q.enterError(errModified)
		return nil
	case verbs.QPStateSQD:
		q.sq.limit = q.sq.tail
	}
	q.attr.State = to
	return nil
}

// Attach takes the QP from INIT to RTS: it has a stream, whose ends have agreed on terms.
func (q *QP) Attach(t mpa.Terms) error {
	if q.attr.State != verbs.QPStateInit {
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: a connection takes it from QPS_INIT to QPS_RTS", q.attr.State)
	}
	q.terms = t
	q.sq = newSendQueue(q.cfg.Cap)
	q.tx, q.rx = newSender(t), newReceiver()
	q.attr.State = verbs.QPStateRTS
	return nil
}

// Copies says that a read or a write of the stream has met memory that faults. Payload is copied from then on, so that
// Fill and Receive find whose it is. Copies returns false if it was called before.
func (q *QP) Copies() bool {
	was := q.copies
	q.copies = true
	return !was
}

// Post appends a work request to the send queue. In the error state it completes at once with
// WCFlushErr. The caller has checked its values.
func (q *QP) Post(wr *verbs.SendWR) error {
	switch q.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
	case verbs.QPStateErr:
		if len(q.sq.wqes) == 0 {
			q.sq = newSendQueue(q.cfg.Cap)
		}
	default:
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: sends need RTS, to which the connection manager takes it", q.attr.State)
	}
	if wr.Op == verbs.OpSendWithImm {
		return verbs.Errorf(verbs.ErrUnsupported, "iWARP has no SEND with immediate data: use a WRITE with immediate data, or put the number into the message")
	}
	if err := q.sq.full(); err != nil {
		return err
	}
	w := q.sq.push(wr)
	if q.cfg.SignalAll {
		w.flags |= verbs.SendSignaled
	}
	if wr.Flags&verbs.SendInline != 0 && wr.InlineData == nil {
		w.inline = q.sq.inlineSpace(q.sq.tail-1, w.length)
		if err := q.cfg.PD.Gather(w.inline, w.sg, 0); err != nil {
			q.sq.tail--
			return verbs.Errorf(verbs.ErrInvalid, "inline data: %v", err)
		}
	}
	if w.flags&verbs.SendSignaled != 0 {
		q.sq.lastSignaled = q.sq.tail
	}
	if q.attr.State == verbs.QPStateErr {
		q.flushSend()
	}
	return nil
}

// Completions returns the completions since the last call, in their order. The slice holds until the
// next call of any method.
func (q *QP) Completions() []queue.CQE {
	const keep = 256
	done := q.done
	if cap(done) > keep {
		q.done = nil
	} else {
		q.done = done[:0]
	}
	return done
}

// Events returns the asynchronous events since the last call, in their order.
func (q *QP) Events() []Event {
	events := q.events
	q.events = nil
	return events
}

func (q *QP) raise(t verbs.EventType, cause error) { q.events = append(q.events, Event{t, cause}) }

var errModified = verbs.Errorf(verbs.ErrState, "this end has taken the QP to the error state")

// Fail takes the QP to the error state for a cause that is not its own. An event says so.
func (q *QP) Fail(cause error) {
	switch q.attr.State {
	case verbs.QPStateReset, verbs.QPStateErr:
		return
	}
	q.enterError(cause)
	q.raise(verbs.EventQPFatal, cause)
}

// Lost takes note that the stream has ended by an error, or with io.EOF by the peer's closing it. It
// reports whether the connection has ended in order: then the state stays, until the connection
// manager has heard of it.
func (q *QP) Lost(err error) (inOrder bool) {
	switch q.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
	default:
		return true
	}
	q.rx.dead = true
	if errors.Is(err, io.EOF) {
		if q.rx.idle() {
			return true
		}
		err = errors.New("the stream ends inside a message")
	}
	q.failOldest(verbs.WCRetryExceeded, fmt.Errorf("the TCP connection is lost: %w", err))
	return false
}

// failOldest completes the oldest send work request with an error, and takes the QP to the error state.
// Where nothing is posted, an event tells.
func (q *QP) failOldest(status verbs.WCStatus, cause error) {
	why := fmt.Errorf("%w (%w)", status, cause)
	if q.sq.head == q.sq.tail {
		q.Fail(why)
		return
	}
	q.completeSend(status, cause)
	q.enterError(why)
}

// enterError goes to the error state and flushes the send queue, and the receive of a message under way.
func (q *QP) enterError(why error) {
	if q.attr.State != verbs.QPStateErr {
		q.failure = why
	}
	q.attr.State = verbs.QPStateErr
	q.flushSend()
	q.rx.dead = true
	if r := q.rx.recv; r != nil {
		q.rx.recv = nil
		q.completeRecv(r, verbs.WC{Status: verbs.WCFlushErr, Op: verbs.WCRecv}, true)
	}
	q.tx.abandon()
}

// reject ends the connection for a fault in the peer's bytes. A Terminate message tells the peer of the fault.
func (q *QP) reject(err error) {
	f := &Fault{Code: rdmapStream, err: err}
	if of, ok := errors.AsType[*Fault](err); ok {
		f = of
	}
	event := verbs.EventQPReqErr
	switch {
	case errors.Is(f, mem.ErrFault): // memory of this end's
		event = verbs.EventQPFatal
	case f.Code.status() == verbs.WCRemAccessErr:
		event = verbs.EventQPAccessErr
	}
	cause := fmt.Errorf("%w; the peer is told: %v", f, f.Code)
	msg := &TermMsg{Code: f.Code}
	if f.Code>>12 != 2 && q.rx.known {
		h := q.rx.h
		msg.Header, msg.Segment, msg.Read = &h, q.rx.segment, q.rx.read
	}
	q.enterError(cause)
	q.tx.terminate(msg)
	q.raise(event, cause)
}

// terminated takes the peer's word that it ends the connection.
func (q *QP) terminated(m *TermMsg) {
	q.TerminatesReceived++
	status := m.Code.status()
	cause := fmt.Errorf("the peer has terminated the connection: %v", m.Code)
	if m.Header != nil {
		cause = fmt.Errorf("%w, about %v", cause, about(m))
	}
	why := fmt.Errorf("%w (%w)", status, cause)
	// The message that is at fault may be complete here: a SEND or WRITE is, once it is sent. Only of a
	// READ or an atomic it is known that it is not.
	if m.Header != nil && (m.Header.Op == ReadRequest || m.Header.Op == AtomicRequest) && !m.Header.Tagged {
		for q.sq.head != q.sq.tail && q.sq.at(q.sq.head).msn != m.Header.MSN {
			q.completeSend(verbs.WCFlushErr, nil)
		}
		if q.sq.head != q.sq.tail {
			q.completeSend(status, cause)
			q.enterError(why)
			return
		}
	}
	q.enterError(why)
	q.raise(verbs.EventQPFatal, why)
}

// about says which message of this end a Terminate message is about.
func about(m *TermMsg) string {
	h := m.Header
	switch {
	case m.Read != nil:
		return fmt.Sprintf("the %v of %d bytes at va %#x, rkey %v", h.Op, m.Read.Size, m.Read.SrcTO, verbs.RKey(m.Read.SrcSTag))
	case h.Tagged:
		return fmt.Sprintf("the %v at va %#x, rkey %v", h.Op, h.TO, verbs.RKey(h.STag))
	}
	return fmt.Sprintf("message %d of queue %d, a %v", h.MSN, h.QN, h.Op)
}
