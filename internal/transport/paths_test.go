package transport

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// testPorts are the source ports of a test's QP.
var testPorts = []uint16{0xc000, 0xc001, 0xc002, 0xc003}

// pathPair makes a pair whose ends have several paths, on which packets take as long as delay says.
type pathPair struct {
	*pair
	took map[*node][]int // packets by path; of the end a only those with data, and requests
	sent []pathPacket    // by a
	wait func(from *node, path int) delay
}

type pathPacket struct {
	at   time.Duration
	path int
	psn  wire.PSN
}

const lostOnPath delay = -1

func newPathPair(t testing.TB, s setup) *pathPair {
	t.Helper()
	s.mtu, s.timeout = verbs.MTU1024, 18
	p := &pathPair{pair: newPair(t, s)}
	p.wait = func(*node, int) delay { return testDelay }
	p.route = func(from *node, _ int, pkt *wire.Packet) []delay {
		path := from.qp.Path()
		p.took[from][path]++
		if from == p.a {
			p.sent = append(p.sent, pathPacket{p.now, path, pkt.PSN})
		}
		d := p.wait(from, path)
		if d == lostOnPath {
			return nil
		}
		return []delay{d}
	}
	p.forget()
	for _, e := range []*node{p.a, p.b} {
		e.qp.SetSources(testPorts)
		p.post(e, writeWR(0, e.peer.mem.remote(0), e.mem.sge(0, 8)))
	}
	p.run()
	for _, e := range []*node{p.a, p.b} {
		e.polled(1)
		e.sends = nil
	}
	p.forget()
	return p
}

// forget drops the record of packets.
func (p *pathPair) forget() {
	p.log, p.sent = p.log[:0], nil
	p.took = map[*node][]int{p.a: make([]int, len(testPorts)), p.b: make([]int, len(testPorts))}
}

// write has a write n times size bytes, and keeps depth WRITEs under way.
func (p *pathPair) write(n, size, depth int) {
	p.t.Helper()
	for posted, done := 0, 0; done < n; {
		for ; posted < n && posted-done < depth; posted++ {
			off := posted * size % (memSize - size)
			p.post(p.a, writeWR(uint64(posted), p.b.mem.remote(off), p.a.mem.sge(off, size)))
		}
		if !p.step(Never - 1) {
			p.t.Fatalf("nothing happens any more, and %d of %d WRITEs are done", done, n)
		}
		done += len(p.a.sends)
		for _, s := range p.a.sends {
			if s.wc.Status != verbs.WCSuccess {
				p.t.Fatalf("%v, want success", s.wc.Err())
			}
		}
		p.log = p.log[:0]
		if n := len(p.a.sends); n > 0 {
			p.a.polled(n)
			p.a.sends = nil
		}
	}
}

// TestPathsOff: a QP without several ports, and one whose peer does not acknowledge selectively, sends all by one
// path.
func TestPathsOff(t *testing.T) {
	for name, s := range map[string]setup{"one port": {selective: true}, "a peer without ranges": {}} {
		p := newPathPair(t, s)
		if s.selective {
			p.a.qp.SetSources(testPorts[:1])
		}
		p.write(32, 16<<10, 4)
		if got := p.took[p.a]; got[0] != 32*16 || slices.Max(got[1:]) > 0 {
			t.Errorf("%s: packets by path %v, want %d by the first", name, got, 32*16)
		}
	}
}

// TestPathsShared: all paths take the same number of packets, packets overtake one another by a round trip, and none
// counts as lost.
func TestPathsShared(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.wait = func(from *node, path int) delay { return testDelay + delay(path)*testDelay/2 }
	copy(p.a.mem.data, pattern[9:])
	p.write(256, 16<<10, 16)
	got := p.took[p.a]
	if least, most := slices.Min(got), slices.Max(got); least == 0 || most > 2*least {
		t.Errorf("packets by path %v, want each to have its part", got)
	}
	if c := p.a.qp.Counters(); c.Retransmits > 0 || c.PathsLeft > 0 || p.b.qp.Counters().Held == 0 {
		t.Errorf("%+v, want packets that were held, and none that was sent twice", c)
	}
	if n := memSize - 16<<10; !bytes.Equal(p.a.mem.data[:n], p.b.mem.data[:n]) {
		t.Error("the data differ")
	}
	if acks := p.took[p.b]; slices.Min(acks) == 0 {
		t.Errorf("acknowledgements by path %v, want them by all", acks)
	}
}

