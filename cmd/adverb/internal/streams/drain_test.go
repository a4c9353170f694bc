package streams

import (
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// After SIGTERM a proxy takes no more connections, and lets those that it has go on. It ends with status 0.
func TestProxyDrains(t *testing.T) {
	for _, tt := range []struct {
		name, drain string
		ends        bool // the connection, in time
	}{{"ends", "1h", true}, {"stays", "10ms", false}} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, terminate := context.WithCancelCause(t.Context())
			s, port := startListening(ctx, t, "adverb", "proxy", "--drain", tt.drain, "tcp:127.0.0.1:0", "tcp:"+l.Addr().String())
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			go func() { // of those that come before the proxy has heard of it
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					c.Close()
				}
			}()
			terminate(cli.ErrTerminated)
			if tt.ends {
				for refused := false; !refused; { // until the proxy has heard of it
					n, err := net.Dial("tcp", "127.0.0.1:"+port)
					if refused = err != nil; !refused {
						n.Close()
					}
				}
				io.WriteString(c, "question")
				b := make([]byte, 8)
				if _, err := io.ReadFull(far, b); err != nil || string(b) != "question" {
					t.Errorf("after SIGTERM: got %q, %v, want the client's bytes", b, err)
				}
				far.Close()
				c.Close()
			}
			r := <-s.Done
			if r.Code != 0 || strings.Contains(r.Stderr, "--drain") == tt.ends {
				t.Errorf("got status %d, stderr %q, want status 0, and to hear of --drain: %v", r.Code, r.Stderr, !tt.ends)
			}
		})
	}
}

// A proxy replaces the socket that a killed one has left, and nothing else.
func TestProxyStaleSocket(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("sockets are files on Unix systems")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	run := func() tooltest.Result {
		return tool.Result(t.Context(), "adverb", "proxy", "unix:"+path, "tcp:127.0.0.1:1")
	}
	if r := run(); r.Code != 1 || !strings.Contains(r.Stderr, "a program listens there") {
		t.Errorf("a socket in use: got status %d, stderr %q, want status 1 and that it is used", r.Code, r.Stderr)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close() // as a killed program leaves it
	ctx, cancel := context.WithCancel(t.Context())
	s := tool.Start(ctx, "adverb", "proxy", "unix:"+path, "tcp:127.0.0.1:1")
	if s.FirstLine != "listening on "+path+"\n" {
		t.Errorf("a socket that nobody has: got %q, want the proxy to listen", s.FirstLine)
	}
	cancel()
	<-s.Done
	if _, err := os.Lstat(path); err == nil {
		t.Error("the proxy leaves its socket behind")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(); r.Code != 1 || !strings.Contains(r.Stderr, "it is no socket") {
		t.Errorf("a file: got status %d, stderr %q, want status 1 and that it is no socket", r.Code, r.Stderr)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != 0 {
		t.Errorf("the file: %v, %v, want it untouched", fs.FileMode(0), err)
	}
}
