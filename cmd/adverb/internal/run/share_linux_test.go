//go:build amd64 || arm64

package run

import (
	"context"
	"os"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// TestShared: two runs that one supervisor serves talk to the devices of a kernel, and one of them goes on after the other.
func TestShared(t *testing.T) {
	needSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	argv := []string{"adverb", "run", "-d", "soft_lo", "--", exe, asTarget}
	first := tooltest.StartProcess(ctx, t, append(argv, "verbs")...)
	second := tooltest.StartProcess(ctx, t, append(argv, "verbs")...)
	third := tooltest.StartProcess(ctx, t, append(argv, "cm")...)
	for _, p := range []*tooltest.Started{first, second, third} {
		if r := <-p.Done; r.Code != 0 || r.Stdout != "done\n" {
			t.Errorf("status %d, %q, %s", r.Code, r.Stdout, r.Stderr)
		}
	}
}
