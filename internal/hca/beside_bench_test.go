package hca_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkBeside is the time from the post of a SEND of 64 bytes to its completion, beside so many QPs of the same
// device that WRITE to the same peer without end. The programs of both ends poll.
func BenchmarkBeside(b *testing.B) {
	for _, carrier := range carriers {
		for _, n := range []int{0, 1, 4, 16} {
			b.Run(fmt.Sprintf("%s/%d", carrier, n), func(b *testing.B) { benchBeside(b, carrier, n) })
		}
	}
}

func benchBeside(b *testing.B, carrier string, n int) {
	const size = 64 << 20 // of a WRITE, of which each QP always has two: they never end
	dx, dy := twoDevices(b, carrier)
	x, y := newSide(b, dx, 64), newSide(b, dy, 64)
	connectMany(x, y, 1, 1)
	y.receive(4)
	bulkX, bulkY := newSide(b, dx, size), newSide(b, dy, size)
	connectMany(bulkX, bulkY, n, 2)
	clear(bulkX.mr.Bytes()) // so that the pages are there
	clear(bulkY.mr.Bytes())
	wr := []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{bulkX.mr.SGE(0, size)}, Remote: bulkY.mr.Remote(0)}}
	for k, qp := range bulkX.qps {
		wr[0].ID = uint64(k)
		for range 2 {
			_, err := qp.PostSend(wr)
			x.must(err)
		}
	}
	sent := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, 64)}}}
	var over atomic.Bool
	var peer sync.WaitGroup
	peer.Go(func() {
		for !over.Load() {
			y.poll()
		}
	})
	var trips []time.Duration
	began, before := time.Now(), bulkX.moved()
	for b.Loop() {
		m, err := bulkX.cq.Poll(bulkX.wcs)
		x.must(err)
		for i := range bulkX.wcs[:m] {
			x.must(bulkX.wcs[i].Err())
			wr[0].ID = bulkX.wcs[i].ID
			_, err := bulkX.qps[wr[0].ID].PostSend(wr)
			x.must(err)
		}
		start := time.Now()
		_, err = x.qps[0].PostSend(sent)
		x.must(err)
		for x.poll() == 0 {
		}
		trips = append(trips, time.Since(start))
	}
	moved, took := bulkX.moved()-before, time.Since(began)
	over.Store(true)
	peer.Wait()
	slices.Sort(trips)
	b.ReportMetric(float64(trips[len(trips)/2].Nanoseconds())/1000, "µs-median")
	b.ReportMetric(float64(trips[len(trips)*99/100].Nanoseconds())/1000, "µs-p99")
	b.ReportMetric(float64(moved)/took.Seconds()/1e6, "MB/s-beside")
	for _, s := range []*side{bulkX, bulkY, x, y} {
		s.close()
	}
}

// moved returns how many bytes the QPs have sent.
func (s *side) moved() (n uint64) {
	for _, qp := range s.qps {
		c, err := qp.Counters()
		s.must(err)
		for _, v := range c {
			if v.Name == "sent_bytes" {
				n += v.Value
			}
		}
	}
	return n
}
