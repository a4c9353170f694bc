package hca

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

var congestionRowFlag = flag.String("congestionrow", "", "run this row of the table of congestion control alone")

var congestionTableFlag = flag.String("congestiontable", "", "write the table of congestion control to this file")

// The fabric of docs/CONGESTION.md: hosts around one switch.
const (
	fabricRate    = 40e9 / 8 // of each port
	fabricDelay   = 5 * time.Microsecond
	fabricBuffer  = 4 << 20
	fabricMessage = 64 << 10
	fabricDepth   = 16
)

// fabricMarks says how the switch marks: from 5 KiB that wait on, with a probability that grows up to most where
// so many bytes do, and beyond that all.
type fabricMarks struct {
	to   int
	most float64
}

var (
	earlyMarks = fabricMarks{80 << 10, .02}
	paperMarks = fabricMarks{200 << 10, .01}
)

// fabricHost is a host with a port of its card and one of the switch, which leads to it.
type fabricHost struct {
	end      *end // on a sender its own; the receiver has one for each sender
	dev      *Device
	user     *verbs.Device
	up, down *sim.Port
	src      *verbs.MR
	dst      verbs.RemoteAddr

	begins    time.Duration
	depth     int // messages under way
	inFlight  int
	bytes     int
	mouse     bool
	postedAt  time.Duration
	nextMouse time.Duration
	latencies []time.Duration
}

// fabric is senders that all write to one receiver, in virtual time and by one goroutine.
type fabric struct {
	t     testing.TB
	net   *sim.Network
	rnd   *rand.Rand
	start time.Time
	hosts []*fabricHost // the first receives
	recv  []*end
	recvs []*verbs.MR
}

func (f *fabric) now() time.Duration { return time.Since(f.start) }

func newFabric(t testing.TB, senders int, mouse bool, control verbs.CongestionControl, marks fabricMarks, seed uint64) *fabric {
	f := &fabric{t: t, net: sim.New(sim.Config{Seed: seed, QueueLen: 1 << 16}), rnd: rand.New(rand.NewPCG(seed, 0x66616272)), start: time.Now()}
	n := 1 + senders
	if mouse {
		n++
	}
	for i := range n {
		h := &fabricHost{mouse: mouse && i == n-1, depth: fabricDepth}
		h.up = f.net.Port(sim.PortConfig{Rate: fabricRate, Delay: fabricDelay})
		h.down = f.net.Port(sim.PortConfig{Rate: fabricRate, Delay: fabricDelay, Buffer: fabricBuffer,
			MarkFrom: 5 << 10, MarkTo: marks.to, MarkMost: marks.most})
		var err error
		h.dev, err = Open(f.net.Netdev(fmt.Sprintf("sim%d", i), simAddr(i+1)), Config{Driven: true, Congestion: control, Random: f.rnd.Uint32})
		if err != nil {
			t.Fatal(err)
		}
		h.user = verbs.NewDevice(h.dev)
		f.hosts = append(f.hosts, h)
		if i == 0 {
			continue
		}
		o := options{cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 256, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 1024, mtu: verbs.MTU4096}
		x, y := connect(t, h.user, f.hosts[0].user, o)
		h.end = x
		f.recv = append(f.recv, y)
		h.src = x.mr(fabricMessage)
		dst := y.mr(fabricMessage)
		h.dst = dst.Remote(0)
		f.recvs = append(f.recvs, dst)
		f.net.SetRoute(simAddr(i+1), simAddr(1), h.up, f.hosts[0].down)
		f.net.SetRoute(simAddr(1), simAddr(i+1), f.hosts[0].up, h.down)
		if h.mouse {
			for id := range uint64(128) {
				y.recv(verbs.RecvWR{ID: id, SGList: []verbs.SGE{dst.SGE(0, 64)}})
			}
		}
	}
	return f
}

func (f *fabric) close() {
	for _, h := range f.hosts {
		h.dev.Close()
	}
}

