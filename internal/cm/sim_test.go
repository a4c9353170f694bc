package cm

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

var (
	seedsFlag = flag.Int("seeds", 300, "how many random simulations to run")
	seedFlag  = flag.Int("seed", -1, "run the simulation of this seed only")
)

// TestSim lets users of two to four machines make any calls over a network that loses, repeats,
// delays and reorders, and checks the conditions that must hold all the same. See oracle_test.go.
func TestSim(t *testing.T) {
	if *seedFlag >= 0 {
		simulate(t, uint64(*seedFlag))
		return
	}
	n := *seedsFlag
	if testing.Short() {
		n = min(n, 25)
	}
	failures := 0
	for seed := range n {
		if !t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("replay with: go test ./internal/cm -run TestSim -args -seed %d", seed)
				}
			}()
			simulate(t, uint64(seed))
		}) {
			if failures++; failures >= 5 {
				return
			}
		}
	}
}

// The measures of the simulations.
const (
	simBusy     = 40 * time.Second // in which attempts begin
	simLongest  = 24 * time.Hour
	simSteps    = 1 << 20
	simLifetime = 14 // code of the shortest packet lifetime that users tell
)

// sim is one simulation.
type sim struct {
	t      *testing.T
	rnd    *rand.Rand
	now    time.Duration
	hosts  []*simHost
	flying []packet
	todo   []action
	qpns   uint32
	loss   float64 // share of the datagrams that the network loses
	twice  float64 // share of the datagrams that the network repeats
	calm   bool    // nothing is lost or late, hosts do not crash, QPNs do not come back
	log    []string
}

// action is something that a user will do.
type action struct {
	at time.Duration
	do func()
}

// simHost is a machine and its users.
type simHost struct {
	*Machine
	s        *sim
	n        int
	addr     netip.Addr
	life     int // a new one after each crash
	listener *Listener
	users    []*user
	sidrs    []*sidrUser
	qpns     []uint32 // used so far
}

func simulate(t *testing.T, seed uint64) {
	s := &sim{t: t, rnd: rand.New(rand.NewPCG(seed, 0xc0))}
	s.loss, s.twice = 0.1, 0.1
	if s.calm = s.rnd.IntN(4) == 0; s.calm {
		s.loss = 0
	}
	for n := range 2 + s.rnd.IntN(3) {
		h := &simHost{s: s, n: n, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + n)})}
		if s.rnd.IntN(4) == 0 {
			h.addr = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+n))
		}
		s.hosts = append(s.hosts, h)
		h.boot()
	}
	for range 1 + s.rnd.IntN(30) {
		s.in(s.within(simBusy), s.attempt)
	}
	for range s.rnd.IntN(4) {
		s.in(s.within(simBusy), s.attemptSIDR)
	}
	for _, h := range s.hosts {
		if s.rnd.IntN(4) == 0 { // for a while
			s.in(s.within(simBusy), func() { h.listener.Close(s.now) })
			s.in(simBusy+s.within(time.Minute), h.listen)
		}
	}
	if s.rnd.IntN(5) == 0 && !s.calm {
		s.in(s.within(simBusy), s.hosts[0].crash)
	}
	s.run()
	s.checkBeliefs()
	for _, h := range s.hosts {
		for _, u := range h.users {
			u.end()
		}
	}
	s.run()
	s.checkEnd()
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	for _, line := range s.log[max(0, len(s.log)-600):] {
		s.t.Log(line)
	}
	s.t.Fatalf(format, args...)
}

func (s *sim) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%12v ", s.now)+fmt.Sprintf(format, args...))
}

// within returns a time below d. Short times are more frequent.
func (s *sim) within(d time.Duration) time.Duration {
	if s.rnd.IntN(2) == 0 {
		d /= 100
	}
	return time.Duration(s.rnd.Int64N(int64(d)))
}

func (s *sim) in(d time.Duration, do func()) { s.todo = append(s.todo, action{s.now + d, do}) }

func (h *simHost) boot() {
	h.Machine = New(Config{GUID: uint64(100 + h.n), IDBase: uint32(h.n) << 20, IDBits: 20, Secret: secretOf(h.s.rnd.Uint64()), ACKDelay: 15})
	h.listener = nil
	h.listen()
}

func (h *simHost) listen() {
	if h.listener != nil && !h.listener.closed {
		return
	}
	backlog := 0
	if h.s.rnd.IntN(4) == 0 {
		backlog = 1 + h.s.rnd.IntN(3)
	}
	l, err := h.Listen(testService, netip.Addr{}, backlog)
	if err != nil {
		h.s.failf("listen: %v", err)
	}
	h.listener = l
}

// crash has a host forget all that it knows, and its users.
func (h *simHost) crash() {
	h.s.logf("host %d crashes", h.n)
	for _, u := range h.users {
		u.crashed = true
	}
	h.sidrs = nil
	h.life++
	h.boot()
}

