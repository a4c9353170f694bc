package whole

import (
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
)

// plan describes the events of a run. The plan and the seed together determine the run. Each field may be set to
// nothing without a change in the meaning of the others: a failure is shrunk in this way.
type plan struct {
	Seed  uint64
	Nodes int
	Conns int // connections, one after another or at a time
	Lives int // how often each is made anew at most
	Ops   int // work requests of each end at most
	IPv6  bool
	MTU   int // of the network
	Queue int // datagrams that fit a receiver's queue

	Loss, Duplicate, Reorder, Corrupt float64
	Delay, Jitter                     time.Duration
	MarkCE                            float64
	Rate                              int64

	Partitions int // for a while
	Pauses     int // of nodes, for a while
	Crashes    int // of nodes, which come back
	Flaps      int // of network interfaces
	Forgeries  int // packets of a hostile station

	CM      bool // introduces some ends
	SRQ     bool
	Windows bool
	Atomics bool
	UD      bool
	UC      bool
	Gather  bool // programs poll busily
	Drain   bool // send queues are drained now and then
	Illegal bool // some work is illegal
	Kill    bool // some QPs go to ERR on the way
	Weak    bool // retries are few
	Visible bool // links see IPv4 identifications
	Secure  bool // some connections have packet security
	Starve  bool // some programs post no more receives at some time
	Full    bool // some completion queues are too small
	Rob     bool // also some of ends with the SRQ, whose receives are lost with their completions
	Notify  bool // some programs wait for events of completion queues
	Rereg   bool // some regions are registered anew
	Route   bool // some ends send and take packets that overtake one another
	Bare    bool // links see no IPv6 flow labels
	Spray   bool // some ends send from several ports
	Pace    bool // some ends have another congestion control
	Ways    int  // between some nodes, of which switches choose one
	Holes   int  // nodes lose packets from a port, for a while
	Dead    bool // nodes lose packets from one of the ports, always
	XRC     bool // some initiators send to SRQs that targets share
	Place   bool // some ends FLUSH, and send ATOMIC WRITEs
}

// draw makes the plan of a seed.
func draw(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0x91a2))
	maybe := func(n int) bool { return r.IntN(n) == 0 }
	rate := func() float64 {
		if maybe(3) {
			return 0
		}
		return r.Float64() * r.Float64() * 0.1
	}
	some := func(n, most int) int {
		if maybe(n) {
			return 1 + r.IntN(most)
		}
		return 0
	}
	p := plan{
		Seed: seed, Nodes: 2 + r.IntN(4), Conns: 1 + r.IntN(6), Lives: 1 + r.IntN(3), Ops: 5 + r.IntN(60),
		IPv6: maybe(3), MTU: []int{1500, 1500, 4200, 9000}[r.IntN(4)], Queue: []int{0, 0, 0, 64, 300}[r.IntN(5)],
		CM: maybe(2), SRQ: maybe(2), Windows: maybe(2), Atomics: maybe(2), UD: maybe(2), UC: maybe(3),
		Gather: maybe(2), Drain: maybe(4), Visible: maybe(4),
		Secure: rand.New(rand.NewPCG(seed, 0x5ec)).IntN(3) == 0,
		Starve: rand.New(rand.NewPCG(seed, 0x57a)).IntN(4) == 0,
		Full:   rand.New(rand.NewPCG(seed, 0xf011)).IntN(4) == 0,
		Rob:    rand.New(rand.NewPCG(seed, 0x0b5e)).IntN(2) == 0,
		Notify: rand.New(rand.NewPCG(seed, 0xbe11)).IntN(3) == 0,
		Rereg:  rand.New(rand.NewPCG(seed, 0x4e4e)).IntN(3) == 0,
		Route:  rand.New(rand.NewPCG(seed, 0x70e)).IntN(3) == 0,
		Bare:   rand.New(rand.NewPCG(seed, 0xba4e)).IntN(4) == 0,
		Spray:  rand.New(rand.NewPCG(seed, 0x5b7a)).IntN(3) == 0,
		Pace:   rand.New(rand.NewPCG(seed, 0x9ace)).IntN(3) == 0,
		Dead:   rand.New(rand.NewPCG(seed, 0xdead)).IntN(8) == 0,
		XRC:    rand.New(rand.NewPCG(seed, 0x8cc)).IntN(3) == 0,
		Place:  rand.New(rand.NewPCG(seed, 0xf1a5)).IntN(3) == 0,
	}
	if maybe(4) { // calm: nothing may fail, or wait for a timeout
		p.Queue = 0
		return p
	}
	p.Loss, p.Duplicate, p.Reorder, p.Corrupt, p.MarkCE = rate(), rate(), rate(), rate()/4, rate()
	if maybe(2) {
		p.Delay, p.Jitter = time.Duration(r.IntN(50_000)), time.Duration(1+r.IntN(100_000))
	}
	if maybe(6) {
		p.Rate = 50_000_000 << r.IntN(5)
	}
	p.Partitions, p.Pauses, p.Crashes, p.Flaps = some(4, 3), some(4, 3), some(5, 2), some(8, 2)
	p.Forgeries = some(3, 300)
	if p.UD || p.UC || p.CM { // else one damaged datagram in 2^15 passes: see peer/sender.go
		p.Visible = p.Visible || p.Corrupt > 0
	}
	p.Illegal, p.Kill, p.Weak = maybe(3), maybe(6), maybe(8)
	if x := rand.New(rand.NewPCG(seed, 0x3a75)); x.IntN(4) == 0 {
		p.Ways = 1 + x.IntN(4)
	}
	if x := rand.New(rand.NewPCG(seed, 0x401e)); x.IntN(4) == 0 {
		p.Holes = 1 + x.IntN(8)
	}
	return p
}

