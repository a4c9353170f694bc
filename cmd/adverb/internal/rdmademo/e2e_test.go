package rdmademo

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// startServer starts a server in this process, and returns its port.
func startServer(ctx context.Context, t *testing.T, args string) (*tooltest.Started, string) {
	t.Helper()
	s := tool.Start(ctx, strings.Fields("rdma-server --ib-dev "+serverDevice+" "+args)...)
	return s, listeningPort(t, s)
}

func listeningPort(t *testing.T, s *tooltest.Started) string {
	t.Helper()
	m := regexp.MustCompile(`^listening on port (\d+)\.\n$`).FindStringSubmatch(s.FirstLine)
	if m == nil {
		r := <-s.Done
		t.Fatalf("got first line %q, status %d, stderr: %s, want a server that listens", s.FirstLine, r.Code, r.Stderr)
	}
	return m[1]
}

func runClient(ctx context.Context, mode, port string) tooltest.Result {
	return <-tool.Background(ctx, "rdma-client", "--ib-dev", clientDevice, mode, serverAddr, port)
}

// checkTranscript compares a run of an end with one of the C programs. Ports and process IDs may
// differ.
func checkTranscript(t *testing.T, r tooltest.Result, code int, name string) {
	t.Helper()
	r.Stdout = mask(r.Stdout)
	tooltest.CheckLines(t, r, code, tooltest.Transcript(t, name))
}

func mask(s string) string {
	s = regexp.MustCompile(`(?m)^(listening on port )\d+\.$`).ReplaceAllString(s, "${1}PORT.")
	return regexp.MustCompile(`(?m)( pid )\d+$`).ReplaceAllString(s, "${1}PID")
}

func TestRDMADemo(t *testing.T) {
	for _, mode := range []string{"write", "read"} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		server, port := startServer(ctx, t, "--once "+mode)
		client := runClient(ctx, mode, port)
		checkTranscript(t, client, 0, "rdma-"+mode+"_client.txt")
		checkTranscript(t, <-server.Done, 0, "rdma-"+mode+"_server.txt")
		if want := fmt.Sprintf("side with pid %d\n", os.Getpid()); !strings.Contains(client.Stdout, want) {
			t.Errorf("no %q in\n%s", want, client.Stdout)
		}
		cancel()
	}
}

func TestRDMADemoPSK(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	one, other := tooltest.PSK(t, "a"), tooltest.PSK(t, "b")
	server, port := startServer(ctx, t, "--once --psk "+one+" write")
	client := func(file string) tooltest.Result {
		return <-tool.Background(ctx, "rdma-client", "--ib-dev", clientDevice, "--psk", file, "write", serverAddr, port)
	}
	if r := client(other); r.Code == 0 || !strings.Contains(r.Stderr, "another pre-shared key") {
		t.Errorf("another key: got status %d, stderr %q, want that named", r.Code, r.Stderr)
	}
	checkTranscript(t, client(one), 0, "rdma-write_client.txt")
	checkTranscript(t, <-server.Done, 0, "rdma-write_server.txt")
	if r := client(one + "x"); r.Code != 1 || !strings.Contains(r.Stderr, "read the pre-shared key") {
		t.Errorf("no file: got status %d, stderr %q, want that named", r.Code, r.Stderr)
	}
}

// Two processes as a user runs them: over IPv4 and IPv6, on a port that the server is told or finds.
func TestRDMADemoProcesses(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	for _, tt := range []struct{ mode, host, port string }{
		{"write", "127.0.0.1", ""}, {"read", "::1", ""}, {"read", "localhost", tooltest.FreeCMPort()}, {"write", "::1", tooltest.FreeCMPort()},
	} {
		t.Run(tt.mode+"|"+tt.host, func(t *testing.T) {
			if tt.host == "::1" {
				tooltest.LoopbackGID(t, "::1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			server := tooltest.StartProcess(ctx, t, strings.Fields("adverb rdma-server --once "+tt.mode+" "+tt.port)...)
			port := listeningPort(t, server)
			if tt.port != "" && port != tt.port {
				t.Errorf("listens on port %s, want %s", port, tt.port)
			}
			client := <-tooltest.StartProcess(ctx, t, "rdma-client", tt.mode, tt.host, port).Done
			checkTranscript(t, client, 0, "rdma-"+tt.mode+"_client.txt")
			checkTranscript(t, <-server.Done, 0, "rdma-"+tt.mode+"_server.txt")
		})
	}
}

// The server serves clients one after the other and at once, and no client that fails ends it.
func TestRDMADemoManyClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	serverCtx, stop := context.WithCancel(ctx)
	server, port := startServer(serverCtx, t, "write")
	const atOnce = 8
	check := func() {
		t.Helper()
		checkTranscript(t, runClient(ctx, "write", port), 0, "rdma-write_client.txt")
	}
	check()
	if r := runClient(ctx, "read", port); r.Code != 1 || !strings.HasPrefix(r.Stderr, badCompletion+"adverb: ") ||
		!strings.Contains(r.Stderr, `was the peer started with another mode than "read"?`) {
		t.Errorf("a client in the other mode: got status %d, stderr:\n%swant status 1 and a question about the mode", r.Code, r.Stderr)
	}
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(check)
	}
	wg.Wait()
	check()
	stop()
	r := <-server.Done
	if r.Code != cli.StatusInterrupted || strings.Count(r.Stdout, "received MSG_MR. writing ") != atOnce+3 {
		t.Errorf("got status %d, stdout:\n%swant status %d and %d clients served", r.Code, r.Stdout, cli.StatusInterrupted, atOnce+3)
	}
	if !strings.HasPrefix(r.Stderr, badCompletion+"adverb: ") || !strings.HasSuffix(r.Stderr, "\nadverb: interrupted\n") ||
		strings.Count(r.Stderr, badCompletion) != 1 {
		t.Errorf("got stderr:\n%swant one failed completion, and that it was interrupted", r.Stderr)
	}
}

