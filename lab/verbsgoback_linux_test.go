package lab

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A kernel drops all that follows a packet that it misses. So each loss costs about a window of repeats, or half of a
// burst, and neither may be much longer than what the path holds. Where guests are emulated, that is so little that
// packets go in bursts of 12, or where losses are frequent, with a window of mostly 5. On a busy machine round trips vary,
// and the path seems to hold more: a loss at 1 % has cost up to 9.1 repeats. A window that is only halved has 29, 17 and
// 7.6.
func TestVerbsGoBack(t *testing.T) {
	needLab(t)
	const (
		size  = 64 << 10
		count = 512
		slots = 128
		depth = 16
	)
	for _, tt := range []struct{ loss, most float64 }{ // most repeats for a loss
		{.01, 12}, // seen: 6.4 to 7.8
		{.03, 8},  // 4.7 to 5.7
		{.1, 6},   // 3.5 to 3.9
	} {
		var sent atomic.Uint64 // packets with data
		lose := &disturber{config: fault.Config{Loss: tt.loss, Seed: *stormSeed, Directions: fault.Outgoing, Match: func(d *link.Datagram) bool {
			if wire.Opcode(d.Payload[0]).HasPayload() {
				sent.Add(1)
			}
			return true
		}}}
		s := scenario{family: "Verbs", program: "RC go-back", server: "kernel", mtu: 1500, variant: fmt.Sprintf("%v %% lost", 100*tt.loss)}
		s.pair(t, pairOptions{middleware: []link.Middleware{lose.middleware}}, func(ctx context.Context, t *testing.T, p *verbsPair) {
			t.Logf("seed %d", *stormSeed)
			from, to := p.ends("kernel")
			src, data := filled(from, size, 7)
			dst := to.mem(slots*size, everything)
			begin := time.Now()
			stream(from, count, depth, func(i int) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.sge(0, size)}, Remote: dst.remote(i % slots * size)}
			}, func(i int) { done(t, from, uint64(i), verbs.WCRDMAWrite) })
			took := time.Since(begin)
			for i := range slots {
				same(t, fmt.Sprint("WRITE ", i), dst.get(i*size, size), data)
			}
			out, _ := lose.counts()
			repeated := sent.Load() - count*size/1024
			perLoss := float64(repeated) / float64(max(1, out.Lost))
			t.Logf("%.1f MB/s; %d packets lost, %d repeated: %.1f for each", count*size/took.Seconds()/1e6, out.Lost, repeated, perLoss)
			if perLoss > tt.most {
				t.Errorf("%.1f packets were repeated for one that was lost, want %v at most", perLoss, tt.most)
			}
		})
	}
}