// TestPathLeft: a path that loses all packets is left within a few round trips. From then on single packets probe the
// path, less and less often, and once one gets through the path has its share again.
func TestPathLeft(t *testing.T) {
	const bad = 2
	p := newPathPair(t, setup{selective: true})
	p.write(64, 16<<10, 8)
	p.wait = func(from *node, path int) delay {
		if from == p.a && path == bad {
			return lostOnPath
		}
		return testDelay
	}
	p.forget()
	from := p.now
	for p.now < from+4*ms {
		p.write(64, 16<<10, 8)
	}
	var tries []time.Duration
	for _, s := range p.sent {
		if s.path != bad || s.at < from+20*testDelay {
			continue
		}
		if k := len(tries); k > 0 && s.at-tries[k-1] < 8*testDelay {
			t.Fatalf("packets by the path that loses all at %v and %v, want none for some round trips", tries[k-1]-from, s.at-from)
		}
		tries = append(tries, s.at)
	}
	c := p.a.qp.Counters()
	if c.PathsLeft != 1 || len(tries) < 3 || len(tries) > 30 || c.Timeouts > 0 || c.Probes > 0 {
		t.Errorf("%+v, and %d packets tried the path; want one path left, and some tries", c, len(tries))
	}
	for k := 2; k < min(len(tries), 5); k++ {
		if tries[k]-tries[k-1] < (tries[k-1]-tries[k-2])*3/2 {
			t.Errorf("tries at %v, want each to wait twice as long", tries)
			break
		}
	}
	p.wait = func(*node, int) delay { return testDelay }
	for until := p.now + 8*ms; p.now < until; {
		p.write(64, 16<<10, 8)
	}
	p.forget()
	p.write(256, 16<<10, 8)
	if got := p.took[p.a]; got[bad] < got[0]/2 {
		t.Errorf("packets by path %v after all is well again, want the path to have its part", got)
	}
}

// TestPathsAllBad: where all paths lose the same, none is left.
func TestPathsAllBad(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	n := 0
	p.wait = func(from *node, _ int) delay {
		if n++; from == p.a && n%5 == 0 {
			return lostOnPath
		}
		return testDelay
	}
	p.write(256, 16<<10, 8)
	left := 0
	for k := range testPorts {
		if p.a.rc().recovery.Paths().HasLeft(uint8(k)) {
			left++
		}
	}
	if left == len(testPorts) {
		t.Errorf("all %d paths are left", left)
	}
}

// TestPathDead: where the path that works was left for its losses, and the others are dead, probes and answers still
// take the path that works.
func TestPathDead(t *testing.T) {
	for name, post := range map[string]func(p *pathPair){
		"a WRITE":   func(p *pathPair) { p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))) },
		"a READ":    func(p *pathPair) { p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))) },
		"an atomic": func(p *pathPair) { p.post(p.a, addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8))) },
	} {
		p := newPathPair(t, setup{selective: true})
		const works = 2
		for _, e := range []*node{p.a, p.b} {
			s := e.rc().recovery.Paths()
			s.Enable()
			s.LeavePath(works, time.Hour)
		}
		p.wait = func(_ *node, path int) delay {
			if path != works {
				return lostOnPath
			}
			return testDelay
		}
		post(p)
		p.run()
		if len(p.a.sends) != 1 || p.a.sends[0].wc.Status != verbs.WCSuccess {
			t.Errorf("%s: %d completions, %+v; want success", name, len(p.a.sends), p.a.sends)
		}
	}
}

// TestPathSlow: a path on which packets take ten times as long gets less.
func TestPathSlow(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.wait = func(from *node, path int) delay {
		if from == p.a && path == 1 {
			return 40 * testDelay
		}
		return 4 * testDelay
	}
	p.write(2048, 16<<10, 16)
	if got := p.took[p.a]; got[1] == 0 || got[1] > got[0]/3 {
		t.Errorf("packets by path %v, want the second to have few", got)
	}
	if c := p.a.qp.Counters(); c.Timeouts > 0 || c.Probes > 0 {
		t.Errorf("%+v, want no timeouts", c)
	}
}

// TestPathSilent: packets without an answer go again by another path.
func TestPathSilent(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.write(16, 16<<10, 4)
	p.forget()
	first := -1
	p.wait = func(from *node, path int) delay {
		if from == p.a && (first < 0 || path == first) {
			first = path
			return lostOnPath
		}
		return testDelay
	}
	p.write(1, 8, 1)
	if len(p.sent) != 2 || p.sent[1].path == p.sent[0].path || p.a.qp.Counters().Timeouts > 0 {
		t.Errorf("%+v sent, want one packet, and it again by another path", p.sent)
	}
}

