package cmtime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestCmtimeFlags(t *testing.T) {
	def := flags{connections: 100, port: "7471", retries: 2, peers: 2, threads: 1, baseQPN: 1000}
	for _, tt := range []struct {
		line string
		want func(*flags)
	}{
		{"", func(*flags) {}},
		{"-s h -b a -c 5 -p 1 -r 3 --rate --ib-dev d", func(f *flags) {
			f.server, f.bind, f.connections, f.port, f.retries, f.rate, f.device = "h", "a", 5, "1", 3, true, "d"
		}},
		{"-C h -B lo -L -m 10 -n 4 -P 3 -q 7", func(f *flags) {
			f.mesh, f.controller, f.netdev, f.listen, f.mimic, f.mimicDelay, f.threads, f.peers, f.baseQPN =
				true, "h", "lo", true, true, 10*time.Microsecond, 4, 3, 7
		}},
		{"-S x -b a -C h", func(f *flags) { f.mesh, f.sockets, f.bind, f.controller = true, true, "a", "h" }}, // getopt there takes an argument
	} {
		inv, _, stderr := tooltest.Invocation(t, Command, tt.line)
		got, _, ok := parse(inv)
		want := def
		tt.want(&want)
		if !ok || got != want || stderr.String() != "" {
			t.Errorf("%q: got %+v, want %+v, stderr %q", tt.line, got, want, stderr)
		}
	}
	inv, _, stderr := tooltest.Invocation(t, Command, "-s h -t 500")
	if _, _, ok := parse(inv); !ok || !strings.HasPrefix(stderr.String(), "adverb: -t: ") {
		t.Errorf("-t: got %v, stderr %q, want true and that -t has no effect", ok, stderr)
	}
}

// The table of the older form, as its format strings make it.
func TestCmtimeTable(t *testing.T) {
	var steps [numSteps]interval
	conns := make([]timedConn, 2)
	steps[timeCreateID] = interval{1, 1 + 3_000_000}
	conns[0].times[timeCreateID] = interval{1, 1 + 1_000_000}
	conns[1].times[timeCreateID] = interval{5, 5 + 2_000_500}
	conns[1].times[timeConnect] = interval{5, 0} // not answered
	var b strings.Builder
	printTimes(&b, &steps, conns, false)
	const none = ":        0.00       0.001000000000.00       0.00\n" // so wide in C too
	tooltest.DiffLines(t, b.String(), "step              total ms     max ms     min us  us / conn\n"+
		"create id    :        3.00       2.00    1000.00    1500.00\n"+
		"resolve addr "+none+"resolve route"+none+"create qp    "+none+"connect      "+none+"disconnect   "+none+"destroy      "+none)
	b.Reset()
	printTimes(&b, &steps, conns, true)
	if !strings.Contains(b.String(), "\nbind addr    "+none) {
		t.Errorf("got\n%swant a row of bind addr", b.String())
	}
	if r := perSecond(10, interval{1, 1 + 5e8}); r != 20 {
		t.Errorf("got %v connections a second, want 20", r)
	}
	if r := perSecond(10, interval{1, 0}); r != 0 {
		t.Errorf("got %v connections a second, want 0", r)
	}
}

// listener starts the older form's server. The server listens when listener returns.
func listener(t *testing.T, port string) (stop func(idle bool) (stdout, stderr string)) {
	t.Helper()
	return listenerOf(t, serverDevice, netip.MustParseAddrPort(serverAddr+":"+port), (*server).listen)
}

