package soft_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkNear is one message of 64 bytes at a time by shared memory, with both ends polled by one goroutine: the
// processor time of both ends, without any wait.
func BenchmarkNear(b *testing.B) {
	b.Setenv("ADVERB_SHM", "1")
	var ends [2]*rdmatest.Endpoint
	var devices [2]*verbs.Device
	for i := range devices {
		d, err := verbs.Open("soft_lo@" + loopAddr(50+i))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { d.Close() })
		devices[i] = d
	}
	ends[0], ends[1] = rdmatest.Connect(b, devices[0], devices[1])
	mrs := [2]*verbs.MR{ends[0].MR(64), ends[1].MR(64)}
	wcs := make([]verbs.WC, 1)
	poll := func(b *testing.B, e *rdmatest.Endpoint) {
		for {
			n, err := e.CQ.Poll(wcs)
			if err != nil || n > 0 && wcs[0].Err() != nil {
				b.Fatal(err, wcs[0].Err())
			}
			if n > 0 {
				return
			}
		}
	}

	b.Run("send", func(b *testing.B) {
		var recv [2][]verbs.RecvWR
		var send [2][]verbs.SendWR
		for i := range ends {
			recv[i] = []verbs.RecvWR{{SGList: []verbs.SGE{mrs[i].SGE(0, 64)}}}
			send[i] = []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[i].SGE(0, 64)}}}
		}
		b.ReportAllocs()
		for b.Loop() {
			for i, e := range ends {
				to := 1 - i
				if _, err := ends[to].QP.PostRecv(recv[to]); err != nil {
					b.Fatal(err)
				}
				if _, err := e.QP.PostSend(send[i]); err != nil {
					b.Fatal(err)
				}
				poll(b, ends[to])
				poll(b, e)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/message")
	})
	b.Run("sends", func(b *testing.B) { // 64 that wait for one another
		const many = 64
		recv := []verbs.RecvWR{{SGList: []verbs.SGE{mrs[1].SGE(0, 64)}}}
		send := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[0].SGE(0, 64)}}}
		wcs := make([]verbs.WC, many)
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if _, err := ends[1].QP.PostRecv(recv); err != nil {
				b.Fatal(err)
			}
			if _, err := ends[0].QP.PostSend(send); err != nil {
				b.Fatal(err)
			}
			for got := 0; n%many == many-1 && got < 2*many; {
				for _, e := range ends {
					k, err := e.CQ.Poll(wcs)
					if err != nil {
						b.Fatal(err)
					}
					got += k
				}
			}
		}
	})
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAdd} {
		b.Run(map[verbs.Opcode]string{verbs.OpRDMAWrite: "write", verbs.OpRDMARead: "read", verbs.OpAtomicFetchAdd: "fetch_add"}[op], func(b *testing.B) {
			wr := []verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[0].SGE(0, 8)}, Remote: mrs[1].Remote(0), CompareAdd: 1}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ends[0].QP.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				ends[1].CQ.Poll(wcs) // lets the other end work
				poll(b, ends[0])
			}
		})
	}
}
