package heir

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// TestHeirFollows: without a device the command stands by on addresses that come later.
func TestHeirFollows(t *testing.T) {
	if !tooltest.InNetwork(t) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	heir := tooltest.StartProcess(ctx, t, "adverb", "heir")
	if want := "stands by on all addresses of this host\n"; heir.FirstLine != want {
		t.Fatalf("got line %q, want %q", heir.FirstLine, want)
	}
	const later = "10.31.8.1"
	tooltest.AddLoopback(t, later+"/32")
	for !standsBy(ctx, t, heir.PID, later) {
		if ctx.Err() != nil {
			t.Fatalf("it does not stand by on %s, which was added", later)
		}
		runtime.Gosched()
	}
}

// standsBy reports whether a process listens at an address.
func standsBy(ctx context.Context, t *testing.T, pid int, addr string) bool {
	t.Helper()
	answers, _, err := watch.Ask(ctx, watch.WantRes)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range answers {
		for _, d := range p.Devices {
			for _, c := range d.CMID {
				if p.PID == pid && c.State == "LISTEN" && strings.HasPrefix(c.Local, addr+":") {
					return true
				}
			}
		}
	}
	return false
}