// run runs until nothing moves any more and no timer is set.
func (s *sim) run() {
	for range simSteps {
		s.pump()
		at, what := Never, -1
		next := 0
		for i := range s.flying {
			if s.flying[i].at < at {
				at, what, next = s.flying[i].at, 0, i
			}
		}
		for i := range s.todo {
			if s.todo[i].at < at {
				at, what, next = s.todo[i].at, 1, i
			}
		}
		for i, h := range s.hosts {
			if d := h.NextTimeout(); d < at {
				at, what, next = d, 2, i
			}
		}
		if what < 0 {
			return
		}
		if s.now = max(s.now, at); s.now > simLongest {
			s.failf("no end after %v", s.now)
		}
		switch what {
		case 0:
			p := s.flying[next]
			s.flying = slices.Delete(s.flying, next, next+1)
			for _, h := range s.hosts {
				if h.addr == p.path.Local {
					h.Handle(s.now, p.path, p.mad)
				}
			}
		case 1:
			do := s.todo[next].do
			s.todo = slices.Delete(s.todo, next, next+1)
			do()
		case 2:
			s.hosts[next].HandleTimeout(s.now)
		}
	}
	s.failf("no end after %d steps", simSteps)
}

// pump takes the machines' MADs and events.
func (s *sim) pump() {
	for _, h := range s.hosts {
		for {
			p, mad, ok := h.Transmit()
			if !ok {
				break
			}
			s.transmit(h, p, mad)
		}
		for {
			e, ok := h.Event()
			if !ok {
				break
			}
			h.event(e)
		}
	}
}

// transmit is the network.
func (s *sim) transmit(h *simHost, p Path, mad []byte) {
	for {
		d := time.Millisecond + time.Duration(s.rnd.ExpFloat64()*float64(5*time.Millisecond))
		if s.calm {
			d = min(d, milliseconds(simLifetime))
		} else if s.rnd.IntN(10) == 0 {
			d = s.within(3 * time.Second)
		}
		lost := s.rnd.Float64() < s.loss
		s.logf("%d: %s to %v in %v, lost %v", h.n, describe(mad), p.Remote, d, lost)
		if !lost {
			s.flying = append(s.flying, packet{s.now + d, Path{Local: p.Remote, Remote: p.Local}, slices.Clone(mad)})
		}
		if s.rnd.Float64() >= s.twice {
			return
		}
	}
}

// attempt begins a connection.
func (s *sim) attempt() {
	h := s.hosts[s.rnd.IntN(len(s.hosts))]
	to := s.hosts[s.rnd.IntN(len(s.hosts))]
	s.connect(h, to)
	if s.rnd.IntN(4) == 0 { // crossing
		s.connect(to, h)
	}
}

func (s *sim) connect(h, to *simHost) {
	p := Path{Local: h.addr, Remote: to.addr}
	params := ConnectParams{Service: testService, Params: Params{QPN: h.newQPN()}, MTU: 1, PacketLifetime: uint8(simLifetime + s.rnd.IntN(5)), RemoteCMTimeout: uint8(17 + s.rnd.IntN(4)), LocalCMTimeout: uint8(17 + s.rnd.IntN(4))}
	c, err := h.Connect(s.now, p, params)
	if err != nil {
		s.failf("connect: %v", err)
	}
	u := h.user(c, true)
	if s.rnd.IntN(5) == 0 {
		u.later(20*time.Second, u.close)
	}
}

// newQPN returns the number of a QP. Now and then the QP has had a connection before.
func (h *simHost) newQPN() uint32 {
	if n := len(h.qpns); n > 0 && !h.s.calm && h.s.rnd.IntN(10) == 0 {
		return h.qpns[h.s.rnd.IntN(n)]
	}
	h.s.qpns++
	h.qpns = append(h.qpns, h.s.qpns)
	return h.s.qpns
}

// sidrUser has a SIDR exchange.
type sidrUser struct {
	sidr      *SIDR
	closed    bool
	asks, end bool
}

func (s *sim) attemptSIDR() {
	h, to := s.hosts[s.rnd.IntN(len(s.hosts))], s.hosts[s.rnd.IntN(len(s.hosts))]
	x, err := h.Resolve(s.now, Path{Local: h.addr, Remote: to.addr}, SIDRParams{Service: testService})
	if err != nil {
		s.failf("resolve: %v", err)
	}
	u := &sidrUser{sidr: x, asks: true}
	x.User = u
	h.sidrs = append(h.sidrs, u)
	if s.rnd.IntN(5) == 0 {
		s.in(s.within(5*time.Second), func() { u.closed = true; x.Close(s.now) })
	}
}

func (h *simHost) sidrEvent(e Event) {
	s := h.s
	if e.Type == EventSIDRRequest {
		u := &sidrUser{sidr: e.SIDR}
		e.SIDR.User = u
		h.sidrs = append(h.sidrs, u)
		s.in(s.within(5*time.Second), func() {
			if u.end { // it made room for another request
				return
			}
			u.end = true
			if u.closed = s.rnd.IntN(3) == 0; u.closed {
				u.sidr.Close(s.now)
			} else if err := u.sidr.Reply(s.now, SIDRReply{Status: wire.SIDRSuccess, QPN: 1}); err != nil {
				s.failf("reply: %v", err)
			}
		})
		return
	}
	u := e.SIDR.User.(*sidrUser)
	if !u.asks && !u.end && e.Type == EventUnreachable {
		u.end = true
		return
	}
	if !u.asks || u.end || u.closed || e.Type != EventSIDRReply && e.Type != EventUnreachable {
		s.failf("SIDR event %v out of place: %+v", e.Type, u)
	}
	u.end = true
}