// listenerOf is listener on a device of any kind, which start has listen.
func listenerOf(t *testing.T, device string, at netip.AddrPort, start func(*server, netip.AddrPort) error) (stop func(idle bool) (stdout, stderr string)) {
	t.Helper()
	inv, stdout, stderr := tooltest.Invocation(t, Command, "")
	ctx, cancel := context.WithCancel(t.Context())
	inv.Ctx = ctx
	dev, err := verbs.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	// While this ID lives, QP1 exists, and refuses requests for a server that has left.
	keeperChannel := rdmacm.NewEventChannel(dev)
	keeper, err := rdmacm.NewID(keeperChannel, rdmacm.PortSpaceTCP)
	if err == nil {
		_, addr, _ := strings.Cut(device, "@")
		err = keeper.BindAddr(netip.MustParseAddrPort(addr + ":0"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(keeper.Close(), keeperChannel.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	s := &server{inv: inv, ch: rdmacm.NewEventChannel(dev), ids: map[*rdmacm.ID]struct{}{}}
	if err := start(s, at); err != nil {
		t.Fatal(err, stderr)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.serve() // until it is stopped
	}()
	return func(idle bool) (string, string) {
		cancel()
		<-served
		rest, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		defer cancel()
		for idle && len(s.ids) > 1 { // the clients have left, and the server has not yet handled that
			ev, err := s.ch.Next(rest)
			if err != nil {
				t.Errorf("got %d IDs of clients, want 0: %v", len(s.ids)-1, err)
				break
			}
			s.handle(ev)
		}
		s.close()
		return stdout.String(), stderr.String()
	}
}

// runOfClient runs the client of a server at serverAddr.
func runOfClient(ctx context.Context, port, line string) tooltest.Result {
	argv := append(strings.Fields(line), "--ib-dev", clientDevice, "--port", port, "-s", serverAddr)
	return tool.Result(ctx, argv...)
}

const (
	stepLines = "creating id\n%sresolving address\nresolving route\ncreating qp\nconnecting\ndisconnecting\ndestroying id\n"
	tableHead = "step              total ms     max ms     min us  us / conn\n"
	tableRow  = `%-13s:( +\d+\.\d\d){4}\n`
)

func tablePattern(bound bool) string {
	s := regexp.QuoteMeta(tableHead)
	for i, name := range stepNames {
		if i != timeBind || bound {
			s += fmt.Sprintf(tableRow, name)
		}
	}
	return s
}

func TestCmtime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	stop := listener(t, port)
	client := func(line string) tooltest.Result {
		return runOfClient(ctx, port, "cmtime "+line)
	}
	r := client("-c 150 --rate")
	want := regexp.MustCompile("^" + fmt.Sprintf(stepLines, "") + tablePattern(false) +
		`rate         : \d+ connections/s \(connect\), \d+ connections/s \(all steps up to connect\)\n$`)
	if r.Code != 0 || r.Stderr != "" || !want.MatchString(r.Stdout) || strings.Contains(r.Stdout, " 0 connections/s") || strings.Contains(r.Stdout, "1000000000.00") {
		t.Errorf("got %+v, want status 0, no stderr and stdout that matches %v", r, want)
	}
	r = client("-c 3 -b " + strings.TrimPrefix(clientDevice, "soft_lo@"))
	want = regexp.MustCompile("^" + fmt.Sprintf(stepLines, "binding source address\n") + tablePattern(true) + "$")
	if r.Code != 0 || r.Stderr != "" || !want.MatchString(r.Stdout) {
		t.Errorf("got %+v, want status 0, no stderr and stdout that matches %v", r, want)
	}
	if stdout, stderr := stop(true); stdout != "" || stderr != "" {
		t.Errorf("server: got %s%s, want nothing", stdout, stderr)
	}
}

// Connections that fail are reported, and left out of the table. The status tells of them.
func TestCmtimeRefused(t *testing.T) {
	defer listener(t, tooltest.FreePort(t))(true) // QP1 is there, and the port is another
	r := runOfClient(t.Context(), tooltest.FreePort(t), "cmtime -c 3 --rate")
	const line = "event: RDMA_CM_EVENT_REJECTED, error: 8\n"
	if r.Code != cli.ExitError || strings.Count(r.Stdout, line) != 3 || !strings.Contains(r.Stdout, "connecting\n"+line) ||
		!strings.HasSuffix(r.Stdout, "rate         : 0 connections/s (connect), 0 connections/s (all steps up to connect)\n") ||
		strings.Count(r.Stderr, "no listener for port") != 3 || !strings.Contains(r.Stderr, ": 3 of them have failed") {
		t.Errorf("got %+v, want status 1, three times %q, a rate of 0 and how many have failed", r, line)
	}
	r = runOfClient(t.Context(), "1", "cmtime -c 1 -b 192.0.2.1")
	if r.Code != cli.ExitError || !strings.HasPrefix(r.Stderr, "failure bind addr: No such device\nadverb: ") {
		t.Errorf("got %+v, want status 1 and that the address cannot be bound", r)
	}
}

// The client does not wait for a server that leaves while connections are made.
func TestCmtimeServerLeaves(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	stop := listener(t, port)
	client := tool.StartUntil(ctx, "connecting", "cmtime", "-c", "100", "--ib-dev", clientDevice, "-p", port, "-s", serverAddr)
	stop(false)
	r := <-client
	code := cli.ExitOK // if all were made in time
	if strings.Contains(r.Stderr, "of them have failed") {
		code = cli.ExitError
	}
	if r.Code != code || !strings.Contains(r.Stdout, tableHead) {
		t.Errorf("got %+v, want status %d and the table", r, code)
	}
}

// The server serves until it is interrupted.
func TestCmtimeServerInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, stdout, stderr := tool.Run(ctx, "cmtime", "--ib-dev", serverDevice, "-b", serverAddr, "-p", tooltest.FreePort(t))
	if code != cli.StatusInterrupted || stdout+stderr != "" {
		t.Errorf("got status %d, %s%s, want status %d and nothing printed", code, stdout, stderr, cli.StatusInterrupted)
	}
	code, stdout, stderr = tool.Run(t.Context(), "cmtime", "-b", "192.0.2.1")
	if code != 255 || stdout != "" || !strings.HasPrefix(stderr, "bind address failed: No such device\nadverb: ") {
		t.Errorf("got status %d, %s%s, want status 255 and that the address cannot be bound", code, stdout, stderr)
	}
}

// Command lines that the program refuses, with the C program's line or with one of ours.
func TestCmtimeErrors(t *testing.T) {
	for _, tt := range []struct {
		line           string
		code           int
		stdout, stderr string // prefixes
	}{
		{"cmtime -x", 1, "usage: cmtime\n\t[-s server_address]\n", "cmtime: invalid option -- 'x'\n"},
		{"cmtime -C 127.0.0.1", 1, "usage: cmtime\n\t-B bind_interface", ""},
		{"cmtime -C 127.0.0.1 -b 127.0.0.1 -S -P 3", 1, "usage: cmtime\n\t-B bind_interface", ""},
		{"cmtime -b 127.0.0.1 -B lo -C 127.0.0.1", 1, "usage: cmtime\n", ""},
		{"cmtime -P 1", 1, "usage: cmtime\n", "adverb: read --peers=1: that is too small: give one from 2 to 4096\n"},
		{"cmtime -n 0", 1, "usage: cmtime\n", "adverb: read --threads=0: that is too small: "},
		{"cmtime -r -1", 1, "usage: cmtime\n", "adverb: read --retries=-1: that is too small: "},
		{"cmtime -c all", 1, "usage: cmtime\n", "adverb: read --connections=all: that is no number: "},
		{"cmtime -s h -C 127.0.0.1", 1, "", "adverb: -s is of the form without controller"},
		{"cmtime localhost -c 0", 1, "", "adverb: ignore [\"localhost\"]: cmtime takes flags alone, and -s names what it is to connect to\nadverb: -c 0: "},
		{"cmtime -c 0", 1, "", "adverb: -c 0: "},
		{"cmtime -t 5 -c 0", 1, "", "adverb: -c 0: "},
		{"cmtime -C 127.0.0.1 -B no-such-interface", 1, "", "Failed to find IP address for interface: no-such-interface\n"},
	} {
		code, stdout, stderr := tool.Run(t.Context(), strings.Fields(tt.line)...)
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.HasPrefix(stderr, tt.stderr) ||
			tt.stdout == "" && stdout != "" || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: got status %d, stdout:\n%sstderr:\n%swant status %d, stdout %q…, stderr %q…", tt.line, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}
