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

// Stats are what a machine counted, and what it holds.
type Stats struct {
	Sent     Counts
	Repeated Counts // of Sent
	Received Counts
	Ignored  Counts // of Received: duplicates, and what the connection's state has no use for
	Unknown  Counts // of Received: with communication IDs that nobody has

	Malformed uint64 // MADs that are no CM messages, and messages without sense
	Foreign   uint64 // messages for connections from other addresses than their peers'
	Dropped   uint64 // MADs that nobody asked Transmit for in time
	Refused   uint64 // requests over a backlog
	Evicted   uint64 // records forgotten early, because there were too many

	Conns     int // time-wait included
	SIDRs     int
	Listeners int
	Requests  int // unanswered
	Retired   int // connections and SIDR exchanges kept only for late messages; of Conns and SIDRs
	Timers    int
}

// Stats returns what the machine counted so far.
func (m *Machine) Stats() Stats {
	s := m.stats
	s.Conns, s.SIDRs = len(m.conns), len(m.sidrs)+len(m.sidrReqs)
	for _, at := range m.services {
		s.Listeners += len(at)
	}
	s.Requests, s.Retired, s.Timers = m.requests, m.retired.Len(), len(m.timers)
	return s
}
