package perftest

import (
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// printer is a tester that only prints.
func printer(t *testing.T, line string) (*tester, *strings.Builder) {
	t.Helper()
	inv, stdout, stderr := tooltest.Invocation(t, SendLat, line)
	k := kindOf(SendLat)
	if strings.HasPrefix(line, "-b") || strings.Contains(line, "gbits") || strings.Contains(line, "bandwidth") {
		inv, stdout, stderr = tooltest.Invocation(t, SendBW, line)
		k = kindOf(SendBW)
	}
	p, _, ok := parse(inv, k)
	if !ok {
		t.Fatal(stderr)
	}
	return &tester{params: p, inv: inv, kind: k}, stdout
}

// The rows are the output of the C library's printf with the formats of perftest 4.5-0.20.
func TestRows(t *testing.T) {
	r := bwReport{size: 65536, iters: 5000, peak: 11234.567, average: 11111.111, rate: 0.1777777}
	for line, want := range map[string]string{
		"-b":                 " 65536      5000             11234.57            11111.11\t\t   0.177778\n",
		"--report_gbits":     " 65536      5000             11234.57            11111.11\t\t   0.177778\n",
		"--output=bandwidth": "11111.111000\n",
	} {
		p, out := printer(t, line)
		p.printRow(&r)
		tooltest.DiffLines(t, out.String(), want)
	}
	p, out := printer(t, "--report_gbits")
	p.printRow(&bwReport{size: 2, iters: 7, peak: 0.05, average: 0.04, rate: 1})
	tooltest.DiffLines(t, out.String(), " 2          7           0.050000            0.040000            1.000000\n")

	h := hdrhistogram.New(1, longestTime, digits)
	for i := range 100 {
		h.RecordValue(int64(2000 + 20*i)) // 1.00 to 1.99 µs one way
	}
	p, out = printer(t, "")
	if err := p.reportLatency(&latReport{size: 2, iters: 101, histogram: h, oneWay: true}); err != nil {
		t.Fatal(err)
	}
	tooltest.DiffLines(t, out.String(), " 2       101          1.00           1.99         1.49     \t       1.50        \t0.29   \t\t1.98    \t\t1.99   \n")

	p, out = printer(t, "-D 4")
	if err := p.reportLatency(&latReport{size: 2, iters: 1000, histogram: h, oneWay: true, byTime: true, elapsed: 4e6}); err != nil {
		t.Fatal(err)
	}
	tooltest.DiffLines(t, out.String(), " 2             1000            2.00           250000.00\n")

	for line, want := range map[string]string{"-H": "#, usec\n1, 1\n2, 2\n3, 3\n", "-U": "#, usec\n1, 3\n2, 1\n3, 2\n"} {
		p, out = printer(t, line)
		if err := p.reportLatency(&latReport{size: 2, iters: 4, histogram: h, all: []int64{3000, 1000, 2000}}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: got\n%swant at its beginning\n%s", line, out, want)
		}
	}
}

// If both ends have measured, then a row is the sum.
func TestRowWithPeer(t *testing.T) {
	p, out := printer(t, "-b")
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	p.talk.pipe = newSocketPipe(t.Context(), ours, func(error) {})
	peer := talk{pipe: newSocketPipe(t.Context(), theirs, func(error) {}), first: true}
	go peer.swapReport(&bwReport{size: 65536, iters: 5000, peak: 2000, average: 200, rate: 0.25})
	if err := p.reportBandwidth(&bwReport{size: 65536, iters: 5000, peak: 1000, average: 1000, rate: 0.5}, true); err != nil {
		t.Fatal(err)
	}
	tooltest.DiffLines(t, out.String(), " 65536      5000             3000.00            1200.00\t\t   0.750000\n")
}

// C's %#0*x.
// 1000 messages of 1 MiB in 2 s, in both units. The limits are of the average, not of the peak.
func TestReport(t *testing.T) {
	for gbits, want := range map[bool]float64{false: 500, true: 8 * 1.048576 / 2} {
		if r := makeReport(1<<20, 1000, 2e9, gbits); r.average != want || r.rate != 500e-6 {
			t.Errorf("in Gbit/s %v: got %v, and %v million messages per second, want %v and 0.0005", gbits, r.average, r.rate, want)
		}
	}
	r := results{bw: []bwReport{{peak: 9, average: 4, rate: 2}}}
	for _, c := range []struct {
		p  params
		ok bool
	}{{params{limitBW: 4, limitRate: 2}, true}, {params{limitBW: 5}, false}, {params{limitRate: 3}, false}} {
		if err := r.verdict(&c.p); (err == nil) != c.ok {
			t.Errorf("limits of %v and %v messages, where the average is 4 and 2: got error %v, want none: %v", c.p.limitBW, c.p.limitRate, err, c.ok)
		}
	}
}

func TestHash(t *testing.T) {
	for _, tt := range []struct {
		v     uint64
		width int
		want  string
	}{{0, 4, "0000"}, {1, 4, "0x01"}, {0x11, 6, "0x0011"}, {0xabcdef, 6, "0xabcdef"}, {0x7f0123456789, 16, "0x007f0123456789"}} {
		if got := hash(tt.v, tt.width); got != tt.want {
			t.Errorf("%#x: got %s, want %s", tt.v, got, tt.want)
		}
	}
}

// The margins of -D do not count.
func TestSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m meter
		ctx := m.start(t.Context(), now(), 10*time.Second, 2*time.Second)
		begin := time.Now()
		for ctx.Err() == nil { // a message a millisecond, as of the second half of each
			time.Sleep(500 * time.Microsecond)
			m.count.Add(1)
			time.Sleep(500 * time.Microsecond)
		}
		if took := time.Since(begin); took < 10*time.Second || took > 10*time.Second+time.Millisecond {
			t.Errorf("the run took %v, want 10s and at most a message more", took)
		}
		if count, ns, ok := m.stop(); !ok || count != 6000 || ns != 6e9 {
			t.Errorf("got %d messages in %d ns, %v; want 6000 in 6e9", count, ns, ok)
		}
		m.start(t.Context(), now(), 10*time.Second, 0)
		if _, _, ok := m.stop(); ok {
			t.Error("a run that ended early has a result, want none")
		}
	})
}