// robs reports whether receives of SRQs may be lost.
func (p *plan) robs() bool { return p.Rob && p.Full && p.SRQ }

// calm reports whether the network and the nodes do nothing unusual.
func (p *plan) calm() bool {
	return p.Queue == 0 && p.Loss == 0 && p.Duplicate == 0 && p.Reorder == 0 && p.Corrupt == 0 && p.Delay == 0 && p.Jitter == 0 &&
		p.Rate == 0 && p.Partitions == 0 && p.Pauses == 0 && p.Crashes == 0 && p.Flaps == 0 && p.Forgeries == 0 && p.Ways == 0 && p.Holes == 0 && !p.Dead
}

// mayFail reports whether retries may be used up by the network alone.
func (p *plan) mayFail() bool {
	return p.Weak || p.Loss+p.Corrupt > 0.02 || p.Queue > 0 || p.Rate > 0 || p.Partitions > 0 || p.Pauses > 0 || p.Flaps > 0 ||
		p.Forgeries > 0 || p.Jitter > 0 || p.Delay > 0 || p.Ways > 0 || p.Holes > 0 || p.Dead
}

func (p *plan) faults() sim.Faults {
	return sim.Faults{Loss: p.Loss, Duplicate: p.Duplicate, Reorder: p.Reorder, Corrupt: p.Corrupt, Delay: p.Delay, Jitter: p.Jitter,
		MarkCE: p.MarkCE, Rate: p.Rate}
}

func (p plan) String() string {
	b, _ := json.Marshal(p)
	return string(b)
}

// simpler returns plans that do less, the boldest cuts first.
func (p plan) simpler() []plan {
	var list []plan
	add := func(change func(*plan)) {
		q := p
		change(&q)
		if q != p {
			list = append(list, q)
		}
	}
	add(func(q *plan) { q.Loss, q.Duplicate, q.Reorder, q.Corrupt, q.MarkCE = 0, 0, 0, 0, 0 })
	add(func(q *plan) { q.Delay, q.Jitter, q.Rate, q.Queue = 0, 0, 0, 0 })
	for _, n := range []func(*plan) *int{
		func(q *plan) *int { return &q.Forgeries }, func(q *plan) *int { return &q.Crashes }, func(q *plan) *int { return &q.Partitions },
		func(q *plan) *int { return &q.Pauses }, func(q *plan) *int { return &q.Flaps },
		func(q *plan) *int { return &q.Holes }, func(q *plan) *int { return &q.Ways },
	} {
		add(func(q *plan) { *n(q) = 0 })
		add(func(q *plan) { *n(q) /= 2 })
		add(func(q *plan) { *n(q) = max(0, *n(q)-1) })
	}
	for _, n := range []func(*plan) *int{
		func(q *plan) *int { return &q.Conns }, func(q *plan) *int { return &q.Lives }, func(q *plan) *int { return &q.Ops },
	} {
		add(func(q *plan) { *n(q) = max(1, *n(q)/2) })
		add(func(q *plan) { *n(q) = max(1, *n(q)*3/4) })
		add(func(q *plan) { *n(q) = max(1, *n(q)-1) })
	}
	add(func(q *plan) { q.Nodes = 2 })
	for _, b := range []func(*plan) *bool{
		func(q *plan) *bool { return &q.UD }, func(q *plan) *bool { return &q.UC }, func(q *plan) *bool { return &q.CM },
		func(q *plan) *bool { return &q.SRQ }, func(q *plan) *bool { return &q.Windows }, func(q *plan) *bool { return &q.Atomics },
		func(q *plan) *bool { return &q.Gather }, func(q *plan) *bool { return &q.Drain }, func(q *plan) *bool { return &q.Kill },
		func(q *plan) *bool { return &q.Weak }, func(q *plan) *bool { return &q.Illegal }, func(q *plan) *bool { return &q.IPv6 },
		func(q *plan) *bool { return &q.Visible }, func(q *plan) *bool { return &q.Secure },
		func(q *plan) *bool { return &q.Starve }, func(q *plan) *bool { return &q.Full }, func(q *plan) *bool { return &q.Rob },
		func(q *plan) *bool { return &q.Notify }, func(q *plan) *bool { return &q.Rereg },
		func(q *plan) *bool { return &q.Route }, func(q *plan) *bool { return &q.Bare },
		func(q *plan) *bool { return &q.Spray }, func(q *plan) *bool { return &q.Pace },
		func(q *plan) *bool { return &q.Dead }, func(q *plan) *bool { return &q.XRC },
		func(q *plan) *bool { return &q.Place },
	} {
		add(func(q *plan) { *b(q) = false })
	}
	for _, f := range []func(*plan) *float64{
		func(q *plan) *float64 { return &q.Loss }, func(q *plan) *float64 { return &q.Duplicate }, func(q *plan) *float64 { return &q.Reorder },
		func(q *plan) *float64 { return &q.Corrupt }, func(q *plan) *float64 { return &q.MarkCE },
	} {
		add(func(q *plan) { *f(q) = 0 })
	}
	add(func(q *plan) { q.Jitter = 0 })
	add(func(q *plan) { q.Rate = 0 })
	add(func(q *plan) { q.Queue = 0 })
	return list
}
