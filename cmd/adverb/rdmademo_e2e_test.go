package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// rdmaDemoServer starts a server in this process, and returns its port.
func rdmaDemoServer(ctx context.Context, t *testing.T, args string) (*started, string) {
	t.Helper()
	s := start(ctx, strings.Fields("rdma-server --ib-dev "+rpingServerDevice+" "+args)...)
	return s, listeningPort(t, s)
}

func listeningPort(t *testing.T, s *started) string {
	t.Helper()
	m := regexp.MustCompile(`^listening on port (\d+)\.\n$`).FindStringSubmatch(s.firstLine)
	if m == nil {
		r := <-s.done
		t.Fatalf("the server does not listen: %q, status %d, stderr: %s", s.firstLine, r.code, r.stderr)
	}
	return m[1]
}

func rdmaDemoClient(ctx context.Context, mode, port string) result {
	return <-background(ctx, "rdma-client", "--ib-dev", rpingClientDevice, mode, rpingServerAddr, port)
}

// checkRDMADemo compares a run of an end with one of the C programs, but for ports and process IDs.
func checkRDMADemo(t *testing.T, r result, code int, name string) {
	t.Helper()
	r.stdout = maskRDMADemo(r.stdout)
	checkLines(t, r, code, classicLines(t, name))
}

func maskRDMADemo(s string) string {
	s = regexp.MustCompile(`(?m)^(listening on port )\d+\.$`).ReplaceAllString(s, "${1}PORT.")
	return regexp.MustCompile(`(?m)( pid )\d+$`).ReplaceAllString(s, "${1}PID")
}

func TestRDMADemo(t *testing.T) {
	for _, mode := range []string{"write", "read"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		server, port := rdmaDemoServer(ctx, t, "--once "+mode)
		client := rdmaDemoClient(ctx, mode, port)
		checkRDMADemo(t, client, 0, "rdma-"+mode+"_client.txt")
		checkRDMADemo(t, <-server.done, 0, "rdma-"+mode+"_server.txt")
		if want := fmt.Sprintf("side with pid %d\n", os.Getpid()); !strings.Contains(client.stdout, want) {
			t.Errorf("no %q in\n%s", want, client.stdout)
		}
		cancel()
	}
}

// Two processes, as a user runs them: over IPv4 and IPv6, on a port that the server is given or finds.
func TestRDMADemoProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux do processes share an address")
	}
	for _, tt := range []struct{ mode, host, port string }{
		{"write", "127.0.0.1", ""}, {"read", "::1", ""}, {"read", "localhost", freeCMPort()}, {"write", "::1", freeCMPort()},
	} {
		t.Run(tt.mode+"|"+tt.host, func(t *testing.T) {
			if tt.host == "::1" {
				loopbackGID(t, "::1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			server := startProcess(ctx, t, strings.Fields("adverb rdma-server --once "+tt.mode+" "+tt.port)...)
			port := listeningPort(t, server)
			if tt.port != "" && port != tt.port {
				t.Errorf("listens on port %s, want %s", port, tt.port)
			}
			client := <-startProcess(ctx, t, "rdma-client", tt.mode, tt.host, port).done
			checkRDMADemo(t, client, 0, "rdma-"+tt.mode+"_client.txt")
			checkRDMADemo(t, <-server.done, 0, "rdma-"+tt.mode+"_server.txt")
		})
	}
}

// The server serves clients one after the other and at once, and no client that fails ends it.
func TestRDMADemoManyClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	serverCtx, stop := context.WithCancel(ctx)
	server, port := rdmaDemoServer(serverCtx, t, "write")
	const atOnce = 8
	check := func() {
		t.Helper()
		checkRDMADemo(t, rdmaDemoClient(ctx, "write", port), 0, "rdma-write_client.txt")
	}
	check()
	if r := rdmaDemoClient(ctx, "read", port); r.code != 1 || !strings.HasPrefix(r.stderr, rdmaDemoBadCompletion+"adverb: ") ||
		!strings.Contains(r.stderr, `was the peer started with another mode than "read"?`) {
		t.Errorf("a client in the other mode: status %d, stderr:\n%s", r.code, r.stderr)
	}
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(check)
	}
	wg.Wait()
	check()
	stop()
	r := <-server.done
	if r.code != statusInterrupted || strings.Count(r.stdout, "received MSG_MR. writing ") != atOnce+3 {
		t.Errorf("status %d, stdout:\n%s", r.code, r.stdout)
	}
	if !strings.HasPrefix(r.stderr, rdmaDemoBadCompletion+"adverb: ") || !strings.HasSuffix(r.stderr, "\nadverb: interrupted\n") ||
		strings.Count(r.stderr, rdmaDemoBadCompletion) != 1 {
		t.Errorf("stderr:\n%s", r.stderr)
	}
}

