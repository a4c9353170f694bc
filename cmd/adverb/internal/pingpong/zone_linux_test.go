package pingpong

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// A host is named by a link-local address with its zone, as every other program takes it. Without the zone the error
// says that the zone is missing.
func TestServerInZone(t *testing.T) {
	if !tooltest.InNetwork(t, "fe80::77/64") {
		return
	}
	const dev = "soft_lo@fe80::77"
	for _, prog := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"} {
		port := tooltest.FreePort(t)
		args := []string{prog, "-p", port, "-d", dev, "-n", "10", "-s", "64"}
		s := tool.Start(t.Context(), args...)
		client := <-tool.Start(t.Context(), append(args, "fe80::77%lo")...).Done
		if client.Code != 0 || client.Stderr != "" {
			t.Fatalf("%s: got client %+v, want status 0 and no stderr", prog, client)
		}
		if server := <-s.Done; server.Code != 0 {
			t.Fatalf("%s: got server %+v, want status 0", prog, server)
		}
	}
	r := <-tool.Start(t.Context(), "ibv_rc_pingpong", "-d", dev, "fe80::77").Done
	if r.Code == 0 || !strings.Contains(r.Stderr, "name the interface, as in fe80::77%eth0") {
		t.Errorf("without a zone: got %+v, want an error that says how to name the interface", r)
	}
}
