package streams

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rsocket"
)

// A server may answer and close before the client has ended its direction. The proxy takes that for no failure.
func TestProxyServerFirst(t *testing.T) {
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no RDMA here: %v", err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, "answer")
			c.Close()
		}
	}()
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	passed := make(chan error, 1)
	go func() {
		c, err := far.Accept()
		if err == nil {
			err = pass(t.Context(), rsocket.Config{}, c, "rdma:"+l.Addr().String())
		}
		passed <- err
	}()
	c, err := net.Dial("tcp", far.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); string(b) != "answer" || err != nil {
		t.Errorf("got %q, %v, want the answer", b, err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := <-passed; err != nil {
		t.Errorf("the proxy complains: %v, want it silent", err)
	}
}

// Errors of Accept that pass do not end the proxy. Others do.
func TestProxyAcceptErrors(t *testing.T) {
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

// The server's reason reaches the user of rcopy, however long the file is. A long one is still under way when the server
// gives up.
func TestRcopyReason(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skipf("nothing that is full: %v", err)
	}
	ctx := t.Context()
	port := startRcopy(ctx, t, "/dev")
	for _, size := range []int64{100, 64 << 20} {
		name := filepath.Join(t.TempDir(), "file")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
		r := tool.Result(ctx, "adverb", "rcopy", "-p", port, name, "127.0.0.1:/full")
		if r.Code == 0 || !strings.Contains(r.Stderr, "no space left") {
			t.Errorf("a file of %d bytes: got status %d, %s, want a failure that says why", size, r.Code, r.Stderr)
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

// What fails is told on a line that begins as those of the other commands do.
func TestFailure(t *testing.T) {
	for _, argv := range [][]string{{"rcopy", "no-such-file", "host"}, {"proxy", "tcp:127.0.0.1:0", "nowhere"}} {
		if r := tool.Result(t.Context(), append([]string{"adverb"}, argv...)...); r.Code != 1 || !strings.HasPrefix(r.Stderr, "adverb: ") {
			t.Errorf("%v: got status %d, stderr %q, want 1 and a line of adverb", argv, r.Code, r.Stderr)
		}
	}
}