// A peer breaks the protocol of both programs. That ends the run with the C program's line and a reason.
func TestRDMADemoBadPeer(t *testing.T) {
	mr := rwdemo.Message{Type: rwdemo.MsgMR, Length: rwdemo.BufferSize}
	done := rwdemo.Message{Type: rwdemo.MsgDone}
	for _, tt := range []struct {
		name string
		do   func(p *tooltest.Peer)
		want string
	}{
		{"short message", func(p *tooltest.Peer) { p.Send(make([]byte, 55)) }, "the peer's message has 55 bytes, and one of rdma-server and rdma-client 56"},
		{"unknown message", func(p *tooltest.Peer) { p.Send(bytesOf(rwdemo.Message{Type: 9})) }, "the peer sent a message of type 9"},
		{"MSG_DONE first", func(p *tooltest.Peer) { p.Send(bytesOf(done)) }, "the peer sent MSG_DONE where MSG_MR was to come"},
		{"a region that is not there", func(p *tooltest.Peer) { p.Send(bytesOf(mr)) }, "WC_REM_ACCESS_ERR"},
		{"goodbye at once", func(p *tooltest.Peer) { p.Must(p.ID.Disconnect()) }, "the peer disconnected before both ends were done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			server, port := startServer(ctx, t, "--once write")
			p := tooltest.DialPeer(ctx, t, clientDevice, serverAddr, port)
			tt.do(p)
			r := <-server.Done
			if lines := strings.SplitAfter(r.Stderr, "\n"); r.Code != 1 || lines[0] != badCompletion || !strings.Contains(lines[1], tt.want) || len(lines) != 3 {
				t.Errorf("got status %d, stderr:\n%swant status 1, the C program's line and %q", r.Code, r.Stderr, tt.want)
			}
		})
	}
}

func bytesOf(m rwdemo.Message) []byte { return m.AppendTo(nil) }

// The client takes each step once, in whatever order the server's messages come. Escape sequences in the server's
// text are printed as text.
func TestRDMADemoClientSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	p := tooltest.ListenPeer(ctx, t, serverDevice, serverAddr, testPort)
	client := tool.Background(ctx, "rdma-client", "--ib-dev", clientDevice, "write", serverAddr, testPort)
	p.Accept()
	m, err := rwdemo.DecodeMessage(p.Receive())
	if err != nil || m.Type != rwdemo.MsgMR || m.Length != rwdemo.BufferSize || m.Context != 0 || m.PD != 0 || m.Padding != 0 {
		t.Fatalf("got %+v, %v, want MSG_MR of a region of %d bytes", m, err, rwdemo.BufferSize)
	}
	n := copy(p.Data.Bytes(), "\x1b[31mred\r\n\xff\x00")
	p.Operate(verbs.OpRDMAWrite, m.Remote(), n)
	remote := p.Data.Remote(0)
	p.Send(bytesOf(rwdemo.Message{Type: rwdemo.MsgMR, Addr: remote.VA, Length: rwdemo.BufferSize, RKey: remote.RKey}))
	p.Send(bytesOf(rwdemo.Message{Type: rwdemo.MsgDone})) // perhaps before the client's operation is done
	if m, err := rwdemo.DecodeMessage(p.Receive()); err != nil || m.Type != rwdemo.MsgDone {
		t.Fatalf("got %+v, %v, want MSG_DONE", m, err)
	}
	if got, want := string(p.Data.Bytes()[:rwdemo.BufferSize]), fmt.Sprintf("message from active/client side with pid %d\x00", os.Getpid()); !strings.HasPrefix(got, want) ||
		strings.Trim(got[len(want):], "\x00") != "" {
		t.Errorf("the client wrote %q, want %q and zeros", got, want)
	}
	p.Expect(rdmacm.EventDisconnected)
	p.Must(p.ID.Disconnect())
	want := strings.Replace(tooltest.Transcript(t, "rdma-write_client.txt"), "message from passive/server side with pid PID", `\x1b[31mred\x0d\x0a\xff`, 1)
	tooltest.CheckLines(t, <-client, 0, want)
}

