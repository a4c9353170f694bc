package streams

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rsocket"
)

// dialAnswering returns a TCP connection that a proxy passes on to a server, which reads so many bytes, answers and
// closes. passed receives the proxy's log. The proxy's connection is tuned first.
func dialAnswering(t *testing.T, reads int, answer string, tune func(*net.TCPConn)) (c *net.TCPConn, passed <-chan error) {
	t.Helper()
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no RDMA here: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			io.ReadFull(c, make([]byte, reads))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	says := make(chan error, 1)
	go func() {
		c, err := far.Accept()
		if err == nil {
			tune(c.(*net.TCPConn))
			client := admitted(t, c, proxyLimits)
			err = client.pass(rsocket.Config{}, "rdma:"+l.Addr().String())
			client.end()
		}
		says <- err
	}()
	near, err := net.Dial("tcp", far.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near.(*net.TCPConn), says
}

// A server may answer and close before the client has ended its direction. The proxy takes that for no failure.
func TestProxyServerFirst(t *testing.T) {
	c, passed := dialAnswering(t, 0, "answer", func(*net.TCPConn) {})
	if b, err := io.ReadAll(c); string(b) != "answer" || err != nil {
		t.Errorf("got %q, %v, want the answer", b, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := <-passed; err != nil {
		t.Errorf("the proxy complains: %v, want it silent", err)
	}
}

// A server may answer and close while the client still sends, and the client read only then. The answer passes,
// though nobody takes the client's bytes.
func TestProxyServerRefuses(t *testing.T) {
	long := strings.Repeat("answer", 1<<17) // it fits into the rings, and not into the client's buffers
	for _, tt := range []struct {
		reads  int // with one it is sure that bytes are unread when the server closes
		answer string
	}{{0, long}, {1, long}, {1, "answer"}} {
		c, passed := dialAnswering(t, tt.reads, tt.answer, func(c *net.TCPConn) { c.SetWriteBuffer(16 << 10) })
		// With less than was offered to the peer, Linux drops what the peer has sent, and with it the word of room for this
		// end, which then waits for minutes.
		c.SetReadBuffer(128 << 10)
		if n, err := c.Write(make([]byte, 64<<20)); err != nil { // more than all buffers hold
			t.Errorf("after %d bytes: %v, want the proxy to take all", n, err)
		}
		if b, err := io.ReadAll(c); string(b) != tt.answer || err != nil {
			t.Errorf("got %d bytes, %v, want the answer of %d bytes", len(b), err, len(tt.answer))
		}
		c.Close()
		if err := <-passed; !errors.Is(err, syscall.ECONNRESET) && (tt.reads > 0 || !errors.Is(err, syscall.EPIPE)) {
			t.Errorf("the proxy says %v, want that the server takes no more: %v, or %v if nothing had come", err, syscall.ECONNRESET, syscall.EPIPE)
		}
	}
}

// A server that closes with bytes unread resets its connection. Its answer passes all the same, and the proxy waits
// for a client that stays for resetTime only.
func TestProxyServerResets(t *testing.T) {
	defer func(d time.Duration) { resetTime = d }(resetTime)
	resetTime = 10 * time.Millisecond
	c, passed := dialAnswering(t, 1, "answer", func(*net.TCPConn) {})
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); string(b) != "answer" || err != nil {
		t.Errorf("got %q, %v, want the answer", b, err)
	}
	select {
	case err := <-passed:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the proxy says %v, want %v", err, syscall.ECONNRESET)
		}
	case <-time.After(tooltest.Patience / 2):
		t.Error("the proxy waits for the client to go, want it to end")
	}
}

// Errors of Accept that pass do not end a service. Others do.
func TestAcceptErrors(t *testing.T) {
	for err, want := range map[error]bool{
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}: true,
		&net.OpError{Op: "accept", Err: net.ErrClosed}:                                 false,
		&net.OpError{Op: "accept", Err: syscall.EINVAL}:                                false,
		error(nil): false,
	} {
		if got := passes(err); got != want {
			t.Errorf("%v passes: %v, want %v", err, got, want)
		}
	}
}

// A file of /proc has contents, and a size of 0.
func TestRcopyProc(t *testing.T) {
	const name = "/proc/self/status"
	if info, err := os.Stat(name); err != nil || info.Size() != 0 {
		t.Skipf("no such file here: %v", err)
	}
	port := startRcopy(t.Context(), t, t.TempDir())
	if r := tool.Result(t.Context(), "adverb", "rcopy", "-p", port, name, "127.0.0.1:to"); r.Code != 1 || !strings.Contains(r.Stderr, "says that its size is 0") {
		t.Errorf("got status %d, stderr %q, want a failure that says why", r.Code, r.Stderr)
	}
}

// A failure is told on a line that begins as those of the other commands do.
func TestFailure(t *testing.T) {
	for _, argv := range [][]string{{"rcopy", "no-such-file", "host"}, {"rcopy", "file"}, {"proxy", "tcp:127.0.0.1:0", "nowhere"}} {
		if r := tool.Result(t.Context(), append([]string{"adverb"}, argv...)...); r.Code != 1 || !strings.HasPrefix(r.Stderr, "adverb: ") {
			t.Errorf("%v: got status %d, stderr %q, want 1 and a line of adverb", argv, r.Code, r.Stderr)
		}
	}
}

// A client chooses the paths that the server shows. None of them can command the terminal, or look like another line.
func TestRcopyPaths(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, port := startListening(ctx, t, "adverb", "rcopy", "-p", tooltest.FreeCMPort(), "--into", t.TempDir())
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"\x1b]0;title\a\nclient 10.0.0.1:1: fine", "\x9b2J", "Gr\u00fc\u00dfe \"x\""} {
		if r := tool.Result(ctx, "adverb", "rcopy", "-p", port, file, "127.0.0.1:"+to); r.Code != 0 {
			t.Errorf("%q: got status %d, stderr %q, want status 0", to, r.Code, r.Stderr)
		}
	}
	cancel()
	r := <-s.Done
	for _, want := range []string{`: \x1b]0;title\x07\x0aclient 10.0.0.1:1: fine: 3 bytes`, `: \x9b2J: 3 bytes`, ": Gr\u00fc\u00dfe \"x\": 3 bytes"} {
		if !strings.Contains(r.Stdout, want+"\n") {
			t.Errorf("the server says %q, want a line that ends with %q", r.Stdout, want)
		}
	}
}