// program lets a sender's program poll and post.
func (f *fabric) program(h *fabricHost, y *end) {
	now := f.now()
	var wcs [16]verbs.WC
	n, err := h.end.cq.Poll(wcs[:])
	h.end.must(err)
	for i := range n {
		h.end.must(wcs[i].Err())
		h.inFlight--
		if h.mouse {
			h.latencies = append(h.latencies, now-h.postedAt)
			y.recv(verbs.RecvWR{SGList: []verbs.SGE{f.recvs[len(f.recvs)-1].SGE(0, 64)}})
		} else {
			h.bytes += fabricMessage
		}
	}
	if h.mouse {
		if now >= h.nextMouse && h.inFlight == 0 {
			h.postedAt, h.inFlight = now, 1
			h.nextMouse = now + 20*time.Microsecond + time.Duration(f.rnd.IntN(60_000))
			h.end.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{h.src.SGE(0, 64)}})
		}
		return
	}
	for now >= h.begins && h.inFlight < h.depth {
		h.inFlight++
		h.end.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{h.src.SGE(0, fabricMessage)}, Remote: h.dst})
	}
}

// run runs until a time.
func (f *fabric) run(until time.Duration) {
	for f.now() < until {
		next := until
		for i, h := range f.hosts {
			if f.due(i) <= f.now() {
				h.dev.Drive(false)
			}
			if h.end != nil {
				f.program(h, f.recv[len(f.recv)-1]) // the mouse's is the last
				if h.begins > f.now() {
					next = min(next, h.begins)
				}
				if h.mouse && h.inFlight == 0 {
					next = min(next, h.nextMouse)
				}
			}
		}
		var wcs [16]verbs.WC
		for _, y := range f.recv[len(f.recv)-1:] { // those of the mouse's SENDs
			for n := 1; n > 0; {
				n, _ = y.cq.Poll(wcs[:])
			}
		}
		for i := range f.hosts {
			next = min(next, f.due(i))
		}
		if d := next - f.now(); d > 0 {
			time.Sleep(d)
		}
	}
}

// due returns when a host has something to do.
func (f *fabric) due(i int) time.Duration {
	at := time.Duration(1 << 62)
	if d, ok := f.hosts[i].dev.NextDrive(); ok {
		at = f.now() + d
	}
	if d, ok := f.net.NextDeliveryTo(simAddr(i + 1)); ok {
		at = min(at, d)
	}
	return at
}

// fabricResult is the result of a run, from the end of its settling on.
type fabricResult struct {
	goodput  float64 // bytes in a second
	fairness float64 // Jain's index
	lost     uint64
	longest  int // bytes that waited
	p50, p99 time.Duration
	trip     time.Duration // of a SEND on the idle fabric
}

// measure runs until a time and returns the result.
func (f *fabric) measure(until time.Duration) fabricResult {
	from := f.now()
	f.hosts[0].down.Stats(true)
	for _, h := range f.hosts {
		h.bytes, h.latencies = 0, nil
	}
	f.run(until)
	s := f.hosts[0].down.Stats(false)
	r := fabricResult{lost: s.Lost, longest: s.Longest}
	var sum, squares, n float64
	for _, h := range f.hosts[1:] {
		if h.mouse {
			slices.Sort(h.latencies)
			if k := len(h.latencies); k > 0 {
				r.p50, r.p99 = h.latencies[k/2], h.latencies[k*99/100]
			}
			continue
		}
		x := float64(h.bytes) / (until - from).Seconds()
		sum, squares, n = sum+x, squares+x*x, n+1
	}
	r.goodput = sum
	if squares > 0 {
		r.fairness = sum * sum / (n * squares)
	}
	return r
}

// idleTrip measures a SEND while nobody else sends.
func (f *fabric) idleTrip() time.Duration {
	mouse := f.hosts[len(f.hosts)-1]
	for _, h := range f.hosts[1 : len(f.hosts)-1] {
		h.begins = 1 << 62
	}
	f.run(f.now() + 2*time.Millisecond)
	trip := slices.Min(mouse.latencies)
	for _, h := range f.hosts[1 : len(f.hosts)-1] {
		h.begins = f.now()
	}
	return trip
}