// The limiter lets bursts through at the asked rate.
func TestLimiter(t *testing.T) {
	for _, tt := range []struct {
		line string
		size int
		gap  int64
	}{
		{"-b --output=bandwidth", 64, 0},
	} {
		p, _ := printer(t, tt.line)
		if got := newLimiter(p.params, tt.size); got.gap != tt.gap || !got.open(1) {
			t.Errorf("%s: got %+v, want an open one", tt.line, got)
		}
	}
	p := &params{rate: 100, rateUnits: "p", burst: 10}
	if got := newLimiter(p, 64).gap; got != 1e8 {
		t.Errorf("100 messages a second in bursts of 10: got a burst every %d ns, want 1e8", got)
	}
	p.rateUnits, p.rate = "M", 1
	if got := newLimiter(p, 1<<20).gap; got != 1e10 {
		t.Errorf("1 MiB/s of 1 MiB messages in bursts of 10: got %d ns, want 1e10", got)
	}
	p.rateUnits, p.rate = "g", 8
	if got := newLimiter(p, 1000).gap; got != 1e4 {
		t.Errorf("8 Gb/s of 1000 bytes in bursts of 10: got %d ns, want 1e4", got)
	}
	p.rate = 1e-30
	if got := newLimiter(p, 1000).gap; got < 1e18 {
		t.Errorf("next to no Gb/s: got a burst every %d ns, want one in decades", got)
	}
	l := limiter{gap: int64(time.Hour)}
	if !l.open(3) || l.left != 3 {
		t.Errorf("got %+v, want an open burst of 3", l)
	}
	if l.left = 0; l.open(3) {
		t.Error("a second burst is let through at once, want the gap")
	}
}

// The peak is the best rate between any message and any later completion.
func TestPeak(t *testing.T) {
	b := &bandwidth{tester: &tester{params: &params{postList: 1}},
		postedAt: []int64{0, 10, 20, 30}, completedAt: []int64{100, 0, 120, 330}}
	// Messages 2 and 3 took from 10 to 120 ns, messages 1 to 3 from 0 to 120 ns.
	if got, want := b.peak(1<<20), 3/120e-9; got < want*0.999 || got > want*1.001 {
		t.Errorf("got %v MiB/s, want %v", got, want)
	}
}

// The peak is over all pairs of a post and a completion, and many QPs make so many messages that there is no time to
// look at each pair.
func TestPeakOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ n, postList, share int }{{1, 1, 1}, {500, 1, 1}, {500, 1, 7}, {512, 8, 8}, {2_000_000, 1, 1}} {
		b := &bandwidth{tester: &tester{params: &params{postList: c.postList}}, postedAt: make([]int64, c.n), completedAt: make([]int64, c.n)}
		post, complete := int64(0), int64(0)
		for i := range c.n {
			if i%c.postList == 0 {
				post += r.Int64N(1000)
			}
			b.postedAt[i] = post
			if complete = max(complete, post) + 1 + r.Int64N(1000); (i+1)%c.share == 0 || i == c.n-1 {
				b.completedAt[i] = complete
			}
		}
		got, want := b.peak(1<<20), float64(0)
		if c.n > 1000 {
			want = got // it has come to an end
		}
		for i := 0; i < c.n && c.n <= 1000; i += c.postList {
			for j := i; j < c.n; j++ {
				if ns := b.completedAt[j] - b.postedAt[i]; ns > 0 {
					want = max(want, 1e9*float64(j-i+1)/float64(ns))
				}
			}
		}
		if got < want*0.999999 || got > want*1.000001 {
			t.Errorf("%+v: got %v MiB/s, want %v", c, got, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	for want, got := range map[string]string{
		" 500 messages of 1000 (50%) in 3 s, 160/s": progressLine(500, 1000, 160, 3100*time.Millisecond),
		" 500 messages in 3 s, 160/s":               progressLine(500, 0, 160, 3*time.Second),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
