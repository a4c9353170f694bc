package perftest

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// A host is named by a link-local address with its zone, with and without the connection manager. Without the zone
// the error says that the zone is missing.
func TestServerInZone(t *testing.T) {
	if !tooltest.InNetwork(t, "fe80::77/64") {
		return
	}
	const host, dev = "fe80::77%lo", "soft_lo@fe80::77"
	for _, flags := range []string{"", "--source_ip=" + host, "-R --source_ip=" + host, "-R -d iw_lo@fe80::77 --source_ip=" + host} {
		port := tooltest.FreePort(t)
		args := append([]string{"ib_send_bw", "-p", port, "-d", dev, "-n", "10", "-u", patientTimeout}, strings.Fields(flags)...)
		s := tool.StartUntil(t.Context(), "* Waiting for client to connect... *", args...)
		client := tool.Result(t.Context(), append(args, host)...)
		if client.Code != 0 {
			t.Fatalf("%s: got client %+v, want status 0", flags, client)
		}
		if server := <-s; server.Code != 0 {
			t.Fatalf("%s: got server %+v, want status 0", flags, server)
		}
	}
	for _, args := range [][]string{{"fe80::77"}, {"--source_ip=fe80::77"}, {"--source_ip=fe80::77", "127.0.0.1"}} {
		r := tool.Result(t.Context(), append([]string{"ib_send_bw", "-d", dev}, args...)...)
		if r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "name the interface, as in fe80::77%eth0") {
			t.Errorf("%v: got %+v, want an error that says how to name the interface", args, r)
		}
	}
}
