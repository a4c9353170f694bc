//go:build linux && (amd64 || arm64)

package native

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// quick is a QP of the device that moves nothing, with its CQ.
func quick(t testing.TB) *pair {
	t.Helper()
	p := newPair(t, fake(t), quickName)
	// The device says that each completion is of QP 1.
	p.dev.Provider().(*device).qpns.put(1, p.a.Provider().(*qp))
	return p
}

// postPoll posts a list, and polls until all of it is complete.
func (p *pair) postPoll(t testing.TB, wrs []verbs.SendWR, wcs []verbs.WC) {
	if n, err := p.a.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	if n, err := p.cq.Poll(wcs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
}

// TestNoAllocation: posts, receives, polls and arming allocate nothing.
func TestNoAllocation(t *testing.T) {
	f := fake(t)
	for _, name := range []string{fakeName, quickName} {
		p := newPair(t, f, name)
		wcs := make([]verbs.WC, 16)
		for what, wrs := range map[string][]verbs.SendWR{
			"a WRITE": {p.write(1)}, "a list": {p.write(1), p.write(2), p.write(3)},
			"inline":              {{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: make([]byte, 32), Remote: p.mr.Remote(0)}},
			"what goes alone":     {p.flush(1), p.write(2), p.atomicWrite(3, 0), p.flush(4)},
			"inline, of a region": {{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, 9)}, Remote: p.mr.Remote(0)}},
		} {
			if name == quickName && wrs[0].Op == verbs.OpFlush {
				continue // it has none
			}
			if n := testing.AllocsPerRun(100, func() { p.postPoll(t, wrs, wcs) }); n != 0 {
				t.Errorf("%s: post and poll of %s allocate %g times", name, what, n)
			}
		}
		if n := testing.AllocsPerRun(100, func() { check(t, p.cq.Notify(false)) }); n != 0 {
			t.Errorf("%s: Notify allocates %g times", name, n)
		}
	}
	p := newPair(t, f, fakeName)
	send := []verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{p.mr.SGE(0, 8)}, Flags: verbs.SendSignaled}}
	recv := []verbs.RecvWR{{SGList: []verbs.SGE{p.mr.SGE(64, 8)}}}
	wcs := make([]verbs.WC, 2)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := p.b.PostRecv(recv); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := p.a.PostSend(send); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := p.cq.Poll(wcs); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("SEND and receive allocate %g times", n)
	}
}

// BenchmarkPostPoll is a post and a poll of a device that moves nothing: the cost of this package and of a call of C. Beside it
// are the same calls by cgo, where there are a C compiler and cgo: testdata/cgo says how. All are of the fastest round, so
// that they can be compared on a busy machine.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run("list="+strconv.Itoa(n), func(b *testing.B) {
			p := quick(b)
			wrs, wcs := make([]verbs.SendWR, n), make([]verbs.WC, n)
			for i := range wrs {
				wrs[i] = p.write(uint64(i))
			}
			const round = 1 << 12 // posts: short enough that some are not disturbed
			least := time.Duration(1 << 62)
			b.ReportAllocs()
			for b.Loop() {
				begin := time.Now()
				for range round {
					p.postPoll(b, wrs, wcs)
				}
				least = min(least, time.Since(begin))
			}
			b.ReportMetric(float64(least.Nanoseconds())/float64(round*n), "ns/WR")
			b.ReportMetric(0, "ns/op")
		})
	}
	b.Run("cgo", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "cgo")
		build := exec.Command("go", "build", "-o", file, "main.go")
		build.Dir = filepath.Join("testdata", "cgo")
		build.Env = append(build.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -w")
		if out, err := build.CombinedOutput(); err != nil {
			b.Skipf("cgo does not work here: %v\n%s", err, out)
		}
		out, err := exec.Command(file).Output() // which has rounds of its own
		check(b, err)
		var calls, wrapper float64
		_, err = fmt.Sscan(string(out), &calls, &wrapper)
		check(b, err)
		b.ReportMetric(calls, "ns/WR")
		b.ReportMetric(wrapper, "ns/WR-allocated")
		b.ReportMetric(0, "ns/op")
	})
}
