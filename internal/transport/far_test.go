package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestFarWindow: on a path that is long and has a large bandwidth-delay product, the window grows beyond the largest
// window elsewhere, up to the number of packets that the peer holds. The packets behind a lost WRITE packet wait at
// the peer, so no more than those can follow until it was sent again. To a peer that goes back all of them would have
// to be sent again.
func TestFarWindow(t *testing.T) {
	const bytes = 256 << 20
	long := lossCase{name: "long", oneWay: 12500 * us}
	for _, tt := range []struct {
		name        string
		op          verbs.Opcode
		loss        float64
		selective   bool
		least, most float64 // MB/s
	}{
		{"WRITE", verbs.OpRDMAWrite, 0, true, 76, 84}, // 512 packets in 25 ms
		{"WRITE, 1 % lost", verbs.OpRDMAWrite, .01, true, 44, 84},
		{"READ", verbs.OpRDMARead, 0, true, 70, 84},
		{"READ, 1 % lost", verbs.OpRDMARead, .01, true, 55, 84},
		{"WRITE, the peer goes back", verbs.OpRDMAWrite, 0, false, 36, 42},
	} {
		if testing.Short() && (tt.loss > 0 || tt.op == verbs.OpRDMARead) {
			continue // the race detector's time
		}
		c := long
		c.loss = tt.loss
		r := lossRun(t, tt.op, c, tt.selective, 1, bytes)
		got := r.goodput() / 1e6
		t.Logf("%s: %.1f MB/s, %.2f repeated for a loss", tt.name, got, r.perLoss())
		if got < tt.least || got > tt.most {
			t.Errorf("%s: %.1f MB/s, want %g to %g", tt.name, got, tt.least, tt.most)
		}
	}
}