// A peer that does what neither program does ends the run with the C program's line, and a reason.
func TestRDMADemoBadPeer(t *testing.T) {
	mr := rdmaDemoMessage{Type: rdmaDemoMR, Length: rdmaDemoBufferSize}
	done := rdmaDemoMessage{Type: rdmaDemoDone}
	for _, tt := range []struct {
		name string
		do   func(p *scriptedPeer)
		want string
	}{
		{"short message", func(p *scriptedPeer) { p.send(make([]byte, 55)) }, "the peer's message has 55 bytes, and one of rdma-server and rdma-client 56"},
		{"unknown message", func(p *scriptedPeer) { p.send(bytesOf(rdmaDemoMessage{Type: 9})) }, "the peer sent a message of type 9"},
		{"MSG_DONE first", func(p *scriptedPeer) { p.send(bytesOf(done)) }, "the peer sent MSG_DONE where MSG_MR was to come"},
		{"a region that is not there", func(p *scriptedPeer) { p.send(bytesOf(mr)) }, "WC_REM_ACCESS_ERR"},
		{"goodbye at once", func(p *scriptedPeer) { p.must(p.id.Disconnect()) }, "the peer disconnected before both ends were done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			server, port := rdmaDemoServer(ctx, t, "--once write")
			p := dialScripted(ctx, t, port)
			tt.do(p)
			r := <-server.done
			if lines := strings.SplitAfter(r.stderr, "\n"); r.code != 1 || lines[0] != rdmaDemoBadCompletion || !strings.Contains(lines[1], tt.want) || len(lines) != 3 {
				t.Errorf("status %d, stderr:\n%s", r.code, r.stderr)
			}
		})
	}
}

func bytesOf(m rdmaDemoMessage) []byte { return m.AppendTo(nil) }

// Whatever the order in which a server's answers come, the client does each step once.
func TestRDMADemoClientSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := listenScripted(ctx, t, rpingTestPort)
	client := background(ctx, "rdma-client", "--ib-dev", rpingClientDevice, "write", rpingServerAddr, rpingTestPort)
	p.accept()
	m, err := decodeRDMADemoMessage(p.receive())
	if err != nil || m.Type != rdmaDemoMR || m.Length != rdmaDemoBufferSize || m.Context != 0 || m.PD != 0 || m.Padding != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	remote := p.data.Remote(0)
	p.send(bytesOf(rdmaDemoMessage{Type: rdmaDemoMR, Addr: remote.VA, Length: rdmaDemoBufferSize, RKey: remote.RKey}))
	p.send(bytesOf(rdmaDemoMessage{Type: rdmaDemoDone})) // perhaps before the client's operation is done
	if m, err := decodeRDMADemoMessage(p.receive()); err != nil || m.Type != rdmaDemoDone {
		t.Fatalf("%+v, %v", m, err)
	}
	if got, want := string(p.data.Bytes()[:rdmaDemoBufferSize]), fmt.Sprintf("message from active/client side with pid %d\x00", os.Getpid()); !strings.HasPrefix(got, want) ||
		strings.Trim(got[len(want):], "\x00") != "" {
		t.Errorf("the client wrote %q", got)
	}
	p.expect(rdmacm.EventDisconnected)
	p.must(p.id.Disconnect())
	want := strings.Replace(classicLines(t, "rdma-write_client.txt"), "message from passive/server side with pid PID", "", 1) // it was written nothing
	checkLines(t, <-client, 0, want)
}

