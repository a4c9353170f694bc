//go:build !adverb_portable

package soft_test

import (
	"os"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestWatchedByEnvironment: a program with an open device answers those who ask, but for ADVERB_WATCH=0.
func TestWatchedByEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"": true, "1": true, "0": false} {
		t.Setenv("ADVERB_WATCH", value)
		dev, err := verbs.Open(loopback(t))
		if err != nil {
			t.Fatal(err)
		}
		all, _, err := watch.Ask(t.Context(), watch.WantStat) // those of other programs that fail are not meant
		dev.Close()
		got := slices.ContainsFunc(all, func(p watch.Process) bool { return p.PID == os.Getpid() })
		if err != nil || got != want {
			t.Errorf("ADVERB_WATCH=%q: answered: %v, %v; want %v", value, got, err, want)
		}
	}
}
