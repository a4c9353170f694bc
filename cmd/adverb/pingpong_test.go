package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

func TestPingpongFlags(t *testing.T) {
	inv := func(line string) (*invocation, *strings.Builder, *strings.Builder) {
		var out, err strings.Builder
		return &invocation{ctx: t.Context(), cmd: rcPingpongCmd, prog: "ibv_rc_pingpong", isName: true,
			args: strings.Fields(line), stdout: &out, stderr: &err}, &out, &err
	}
	def := pingpongFlags{port: 18515, ibPort: 1, size: 4096, mtu: verbs.MTU1024, rxDepth: 500, iters: 1000, gidIndex: -1}
	for _, tt := range []struct {
		line string
		want func(*pingpongFlags)
	}{
		{"", func(*pingpongFlags) {}},
		{"host", func(f *pingpongFlags) { f.host = "host" }},
		{"-p 0 -d soft_lo@127.0.0.2 -i 2 -s 0x10 -m 4096 -r 16 -n 5 -l 3 -g 1", func(f *pingpongFlags) {
			f.port, f.device, f.ibPort, f.size, f.mtu, f.rxDepth, f.iters, f.sl, f.gidIndex =
				0, "soft_lo@127.0.0.2", 2, 16, verbs.MTU4096, 16, 5, 3, 1
		}},
		{"--port=1 --ib-dev=x --ib-port=2 --size=3 --mtu=256 --rx-depth=4 --iters=5 --sl=6 --gid-idx=7", func(f *pingpongFlags) {
			f.port, f.device, f.ibPort, f.size, f.mtu, f.rxDepth, f.iters, f.sl, f.gidIndex = 1, "x", 2, 3, verbs.MTU256, 4, 5, 6, 7
		}},
		{"-eotcNUPO -s junk", func(f *pingpongFlags) {}}, // refused below
		{"-etcN", func(f *pingpongFlags) { f.events, f.ts, f.check, f.newSend = true, true, true, true }},
		{"-OP", func(f *pingpongFlags) { f.odp, f.iodp, f.prefetch = true, true, true }},
		{"-j", func(f *pingpongFlags) { f.dm = true }},
		{"-s junk", func(f *pingpongFlags) { f.size = 0 }},
	} {
		i, _, stderr := inv(tt.line)
		got, code, ok := parsePingpong(i)
		if strings.Contains(tt.line, "U") {
			if ok || code != 1 || stderr.String() != "CoCo unprotected memory cannot be used with ODP\n" {
				t.Errorf("%q: %v, status %d, %s", tt.line, ok, code, stderr)
			}
			continue
		}
		want := def
		tt.want(&want)
		if !ok || got != want {
			t.Errorf("%q: got %+v, want %+v", tt.line, got, want)
		}
	}
	for line, text := range map[string]string{
		"-p 65536": "", "-p -1": "", "-i 0": "", "-m 1000": "", "a b": "",
		"-x":    "ibv_rc_pingpong: invalid option -- 'x'\n",
		"-j -o": "DM memory region can't be on demand\n",
		"-U -j": "CoCo unprotected memory cannot be used with device memory\n",
		"-P":    "prefetch is valid only with on-demand memory region\n",
	} {
		i, stdout, stderr := inv(line)
		_, code, ok := parsePingpong(i)
		if ok || code != 1 || stderr.String() != text {
			t.Errorf("%q: %v, status %d, stderr %q, want %q", line, ok, code, stderr, text)
		}
		conflict := text != "" && line != "-x"
		if usage := strings.HasPrefix(stdout.String(), "Usage:\n"); usage == conflict {
			t.Errorf("%q: usage printed: %v", line, usage)
		}
	}
}

// What rdma-core's programs printed for the same figures.
func TestPingpongReport(t *testing.T) {
	gid, err := verbs.ParseGID("10.98.0.3")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	e := pingpongEnd{QPN: 0x17, PSN: 0x05d592, GID: gid}
	printEnd(&b, "local", e)
	printEnd(&b, "remote", pingpongEnd{LID: 0xab})
	printResult(&b, 4095, 3, 24169*time.Microsecond)
	printResult(&b, 4096, 0, 5*time.Microsecond)
	printResult(&b, 4096, 0, 0)
	want := "  local address:  LID 0x0000, QPN 0x000017, PSN 0x05d592, GID ::ffff:10.98.0.3\n" +
		"  remote address: LID 0x00ab, QPN 0x000000, PSN 0x000000, GID ::\n" +
		"24570 bytes in 0.02 seconds = 8.13 Mbit/sec\n" +
		"3 iters in 0.02 seconds = 8056.33 usec/iter\n" +
		"0 bytes in 0.00 seconds = 0.00 Mbit/sec\n" +
		"0 iters in 0.00 seconds = inf usec/iter\n" +
		"0 bytes in 0.00 seconds = -nan Mbit/sec\n" +
		"0 iters in 0.00 seconds = -nan usec/iter\n"
	diffLines(t, b.String(), want)
	if s := wcStatusText(verbs.WCRetryExceeded); s != "transport retry counter exceeded" {
		t.Error(s)
	}
	if s := wcStatusText(verbs.WCTMRndvIncomplete); s != "TM software rendezvous" {
		t.Error(s)
	}
	if s := wcStatusText(24); s != "unknown" {
		t.Error(s)
	}
}