func TestRDMADemoErrors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	listenScripted(ctx, t, rpingTestPort) // somebody has to say that nobody listens on port 1
	for _, tt := range []struct{ argv, stdout, stderr string }{
		{"rdma-client write --ib-dev " + rpingClientDevice + " " + rpingServerAddr + " 1", "address resolved.\nroute resolved.\n",
			"on_event: 8\non_event: unknown event.\nadverb: connect "},
		{"rdma-client write --ib-dev " + rpingClientDevice + " ::1 1", "", "on_event: 1\non_event: unknown event.\nadverb: resolve address"},
	} {
		code, stdout, stderr := tool(ctx, strings.Fields(tt.argv)...)
		if code != 1 || stdout != tt.stdout || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: status %d\nstdout: %s\nstderr: %s", tt.argv, code, stdout, stderr)
		}
	}
	serverCtx, stop := context.WithCancel(ctx)
	server := start(serverCtx, "rdma-server", "--ib-dev", rpingClientDevice, "read")
	r := <-background(ctx, "rdma-server", "--ib-dev", rpingClientDevice, "read", listeningPort(t, server))
	if r.code != 1 || !strings.HasPrefix(r.stderr, "error: rdma_bind_addr(listener, (struct sockaddr *)&addr) failed (returned non-zero).\nadverb: bind ") {
		t.Errorf("a port that is taken: status %d, stderr: %s", r.code, r.stderr)
	}
	stop()
	if r := <-server.done; r.code != statusInterrupted || r.stderr != "adverb: interrupted\n" {
		t.Errorf("Ctrl-C: status %d, stderr: %s", r.code, r.stderr)
	}
}

// A disconnect that overtakes the last acknowledgements is no failure, and any earlier one is.
func TestRDMADemoOvertaken(t *testing.T) {
	dev, err := verbs.Open(rpingServerDevice)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(rdmaDemoBufferSize, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	copy(mr.Bytes(), "text")
	for _, tt := range []struct {
		mode                 rdmaDemoMode
		sendState, recvState int
		flushed              int
		stdout               string // "": it fails
	}{
		{rdmaDemoWrite, 1, 2, 2, rdmaDemoSent + rdmaDemoSent + "remote buffer: text\npeer disconnected.\n"},
		{rdmaDemoWrite, 2, 2, 1, rdmaDemoSent + "remote buffer: text\npeer disconnected.\n"},
		{rdmaDemoRead, 2, 2, 1, rdmaDemoSent + "remote buffer: text\npeer disconnected.\n"},
		{rdmaDemoRead, 1, 2, 2, ""}, // nothing was read
		{rdmaDemoWrite, 2, 1, 1, ""},
		{rdmaDemoWrite, 1, 2, 1, ""},
	} {
		var stdout, stderr strings.Builder
		d := &rdmaDemo{invocation: &invocation{ctx: t.Context(), stdout: &stdout, stderr: &stderr}, mode: tt.mode}
		c := &rdmaDemoConn{rdmaDemo: d, feed: newFeed(t.Context()), connected: true, rdmaPosted: true, sendState: tt.sendState, recvState: tt.recvState, local: mr, remote: mr}
		err := error(nil)
		for i := 0; i < tt.flushed && err == nil; i++ {
			err = c.completed(&verbs.WC{Status: verbs.WCFlushErr})
		}
		if err == nil {
			_, err = c.happened(&rdmacm.Event{Type: rdmacm.EventDisconnected})
		}
		if stdout.String() != tt.stdout || (err == nil) != (tt.stdout != "") || (err == nil) != (stderr.Len() == 0) {
			t.Errorf("%+v: error %v, stdout %q, stderr %q", tt, err, &stdout, &stderr)
		}
	}
	for _, close := range []func() error{mr.Close, pd.Close, dev.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}
