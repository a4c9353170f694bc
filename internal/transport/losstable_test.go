package transport

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var lossTableFlag = flag.String("losstable", "", "write the table of losses to this file")

// lossPath is a path with a rate, a delay and a buffer that loses and delays packets, both ways.
type lossPath struct {
	rnd     *rand.Rand
	rate    float64 // bytes in a second
	oneWay  time.Duration
	buffer  time.Duration // of the queue at the bottleneck
	loss    float64
	late    float64       // packets that are delayed
	lateBy  time.Duration // how long
	busy    map[*node]time.Duration
	sender  *node // the sender of the data
	dropped int   // of the sender's packets, by chance or by a full buffer
}

const pathHeaders = 20 + 8 + wire.BTHSize + wire.ICRCSize // of each packet, others not counted

func (l *lossPath) route(p *pair) func(from *node, _ int, pkt *wire.Packet) []delay {
	return func(from *node, _ int, pkt *wire.Packet) []delay {
		leave := max(p.now, l.busy[from])
		leave += time.Duration(float64(len(pkt.Payload)+pathHeaders) / l.rate * 1e9)
		late := l.rnd.Float64() < l.late // rolled for each packet, so that the fate of one changes no other
		if l.rnd.Float64() < l.loss || leave-p.now > l.buffer {
			if from == l.sender {
				l.dropped++
			}
			return nil
		}
		l.busy[from] = leave
		d := leave - p.now + l.oneWay
		if late {
			d += l.lateBy
		}
		return []delay{d}
	}
}

// lossCase is a row of the table.
type lossCase struct {
	name       string
	loss, late float64
	routed     bool          // both ends know that packets overtake one another
	oneWay     time.Duration // 0 stands for tableOneWay
	window     uint64        // packets, if it is not maxWindow
	rate       float64       // 0 stands for tableRate
}

var lossCases = []lossCase{
	{name: "nothing lost"}, {name: "1 % lost", loss: .01}, {name: "3 % lost", loss: .03}, {name: "10 % lost", loss: .1}, {name: "25 % late by 1 ms", late: .25},
}

// lossResult is the result of runs.
type lossResult struct {
	bytes    int
	took     time.Duration
	repeated uint64 // packets with data
	dropped  int
	timeouts uint64
	unprobed uint64 // timeouts with fewer than two needless probes before them, though the peer had answered
}

func (r lossResult) goodput() float64 { return float64(r.bytes) / r.took.Seconds() }

// perLoss is how many packets were repeated for a lost one.
func (r lossResult) perLoss() float64 { return float64(r.repeated) / float64(max(1, r.dropped)) }

const (
	tableRate    = 500e6 // bytes in a second
	tableOneWay  = 500 * us
	tableBuffer  = 4 * ms
	tableMessage = 256 << 10
	tableDepth   = 16
)

// lossRun moves bytes over a path with faults, in messages of tableMessage, of which tableDepth are posted. selective
// says that both ends acknowledge selectively.
func lossRun(t testing.TB, op verbs.Opcode, c lossCase, selective bool, seed uint64, bytes int) lossResult {
	p := newPair(t, setup{mtu: verbs.MTU4096, timeout: 14, rd: 16, selective: selective, fresh: true})
	l := &lossPath{rnd: rand.New(rand.NewPCG(seed, 0x70617468)), rate: tableRate, oneWay: tableOneWay, buffer: tableBuffer,
		loss: c.loss, late: c.late, lateBy: 2 * tableOneWay, busy: map[*node]time.Duration{}, sender: p.a}
	if op == verbs.OpRDMARead {
		l.sender = p.b
	}
	if c.oneWay != 0 {
		l.oneWay = c.oneWay
	}
	if c.rate != 0 {
		l.rate = c.rate
	}
	if c.window != 0 {
		p.a.rc().recovery.Allow(c.window)
	}
	p.route = l.route(p)
	if c.routed {
		r := routed
		r.Patience = 4 * ms
		p.a.qp.SetAdaptiveRouting(r)
		p.b.qp.SetAdaptiveRouting(r)
	}
	n, sent, unprobed := bytes/tableMessage, 0, uint64(0)
	for posted := 0; len(p.a.sends) < n; {
		for ; posted < n && posted-len(p.a.sends) < tableDepth; posted++ {
			if len(p.a.sends) > 0 {
				p.a.polled(len(p.a.sends))
			}
			off := posted % 3 * tableMessage
			wr := writeWR(uint64(posted), p.b.mem.remote(off), p.a.mem.sge(off, tableMessage))
			wr.Op = op
			p.post(p.a, wr)
		}
		for i := range p.log {
			if s := &p.log[i]; s.from == l.sender && len(s.Payload) == 4096 {
				sent++
			}
		}
		p.log = p.log[:0]
		rec := &p.a.rc().recovery
		probed, timeouts := rec.Gauges().Backoff >= 2 || !rec.Gauges().PeerAnswered, p.a.qp.Counters().Timeouts
		if !p.step(Never-1) && len(p.a.sends) < n { // completions are collected first
			t.Fatalf("%v, %s, seed %d: nothing happens any more, and %d of %d messages are done", op, c.name, seed, len(p.a.sends), n)
		}
		if !probed {
			unprobed += p.a.qp.Counters().Timeouts - timeouts
		}
		if p.now > 20*time.Minute {
			t.Fatalf("%v, %s, seed %d: %d of %d messages after %v, want all", op, c.name, seed, len(p.a.sends), n, p.now)
		}
	}
	for _, s := range p.a.sends {
		if s.wc.Status != verbs.WCSuccess {
			t.Fatalf("%v, %s, seed %d: %v, want success", op, c.name, seed, s.wc.Err())
		}
	}
	return lossResult{bytes: bytes, took: p.now, repeated: uint64(max(0, sent-bytes/4096)), dropped: l.dropped, timeouts: p.a.qp.Counters().Timeouts, unprobed: unprobed}
}

