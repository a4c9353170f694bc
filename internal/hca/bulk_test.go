package hca

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

var (
	bulkSize = flag.Int("bulk", 0, "bytes that TestBulk moves each way; 0: as many as take a second or two")
	seeds    = flag.Int("seeds", 3, "networks with losses that TestBulk tries")
)

func bulk(def int) int {
	switch {
	case *bulkSize > 0:
		return *bulkSize
	case testing.Short():
		return def / 4
	}
	return def
}

// moved WRITEs size bytes to y and READs them back, each as a single message, and compares the
// contents. It returns how long each took.
func moved(t *testing.T, x, y *end, size int, seed uint64) (write, read time.Duration) {
	t.Helper()
	src, dst, back := x.mr(size), y.mr(size), x.mr(size)
	fill(src.Bytes(), seed)
	start := time.Now()
	x.transfer(src, dst)
	write = time.Since(start)
	if !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Errorf("seed %d: the WRITE of %d bytes gave other contents, want those of the source", seed, size)
	}
	start = time.Now()
	x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{back.SGE(0, size)}, Remote: dst.Remote(0)})
	x.done()
	read = time.Since(start)
	if !bytes.Equal(back.Bytes(), src.Bytes()) {
		t.Errorf("seed %d: the READ of %d bytes gave other contents, want those of the source", seed, size)
	}
	for _, mr := range []*verbs.MR{src, dst, back} {
		x.must(mr.Close())
	}
	return write, read
}

func rate(size int, d time.Duration) string {
	return fmt.Sprintf("%.2f GB/s", float64(size)/float64(d.Nanoseconds()))
}

// TestBulkUDP moves bulk data over loopback, and says how fast.
func TestBulkUDP(t *testing.T) {
	size := bulk(64 << 20)
	x, y := pair(t, "udp", options{})
	write, read := moved(t, x, y, size, 1)
	t.Logf("%d bytes: WRITE %s, READ %s; %+v", size, rate(size, write), rate(size, read), counters(x, y))
	for _, e := range []*end{x, y} {
		if s := stats(t, e.dev); s.Drops != (Drops{}) {
			t.Errorf("drops %+v, want none", s.Drops)
		} else {
			t.Logf("lost by sockets: %d sent, %d received", s.Link.SendErrors, s.Link.ReceiveDrops)
		}
	}
}

// TestBulkFaults moves bulk data over networks with faults. Inside a bubble computing takes no time: only the waits of the
// protocol are left.
func TestBulkFaults(t *testing.T) {
	size := bulk(16 << 20)
	for seed := range uint64(*seeds) {
		for _, f := range []struct {
			name string
			sim.Config
		}{
			{"all", sim.Config{Loss: 0.01, Reorder: 0.01, Duplicate: 0.01}},
			{"loss", sim.Config{Loss: 0.01}},
			{"corruption", sim.Config{Corrupt: 0.01}},
		} {
			if f.name != "all" && seed > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", f.name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := f.Config
					c.Seed = seed
					net := sim.New(c)
					x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
					write, read := moved(t, x, y, size, seed)
					t.Logf("seed %d: %d bytes, WRITE waited %v, READ %v; %+v; %+v", seed, size, write, read, counters(x, y), net.Stats())
				})
			})
		}
	}
}

// TestBulkForeign moves some 10^5 packets of a sender whose identifications we have to solve for, some of
// them damaged.
func TestBulkForeign(t *testing.T) {
	size := min(bulk(12<<20), 256<<20) // in packets of 256 bytes; more would outlast patience
	const seed = 1
	synctest.Test(t, func(t *testing.T) {
		mw := func(i uint64) link.Middleware {
			return func(l link.Link) link.Link {
				rng := rand.New(rand.NewPCG(seed, i))
				id := uint16(rng.Uint32())
				count := func() (uint16, bool) { id++; return id, true }
				return &foreign{Link: l, next: count, damage: 0.01, rng: rng}
			}
		}
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1, mw(1)), simDevice(t, net, 2, mw(2)), options{mtu: verbs.MTU256})
		moved(t, x, y, size, seed)
		a, b := stats(t, x.dev), stats(t, y.dev)
		t.Logf("%d packets, %d dropped for their ICRC; %+v", a.Link.Received+b.Link.Received, a.Drops.ICRC+b.Drops.ICRC, counters(x, y))
	})
}
