package streams

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// hosted is a connection from an address.
type hosted struct {
	net.Conn
	from string
}

func (c *hosted) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1))
}

// A service has a bounded number of clients, half of them of one host. When there is no room, the host with the most loses
// the client that was silent for longest. Who finds no room is told.
func TestServiceShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		var log bytes.Buffer
		s := newService(&cli.Invocation{Ctx: t.Context(), Stderr: &log}, limits{clients: most}, full)
		admit := func(from string) (c *client, far net.Conn) {
			near, far := net.Pipe()
			if c = s.admit(&hosted{near, from}); c != nil {
				t.Cleanup(func() { c.end(); far.Close() })
			}
			return c, far
		}
		var first [most / 2]*client
		for i := range first {
			first[i], _ = admit("10.0.0.1")
			time.Sleep(refreshPause)
		}
		for i := range 2 * maxLeaving {
			c, far := admit("10.0.0.1")
			if c != nil {
				t.Fatalf("a host has %d clients, want %d at most", most/2+1+i, most/2)
			}
			if i == 0 {
				if h, err := readHeader(far); err != nil || h.command != cmdOpen|response || h.data != errAgain {
					t.Errorf("who finds no room is told %+v, %v, want %d", h, err, errAgain)
				}
			}
			defer far.Close()
		}
		if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "--clients 8") {
			t.Errorf("the service says %q, want one line that names the flag", said)
		}
		var second [most / 2]*client
		for i := range second {
			if second[i], _ = admit("10.0.0.2"); second[i] == nil {
				t.Fatal("another host finds no room in the other half")
			}
		}
		first[0].heard()
		for i, loser := range []*client{first[1], second[0]} { // who was silent for longest, of the hosts with the most
			c, _ := admit("10.0.0.3")
			if c == nil || !errors.Is(context.Cause(loser.ctx), errDisplaced) || loser.why(io.EOF) != errDisplaced {
				t.Errorf("client %d of a third host: admitted: %v, who was silent for longest ends with %v, want %v", i, c != nil, context.Cause(loser.ctx), errDisplaced)
			}
			synctest.Wait()
			if _, err := loser.Write(nil); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("the connection of who lost its place: got %v, want it closed", err)
			}
		}
		if n := s.clients.Len(); n != most {
			t.Errorf("%d clients in the end, want %d", n, most)
		}
		time.Sleep(time.Minute) // until those that were turned away are gone
	})
}

// A client that says nothing is ended, and one that is heard from stays.
func TestServiceIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 2 * time.Minute
		near, far := net.Pipe()
		defer far.Close()
		c := admitted(t, near, limits{clients: 1, idle: idle})
		defer c.end()
		taken, into := net.Pipe()
		defer taken.Close()
		go c.half(into, c.Conn)
		for range 5 {
			time.Sleep(idle - 1)
			if _, err := far.Write([]byte{0}); err != nil {
				t.Fatalf("a client that speaks each %v: %v", idle-1, err)
			}
			if _, err := taken.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(idle - 1)
		synctest.Wait()
		if c.ctx.Err() != nil {
			t.Errorf("a client is ended after %v of silence, want %v", idle-1, idle)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if cause := context.Cause(c.ctx); !errors.Is(cause, errIdle) {
			t.Errorf("after %v of silence: got %v, want %v", idle, cause, errIdle)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the client reads %v, want the end", err)
		}
	})
}

// short is a listener that is short of descriptors for a while, and then closed.
type shortListener struct {
	net.Listener
	errs []error
}

func (l *shortListener) Accept() (net.Conn, error) {
	err := l.errs[0]
	l.errs = l.errs[1:]
	if err == nil {
		near, far := net.Pipe()
		far.Close()
		return near, nil
	}
	return nil, err
}

func (l *shortListener) Close() error { return nil }

// A service that can take no connection for now says so, and goes on.
func TestServiceGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		short := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		l := &shortListener{errs: []error{short, short, short, nil, short, nil, net.ErrClosed}}
		served, began := 0, time.Now()
		var mu sync.Mutex
		err := newService(&cli.Invocation{Ctx: t.Context(), Stderr: &log}, proxyLimits, nil).run(l, func(*client) {
			mu.Lock()
			defer mu.Unlock()
			served++
		})
		if !errors.Is(err, net.ErrClosed) || served != 2 {
			t.Errorf("got %v and %d connections, want %v and 2", err, served, net.ErrClosed)
		}
		if got, want := time.Since(began), 4*acceptPause; got != want {
			t.Errorf("the service has waited %v, want %v", got, want)
		}
		if said := log.String(); strings.Count(said, "\n") != 2 || !strings.Contains(said, syscall.EMFILE.Error()) {
			t.Errorf("the service says %q, want each shortage once", said)
		}
	})
}