// beforeProbes are the results of go-back-N with the acknowledge timeout alone, by the same test: MB/s, and packets
// repeated for a lost one.
var beforeProbes = map[verbs.Opcode][][2]float64{
	verbs.OpRDMAWrite: {{491.1, 0}, {94.0, 31.2}, {23.3, 16.9}, {2.7, 7.5}, {24.6, 0}},
	verbs.OpRDMARead:  {{491.1, 0}, {117.0, 49.4}, {24.9, 24.6}, {2.5, 9.0}, {20.8, 0}},
}

// TestLateInQueue: some packets are late and the others wait in a queue, which becomes longer and shorter. The
// lateness of a packet is measured against the round trip of the packet that overtook it. So the reorder window stays
// as the path needs it, and losses of the full queue narrow the congestion window as they do where no packet is late.
func TestLateInQueue(t *testing.T) {
	c := lossCase{name: "nothing late", rate: tableRate / 4}
	const bytes = 64 << 20
	whole := lossRun(t, verbs.OpRDMAWrite, c, true, 1, bytes).goodput()
	c.name, c.late = "25 % late by 1 ms", .25
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1 // the race detector's time
	}
	for seed := range seeds {
		r := lossRun(t, verbs.OpRDMAWrite, c, true, seed+1, bytes)
		t.Logf("seed %d: %.1f MB/s of %.1f, %d packets repeated, %d lost", seed+1, r.goodput()/1e6, whole/1e6, r.repeated, r.dropped)
		if r.goodput() < .97*whole || r.repeated > bytes/4096/25 {
			t.Errorf("seed %d: %.1f MB/s of %.1f, and %d packets of %d were repeated; want 0.97 and 4 %% at most", seed+1, r.goodput()/1e6, whole/1e6, r.repeated, bytes/4096)
		}
	}
}

