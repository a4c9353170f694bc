package whole

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
)

const (
	busyTime = 50 * time.Millisecond // in which connections begin, and faults happen
	longest  = 15 * time.Minute      // until which everything has ended
	maxSteps = 1 << 20
	maxIdle  = 20 * time.Millisecond // between two turns of a program that has nothing to do
)

// world is a run.
type world struct {
	plan  plan
	rnd   *rand.Rand
	start time.Time
	net   *sim.Network
	nodes []*node
	conns []*conn
	todo  agenda
	seq   int
	steps int

	xrcLinks []*xrcLink

	datagrams []*datagram // UD
	forgedUD  []*datagram // of the hostile station
	opCount   uint64
	regions   int
	queues    int
	ports     []*sim.Port
	dead      uint16 // a source port from which nothing comes through, or 0

	totals  totals
	records bool   // or else there is neither digest nor trace
	digest  uint64 // of all that has happened, in order
	trace   io.Writer
	pcap    *pcap.Writer
}

// totals count what a run, or many, did.
type totals struct {
	Runs, Steps, Sent, Received, Posts, Completions, MADs               uint64
	Lost, Duplicated, Reordered, Corrupted, Marked, Cut, Full, Forged   uint64
	Crashes, Pauses, Partitions, Flaps, Illegal, Failed, Conns, Virtual uint64
	Held, Needless, Secured, Overruns, Rings, Rereg, Insider, Injected  uint64
	Robbed, Sprayed, PathsLeft, Holed, Routed, Paced, CNPs, SecuredHeld uint64
	XRC                                                                 uint64 // messages
	Flushes, AtomicWrites                                               uint64
}

func (t *totals) add(o *totals) {
	t.Runs += o.Runs
	t.Steps += o.Steps
	t.Sent += o.Sent
	t.Received += o.Received
	t.Posts += o.Posts
	t.Completions += o.Completions
	t.MADs += o.MADs
	t.Lost += o.Lost
	t.Duplicated += o.Duplicated
	t.Reordered += o.Reordered
	t.Corrupted += o.Corrupted
	t.Marked += o.Marked
	t.Cut += o.Cut
	t.Full += o.Full
	t.Forged += o.Forged
	t.Crashes += o.Crashes
	t.Pauses += o.Pauses
	t.Partitions += o.Partitions
	t.Flaps += o.Flaps
	t.Illegal += o.Illegal
	t.Failed += o.Failed
	t.Conns += o.Conns
	t.Virtual += o.Virtual
	t.Held += o.Held
	t.Needless += o.Needless
	t.Secured += o.Secured
	t.Overruns += o.Overruns
	t.Rings += o.Rings
	t.Rereg += o.Rereg
	t.Insider += o.Insider
	t.Injected += o.Injected
	t.Robbed += o.Robbed
	t.Sprayed += o.Sprayed
	t.PathsLeft += o.PathsLeft
	t.Holed += o.Holed
	t.Routed += o.Routed
	t.Paced += o.Paced
	t.CNPs += o.CNPs
	t.SecuredHeld += o.SecuredHeld
	t.XRC += o.XRC
	t.Flushes += o.Flushes
	t.AtomicWrites += o.AtomicWrites
}

// events are datagrams out and in, forged ones included, and work requests with their completions.
func (t *totals) events() uint64 {
	return t.Sent + t.Received + t.Forged + t.Posts + t.Completions
}

func (t *totals) faults() uint64 {
	return t.Lost + t.Holed + t.Duplicated + t.Reordered + t.Corrupted + t.Marked + t.Cut + t.Full + t.Forged + t.Crashes + t.Pauses + t.Partitions + t.Flaps + t.Illegal
}

// failure is the value that a check panics with.
type failure struct{ text string }

func (w *world) failf(format string, args ...any) {
	panic(failure{fmt.Sprintf("%v: ", w.now()) + fmt.Sprintf(format, args...)})
}

func (w *world) must(err error) {
	if err != nil {
		w.failf("%v", err)
	}
}

// logf writes to the trace, and to the digest.
func (w *world) logf(format string, args ...any) {
	if !w.records {
		return
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d ", w.digest, w.now())
	fmt.Fprintf(h, format, args...)
	w.digest = h.Sum64()
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%14v ", w.now())
		fmt.Fprintf(w.trace, format, args...)
		fmt.Fprintln(w.trace)
	}
}

func (w *world) now() time.Duration { return time.Since(w.start) }

// agenda lists the functions to be called, the earliest first.
type agenda []task

type task struct {
	at  time.Duration
	seq int
	do  func()
}

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(task)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// in has a function called after d.
func (w *world) in(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.todo, task{w.now() + d, w.seq, do})
}

// within returns a time below d. Short times are more frequent.
func within(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Float64() * r.Float64() * float64(d))
}