func TestEndMessage(t *testing.T) {
	gid, _ := verbs.ParseGID("10.98.0.3")
	e := pingpongEnd{LID: 1, QPN: 0x17, PSN: 0x05d592, GID: gid}
	m := e.message()
	if want := "0001:000017:05d592:00000000000000000000ffff0a620003\x00"; string(m) != want || len(m) != 52 {
		t.Fatalf("got %q (%d bytes), want %q", m, len(m), want)
	}
	got, err := parseEnd(m)
	if err != nil || got != e {
		t.Errorf("got %+v, %v; want %+v", got, err, e)
	}
	if !e.hasGID() || (pingpongEnd{GID: verbs.GID{0: 0xfe}}).hasGID() {
		t.Error("hasGID does not look at the lower half")
	}
	for _, bad := range []string{"", "a:b:c", "0001:000017:05d592:0000", "10000:0:0:" + strings.Repeat("0", 32),
		"0:1000000:0:" + strings.Repeat("0", 32), "0:0:x:" + strings.Repeat("0", 32), "0:0:0:" + strings.Repeat("x", 32)} {
		if e, err := parseEnd([]byte(bad)); err == nil {
			t.Errorf("%q: parsed as %+v", bad, e)
		}
	}
}

func FuzzParseEnd(f *testing.F) {
	f.Add(pingpongEnd{LID: 1, QPN: 2, PSN: 3}.message())
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnd(b)
		if err != nil {
			return
		}
		if again, err := parseEnd(e.message()); err != nil || again != e {
			t.Errorf("%q: %+v comes back as %+v, %v", b, e, again, err)
		}
	})
}

func listenLoopback(t *testing.T) (l net.Listener, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

func connectNothing(pingpongEnd) error { return nil }

// The server is connected before the client learns its address.
func TestExchange(t *testing.T) {
	l, port := listenLoopback(t)
	server, client := pingpongEnd{QPN: 1, GID: verbs.GID{15: 1}}, pingpongEnd{QPN: 2, GID: verbs.GID{15: 2}}
	connected := make(chan pingpongEnd, 1)
	failed := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = serveExchange(t.Context(), conn, server, func(e pingpongEnd) error { connected <- e; return nil })
		}
		failed <- err
	}()
	got, err := clientExchange(t.Context(), "127.0.0.1", port, client, connectNothing)
	if err != nil || got != server {
		t.Errorf("client got %+v, %v; want %+v", got, err, server)
	}
	select {
	case e := <-connected:
		if e != client {
			t.Errorf("server got %+v, want %+v", e, client)
		}
	default:
		t.Error("the client knew the server's address before the server was connected")
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

func TestExchangeErrors(t *testing.T) {
	local := pingpongEnd{QPN: 1}
	line := func(err error) string {
		if e, ok := errors.AsType[*exchangeError](err); ok {
			return e.line
		}
		return ""
	}
	l, port := listenLoopback(t)
	l.Close()
	if _, err := clientExchange(t.Context(), "127.0.0.1", port, local, connectNothing); !strings.HasPrefix(line(err), "Couldn't connect to 127.0.0.1:") {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := listenPingpong(t.Context(), -1); line(err) != "Couldn't listen to port -1" {
		t.Errorf("bad port: %v", err)
	}

	serve := func(say string, connect func(pingpongEnd) error) error {
		a, b := net.Pipe()
		go func() {
			io.WriteString(b, say)
			if len(say) == endMessageSize {
				io.ReadFull(b, make([]byte, endMessageSize))
			}
			b.Close()
		}()
		_, err := serveExchange(t.Context(), a, local, connect)
		return err
	}
	if err := serve("0000:0", connectNothing); err == nil {
		t.Error("short message accepted")
	}
	if err := serve(strings.Repeat("x", endMessageSize), connectNothing); line(err) != "52/52: Couldn't read remote address" {
		t.Errorf("garbage: %v", err)
	}
	if err := serve(string(local.message()), func(pingpongEnd) error { return errors.New("no") }); line(err) != "Couldn't connect to remote QP" {
		t.Errorf("connect fails: %v", err)
	}
	if err := serve(string(local.message()), connectNothing); line(err) != "Couldn't send/recv local address" {
		t.Errorf("no done: %v", err)
	}
}

// A client that cannot connect to the server's QP tells the server so.
func TestExchangeClientFails(t *testing.T) {
	l, port := listenLoopback(t)
	failed := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = serveExchange(t.Context(), conn, pingpongEnd{}, connectNothing)
		}
		failed <- err
	}()
	no := errors.New("no")
	if _, err := clientExchange(t.Context(), "127.0.0.1", port, pingpongEnd{}, func(pingpongEnd) error { return no }); err != no {
		t.Errorf("client: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the server believes that all is well")
	}
}

// A canceled context ends a wait for a peer.
func TestExchangeCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, port := listenLoopback(t)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
			cancel() // the client waits for the answer by now, or will
		}
	}()
	if _, err := clientExchange(ctx, "127.0.0.1", port, pingpongEnd{}, connectNothing); err == nil {
		t.Error("no error")
	}
	(<-accepted).Close()
	l, _ = listenLoopback(t)
	if _, err := serverExchange(ctx, l, pingpongEnd{}, nil); err == nil {
		t.Error("a server waits for a client with a canceled context")
	}
}
