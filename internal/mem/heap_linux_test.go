//go:build !adverb_portable

package mem

import (
	"errors"
	"runtime"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestHeapInPieces: where no addresses are left, idle memory of the heap is no room if it is in pieces that are too
// short. When all is idle it is.
func TestHeapInPieces(t *testing.T) {
	const large, short, n = 24 << 20, 20 << 20, 12
	old := addressLimit
	defer func() { addressLimit = old }()
	var kept, dropped [][]byte
	for range n {
		kept = append(kept, make([]byte, large))
		dropped = append(dropped, make([]byte, short))
	}
	runtime.KeepAlive(dropped)
	dropped = nil
	runtime.GC()
	if idle := heapBytes("free") + heapBytes("released"); idle < idleShare*large {
		t.Fatalf("%d bytes of the heap are idle, want %d at least", idle, idleShare*large)
	}
	addressLimit = func() uint64 { return memory.host.addresses() }
	if err := HoldsHeap(large); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("%d bytes are idle in pieces of %d: HoldsHeap of %d returns %v, want %v", n*short, short, large, err, verbs.ErrLimit)
	}
	runtime.KeepAlive(kept)
	kept = nil
	if err := HoldsHeap(large); err != nil {
		t.Errorf("all is idle: %v", err)
	}
}