// TestPathsAcknowledgements: a path that loses all acknowledgements costs next to nothing.
func TestPathsAcknowledgements(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.wait = func(from *node, path int) delay {
		if from == p.b && path == 0 {
			return lostOnPath
		}
		return testDelay
	}
	from := p.now
	p.write(512, 16<<10, 16)
	if c := p.a.qp.Counters(); c.Retransmits > 8 || c.Timeouts > 0 || c.PathsLeft > 0 {
		t.Errorf("%+v, %v; want little repeated", c, p.now-from)
	}
}

// TestPathsRead: READ responses keep to one path, and take another once the peer asks again.
func TestPathsRead(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	read := func() []int {
		p.forget()
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 64<<10)))
		p.run()
		p.a.polled(len(p.a.sends))
		p.a.sends = nil
		return p.took[p.b]
	}
	if got := read(); got[0] != 64 {
		t.Errorf("responses by path %v, want all by the first", got)
	}
	p.wait = func(from *node, path int) delay {
		if from == p.b && path == 0 {
			return lostOnPath
		}
		return testDelay
	}
	read()
	if got := read(); got[0] != 0 || slices.Max(got) != 64 {
		t.Errorf("responses by path %v, want all by one that gets through", got)
	}
}

// TestPathsReadLeft: READ responses do not wait for the peer to ask again where their path was left for other reasons.
func TestPathsReadLeft(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.wait = func(from *node, path int) delay {
		if from == p.a && path == 0 {
			return lostOnPath
		}
		return testDelay
	}
	p.write(64, 16<<10, 8)
	p.forget()
	p.post(p.b, readWR(1, p.a.mem.remote(0), p.b.mem.sge(0, 64<<10)))
	p.run()
	if got := p.took[p.a]; p.a.qp.Counters().PathsLeft != 1 || got[0] != 0 || slices.Max(got) != 64 {
		t.Errorf("%d paths left, responses by path %v; want one left, and all by one of the others", p.a.qp.Counters().PathsLeft, got)
	}
}

// TestPathsTold: the hello tells the peer the ports, only those, and again when they change.
func TestPathsTold(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	for _, port := range testPorts {
		if !p.b.qp.PeerSends(port) {
			t.Errorf("the peer does not know of port %#x", port)
		}
	}
	if p.b.qp.PeerSends(0) || p.b.qp.PeerSends(0xc004) {
		t.Error("the peer takes packets from ports that nobody named")
	}
	p.a.qp.SetSources(testPorts[:2])
	p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	if !p.b.qp.PeerSends(testPorts[1]) || p.b.qp.PeerSends(testPorts[2]) {
		t.Error("the peer was not told which ports there are now")
	}
	p.a.qp.SetSources(nil)
	p.a.rc().hello.due = true
	if p.run(); p.b.qp.PeerSends(testPorts[0]) {
		t.Error("the peer takes packets from a port that the peer no longer names, want none")
	}
	g := &p.a.rc().hello
	g.sent = maxHellos
	p.a.qp.SetSources(testPorts)
	if g.sendAgain(); !g.due {
		t.Error("new ports are not told after many words for other reasons, want them told")
	}
}

// TestPathsReset: RESET forgets the peer's ports.
func TestPathsReset(t *testing.T) {
	p := newPathPair(t, setup{selective: true})
	p.state(p.b, verbs.QPStateReset)
	if p.b.qp.PeerSends(testPorts[0]) || p.b.rc().recovery.Paths().IsOn() {
		t.Error("after RESET the QP still sends by several paths, or takes them")
	}
}

// TestPathsAlloc: with several paths too nothing is allocated from Post to the completion.
func TestPathsAlloc(t *testing.T) {
	m := newBench(t, setup{selective: true, rd: 4})
	for _, e := range []*node{m.a, m.b} {
		e.qp.SetSources(testPorts)
	}
	ops := benchOps(m)
	recvs := []verbs.RecvWR{{ID: 1, SGList: []verbs.SGE{m.b.mem.sge(1<<16, 8000)}}}
	for _, name := range []string{"SEND", "WRITE", "READ"} {
		wr := ops[name]
		m.a.resolve(&wr)
		if n := testing.AllocsPerRun(100, func() {
			for range 5 {
				m.now += testDelay
				m.b.dropReceives()
				m.b.own.Post(recvs)
				if err := m.a.qp.Post(&wr); err != nil {
					t.Fatal(err)
				}
				m.settle()
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
	if !m.a.rc().recovery.Paths().IsOn() {
		t.Error("all went by one path")
	}
}
