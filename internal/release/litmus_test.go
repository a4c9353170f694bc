package release

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/litmus"
)

// TestLitmusStore: who sees a word sees what was stored before it.
func TestLitmusStore(t *testing.T) {
	var word atomic.Uint64
	var data, got [8]uint64
	seen, often := false, 0
	litmus.Race(t, 1, func() {
		word.Store(0)
		data, seen = [8]uint64{}, false
	}, func() {
		for i := range data {
			data[i] = 1
		}
		Store(&word, 1)
	}, func() {
		if seen = word.Load() == 1; seen {
			got = data
		}
	}, func() string {
		if !seen {
			return ""
		}
		often++
		for i := range got {
			if got[i] != 1 {
				return fmt.Sprintf("the word was seen, and before it %v", got)
			}
		}
		return ""
	})
	t.Logf("seen in %d rounds", often)
}

// TestLitmusMutex: of two sections the later one sees all that the earlier one has stored.
func TestLitmusMutex(t *testing.T) {
	var m Mutex
	var x, y, seenX, seenY uint64
	litmus.Race(t, 1, func() {
		x, y = 0, 0
	}, func() {
		m.Lock()
		x = 1
		seenY = y
		m.Unlock()
	}, func() {
		m.Lock()
		y = 1
		seenX = x
		m.Unlock()
	}, func() string {
		if seenX+seenY != 1 {
			return fmt.Sprintf("%d of two sections have seen the other, want the later one", seenX+seenY)
		}
		return ""
	})
}
