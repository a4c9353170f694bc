package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Counters count losses, repeats, refusals and other exceptions.
type Counters struct {
	Retransmits       uint64 // packets sent again
	Repeats           uint64 // how often the requester went back, for any cause
	Timeouts          uint64 // acknowledge timeouts
	Probes            uint64 // packets sent again to learn the fate of unacknowledged ones
	NeedlessProbes    uint64 // of Probes, those that were answered though nothing was lost
	Needless          uint64 // how often a repeat was needless, or had become so: the packet had arrived
	RNRNAKs           uint64 // received
	SequenceNAKs      uint64 // received
	ImpliedNAKs       uint64 // gaps in the responses
	Duplicates        uint64 // requests that had come before
	OutOfOrder        uint64 // requests dropped because an earlier one was missing
	Held              uint64 // requests that came before an earlier one, and were held or placed
	PathsLeft         uint64 // how often a path was left because it lost more packets than others
	PathProbes        uint64 // packets that tried paths that had been left, or idle
	RepeatedResponses uint64 // responses to READs and atomics that had come before: they were requested again
	Unexpected        uint64 // packets dropped because nothing waited for them

	RetryExceeded    uint64 // connections that ended because no retry was left
	RNRRetryExceeded uint64 // connections that ended because no RNR retry was left
	BlackHoles       uint64 // those of RetryExceeded where smaller packets arrived

	// NAKs received that end the connection.
	InvalidNAKs, AccessNAKs, OperationNAKs uint64

	SentRNRNAKs      uint64 // requests refused for lack of a receive
	SentSequenceNAKs uint64
	RefusedInvalid   uint64 // requests refused as invalid; UC drops them without an answer
	RefusedAccess    uint64 // requests refused for their key, range or right
	RefusedOperation uint64 // requests that failed for a cause at this end
	TooLong          uint64 // messages that are longer than their receive

	CongestionMarks         uint64 // packets that came with ECN's congestion mark
	CongestionNotifications uint64 // CNPs received
	IgnoredNotifications    uint64 // CNPs received though the QP's packets allow no marks
	SentNotifications       uint64 // CNPs sent

	QKeyViolations uint64 // UD: datagrams with another Q_Key than the QP's
	NoReceive      uint64 // UC and UD: messages for which no receive was posted
	MissedPackets  uint64 // UC: packets that were left out of the sequence of PSNs
	LostMessages   uint64 // UC: messages dropped because a packet of them was missing
}

// Work counts the work of a QP.
type Work struct {
	completed [sendOps]uint64 // send work requests that succeeded: see Completed
	Received  uint64          // receives that succeeded

	// Work requests that ended with another status than WCSuccess.
	SendErrors, SendFlushes, RecvErrors, RecvFlushes uint64

	// Requests of the peer that were executed. A WRITE counts at its last packet, and a long READ counts as several
	// requests.
	Writes, Reads, Atomics, Flushes, AtomicWrites uint64
	WriteBytes                                    uint64 // placed by WRITEs
}

// sendOps is how many operations there are. Those from OpFlush on come behind opGap opcodes that none has: every QP has these
// counters.
const (
	opGap   = verbs.OpFlush - verbs.OpSendWithInv - 1
	sendOps = verbs.OpAtomicWrite - opGap + 1
)

// opIndex is the place of an operation in Work.completed.
func opIndex(op verbs.Opcode) verbs.Opcode {
	if op >= verbs.OpFlush {
		op -= opGap
	}
	return op
}

// Completed returns how many send work requests of an operation have succeeded.
func (w *Work) Completed(op verbs.Opcode) uint64 { return w.completed[opIndex(op)] }

// Gauges are the current state of a QP.
type Gauges struct {
	Window    uint64 // RC: packets that may be unacknowledged
	InFlight  uint64 // RC: packets that are unacknowledged
	RoundTrip uint64 // RC: ns, smoothed; 0 while unknown
	Rate      uint64 // bytes in a second that congestion control allows; 0 if it sets no rate
	SendQueue uint64 // send work requests that are not complete
	Receives  uint64 // posted; 0 with an SRQ
}

// Counters returns the QP's counters. RESET does not set them back.
func (q *QP) Counters() Counters {
	c := q.counters
	if r, ok := q.service.(*rc); ok {
		n := r.recovery.Counts()
		c.NeedlessProbes = n.NeedlessProbes
		c.PathsLeft += n.PathsLeft
		c.PathProbes += n.PathProbes
	}
	return c
}

// Work returns the counters of the QP's work.
func (q *QP) Work() Work { return q.work }

// Gauges returns the current gauges.
func (q *QP) Gauges() Gauges {
	g := Gauges{SendQueue: q.sq.tail - q.sq.head, Receives: uint64(max(0, q.cfg.Receives.Credits()))}
	g.Rate = q.rate.BytesPerSecond()
	if r, ok := q.service.(*rc); ok {
		g.Window, g.InFlight = r.recovery.Limit(), r.recovery.Nxt()-r.recovery.Una()+uint64(r.fast.n)
		g.RoundTrip = uint64(r.recovery.SRTT())
	}
	return g
}

// wrote counts a WRITE of the peer's.
func (w *Work) wrote() { w.Writes++ }

// sendDone counts a send work request that has ended.
func (w *Work) sendDone(op verbs.Opcode, status verbs.WCStatus) {
	switch status {
	case verbs.WCSuccess:
		w.completed[opIndex(op)]++
	case verbs.WCFlushErr:
		w.SendFlushes++
	default:
		w.SendErrors++
	}
}

// recvDone counts a receive that has ended.
func (w *Work) recvDone(status verbs.WCStatus) {
	switch status {
	case verbs.WCSuccess:
		w.Received++
	case verbs.WCFlushErr:
		w.RecvFlushes++
	default:
		w.RecvErrors++
	}
}

// refused counts a request that is not executed.
func (c *Counters) refused(r *refusal) {
	switch {
	case r.rnr:
		c.SentRNRNAKs++
	case r.status == verbs.WCLocLenErr:
		c.TooLong++
	case r.nak == wire.NAKRemoteAccessError:
		c.RefusedAccess++
	case r.nak == wire.NAKRemoteOperationalError:
		c.RefusedOperation++
	default:
		c.RefusedInvalid++
	}
}