// simulate runs a plan, in a bubble of synctest. The function returns the failure, or nil.
func simulate(p plan, trace, capture io.Writer) (w *world, err error) {
	w = &world{plan: p, rnd: rand.New(rand.NewPCG(p.Seed, 0x3017)), start: time.Now(), trace: trace, records: trace != nil}
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s", x.text)
		default:
			err = fmt.Errorf("%v: panic: %v\n%s", w.now(), x, debug.Stack())
		}
		w.count()
		w.abandon()
	}()
	if capture != nil {
		w.pcap, err = pcap.New(capture, pcap.Options{OutgoingOnly: true})
		w.must(err)
		defer w.pcap.Close()
	}
	w.net = sim.New(sim.Config{Seed: p.Seed, MTU: p.MTU, QueueLen: p.Queue, IDVisible: p.Visible, NoLabels: p.Bare})
	w.net.SetFaults(p.faults())
	for i := range p.Nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for i := range p.Conns {
		w.conns = append(w.conns, newConn(w, i))
	}
	if p.XRC {
		for i := range 1 + p.Conns/2 {
			w.xrcLinks = append(w.xrcLinks, newXRCLink(w, i))
		}
	}
	w.lay()
	w.trouble()
	w.dig()
	w.run(func() bool { return w.quiet() })
	w.end()
	return w, nil
}

// middleware is put around the links of devices.
func (w *world) middleware() (list []link.Middleware) {
	if w.pcap != nil {
		list = append(list, w.pcap.Middleware())
	}
	return list
}

// quiet reports whether all connections have ended.
func (w *world) quiet() bool {
	for _, c := range w.conns {
		if !c.over {
			return false
		}
	}
	for _, l := range w.xrcLinks {
		if !l.over {
			return false
		}
	}
	for _, n := range w.nodes {
		if n.dev == nil {
			return false
		}
	}
	return w.now() > busyTime
}

// run runs until done returns true.
func (w *world) run(done func() bool) {
	for !done() {
		if w.steps++; w.steps > maxSteps || w.now() > longest {
			w.failf("no end after %d steps: %s", w.steps, w.stuck())
		}
		for len(w.todo) > 0 && w.todo[0].at <= w.now() {
			heap.Pop(&w.todo).(task).do()
		}
		first := w.rnd.IntN(len(w.nodes))
		next := longest + time.Second
		for i := range w.nodes {
			if n := w.nodes[(first+i)%len(w.nodes)]; n.awake() {
				n.turn()
			}
		}
		for _, n := range w.nodes {
			if n.awake() {
				next = min(next, n.next())
			}
		}
		if len(w.todo) > 0 {
			next = min(next, w.todo[0].at)
		}
		w.advance(next)
	}
}

// advance lets the bubble's clock go on.
func (w *world) advance(to time.Duration) {
	if d := to - w.now(); d > 0 {
		time.Sleep(d)
	}
}

func (w *world) stuck() string {
	s := fmt.Sprintf("%d tasks", len(w.todo))
	for _, n := range w.nodes {
		s += fmt.Sprintf("\n%v: up %v, paused %v", n, n.dev != nil, n.paused)
		if n.awake() {
			d, ok := n.hca.NextDrive()
			at, some := w.net.NextDeliveryTo(n.addr)
			s += fmt.Sprintf(", program at %v, device in %v %v, delivery at %v %v, gathers %v until %v", n.tickAt, d, ok, at, some, n.gathers, n.napEnd)
		}
	}
	for _, c := range w.conns {
		if !c.over {
			s += "\n" + c.describe()
		}
	}
	return s
}

// trouble puts faults of nodes and of the network on the agenda.
func (w *world) trouble() {
	p, r := &w.plan, rand.New(rand.NewPCG(w.plan.Seed, 0x7a0b1e))
	node := func() *node { return w.nodes[r.IntN(len(w.nodes))] }
	for range p.Partitions {
		a, b, d := node(), node(), within(r, busyTime)
		w.in(within(r, busyTime), func() {
			w.logf("partition of %v and %v for %v", a, b, d)
			w.totals.Partitions++
			w.net.Partition(a.addr, b.addr)
		})
		w.in(busyTime+d, func() { w.net.Heal(a.addr, b.addr) })
	}
	for range p.Pauses {
		n, d := node(), within(r, 4*busyTime)
		w.in(within(r, busyTime), func() { n.pause(d) })
	}
	for range p.Crashes {
		n, d := node(), within(r, 4*busyTime)
		w.in(within(r, busyTime), func() { n.crash(d) })
	}
	for range p.Flaps {
		n, d := node(), within(r, busyTime/4)
		w.in(within(r, busyTime), func() { n.flap(d) })
	}
	for range p.Forgeries {
		seed := r.Uint64()
		w.in(within(r, busyTime), func() { w.forge(rand.New(rand.NewPCG(seed, 1))) })
	}
}

// count takes the totals of the run.
func (w *world) count() {
	t := &w.totals
	t.Runs, t.Steps, t.Virtual = 1, uint64(w.steps), uint64(w.now())
	if w.net != nil {
		s := w.net.Stats()
		t.Lost, t.Duplicated, t.Reordered, t.Corrupted, t.Marked = s.Lost, s.Duplicated, s.Reordered, s.Corrupted, s.Marked
		t.Cut, t.Full = s.Partitioned+s.Unreachable, s.Overflowed
		t.countPorts(w.ports)
	}
}

// end closes everything and makes the last checks. Each close must succeed.
func (w *world) end() {
	for _, n := range w.nodes {
		n.checkWords()
		n.close()
	}
	w.logf("end")
}

// abandon closes the devices after a failure, so that nothing is left of the run.
func (w *world) abandon() {
	defer func() { recover() }() // the failure that is known is the one to report
	for _, n := range w.nodes {
		n.drop()
	}
}
