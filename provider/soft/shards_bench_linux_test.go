package soft_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkShards has each processor drive both ends of a connection of one device, with a shard for each end and without: run it
// with -cpu 1,2,4. Between the pairs nothing is shared but the device.
func BenchmarkShards(b *testing.B) {
	const depth = 16
	for _, carrier := range []string{"udp", "shm"} {
		for _, size := range []int{64, 65536} {
			for _, shards := range []int{1, 2 * runtime.GOMAXPROCS(0)} {
				b.Run(fmt.Sprintf("%s/%d/shards=%d", carrier, size, shards), func(b *testing.B) {
					b.Setenv("ADVERB_SHARDS", fmt.Sprint(shards))
					b.Setenv("ADVERB_SHM", map[string]string{"udp": "0", "shm": "1"}[carrier])
					d, err := verbs.Open("soft_lo@" + loopAddr(48))
					if err != nil {
						b.Fatal(err)
					}
					pairs := runtime.GOMAXPROCS(0)
					type pair struct {
						x, y     *rdmatest.Endpoint
						from, to *verbs.MR
						wr       []verbs.SendWR
					}
					all := make([]pair, pairs)
					for i := range all {
						x, y := rdmatest.Connect(b, d, d)
						from, to := x.MR(size), y.MR(size)
						all[i] = pair{x, y, from, to, []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, size)}, Remote: to.Remote(0)}}}
					}
					b.SetBytes(int64(size * pairs))
					b.ResetTimer()
					var wg sync.WaitGroup
					for i := range all {
						wg.Go(func() {
							p := &all[i]
							var wcs [depth]verbs.WC
							for posted, done := 0, 0; done < b.N; {
								for posted < b.N && posted-done < depth {
									if _, err := p.x.QP.PostSend(p.wr); err != nil {
										b.Error(err)
										return
									}
									posted++
								}
								if _, err := p.y.CQ.Poll(wcs[:]); err != nil {
									b.Error(err)
									return
								}
								n, err := p.x.QP.SendCQ().Poll(wcs[:])
								if err != nil || n > 0 && wcs[0].Err() != nil {
									b.Error(err, wcs[0].Err())
									return
								}
								done += n
							}
						})
					}
					wg.Wait()
					b.StopTimer()
					for _, p := range all {
						for _, e := range []*rdmatest.Endpoint{p.x, p.y} {
							if err := errors.Join(e.QP.Close(), e.CQ.Close()); err != nil {
								b.Error(err)
							}
						}
						if err := errors.Join(p.from.Close(), p.to.Close(), p.x.PD.Close(), p.y.PD.Close()); err != nil {
							b.Error(err)
						}
					}
					if err := d.Close(); err != nil {
						b.Error(err)
					}
					b.ReportMetric(float64(b.N*pairs)/b.Elapsed().Seconds()/1e6, "M/s")
				})
			}
		}
	}
}
