//go:build !adverb_portable

package queue

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// TestBoundedHeap: where RLIMIT_AS bounds the heap a ring is whole from the beginning, so that it need not grow when there
// is no room: the runtime would end the program.
func TestBoundedHeap(t *testing.T) {
	const most = 1000
	if usertest.In(t, usertest.Ulimit("-v", 8<<20)) {
		if c := newTestCQ(t, most); len(c.ring) != most {
			t.Errorf("under ulimit -v a queue for %d begins with %d places, want all", most, len(c.ring))
		}
	} else if n := FirstPlaces(most); n != firstPlaces {
		t.Errorf("without a limit a queue for %d begins with %d places, want %d", most, n, firstPlaces)
	}
}
