//go:build !adverb_portable

package rsocket_test

import (
	"io"
	"runtime"
	"testing"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rsocket"
)

// idlePairs makes n connections, both of whose ends are here and have sent a byte.
func idlePairs(t *testing.T, n int) {
	t.Helper()
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for i := range n {
		a, err := rsocket.Dial("rsocket", l.Addr().String())
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { a.Close() })
		b, err := l.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { b.Close() })
		var one [1]byte
		for _, way := range [][2]io.ReadWriter{{a, b}, {b, a}} {
			if _, err := way[0].Write([]byte{7}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(way[1], one[:]); err != nil || one[0] != 7 {
				t.Fatalf("read %v: %v, want 7", one, err)
			}
		}
	}
}

// TestIdleInGroup: 400 ends of connections, each of which has carried a byte, live in a control group of 64 MiB. With
// regions that counted before they were used, 26 did.
func TestIdleInGroup(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes most of the group's memory")
	}
	if usertest.In(t, usertest.MemoryGroup(64<<20)) {
		idlePairs(t, 200)
	}
}

// maxIdleHeap is the Go heap of one end of an idle connection by the package's documentation.
const maxIdleHeap = 48 << 10

// TestIdleHeap: an idle connection costs as little as the documentation says.
func TestIdleHeap(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector values are larger")
	}
	const pairs = 100
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	idlePairs(t, 5) // the devices, and lanes
	before := heap()
	idlePairs(t, pairs)
	if each := (heap() - before) / (2 * pairs); each > maxIdleHeap {
		t.Errorf("%d bytes of heap for an end of an idle connection, want %d at most", each, maxIdleHeap)
	} else {
		t.Logf("%d bytes of heap for an end of an idle connection", each)
	}
}
