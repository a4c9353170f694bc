package perftest

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// runIWARP runs a server and a client of the program of that classic name, over iWARP.
func runIWARP(t *testing.T, prog, serverFlags, clientFlags string) (server, client tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreeCMPort()
	args := func(dev, flags string) []string {
		return append([]string{prog, "-R", "-p", port, "-d", dev}, strings.Fields(flags)...)
	}
	s := tool.StartUntil(ctx, "* Waiting for client to connect... *", args("iw_lo@127.0.88.73", serverFlags)...)
	client = tool.Result(ctx, append(args("iw_lo@127.0.88.74", clientFlags), "127.0.88.73")...)
	return <-s, client
}

// No RNR NAK holds the sender of an iWARP connection back. So far more messages than there are receives must come,
// of each kind, and in a run of many sizes too.
func TestIWARP(t *testing.T) {
	powers := []string{"2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768", "65536",
		"131072", "262144", "524288", "1048576", "2097152", "4194304", "8388608"}
	for _, tt := range []programRun{
		{"send_bw", "-n 1000 -s 64 -r 16", 1, "1000", []string{"64"}},
		{"send_bw", "-n 1000 -s 64 -r 2", 1, "1000", []string{"64"}},
		{"send_bw", "-n 1000 -s 64 -r 16 -b", 1, "1000", []string{"64"}},
		{"send_bw", "-n 1000 -s 64 -r 16 -b --use-srq", 1, "1000", []string{"64"}},
		{"send_bw", "-n 1000 -s 4096 -r 64 -b --use-srq -q 4", 4, "4000", []string{"4096"}},
		{"send_bw", "-n 1200 -s 64 -r 32 -b -l 12 --recv_post_list 8 -t 48", 1, "1200", []string{"64"}},
		{"send_bw", "-n 10 -r 4 -a", 1, "10", powers},
		{"send_bw", "-n 1000 -s 64 -r 16 -e -I 0", 1, "1000", []string{"64"}},
		{"send_lat", "-n 50", 1, "50", []string{"2"}},
		{"write_bw", "-n 50", 1, "50", []string{"65536"}},
		{"read_lat", "-n 20", 1, "20", []string{"2"}},
	} {
		t.Run(tt.prog+strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			server, client := runIWARP(t, "ib_"+tt.prog, tt.flags, tt.flags)
			want := rows(strings.HasSuffix(tt.prog, "_lat"), tt.iters, tt.sizes...)
			for who, r := range map[string]tooltest.Result{"server": server, "client": client} {
				if r.Code != 0 || r.Stderr != "" {
					t.Fatalf("%s: got status %d, stdout:\n%sstderr:\n%swant status 0 and no stderr", who, r.Code, r.Stdout, r.Stderr)
				}
				if !(tt.prog == "read_lat" && who == "server") && !want.MatchString(r.Stdout) {
					t.Errorf("%s: got\n%swant the table %v", who, r.Stdout, want)
				}
			}
		})
	}
}

// Ends that disagree on the number of receives lose the connection. Both say so, also the one that waits for
// messages of an SRQ, whose receives no failure completes.
func TestIWARPNoReceive(t *testing.T) {
	server, client := runIWARP(t, "ib_send_bw", "-n 6400 -s 64 -r 4 --use-srq", "-n 6400 -s 64 -r 512 -l 64")
	if want := "no receive was posted"; server.Code != 1 || !strings.Contains(server.Stderr, want) {
		t.Errorf("server: got status %d, stderr %q, want 1 and %q", server.Code, server.Stderr, want)
	}
	if want := "the peer has terminated the connection"; client.Code != 1 || !strings.Contains(client.Stderr, want) {
		t.Errorf("client: got status %d, stderr %q, want 1 and %q", client.Code, client.Stderr, want)
	}
}

// A message that can never be sent is refused, and not waited for.
func TestIWARPFewReceives(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreeCMPort()
	flags := []string{"ib_send_bw", "-R", "-p", port, "-r", "16", "-l", "12", "-n", "120"}
	s := tool.StartUntil(ctx, "* Waiting for client to connect... *", append(flags, "-d", "iw_lo@127.0.88.73")...)
	client := tool.Result(ctx, append(flags, "-d", "iw_lo@127.0.88.74", "127.0.88.73")...)
	for who, r := range map[string]tooltest.Result{"server": <-s, "client": client} {
		if want := "-r 16: over iWARP"; r.Code != 1 || !strings.Contains(r.Stderr, want) || !strings.Contains(r.Stderr, "needs 18 of them") {
			t.Errorf("%s: got status %d, stderr %q, want 1 and %q", who, r.Code, r.Stderr, want)
		}
	}
}
