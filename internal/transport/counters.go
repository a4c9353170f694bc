package transport

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

	CongestionMarks         uint64 // packets that came with ECN's congestion mark
	CongestionNotifications uint64 // CNPs received

	QKeyViolations uint64 // UD: datagrams with another Q_Key than the QP's
	NoReceive      uint64 // UC and UD: messages for which no receive was posted
}

// Executed counts what the QP did to its memory for the peer.
type Executed struct {
	WriteBytes uint64 // placed by WRITEs
	Atomics    uint64
}

// Counters returns the QP's counters.
func (q *QP) Counters() Counters { return q.counters }

// Executed returns what the QP did for the peer.
func (q *QP) Executed() Executed { return q.executed }
