package lab

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A kernel that is asked for part of a READ sends the part. So a response that gets lost costs about as many repeats as
// are in flight when the gap is seen. A repeat of the READ from its beginning would cost 32 and more.
func TestVerbsReadLoss(t *testing.T) {
	needLab(t)
	const (
		size  = 64 << 10
		count = 256
		slots = 32
	)
	for _, tt := range []struct {
		loss  float64
		depth int
		most  float64 // repeated responses for a loss
	}{
		{.01, 1, 24}, // seen: 4.0 to 5.6; on a machine that has three times as much to do, 10.6
		{.01, 8, 24}, // 4.5 to 5.2; 8.4
		{.03, 8, 24}, // 6.3 to 6.4; 6.0
	} {
		lose := &disturber{config: fault.Config{Loss: tt.loss, Seed: *stormSeed, Directions: fault.Incoming, Match: func(d *link.Datagram) bool {
			return wire.Opcode(d.Payload[0]).HasPayload()
		}}}
		s := scenario{family: "Verbs", program: "RC READs, loss", server: "kernel", mtu: 1500, variant: fmt.Sprintf("%v %% lost, %d at a time", 100*tt.loss, tt.depth)}
		s.pair(t, pairOptions{middleware: []link.Middleware{lose.middleware}}, func(_ context.Context, t *testing.T, p *verbsPair) {
			t.Logf("seed %d", *stormSeed)
			from, to := p.ends("kernel")
			src, data := filled(to, size, 7)
			dst := from.mem(slots*size, everything)
			begin := time.Now()
			stream(from, count, tt.depth, func(i int) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMARead, Remote: src.remote(0), SGList: []verbs.SGE{dst.sge(i%slots*size, size)}}
			}, func(i int) { done(t, from, uint64(i), verbs.WCRDMARead) })
			took := time.Since(begin)
			for i := range slots {
				same(t, fmt.Sprint("READ ", i), dst.get(i*size, size), data)
			}
			_, in := lose.counts()
			repeated, unexpected := p.us.count("repeated_responses"), p.us.count("unexpected_pkts")
			perLoss := float64(repeated) / float64(max(1, in.Lost))
			t.Logf("%.1f MB/s; %d responses lost, %d repeated: %.1f for each", count*size/took.Seconds()/1e6, in.Lost, repeated, perLoss)
			if in.Lost == 0 || perLoss > tt.most {
				t.Errorf("%d responses were lost, and %.1f repeated for each: want some, and %v at most", in.Lost, perLoss, tt.most)
			}
			if unexpected != 0 {
				t.Errorf("%d responses have no cause that the counters tell", unexpected)
			}
			p.noDrops(t)
		})
	}
}
