package lab

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The form of WRITEs that switches may route packet by packet is within the specification: the kernel takes it. And
// a packet that overtakes the kernel's packets is no loss for a QP of ours that was told so.
func TestVerbsRouted(t *testing.T) {
	needLab(t)
	const size = 64 << 10
	s := scenario{family: "Verbs", program: "RC WRITE", server: "kernel", mtu: 1500, variant: "adaptive routing", check: packetRules{routed: true}}
	s.pair(t, pairOptions{}, func(_ context.Context, t *testing.T, p *verbsPair) {
		p.us.must(p.us.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true}))
		writes(t, p.us, p.kernel, append(messageSizes(pathMTU(s.mtu)), size), verbs.OpRDMAWrite)
		first, _ := p.near.total(wire.RCRDMAWriteFirst, wire.RCRDMAWriteMiddle, wire.RCRDMAWriteLast)
		if only, _ := p.near.total(wire.RCRDMAWriteOnly); first != 0 || only < size/pathMTU(s.mtu) {
			t.Errorf("%d packets of WRITEs depend on others, and %d are WRITE ONLYs; want none, and all", first, only)
		}
	})
	s = scenario{family: "Verbs", program: "RC WRITE", server: "adverb", mtu: 1500, variant: "adaptive routing"}
	late := &disturber{config: fault.Config{Reorder: 0.2, Directions: fault.Incoming}}
	s.pair(t, pairOptions{middleware: []link.Middleware{late.middleware}}, func(_ context.Context, t *testing.T, p *verbsPair) {
		p.us.must(p.us.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Accept: true, Patience: 100 * time.Millisecond}))
		writes(t, p.kernel, p.us, []int{size, size, size}, verbs.OpRDMAWrite)
		sends(t, p.kernel, p.us, []int{size}, verbs.OpSend)
		late.check(t)
		if n := p.near.nak(nakSequence); n != 0 {
			t.Errorf("%d NAKs say that packets are lost, want none", n)
		}
	})
}
