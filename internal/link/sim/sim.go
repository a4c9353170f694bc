// Package sim is a simulated network in memory. It delivers datagrams in order and at once. On demand it loses,
// repeats, reorders, corrupts, delays and marks them, in a way that a seed determines: the fate of the n-th datagram
// from one address to another depends on the seed, the two addresses and n only, however the goroutines interleave. A
// datagram to a multicast group goes to the address of each member.
//
// The package waits with channels and timers only, so it runs inside testing/synctest. With Config.Now it runs by a
// clock of the caller's, and a single goroutine is enough.
package sim

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/fault"
)

// Defaults of Config.
const (
	DefaultMTU      = 9000 // bytes: room for the largest RoCE MTU, 4096, and all headers
	DefaultQueueLen = 4096 // datagrams
	DefaultMaxTrain = 64   // datagrams
)

// Faults says how a network disturbs datagrams.
type Faults = fault.Faults

// Config describes a network. Its zero value is a network without faults.
type Config struct {
	Seed uint64

	Loss, Duplicate, Reorder, Corrupt float64 // probabilities; see Faults
	Delay, Jitter                     time.Duration
	MarkCE                            float64 // a probability
	Rate                              int64   // on the way to each address; see Faults
	MarkCEAbove                       int     // on the way to each address; see Faults

	MTU       int  // bytes of an IP packet; 0 is DefaultMTU
	QueueLen  int  // datagrams that may wait at a receiver; 0 is DefaultQueueLen
	MaxTrain  int  // datagrams in a train; 0 is DefaultMaxTrain
	IDVisible bool // receivers see the IPv4 identification, as with a raw socket
	NoLabels  bool // receivers see no IPv6 flow label, as on systems that cannot show one

	// Now is the network's clock, which must not go back; nil is the time since New. Even with
	// another clock, Wait sleeps by the real one.
	Now func() time.Duration
}

// Stats counts the fates of a network's datagrams.
type Stats struct {
	Lost, Duplicated, Reordered, Corrupted uint64 // by Config's probabilities
	Marked                                 uint64 // as having met congestion

	Partitioned uint64 // lost because Partition separates the two addresses
	Unreachable uint64 // lost because no link was open at the destination, or its Netdev was down
	Overflowed  uint64 // lost because the receiver's queue was full
}

// A Network is a set of Netdevs that reach each other.
type Network struct {
	seed     uint64
	mtu      int
	queueLen int
	maxTrain int
	visible  bool
	noLabels bool
	now      func() time.Duration

	faults  atomic.Pointer[Faults]                 // nil when there are none
	members atomic.Pointer[map[netip.Addr][]*Link] // of multicast groups; replaced under mu

	mu       sync.Mutex
	netdevs  int
	ports    int
	stations map[netip.Addr]*station
	paths    map[pair]*path
}

// A pair is a source and a destination.
type pair struct{ src, dst netip.Addr }

// A path is the network's state for a pair. to.mu guards the Path and the counts.
type path struct {
	*fault.Path
	dst netip.Addr
	to  *station
	cut atomic.Bool
	own atomic.Pointer[Faults] // in place of the network's; nil for those

	routes atomic.Pointer[fault.Routes] // nil if there are none

	dice                     fault.Counts
	partitioned, unreachable uint64
}

// New returns a network.
func New(c Config) *Network {
	n := &Network{
		seed:     c.Seed,
		mtu:      orDefault(c.MTU, DefaultMTU),
		queueLen: orDefault(c.QueueLen, DefaultQueueLen),
		maxTrain: orDefault(c.MaxTrain, DefaultMaxTrain),
		visible:  c.IDVisible,
		noLabels: c.NoLabels,
		now:      c.Now,
		stations: make(map[netip.Addr]*station),
		paths:    make(map[pair]*path),
	}
	if n.now == nil {
		start := time.Now()
		n.now = func() time.Duration { return time.Since(start) }
	}
	n.members.Store(&map[netip.Addr][]*Link{})
	n.SetFaults(Faults{Loss: c.Loss, Duplicate: c.Duplicate, Reorder: c.Reorder, Corrupt: c.Corrupt,
		Delay: c.Delay, Jitter: c.Jitter, MarkCE: c.MarkCE, Rate: c.Rate, MarkCEAbove: c.MarkCEAbove})
	return n
}

