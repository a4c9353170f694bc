package cmtime

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

const (
	iwarpServer = "iw_lo@127.0.88.54"
	iwarpClient = "iw_lo@127.0.88.55"
)

func iwarpAddr(dev string) string { return strings.TrimPrefix(dev, "iw_lo@") }

// The server of iWARP listens at the TCP port that tells a client of rdma-core 52 to 58. The client does not take
// it for that one, and the server says nothing.
func TestCmtimeIWARP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	stop := listenerOf(t, iwarpServer, netip.MustParseAddrPort(iwarpAddr(iwarpServer)+":"+port), (*server).start)
	client := func(flags string) tooltest.Result {
		return tool.Result(ctx, append(strings.Fields("cmtime "+flags), "--ib-dev", iwarpClient, "-p", port, "-s", iwarpAddr(iwarpServer))...)
	}
	checkPattern(t, "client", client("-c 120"), fmt.Sprintf(stepLines, "")+tablePattern(false))
	r := client("-c 3 --rate -b " + iwarpAddr(iwarpClient))
	checkPattern(t, "bound client", r, fmt.Sprintf(stepLines, "binding source address\n")+tablePattern(true)+`rate .* \d+ connections/s .*\n`)
	if strings.Contains(r.Stdout, " 0 connections/s") || strings.Contains(r.Stdout, "1000000000.00") {
		t.Errorf("got\n%swant all connections made", r.Stdout)
	}
	if stdout, stderr := stop(true); stdout+stderr != "" {
		t.Errorf("server: got %s%s, want nothing", stdout, stderr)
	}
}

// A server at all addresses says why it cannot serve the clients that wait for it over TCP.
func TestCmtimeIWARPAnyAddress(t *testing.T) {
	stop := listenerOf(t, iwarpServer, netip.MustParseAddrPort("0.0.0.0:"+tooltest.FreePort(t)), (*server).start)
	if stdout, stderr := stop(true); stdout != "" || !strings.Contains(stderr, "a listener of iWARP has the TCP port of its number") {
		t.Errorf("got %s%s, want that the TCP port is taken", stdout, stderr)
	}
}

// Over iWARP a connection belongs to a QP. So the mesh makes no test without, and -m is refused.
func TestCmtimeMeshIWARP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	run := func(flags string) (server, client tooltest.Result) {
		port := tooltest.FreePort(t)
		args := func(dev string) []string {
			return strings.Fields("cmtime -C 127.0.0.1 -p " + port + " -b " + iwarpAddr(dev) + " --ib-dev " + dev + " " + flags)
		}
		s := tool.Start(ctx, append(args(iwarpServer), "-L")...)
		client = tool.Result(ctx, args(iwarpClient)...)
		return <-s.Done, client
	}
	server, client := run("-c 20 -n 2")
	const steps = "\tAccepting\n\tDisconnecting\n"
	checkPattern(t, "server", server, meshRoot+"Server warmup\n\tAccepting\n"+meshAllocating+"\tDisconnecting\nAccept \\(20\\) QPs test\n"+steps+meshTable("qp_conn", 20, 2))
	checkPattern(t, "client", client, "Client warmup\n"+fmt.Sprintf(meshClientSteps, meshAllocating)+"Connect \\(20\\) QPs test\n"+
		fmt.Sprintf(meshClientSteps, "")+meshTable("qp_conn", 20, 2))
	if m := regexp.MustCompile(`cm connect +(\d+)`).FindStringSubmatch(client.Stdout); m == nil || m[1] == "0" {
		t.Errorf("got\n%swant a time of the connect step", client.Stdout)
	}
	server, client = run("-c 20 -m 5")
	for who, r := range map[string]tooltest.Result{"server": server, "client": client} {
		if r.Code != 1 || !strings.Contains(r.Stderr, errNeedsQP.Error()) {
			t.Errorf("%s: got %+v, want status 1 and %q", who, r, errNeedsQP)
		}
	}
}
