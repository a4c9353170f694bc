//go:build !adverb_portable

package rsocket_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// passing is an error that servers such as net/http's pause for.
type passing interface {
	error
	Temporary() bool
	Timeout() bool
}

// ourAddr returns a loopback address that no other process takes.
func ourAddr(i int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 128|pid>>8&127, pid&255, i)
}

// deviceAt opens a device that has one address.
func deviceAt(t *testing.T, name, addr string) *verbs.Device {
	t.Helper()
	d, err := verbs.Open(name + "@" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestShortage: where a limit of the host leaves no room for a connection, Accept names the limit, in an error that passes,
// and the end that dials hears that the other lacks resources.
func TestShortage(t *testing.T) {
	type change = func(*testing.T, *exec.Cmd)
	for name, tt := range map[string]struct {
		limit change
		ring  int
		says  string
	}{
		"memory of a control group": {usertest.MemoryGroup(128 << 20), 256 << 20, "of control group "},
		"address space":             {usertest.Ulimit("-v", 3<<20), 1 << 30, "RLIMIT_AS is 3221225472 bytes"},
		"size of files":             {usertest.Ulimit("-f", 16<<10), 64 << 20, "RLIMIT_FSIZE"}, // 8 MiB
	} {
		for _, device := range []string{"soft_lo", "iw_lo"} {
			t.Run(name+" "+device, func(t *testing.T) {
				if (raceEnabled || bits.UintSize == 32) && name == "address space" {
					t.Skip("the race detector takes more address space than that, and 32 bits have less")
				}
				if !usertest.In(t, tt.limit) {
					return
				}
				here, there := ourAddr(81), ourAddr(82)
				// Of the two rings of the accepting end, the second has no room in any case.
				large := rsocket.Config{SendBuffer: tt.ring, RecvBuffer: tt.ring}
				lc := rsocket.ListenConfig{Config: large, Devices: []*verbs.Device{deviceAt(t, device, there)}}
				l, err := lc.Listen(context.Background(), "rsocket", there+":0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				d := rsocket.Dialer{Devices: []*verbs.Device{deviceAt(t, device, here)}}
				_, err = d.Dial("rsocket", l.Addr().String())
				if text := map[string]string{"soft_lo": "the peer has no resources for the connection", "iw_lo": "it cannot serve this one"}[device]; err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("dial: %v, want an error that says %q", err, text)
				}
				if err := l.(*rsocket.Listener).SetDeadline(time.Now().Add(rdmatest.Patience)); err != nil {
					t.Fatal(err)
				}
				c, err := l.Accept()
				passes, ok := errors.AsType[passing](err)
				if c != nil || !ok || !passes.Temporary() || passes.Timeout() || !errors.Is(err, syscall.ENOMEM) || !errors.Is(err, verbs.ErrLimit) ||
					!strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "no connection with "+here) {
					t.Errorf("accept: a connection: %v, %v; want an error that passes, with ENOMEM, %q and the peer", c != nil, err, tt.says)
				}
				err = l.(*rsocket.Listener).SetDeadline(time.Unix(1, 0))
				if err == nil {
					_, err = l.Accept()
				}
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("accept again: %v, want the shortage told once", err)
				}
			})
		}
	}
}

// startClient runs a test in another process, which is to dial a listener of this one. It returns that process' standard
// input and output, and a function that waits for its end.
func startClient(t *testing.T, test string, to net.Addr) (in io.WriteCloser, out io.Reader, wait func() error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), envServer+"="+to.String())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the process that dials: %v", err)
	}
	return in, out, cmd.Wait
}

// TestShortageOfDescriptors: a server that has no descriptor left for the sockets that a connection needs says so, and so does
// the error of the process that dials.
func TestShortageOfDescriptors(t *testing.T) {
	const dials = 8 // one of them comes to a shard that has no sockets yet
	if to := os.Getenv(envServer); to != "" {
		bufio.NewReader(os.Stdin).ReadString('\n')                                         // until the server has none
		d := rsocket.Dialer{Devices: []*verbs.Device{deviceAt(t, "soft_lo", ourAddr(83))}} // packets that come to one address are passed on to others there
		for range dials {
			c, err := d.Dial("rsocket", to)
			if err != nil {
				fmt.Println("dial:", err)
				return
			}
			defer c.Close()
		}
		fmt.Println("dial: nil")
		return
	}
	if !usertest.In(t, shards) {
		return
	}
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{deviceAt(t, "soft_lo", ourAddr(84))}}
	l, err := lc.Listen(context.Background(), "rsocket", ourAddr(84)+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in, out, wait := startClient(t, "TestShortageOfDescriptors", l.Addr())
	defer wait()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	last, err := unix.Dup(0) // the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(last)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(last), Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	if err := l.(*rsocket.Listener).SetDeadline(time.Now().Add(rdmatest.Patience)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(in, "go on\n")
	var said error
	for range dials {
		c, err := l.Accept()
		if err != nil {
			said = err
			break
		}
		defer c.Close()
	}
	if passes, ok := errors.AsType[passing](said); !ok || !passes.Temporary() || !errors.Is(said, syscall.EMFILE) || !strings.Contains(said.Error(), "too many open files") {
		t.Errorf("accept: %v, want an error that passes, with EMFILE", said)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "the peer has no resources for the connection") {
		t.Errorf("the peer says %q, %v; want that this end has no resources", line, err)
	}
}