func orDefault(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

// SetFaults replaces the faults for the datagrams sent from now on.
func (n *Network) SetFaults(f Faults) {
	if f == (Faults{}) {
		n.faults.Store(nil)
		return
	}
	n.faults.Store(&f)
}

// SetPathFaults gives datagrams from src to dst faults of their own, in place of the network's. nil takes that back.
func (n *Network) SetPathFaults(src, dst netip.Addr, f *Faults) {
	if f != nil {
		own := *f
		f = &own
	}
	n.path(src, dst).own.Store(f)
}

// Plan plans the fate of the nth datagram, counted from 1 and from now on, from src to dst.
func (n *Network) Plan(src, dst netip.Addr, nth uint64, what fault.Plan) {
	p := n.path(src, dst)
	p.to.mu.Lock()
	defer p.to.mu.Unlock()
	p.Plan(nth, what)
}

// Partition separates a and b: all datagrams between them are lost, until Heal. Datagrams under way still arrive.
func (n *Network) Partition(a, b netip.Addr) { n.cut(a, b, true) }

// Heal ends a Partition.
func (n *Network) Heal(a, b netip.Addr) { n.cut(a, b, false) }

func (n *Network) cut(a, b netip.Addr, cut bool) {
	n.path(a, b).cut.Store(cut)
	n.path(b, a).cut.Store(cut)
}

// Now returns the time by the network's clock.
func (n *Network) Now() time.Duration { return n.now() }

// NextDelivery returns when the next datagram arrives, by the network's clock. If one has arrived already, that is
// not later than now. It reports false if nothing is under way.
func (n *Network) NextDelivery() (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var first time.Duration
	found := false
	for _, s := range n.stations {
		s.mu.Lock()
		at, ok := s.queue.Next()
		s.mu.Unlock()
		if ok && (!found || at < first) {
			first, found = at, true
		}
	}
	return first, found
}

// NextDeliveryTo is NextDelivery for the datagrams to one address.
func (n *Network) NextDeliveryTo(addr netip.Addr) (time.Duration, bool) {
	s := n.station(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Next()
}

// Stats returns the network's counters.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	var sum Stats
	for _, p := range n.paths {
		p.to.mu.Lock()
		sum.Lost += p.dice.Lost
		sum.Duplicated += p.dice.Duplicated
		sum.Reordered += p.dice.Reordered
		sum.Corrupted += p.dice.Corrupted
		sum.Marked += p.dice.Marked
		sum.Partitioned += p.partitioned
		sum.Unreachable += p.unreachable
		p.to.mu.Unlock()
	}
	for _, s := range n.stations {
		s.mu.Lock()
		sum.Overflowed += s.queue.Dropped()
		s.mu.Unlock()
	}
	return sum
}

// path returns the path from src to dst. Paths exist as long as the network does, so that the
// numbers of their datagrams go on.
func (n *Network) path(src, dst netip.Addr) *path {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.paths[pair{src, dst}]
	if p == nil {
		p = &path{Path: fault.NewPath(n.seed, src, dst), dst: dst, to: n.stationLocked(dst)}
		n.paths[pair{src, dst}] = p
	}
	return p
}

func (n *Network) station(addr netip.Addr) *station {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stationLocked(addr)
}

func (n *Network) stationLocked(addr netip.Addr) *station {
	s := n.stations[addr]
	if s == nil {
		s = &station{queue: fault.NewQueue(n.queueLen)}
		n.stations[addr] = s
	}
	return s
}

// A station receives the datagrams to one address, whether or not a link is open there.
type station struct {
	attached atomic.Bool // whether a Netdev that is up has the address

	mu     sync.Mutex
	queue  *fault.Queue // empty unless link is open
	link   *Link        // nil when none is open
	inWait bool         // link is in Wait
}

// open gives the station's datagrams to a link. It returns false if another link is open.
func (s *station) open(l *Link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		return false
	}
	s.link = l
	l.began(s.queue.Dropped())
	return true
}

// close takes the station from its link, with the datagrams that wait.
func (s *station) close(l *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.ended(s.queue.Dropped())
	s.queue.Clear()
	s.link, s.inWait = nil, false
}

// wake makes the link look at the queue, if it is in Wait. The caller holds s.mu.
func (s *station) wake() {
	if s.inWait {
		s.inWait = false
		s.link.look()
	}
}

// next reports whether a datagram is ready for a link. If none is, the link is in Wait from now on, and sleep is the time
// until the first datagram arrives, or negative if none is under way.
func (s *station) next(l *Link) (sleep time.Duration, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sleep = -1
	if at, ok := s.queue.Next(); ok && s.link == l {
		if sleep = at - l.net.now(); sleep <= 0 || at == 0 {
			return 0, true
		}
	}
	s.inWait = true
	return sleep, false
}
