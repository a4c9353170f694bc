package cm

import "github.com/adverb-rdma/adverb/internal/wire"

// Counts has a count for each CM message, from wire.CMREQ on.
type Counts [wire.CMAPR - wire.CMREQ + 1]uint64

func (c *Counts) add(a wire.CMAttr) { c[a-wire.CMREQ]++ }

// Of returns the count of one message.
func (c Counts) Of(a wire.CMAttr) uint64 {
	if a < wire.CMREQ || a > wire.CMAPR {
		return 0
	}
	return c[a-wire.CMREQ]
}

// Stats are the counters of a machine, and the numbers of its records.
type Stats struct {
	Sent     Counts
	Repeated Counts // those of Sent that were sent before
	Received Counts
	Ignored  Counts // those of Received that are duplicates, or mean nothing in the connection's state
	Unknown  Counts // those of Received whose communication IDs no connection has

	Malformed uint64 // MADs that are no CM messages, and messages that make no sense
	Foreign   uint64 // messages for a connection that come from another address than its peer's
	Dropped   uint64 // MADs that the caller has not taken from Transmit in time
	Refused   uint64 // requests beyond a bound: the backlog, or the attempts of all or of one source
	Displaced uint64 // attempts that made room for one of another source
	Silent    uint64 // requests whose senders did not repeat them, though nobody had answered
	Evicted   uint64 // records that were forgotten early because there were too many

	Conns     int // including those in time-wait
	SIDRs     int
	Listeners int
	Requests  int // not answered yet
	HalfOpen  int // accepted, and not confirmed by the peer yet
	Retired   int // those of Conns and SIDRs that are kept only for late messages
	Timers    int
}

// countSilent counts a request whose sender did not repeat it.
func (m *Machine) countSilent() { m.stats.Silent++ }

// Stats returns the machine's counters, and the numbers of its records.
func (m *Machine) Stats() Stats {
	s := m.stats
	s.Conns, s.SIDRs = len(m.conns), len(m.sidrs)+len(m.sidrReqs)
	for _, at := range m.services {
		s.Listeners += len(at)
	}
	s.Requests, s.HalfOpen = count(m.attempts)
	s.Retired, s.Timers = m.retired.Len(), len(m.timers)
	return s
}