func TestRDMADemoErrors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	tooltest.ListenPeer(ctx, t, serverDevice, serverAddr, testPort) // the device answers that nobody listens on port 1
	for _, tt := range []struct{ argv, stdout, stderr string }{
		{"rdma-client write --ib-dev " + clientDevice + " " + serverAddr + " 1", "address resolved.\nroute resolved.\n",
			"on_event: 8\non_event: unknown event.\nadverb: connect "},
		{"rdma-client write --ib-dev " + clientDevice + " ::1 1", "", "on_event: 1\non_event: unknown event.\nadverb: resolve address"},
	} {
		code, stdout, stderr := tool.Run(ctx, strings.Fields(tt.argv)...)
		if code != 1 || stdout != tt.stdout || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: got status %d\nstdout: %s\nstderr: %s\nwant status 1, stdout %q, stderr %q…", tt.argv, code, stdout, stderr, tt.stdout, tt.stderr)
		}
	}
	serverCtx, stop := context.WithCancel(ctx)
	server := tool.Start(serverCtx, "rdma-server", "--ib-dev", clientDevice, "read")
	r := <-tool.Background(ctx, "rdma-server", "--ib-dev", clientDevice, "read", listeningPort(t, server))
	if r.Code != 1 || !strings.HasPrefix(r.Stderr, "error: rdma_bind_addr(listener, (struct sockaddr *)&addr) failed (returned non-zero).\nadverb: bind ") {
		t.Errorf("a port that is taken: got status %d, stderr: %s, want status 1 and the C program's line about rdma_bind_addr", r.Code, r.Stderr)
	}
	stop()
	if r := <-server.Done; r.Code != cli.StatusInterrupted || r.Stderr != "adverb: interrupted\n" {
		t.Errorf("Ctrl-C: got status %d, stderr: %s, want status %d and that it was interrupted", r.Code, r.Stderr, cli.StatusInterrupted)
	}
}

// A disconnect that overtakes only the last acknowledgements is no failure. An earlier one is.
func TestRDMADemoOvertaken(t *testing.T) {
	dev, err := verbs.Open(serverDevice)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(rwdemo.BufferSize, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	copy(mr.Bytes(), "text")
	for _, tt := range []struct {
		mode                 rwdemo.Mode
		sendState, recvState int
		flushed              int
		stdout               string // "": it fails
	}{
		{rwdemo.Write, 1, 2, 2, sendCompleted + sendCompleted + "remote buffer: text\npeer disconnected.\n"},
		{rwdemo.Write, 2, 2, 1, sendCompleted + "remote buffer: text\npeer disconnected.\n"},
		{rwdemo.Read, 2, 2, 1, sendCompleted + "remote buffer: text\npeer disconnected.\n"},
		{rwdemo.Read, 1, 2, 2, ""}, // nothing was read
		{rwdemo.Write, 2, 1, 1, ""},
		{rwdemo.Write, 1, 2, 1, ""},
	} {
		var stdout, stderr strings.Builder
		d := &demo{Invocation: &cli.Invocation{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, mode: tt.mode}
		c := &conn{demo: d, feed: cm.NewFeed(t.Context()), connected: true, rdmaPosted: true, sendState: tt.sendState, recvState: tt.recvState, local: mr, remote: mr}
		err := error(nil)
		for i := 0; i < tt.flushed && err == nil; i++ {
			err = c.completed(&verbs.WC{Status: verbs.WCFlushErr})
		}
		if err == nil {
			_, err = c.handleEvent(&rdmacm.Event{Type: rdmacm.EventDisconnected})
		}
		if stdout.String() != tt.stdout || (err == nil) != (tt.stdout != "") || (err == nil) != (stderr.Len() == 0) {
			t.Errorf("%+v: got error %v, stdout %q, stderr %q, want stdout %q, and an error only if that is empty", tt, err, &stdout, &stderr, tt.stdout)
		}
	}
	for _, close := range []func() error{mr.Close, pd.Close, dev.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}