// TestLossTable checks the figures of docs/LOSS.md, and writes that file's table if asked:
//
//	go test ./internal/transport -run LossTable -args -losstable ../../docs/LOSS.md
func TestLossTable(t *testing.T) {
	var b strings.Builder
	const bytes = 32 << 20 // in less, the beginning counts for much
	seeds := uint64(2)
	if *lossTableFlag != "" {
		seeds = 3
	}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		var whole float64 // goodput without losses
		for i, c := range lossCases {
			if testing.Short() && (i == 2 || i == 3) {
				continue // the race detector's time
			}
			var rs [2]lossResult // go-back-N, selective
			for k := range rs {
				if k == 0 && testing.Short() {
					continue
				}
				n := seeds
				if c.loss > .05 && k == 1 {
					n *= 3 // chance counts for more
				}
				for seed := range n {
					r := lossRun(t, op, c, k == 1, seed+1, bytes)
					rs[k].bytes += r.bytes
					rs[k].took += r.took
					rs[k].repeated += r.repeated
					rs[k].dropped += r.dropped
					rs[k].timeouts += r.timeouts
					rs[k].unprobed += r.unprobed
				}
			}
			if i == 0 {
				whole = rs[1].goodput()
			}
			fmt.Fprintf(&b, "| %s, %s |", op, c.name)
			cell := func(goodput, perLoss float64) {
				fmt.Fprintf(&b, " %.1f (%.2f) | %s |", goodput/1e6, goodput/whole, perLossText(c, perLoss))
			}
			if before := beforeProbes[op]; i < len(before) {
				cell(before[i][0]*1e6, before[i][1])
			}
			for _, r := range rs {
				cell(r.goodput(), r.perLoss())
				most := uint64(0)
				if c.loss > .05 {
					most = seeds // now and then so many probes in a row, or their answers, are lost
				}
				if (r.timeouts > most || r.unprobed > 0) && *lossTableFlag == "" {
					t.Errorf("%v, %s: %d timeouts, and %d without probes; want %d at most, and none", op, c.name, r.timeouts, r.unprobed, most)
				}
			}
			b.WriteByte('\n')
			if *lossTableFlag != "" {
				continue // the table shows the figure, good or bad
			}
			least := map[string]float64{"1 % lost": .9, "3 % lost": .85, "10 % lost": .85, "25 % late by 1 ms": .9}[c.name]
			if op == verbs.OpRDMARead && c.loss > .05 {
				least = .6 // a request that is lost stops all answers behind it for a round trip
			}
			if got := rs[1].goodput() / whole; got < least {
				t.Errorf("%v, %s: goodput is %.2f of the goodput without losses, want %.2f", op, c.name, got, least)
			}
			if goBack := map[string]float64{"1 % lost": .5, "3 % lost": .2, "10 % lost": .06, "25 % late by 1 ms": .4}[c.name]; op == verbs.OpRDMARead && !testing.Short() && rs[0].goodput()/whole < goBack {
				t.Errorf("%v, %s: goodput toward a peer that does go-back-N is %.2f of the goodput without losses, want %.2f", op, c.name, rs[0].goodput()/whole, goBack)
			}
			if got := rs[1].perLoss(); c.loss > 0 && got > 1.15 {
				t.Errorf("%v, %s: %.2f packets are repeated for a lost one, want 1.15 at most", op, c.name, got)
			}
		}
	}
	t.Log("\n" + b.String())
	if *lossTableFlag != "" {
		writeTable(t, *lossTableFlag, b.String())
	}
}

// TestGoBackWindow: toward a peer that does go-back-N each loss repeats about the window. So after a loss the window
// is about the bandwidth-delay product, and no fixed window that repeats less brings more. docs/LOSS.md has the
// figures.
func TestGoBackWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	run := func(c lossCase) (sum lossResult) {
		seeds := uint64(9)
		if c.loss > .05 { // since the few long silences say much
			seeds = 18
		}
		for seed := range seeds {
			r := lossRun(t, verbs.OpRDMAWrite, c, false, seed+1, 64<<20)
			sum.bytes += r.bytes
			sum.took += r.took
			sum.repeated += r.repeated
			sum.dropped += r.dropped
		}
		return sum
	}
	for _, path := range []struct {
		oneWay time.Duration
		most   [3]float64 // repeats for a loss: with the largest window they were 35, 17 and 7.7, and 31, 17 and 7.4
	}{{50 * us, [3]float64{20, 12, 6.5}}, {500 * us, [3]float64{34, 18, 8}}} {
		for i, c := range lossCases[1:4] {
			c.oneWay = path.oneWay
			own := run(c)
			if own.perLoss() > path.most[i] {
				t.Errorf("round trip %v, %s: %.1f repeats for a loss, want %v at most", 2*c.oneWay, c.name, own.perLoss(), path.most[i])
			}
			for _, c.window = range []uint64{8, 12} {
				r := run(c)
				t.Logf("round trip %v, %s, %d packets: %.1f MB/s and %.1f repeats for a loss, of %.1f and %.1f", 2*c.oneWay, c.name, c.window,
					r.goodput()/1e6, r.perLoss(), own.goodput()/1e6, own.perLoss())
				if r.perLoss() > float64(c.window) {
					t.Errorf("round trip %v, %s: %.1f repeats for a loss, want the window, %d, at most", 2*c.oneWay, c.name, r.perLoss(), c.window)
				}
				if own.goodput() < .95*r.goodput() {
					t.Errorf("round trip %v, %s: %.1f MB/s, want the %.1f of a window of %d", 2*c.oneWay, c.name, own.goodput()/1e6, r.goodput()/1e6, c.window)
				}
			}
		}
	}
}

func perLossText(c lossCase, n float64) string {
	if c.loss == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", n)
}

// writeTable replaces the table's rows in a file: the lines between two marks.
func writeTable(t *testing.T, name, rows string) {
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), "|---|---|---|---|---|---|---|\n")
	_, tail, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no table of 7 columns", name)
	}
	text := head + "|---|---|---|---|---|---|---|\n" + rows + "\n" + tail
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