// fabricRun is a run of the table. Senders begin so far apart.
func fabricRun(t *testing.T, senders int, control verbs.CongestionControl, marks fabricMarks, settle, measured, apart time.Duration, seed uint64) (r fabricResult) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, senders, true, control, marks, seed)
		defer f.close()
		trip := f.idleTrip()
		for i := range senders {
			f.hosts[1+i].begins += time.Duration(i) * apart // who is later finds the others
		}
		f.run(f.now() + settle)
		r = f.measure(f.now() + measured)
		r.trip = trip
	})
	return r
}

// TestCongestionTable holds congestion control to what docs/CONGESTION.md says of it, and writes that file's table
// if asked:
//
//	go test ./internal/hca -run CongestionTable -args -congestiontable ../../docs/CONGESTION.md
func TestCongestionTable(t *testing.T) {
	whole := *congestionTableFlag != ""
	settle, measured := 20*time.Millisecond, 10*time.Millisecond
	if whole {
		settle, measured = 40*time.Millisecond, 20*time.Millisecond
	}
	const dcqcn = verbs.CongestionDCQCN
	var b strings.Builder
	for _, row := range []struct {
		name     string
		senders  int
		control  verbs.CongestionControl
		marks    fabricMarks
		always   bool
		fairness float64 // at least
		p99      float64 // round trips at most
		apart    time.Duration
	}{
		{name: "2 to 1, window", senders: 2},
		{name: "2 to 1, dcqcn", senders: 2, control: dcqcn, marks: earlyMarks, always: true, fairness: .95, p99: 3},
		{name: "2 to 1, dcqcn, the paper's marks", senders: 2, control: dcqcn, marks: paperMarks},
		{name: "2 to 1, delay", senders: 2, control: verbs.CongestionDelay, always: true, fairness: .95, p99: 5},
		{name: "32 to 1, window", senders: 32},
		{name: "32 to 1, dcqcn", senders: 32, control: dcqcn, marks: earlyMarks, always: !testing.Short(), fairness: .95, p99: 3},
		{name: "32 to 1, dcqcn, the paper's marks", senders: 32, control: dcqcn, marks: paperMarks},
		{name: "32 to 1, delay", senders: 32, control: verbs.CongestionDelay, always: !testing.Short(), fairness: .95, p99: 8},
		{name: "32 to 1, 0.7 ms apart, delay", senders: 32, control: verbs.CongestionDelay, always: !testing.Short(), fairness: .95, p99: 8, apart: 700 * time.Microsecond},
	} {
		if !whole && !row.always || *congestionRowFlag != "" && row.name != *congestionRowFlag {
			continue
		}
		apart, settle := row.apart, settle
		if row.senders == 2 {
			apart = settle / 4
		} else if apart > 0 {
			settle = 40 * time.Millisecond // the last begins after 22 ms
		}
		r := fabricRun(t, row.senders, row.control, row.marks, settle, measured, apart, 1)
		p50, p99 := float64(r.p50)/float64(r.trip), float64(r.p99)/float64(r.trip)
		fmt.Fprintf(&b, "| %s | %.2f | %.3f | %d | %d | %.1f | %.1f |\n", row.name, r.goodput*8/1e9, r.fairness, r.lost, r.longest>>10, p50, p99)
		if row.always && (r.goodput < .6*fabricRate || r.fairness < row.fairness || r.lost > 0 || p99 > row.p99) {
			t.Errorf("%s: %+v, want nothing lost, fairness of %v, and SENDs within %v round trips", row.name, r, row.fairness, row.p99)
		}
	}
	t.Log("\n" + b.String())
	if *congestionTableFlag != "" && *congestionRowFlag == "" {
		writeCongestionTable(t, *congestionTableFlag, b.String())
	}
}

// writeCongestionTable replaces the rows of the table in a file.
func writeCongestionTable(t *testing.T, name, rows string) {
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const head = "|---|---|---|---|---|---|---|\n"
	before, rest, ok := strings.Cut(string(old), head)
	_, after, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no table of 7 columns", name)
	}
	if err := os.WriteFile(name, []byte(before+head+rows+"\n"+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
