//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	idleConns = 500
	// maxIdleConn is how many bytes of heap both ends of an idle iWARP connection with queues of one may cost.
	maxIdleConn = 30 << 10
	// fewGoroutines is far below idleConns. Those that follow the network interfaces end one goroutine, and begin another,
	// with each message from the kernel, so a process may run some fewer at one instant than at the next.
	fewGoroutines = 8
)

// envIdleConns makes the test run that counts the goroutines of its process.
const envIdleConns = "ADVERB_TEST_IDLE_CONNS"

// An iWARP connection that is idle costs no goroutine, and some memory. Connections that are closed leave nothing.
func TestIWARPIdle(t *testing.T) {
	runTestInside(t, "TestIWARPIdleInside", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envIdleConns+"=1") })
}

func TestIWARPIdleInside(t *testing.T) {
	if os.Getenv(envIdleConns) == "" {
		t.Skip("TestIWARPIdle runs this one")
	}
	dial, closeAll := idlePair(t)
	if err := dial(1); err != nil { // makes the objects that all connections share
		t.Fatal(err)
	}
	files, goroutines := openFiles(t, 1<<20), runtime.NumGoroutine()+fewGoroutines
	heap, _ := memory()
	if err := dial(idleConns); err != nil {
		t.Fatal(err)
	}
	awaitGoroutines(t, goroutines, fmt.Sprintf("with %d connections more", idleConns))
	after, _ := memory()
	t.Logf("%d bytes of heap for both ends of a connection", (after-heap)/idleConns)
	if got := (after - heap) / idleConns; got > maxIdleConn {
		t.Errorf("both ends of an idle connection cost %d bytes, want at most %d", got, maxIdleConn)
	}
	closeAll(1)
	if got := openFiles(t, files); got > files {
		t.Errorf("%d files are open after all was closed, want %d", got, files)
	}
	awaitGoroutines(t, goroutines, "after all was closed")
}

// awaitGoroutines waits until no more than so many goroutines run.
func awaitGoroutines(t *testing.T, want int, when string) {
	t.Helper()
	for limit := time.Now().Add(settle); runtime.NumGoroutine() > want; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d goroutines run %s, want at most %d:\n%s", runtime.NumGoroutine(), when, want, stacks())
		}
	}
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	b := make([]byte, 8<<20)
	return string(b[:runtime.Stack(b, true)])
}

// idlePair returns functions that connect an iWARP device with another so often, and that close all connections
// but so many.
func idlePair(t *testing.T) (dial func(n int) error, closeAll func(but int)) {
	na, nb := rnics(t, 45, 46)
	devs := [2]*verbs.Device{}
	for i, name := range []string{na, nb} {
		d, err := verbs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devs[i] = d
	}
	l, err := (&rdmacm.ListenConfig{Devices: devs[1:]}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(46)), 0))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns [2][]*rdmacm.Conn
	config := &rdmacm.Config{QP: verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}}
	add := func(i int, c *rdmacm.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns[i] = append(conns[i], c)
	}
	accepted := make(chan struct{}, 1<<16)
	go func() {
		for {
			req, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			if c, err := req.Accept(t.Context(), config); err == nil {
				add(1, c)
			}
			accepted <- struct{}{}
		}
	}()
	dial = func(n int) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for range n {
			c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{devs[0]}}).Dial(ctx, l.Addr(), config)
			if err != nil {
				return err
			}
			add(0, c)
			<-accepted
		}
		return nil
	}
	closeAll = func(but int) {
		mu.Lock()
		defer mu.Unlock()
		for i := range conns {
			for len(conns[i]) > but {
				c := conns[i][len(conns[i])-1]
				conns[i] = conns[i][:len(conns[i])-1]
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	t.Cleanup(func() {
		closeAll(0)
		l.Close()
	})
	return dial, closeAll
}

// Whoever has no descriptor for a connection learns which limit that is, and a listener logs it.
func TestIWARPDescriptors(t *testing.T) {
	runTestInside(t, "TestIWARPDescriptorsInside", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envIdleConns+"=1") })
}

func TestIWARPDescriptorsInside(t *testing.T) {
	if os.Getenv(envIdleConns) == "" {
		t.Skip("TestIWARPDescriptors runs this one")
	}
	var logged lockedBuffer
	logger := slog.New(slog.NewTextHandler(&logged, nil))
	logger.Info("begun") // the first line needs a descriptor, for the time zone
	verbs.SetLogger(logger)
	defer verbs.SetLogger(nil)
	dial, closeAll := idlePair(t)
	if err := dial(1); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const wanted = "raise RLIMIT_NOFILE (ulimit -n)"
	setFiles(t, 0, limit.Max)
	err := dial(1)
	setFiles(t, limit.Cur, limit.Max)
	if !errors.Is(err, syscall.EMFILE) || !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), wanted) {
		t.Errorf("got %v, want %v and %q", err, syscall.EMFILE, wanted)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(f.Fd())
	f.Close()
	setFiles(t, lowest+1, limit.Max) // the dialing end takes the last one
	done := make(chan error, 1)
	go func() { done <- dial(1) }()
	for end := time.Now().Add(settle); !strings.Contains(logged.String(), wanted); runtime.Gosched() {
		select {
		case err := <-done:
			t.Fatalf("the connection ended with %v, want it to wait until the listener has said %q; got log:\n%s", err, wanted, logged.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("got log:\n%swant that it says %q", logged.String(), wanted)
		}
	}
	setFiles(t, limit.Cur, limit.Max)
	if err := <-done; err != nil { // the connection has waited
		t.Error(err)
	}
	closeAll(0)
}

// lockedBuffer is a buffer that several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// envWatched makes the test run that has no other devices in its process.
const envWatched = "ADVERB_TEST_WATCHED"

// A program answers those who ask for its open objects while it has an iWARP device, and no longer.
func TestIWARPWatched(t *testing.T) {
	runTestInside(t, "TestIWARPWatchedInside", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envWatched+"=1") })
}

func TestIWARPWatchedInside(t *testing.T) {
	if os.Getenv(envWatched) == "" {
		t.Skip("TestIWARPWatched runs this one")
	}
	answers := func() bool {
		t.Helper()
		all, _, err := watch.Ask(t.Context(), watch.WantStat) // other programs of this host may be silent
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(p watch.Process) bool { return p.PID == os.Getpid() })
	}
	name, _ := rnics(t, 9, 10)
	d, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if !answers() {
		t.Error("with an open device: got no answer, want one")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if answers() {
		t.Error("after Close of the device: got an answer, want none")
	}
}
