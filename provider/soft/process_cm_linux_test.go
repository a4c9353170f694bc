//go:build !adverb_portable

package soft_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

var conns = flag.Int("conns", 400, "how many connections the test of their coming and going makes")

// envDialer makes the test binary a dialer: a process that makes connections to the address that is
// the variable's value. envDials says how many. It prints its holdings of the system before and
// after.
const (
	envDialer = "ADVERB_TEST_DIALER"
	envDials  = "ADVERB_TEST_DIALS"
)

const (
	dialers  = 4
	atATime  = 4  // connections that a dialer makes at the same time
	warmUp   = 50 // connections of each dialer before the first count
	maxExtra = 8  // MiB of memory that a process may hold more after than before
	maxFiles = 16 // sockets of package host to the mailboxes of the other processes, four for each; and so of each shard to each shard
	maxBoxes = 8  // mailboxes for further blocks of QPNs, on two devices; they are needed because used QPNs rest for a while
)

func init() {
	if to := os.Getenv(envDialer); to != "" {
		n, _ := strconv.Atoi(os.Getenv(envDials))
		if err := dialAll(netip.MustParseAddrPort(to), n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// holds are the resources of the system that a process has.
type holds struct {
	Goroutines, Files int
	HeapMiB           float64
}

func (h holds) String() string {
	return fmt.Sprintf("%d goroutines, %d file descriptors, %.1f MiB of heap", h.Goroutines, h.Files, h.HeapMiB)
}

func held() holds {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return holds{runtime.NumGoroutine(), len(files), float64(m.HeapAlloc) / (1 << 20)}
}

// heldAfter returns the holdings of the process. Connections are in time-wait for a moment, so it
// waits until the process holds no more than before, or for settle.
func heldAfter(before holds) holds {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(settle)
	for {
		h := held()
		if h.leaked(before) == nil {
			return h
		}
		select {
		case <-tick.C:
		case <-limit:
			return h
		}
	}
}

// settle is longer than the time-wait of connections.
const settle = 5 * time.Second

// leaked returns an error if the process holds more than before. ADVERB_SHARDS says how many shards its devices have.
func (h holds) leaked(before holds) error {
	shards, err := strconv.Atoi(os.Getenv("ADVERB_SHARDS"))
	if err != nil {
		return err
	}
	if h.Goroutines > before.Goroutines+maxBoxes*shards || h.Files > before.Files+maxFiles*shards*shards+maxBoxes*shards || h.HeapMiB > before.HeapMiB+maxExtra {
		return fmt.Errorf("held before: %v; after: %v", before, h)
	}
	return nil
}

// dialed is the report of a dialer.
type dialed struct{ Before, After holds }

// exchange uses a connection once. A message goes out and its answer comes in.
type exchange struct{ mr *verbs.MR }

func (e *exchange) setup(c *rdmacm.Conn) (err error) {
	if e.mr, err = c.PD().AllocMR(64, verbs.AccessLocalWrite); err != nil {
		return err
	}
	_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, 32)}}})
	return err
}

func (e *exchange) send(c *rdmacm.Conn, text string) error {
	n := copy(e.mr.Bytes()[32:], text)
	_, err := c.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(32, n)}}})
	if err != nil {
		return err
	}
	_, err = done(c.SendCQ())
	return err
}

func (e *exchange) recv(c *rdmacm.Conn) (string, error) {
	wc, err := done(c.RecvCQ())
	return string(e.mr.Bytes()[:wc.ByteLen]), err
}

func done(cq *verbs.CQ) (verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := cq.Wait(ctx, wcs[:]); err != nil {
		return verbs.WC{}, err
	}
	return wcs[0], wcs[0].Err()
}

// dialOnce makes a connection, uses it once and takes it down.
func dialOnce(to netip.AddrPort, i int) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var e exchange
	c, err := rdmacm.Dial(ctx, to, &rdmacm.Config{QP: exchangeQP, Setup: e.setup})
	if err != nil {
		return err
	}
	text := fmt.Sprint("message ", i)
	if err = e.send(c, text); err == nil {
		var got string
		if got, err = e.recv(c); err == nil && got != text {
			err = fmt.Errorf("sent %q, got back %q", text, got)
		}
	}
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	if merr := e.mr.Close(); err == nil {
		err = merr
	}
	return err
}

func dialMany(to netip.AddrPort, n int) error {
	var wg sync.WaitGroup
	errs := make(chan error, atATime)
	for w := range atATime {
		wg.Go(func() {
			for i := w; i < n; i += atATime {
				if err := dialOnce(to, i); err != nil {
					errs <- fmt.Errorf("connection %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// dialAll is the program of a dialer.
func dialAll(to netip.AddrPort, n int) error {
	if err := dialMany(to, warmUp); err != nil {
		return err
	}
	before := held()
	if err := dialMany(to, n-warmUp); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(dialed{before, heldAfter(before)})
}

// serve answers the connections of a listener until it closes.
func serve(t *testing.T, l *rdmacm.Listener, served chan<- struct{}) {
	for {
		r, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		go func() {
			defer func() { served <- struct{}{} }()
			if err := answer(r); err != nil {
				t.Errorf("connection of %v: %v", r.RemoteAddr(), err)
			}
		}()
	}
}

func answer(r *rdmacm.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var e exchange
	c, err := r.Accept(ctx, &rdmacm.Config{QP: exchangeQP, Setup: e.setup})
	if err != nil {
		return err
	}
	text, err := e.recv(c)
	if err == nil {
		err = e.send(c, text)
	}
	if err == nil {
		select {
		case <-c.Disconnected():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	if merr := e.mr.Close(); err == nil {
		err = merr
	}
	return err
}

// TestConnectionsComeAndGo starts four processes, all on one address. They make connections to the
// test, use each once and take it down. Nothing of the connections is left: no QP, file descriptor,
// goroutine or memory. To get figures for many connections:
//
//	go test -run ComeAndGo -v ./provider/soft -args -conns=10000
func TestConnectionsComeAndGo(t *testing.T) {
	for _, shards := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			t.Setenv("ADVERB_SHARDS", strconv.Itoa(shards))
			comeAndGo(t)
		})
	}
}

func comeAndGo(t *testing.T) {
	dev, err := verbs.Open("soft_lo")
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{}, *conns)
	go serve(t, l, served)
	for i := range warmUp {
		if err := dialOnce(l.Addr(), i); err != nil { // over a second device of this process
			t.Fatal(err)
		}
		<-served
	}
	before := held()
	start := time.Now()
	each := *conns / dialers
	var wg sync.WaitGroup
	for range dialers {
		wg.Go(func() {
			exe, err := os.Executable()
			if err != nil {
				t.Error(err)
				return
			}
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), envDialer+"="+l.Addr().String(), envDials+"="+strconv.Itoa(each))
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("a dialer failed: %v", err)
				return
			}
			var d dialed
			if err := json.Unmarshal(out, &d); err != nil {
				t.Error(err)
				return
			}
			t.Logf("a dialer held %v; %v after %d connections", d.Before, d.After, each)
			if err := d.After.leaked(d.Before); err != nil {
				t.Errorf("a dialer: %v", err)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for range dialers * each {
		if t.Failed() {
			break
		}
		<-served
	}
	after := heldAfter(before)
	t.Logf("the server held %v; %v after %d connections in %.1f s", before, after, dialers*each, took.Seconds())
	if err := after.leaked(before); err != nil {
		t.Errorf("the server: %v", err)
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil { // it says so if anything is left
		t.Error(err)
	}
}
