package fault

import (
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// frameHeaders is the bytes on an Ethernet beside the payload: UDP, IPv4, the frame's header and checksum, its
// preamble and the gap to the next.
const frameHeaders = 8 + 20 + 18 + 20

// PortConfig describes a Port. 0 stands for no limit, and for no marks.
type PortConfig struct {
	Rate   int64         // bytes that leave in a second
	Delay  time.Duration // of the cable behind it
	Buffer int           // bytes that may wait; a datagram that finds no room is lost
	MTU    int           // bytes of the longest IP packet; longer ones are lost without a word

	// A datagram that finds more than MarkFrom bytes waiting is marked with a probability that grows from 0 there to
	// MarkMost at MarkTo. Beyond that all are marked. Only datagrams that allow marks are.
	MarkFrom, MarkTo int
	MarkMost         float64
}

// PortStats counts the datagrams of a Port.
type PortStats struct {
	Passed, Lost, Marked uint64
	Bytes                uint64 // that passed, with the headers of frames
	Longest              int    // bytes that have waited
	TooLong              uint64 // lost because they exceeded the MTU; Lost does not count them
	Cable                Counts // of those that passed, the fates by SetFaults

	// Of Sample only.
	Waiting int    // bytes that wait now
	Left    uint64 // bytes that have left; Bytes are those that wait too
}

// A Port is the way out of a card or of a switch. Any number of paths may lead through it.
type Port struct {
	PortConfig
	seed uint64

	mu     sync.Mutex
	down   bool
	busy   time.Duration // when all that waits has left
	n      uint64
	stats  PortStats
	before int             // bytes that waited when Sample reset
	faults *Faults         // of the cable; nil if there are none
	cables map[*Path]*Path // that each path's datagrams take, once there have been faults
}

// NewPort returns a port whose marks depend on the seed.
func NewPort(seed uint64, c PortConfig) *Port { return &Port{PortConfig: c, seed: mix(seed + golden)} }

// Stats returns the port's counters. If it resets, they begin anew.
func (p *Port) Stats(reset bool) PortStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	if reset {
		p.stats = PortStats{}
	}
	return s
}

// Sample is Stats with the bytes that wait at a time. If it resets, Longest begins with them.
func (p *Port) Sample(now time.Duration, reset bool) PortStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Waiting = p.waiting(now)
	s.Left = uint64(p.before) + s.Bytes - uint64(s.Waiting)
	if reset {
		p.stats, p.before = PortStats{Longest: s.Waiting}, s.Waiting
	}
	return s
}

// waiting returns how many bytes wait.
func (p *Port) waiting(now time.Duration) int {
	return int(max(0, p.busy-now).Seconds() * float64(p.Rate))
}

// SetFaults sets the faults on the cable from now on. f.Delay comes on top of the port's. f.Rate and f.MarkCEAbove do
// not count: the port has its own. The fate of the n-th datagram of a path that comes through the port meanwhile
// depends on the port's seed, the path's and n only.
func (p *Port) SetFaults(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults = &f; f == (Faults{}) {
		p.faults = nil
	}
}

// SetDown takes the port down, or up again. While it is down, every datagram that comes to it is lost. Datagrams that
// wait in it or are on its cable still arrive.
func (p *Port) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// pass takes a datagram that comes to the port at a time, and returns when the datagram is at the end of a cable
// without faults. It reports false if the datagram is lost. The caller has locked the port.
func (p *Port) pass(now time.Duration, d *link.Datagram) (at time.Duration, ok bool) {
	if p.MTU > 0 && len(d.Payload)+netHeaders(d) > p.MTU {
		p.stats.TooLong++
		return 0, false
	}
	size := len(d.Payload) + frameHeaders
	if p.down {
		p.stats.Lost++
		return 0, false
	}
	if p.Rate == 0 {
		p.stats.Passed++
		p.stats.Bytes += uint64(size)
		return now + p.Delay, true
	}
	waits := p.waiting(now)
	if p.Buffer > 0 && waits+size > p.Buffer {
		p.stats.Lost++
		return 0, false
	}
	p.stats.Longest = max(p.stats.Longest, waits+size)
	if p.n++; p.MarkTo > 0 && waits > p.MarkFrom && d.TrafficClass&link.ECNMask != link.NotECT {
		chance := 1.0
		if waits < p.MarkTo {
			chance = p.MarkMost * float64(waits-p.MarkFrom) / float64(p.MarkTo-p.MarkFrom)
		}
		if float64(mix(p.seed^mix(p.n))>>11) < chance*(1<<53) {
			d.TrafficClass |= link.CE
			p.stats.Marked++
		}
	}
	p.stats.Passed++
	p.stats.Bytes += uint64(size)
	p.busy = max(p.busy, now) + time.Duration(float64(size)/float64(p.Rate)*float64(time.Second))
	return p.busy + p.Delay, true
}

// netHeaders is the bytes of an IP packet beside its UDP payload.
func netHeaders(d *link.Datagram) int {
	if d.Dst.Addr().Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// cable returns the cable as one path's datagrams find it.
func (p *Port) cable(of *Path) *Path {
	c := p.cables[of]
	if c == nil {
		if p.cables == nil {
			p.cables = map[*Path]*Path{}
		}
		c = &Path{dice: Dice{mix(p.seed ^ of.dice.key)}, ahead: true}
		p.cables[of] = c
	}
	return c
}

// hop takes a parcel that comes to its next port.
func (q *Queue) hop(c *parcel, now time.Duration) {
	p := c.to.ports[0]
	c.to.ports = c.to.ports[1:]
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.pass(now, &c.d)
	if !ok {
		q.free = append(q.free, c)
		return
	}
	if p.faults == nil && p.cables == nil {
		q.pushLate(c, at)
		return
	}
	f := p.faults
	if f == nil {
		f = &noFaults // datagrams with faults are perhaps still under way, and must not be overtaken
	}
	cable := p.cable(c.to.path)
	fate := cable.fate(f)
	cable.meet(q, &fate, at, at+fate.Delay, &c.d, c.to, &p.stats.Cable)
	q.free = append(q.free, c)
}

var noFaults Faults
