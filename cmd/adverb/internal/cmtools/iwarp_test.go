package cmtools

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

const (
	iwarpAddr   = "127.0.88.23"
	iwarpServer = "iw_lo@127.0.88.23"
	iwarpClient = "iw_lo@127.0.88.24"
)

// runIWARP runs both ends of cmatose over iWARP.
func runIWARP(t *testing.T, flags string) (server, client tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	args := func(dev string) []string { return append(strings.Fields(flags), "--ib-dev", dev, "--port", port) }
	srv := tool.Start(ctx, append([]string{"ucmatose"}, args(iwarpServer)...)...)
	client = tool.Result(ctx, append([]string{"cmatose", "-s", iwarpAddr}, args(iwarpClient)...)...)
	if client.Code != 0 {
		cancel() // nobody will come
	}
	return <-srv.Done, client
}

func TestCmatoseIWARP(t *testing.T) {
	server, client := tooltest.Transcript(t, "ucmatose_server.txt"), tooltest.Transcript(t, "ucmatose_client.txt")
	const migrating = "migrating to new event channel\n"
	for _, tt := range []struct{ flags, server, client string }{
		{"", server, client},
		{"-c 5 -C 300 -S 5000", server, client},
		{"-c 2 -m", with(server, "cmatose: disconnecting\n", migrating), with(client, "test complete\n", migrating)},
		{"-P ib -a 12 -t 8", server, client},
		{"-S 1000000 -C 2", server, client},
		{"-C 0 -c 3", without(server, "initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"),
			without(client, "receiving data transfers", "sending replies", "data transfers complete")},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			s, c := runIWARP(t, tt.flags)
			checkTranscript(t, "server", s, tt.server)
			checkTranscript(t, "client", c, tt.client)
		})
	}
	t.Run("psk", func(t *testing.T) {
		want := "devices that speak RoCE can"
		if _, c := runIWARP(t, "--psk "+tooltest.PSK(t, "a")); c.Code == 0 || !strings.Contains(c.Stderr, want) {
			t.Errorf("got %+v, want a failure that says %q", c, want)
		}
	})
}