// A server does not compute the checksum of a file for a client that has left, or when the user interrupts it. It took
// the CPU until the end of the file, and a device has none.
func TestRcopyVerifyEnds(t *testing.T) {
	for _, cause := range []string{"the client leaves", "the user interrupts", "another client needs the place"} {
		t.Run(cause, func(t *testing.T) {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			near, far := net.Pipe()
			defer far.Close()
			service := newService(&cli.Invocation{Ctx: ctx, Stdout: io.Discard, Stderr: io.Discard}, rcopyLimits, nil)
			c := service.admit(near)
			s := newSession(c, root, t.Logf)
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.run()
				c.end()
			}()
			defer func() { // it logs until then
				far.Close()
				select {
				case <-done:
				case <-time.After(tooltest.Patience):
					t.Error("the server works on without its client")
				}
			}()
			if _, err := far.Write(openMessage("file", 0o600)); err != nil {
				t.Fatal(err)
			}
			if h, err := readHeader(far); err != nil || h.data != 0 {
				t.Fatalf("open: %+v, %v", h, err)
			}
			files, err := os.ReadDir(dir) // the file has another name until it is whole
			if err != nil || len(files) != 1 {
				t.Fatalf("got files %v, %v, want one", files, err)
			}
			if err := os.Truncate(filepath.Join(dir, files[0].Name()), 1<<42); err != nil { // hours of work
				t.Skipf("no file of 4 TiB: %v", err)
			}
			if _, err := far.Write((&header{command: cmdVerify, length: headerSize}).append(nil)); err != nil {
				t.Fatal(err)
			}
			switch cause {
			case "the client leaves":
				far.Close()
			case "the user interrupts":
				interrupt()
			default:
				c.cancel(errDisplaced)
			}
			select {
			case <-done:
			case <-time.After(tooltest.Patience):
				t.Error("the server works on")
			}
		})
	}
}

// After a checksum the session reads the next command, from its begin.
func TestRcopyAfterVerify(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	near, far := net.Pipe()
	defer far.Close()
	if err := far.SetDeadline(time.Now().Add(tooltest.Patience)); err != nil {
		t.Fatal(err)
	}
	c := admitted(t, near, rcopyLimits)
	defer c.end()
	s := newSession(c, root, t.Logf)
	go s.run()
	for i, m := range [][]byte{openMessage("file", 0o600), append(writeMessage(3), "abc"...),
		(&header{command: cmdVerify, length: headerSize}).append(nil), (&header{command: cmdVerify, length: headerSize}).append(nil),
		(&header{command: cmdClose, length: headerSize}).append(nil), openMessage("file", 0o600)} {
		if _, err := far.Write(m); err != nil {
			t.Fatal(err)
		}
		h, err := readHeader(far)
		if err != nil || h.data != 0 || h.command != m[1]|response {
			t.Fatalf("message %d: got %+v, %v, want its answer", i, h, err)
		}
		if h.command == cmdVerify|response {
			if _, err := io.ReadFull(far, make([]byte, 32)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The server opens regular files only. The data of a device may have no end.
func TestRcopyDevice(t *testing.T) {
	const device = "/dev/zero"
	if info, err := os.Stat(device); err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Skipf("no such device: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := startRcopy(ctx, t, filepath.Dir(device))
	r := tool.Result(ctx, "adverb", "rcopy", "-p", port, "--verify", file, "127.0.0.1:/"+filepath.Base(device))
	if r.Code != 1 || !strings.Contains(r.Stderr, "the server answers: zero is a device") {
		t.Errorf("got status %d, stderr %q, want 1 and that the server refuses it", r.Code, r.Stderr)
	}
}

func TestLimitFlags(t *testing.T) {
	for _, command := range []string{"rcopy", "proxy"} {
		for _, bad := range [][]string{{"--clients", "0"}, {"--clients", "x"}, {"--idle", "-1s"}, {"--idle", "1"}, {"--drain", "-1s"}} {
			argv := append([]string{"adverb", command}, bad...)
			if command == "proxy" {
				argv = append(argv, "tcp:127.0.0.1:0", "tcp:127.0.0.1:1")
			}
			if r := tool.Result(t.Context(), argv...); r.Code == 0 || !strings.Contains(r.Stderr, bad[0]) {
				t.Errorf("%v: got status %d, stderr %q, want a failure that names the flag", argv, r.Code, r.Stderr)
			}
		}
	}
}
