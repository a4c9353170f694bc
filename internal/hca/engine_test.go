package hca

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// counting counts the calls of a link.
type counting struct {
	link.Link
	recvs, waits atomic.Int64
}

func (c *counting) Recv(b []link.Datagram) (int, error) {
	c.recvs.Add(1)
	return c.Link.Recv(b)
}

func (c *counting) Wait(d time.Duration) error {
	c.waits.Add(1)
	return c.Link.Wait(d)
}

// TestIdle: a device with nothing to do does nothing.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*counting
		count := func(l link.Link) link.Link {
			c := &counting{Link: l}
			links = append(links, c)
			return c
		}
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1, count), simDevice(t, net, 2, count), options{})
		src, dst := x.mr(1<<16), y.mr(1<<16)
		x.transfer(src, dst)
		<-time.After(time.Second) // the WRITE's timer is looked at once more
		var before [2]int64
		for i, l := range links {
			before[i] = l.recvs.Load() + l.waits.Load()
		}
		<-time.After(time.Hour)
		synctest.Wait()
		for i, l := range links {
			if n := l.recvs.Load() + l.waits.Load() - before[i]; n != 0 {
				t.Errorf("link %d was called %d times in an idle hour, want never", i, n)
			}
		}
	})
}

// TestNap: the engine's goroutine leaves the link to a program that polls. It takes the link back when
// the program stops polling or is about to block.
func TestNap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
		src, dst := x.mr(8), y.mr(8)
		e := (*x.hca().engines.Load())[0]
		wcs := make([]verbs.WC, 1)
		busy := func() {
			t.Helper()
			synctest.Wait()
			for range busyPolls {
				x.cq.Poll(wcs)
			}
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
			synctest.Wait() // the acknowledgement wakes the goroutine
			if !e.napping.Load() {
				t.Fatal("the goroutine serves the link though a program polls")
			}
			if n, _ := x.cq.Poll(wcs); n != 1 {
				t.Fatal("no completion")
			}
		}
		busy()
		<-time.After(2 * napMost)
		synctest.Wait()
		if e.napping.Load() || e.sleepUntil.Load() == 0 {
			t.Error("the goroutine does not serve the link though nobody polls")
		}
		busy()
		start := time.Now()
		e.expectWait()
		synctest.Wait()
		if e.napping.Load() || time.Since(start) != 0 {
			t.Error("the nap went on though a program blocks")
		}
		// And a program that announced itself between the decision and the nap.
		timer := time.NewTimer(time.Hour)
		waits := e.waits.Load()
		e.expectWait()
		e.nap(timer, waits, napTime)
		if time.Since(start) != 0 {
			t.Error("a nap though a program blocks")
		}
	})
}

// TestNapFor: naps get longer while the program polls busily, or finds much. They end with a wait, and when
// the program polls less.
func TestNapFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, _ := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
		e := (*x.hca().engines.Load())[0]
		var u use
		u.napFor(e)
		step := func(what string, polls, finds, waits uint32, want time.Duration) {
			t.Helper()
			<-time.After(u.nap)
			e.polls.add(polls, finds)
			e.waits.Add(waits)
			if got := u.napFor(e); got != want {
				t.Errorf("%s: nap for %v, want %v", what, got, want)
			}
		}
		step("few polls", busyPolls-1, 0, 0, 0)
		step("and one more at once", 1, 0, 0, napTime)
		step("as many in the nap", busyPolls, 0, 0, 2*napTime)
		step("too few for a longer nap", busyPolls, 0, 0, 0)
		step("many", busyPolls, 0, 0, napTime)
		for nap := uint32(1); nap < uint32(napMost/napTime); nap *= 2 {
			step("a rate that goes on", nap*busyPolls, 0, 0, time.Duration(2*nap)*napTime)
		}
		step("at the longest nap", 100*busyPolls, 0, 0, napMost)
		step("a wait", 100*busyPolls, 0, 1, 0)
		step("polls that find something", busyAtWork, busyFinds, 0, napTime)
		step("none of them", busyAtWork, busyFinds-1, 0, 0)
		step("few", busyPolls-1, busyFinds-1, 0, 0)
		<-time.After(napTime)
		step("fewer than it takes, in a longer time", 0, 0, 0, 0)
		step("few since", busyPolls-1, busyFinds-1, 0, 0)
		<-time.After(napTime)
		step("a new count", 0, 0, 0, 0)
		step("too few that find something", busyAtWork-1, busyFinds, 0, 0)
		e.posts.Add(1)
		step("and a post", 0, 0, 0, napTime)
		e.posts.Add(100 * busyPolls)
		step("posts alone, which receive nothing", 0, 0, 0, 0)
	})
}

// TestOneSided: one-sided operations work although nobody polls or waits at their target.
func TestOneSided(t *testing.T) {
	for _, kind := range []string{"sim", "udp"} {
		t.Run(kind, func(t *testing.T) {
			x, y := pair(t, kind, options{})
			const size = 50_000
			src, dst, back := x.mr(size), y.mr(size), x.mr(size)
			for round := range uint64(20) {
				fill(src.Bytes(), round)
				x.transfer(src, dst)
				x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{back.SGE(0, size)}, Remote: dst.Remote(0)})
				x.done()
				if !bytes.Equal(back.Bytes(), src.Bytes()) {
					t.Fatalf("round %d: the READ gave other contents, want those of the source", round)
				}
			}
		})
	}
}

// TestTimersWithoutPolling: timeouts and RNR waits end although nobody polls.
func TestTimersWithoutPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		a, b := simDevice(t, net, 1), simDevice(t, net, 2)
		x, y := connect(t, a, b, options{})
		u, v := connect(t, a, b, options{})

		v.recv(verbs.RecvWR{}) // for the first of two messages
		u.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled}, verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
		synctest.Wait()
		if n := u.cq.Provider().(*cq).Waiting(); n != 1 {
			t.Errorf("%d completions with one receive, want 1", n)
		}
		<-time.After(50 * time.Millisecond)
		v.recv(verbs.RecvWR{})
		<-time.After(50 * time.Millisecond)
		synctest.Wait()
		if n := u.cq.Provider().(*cq).Waiting(); n != 2 {
			t.Errorf("%d completions with two receives, want 2; counters %+v", n, counters(u))
		}

		net.Partition(simAddr(1), simAddr(2))
		x.send(verbs.SendWR{ID: 5, Op: verbs.OpSend, Flags: signaled})
		<-time.After(10 * time.Second)
		synctest.Wait()
		if s := x.qp.State(); s != verbs.QPStateErr {
			t.Errorf("the QP is in %v after 10 s without its peer, want ERR", s)
		}
		if wc := x.next(); wc.ID != 5 || wc.Status != verbs.WCRetryExceeded {
			t.Errorf("completion %+v, want ID 5 and RETRY_EXC_ERR", wc)
		}
		_ = y
	})
}

// TestTurnsWithoutPolling: a message that takes several turns leaves whole though the program only posts it.
func TestTurnsWithoutPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, "sim", options{typ: verbs.QPTypeUC, mtu: verbs.MTU256})
		const size = 3 * turnPackets * 256
		src, dst := x.mr(size), y.mr(size)
		y.recv(verbs.RecvWR{})
		synctest.Wait() // until x's engine sleeps
		x.send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		synctest.Wait()
		if n := y.cq.Provider().(*cq).Waiting(); n != 1 {
			t.Errorf("%d completions of a message of %d packets, want 1", n, size/256)
		}
	})
}

// TestNoGoroutinePerQP: a QP costs no goroutine.
func TestNoGoroutinePerQP(t *testing.T) {
	const qps = 1000
	net := sim.New(sim.Config{})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	small := options{cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
	connect(t, a, b, small)
	before := runtime.NumGoroutine()
	for range qps {
		connect(t, a, b, small)
	}
	if n := runtime.NumGoroutine() - before; n > 2 {
		t.Errorf("%d goroutines more for %d QPs, want 2 at most", n, qps)
	}
}

// TestManyQPs: a hundred connections, each with a user at either end, at once.
func TestManyQPs(t *testing.T) {
	const qps, messages = 100, 20
	for _, kind := range []string{"sim", "udp"} {
		t.Run(kind, func(t *testing.T) {
			// On a machine that is busy with other things, seconds may pass until all 200 ends have had
			// their turn. Peers that wait for half a second only would give up.
			o := options{timeout: 18} // 1.07 s, and 7 retries
			x0, y0 := pair(t, kind, o)
			var ends []*end
			var wg sync.WaitGroup
			for i := range uint64(qps) {
				x, y := connect(t, x0.dev, y0.dev, o)
				ends = append(ends, x, y)
				src, dst, in := x.mr(5000), y.mr(5000), y.mr(8)
				fill(src.Bytes(), i)
				for range messages {
					y.recv(verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, 8)}})
				}
				// The end that fails first stops the other, which would wait in vain.
				ctx, stop := context.WithTimeout(t.Context(), patience)
				t.Cleanup(stop)
				failed := func(format string, args ...any) {
					if ctx.Err() != context.Canceled { // else the other end has told
						t.Errorf("connection %d: "+format, append([]any{i}, args...)...)
					}
					stop()
				}
				wg.Go(func() {
					for k := range messages {
						x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 5000)}, Remote: dst.Remote(0)},
							verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}})
						if wc, err := x.wait(ctx); err != nil || wc.Err() != nil {
							failed("message %d: %v, %v; want it sent", k, err, wc.Err())
							return
						}
					}
				})
				wg.Go(func() {
					for k := range messages {
						if wc, err := y.wait(ctx); err != nil || wc.Err() != nil {
							failed("message %d: %v, %v; want it received", k, err, wc.Err())
							return
						}
						if !bytes.Equal(dst.Bytes(), src.Bytes()) {
							failed("message %d: its WRITE gave other contents, want those of the source", k)
							return
						}
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				t.Logf("counters %+v", counters(ends...))
				for _, e := range []*end{x0, y0} {
					t.Logf("statistics %+v", stats(t, e.dev))
				}
			}
		})
	}
}

// TestDeviceClose: Close ends all goroutines. Inside a bubble synctest itself complains about those that
// are left, so this runs over UDP.
func TestDeviceClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		x, y := pair(t, "udp", options{})
		src, dst := x.mr(8), y.mr(8)
		x.transfer(src, dst)
		for _, e := range []*end{x, y} {
			e.must(e.qp.Close())
			e.must(e.cq.Close())
		}
		x.must(src.Close())
		y.must(dst.Close())
		for _, e := range []*end{x, y} {
			e.must(e.pd.Close())
			e.must(e.dev.Close())
		}
	}
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			b := make([]byte, 1<<16)
			t.Fatalf("%d goroutines are left, want none:\n%s", runtime.NumGoroutine()-before, b[:runtime.Stack(b, true)])
		}
	}
}

// TestUseAfterDeviceClose: a closed device takes no address into use. Calls that follow fail, or have no
// effect.
func TestUseAfterDeviceClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
		z := newEnd(t, x.dev, options{gid: 1})
		src, dst := x.mr(8), y.mr(8)
		x.must(x.hca().Close())
		gid6 := verbs.GIDFromAddr(simAddr6(2))
		if err := z.qp.RTR(verbs.Peer{QPN: 5, GID: gid6}, verbs.Path{SGIDIndex: 1}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("RTR: %v, want ErrClosed", err)
		}
		if n := len(x.hca().Stats()); n != 1 {
			t.Errorf("%d addresses in use, want 1", n)
		}
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		x.empty()
		if _, err := x.hca().NextEvent(t.Context()); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("NextEvent: %v, want ErrClosed", err)
		}
	})
}

// TestTimerWakeups: timers that are set while the goroutine falls asleep are served. The wait for a lost
// one would never end.
func TestTimerWakeups(t *testing.T) {
	const workers, rounds = 4, 150
	net := sim.New(sim.Config{})
	a := simDevice(t, net, 1)
	var wg sync.WaitGroup
	for range workers {
		x := newEnd(t, a, options{})
		wg.Go(func() {
			for range rounds {
				err := x.qp.RTR(verbs.Peer{QPN: 5, GID: verbs.GIDFromAddr(simAddr(9))}, verbs.Path{})
				if err == nil {
					err = x.qp.RTS(1, verbs.Retry{Timeout: 1, RetryCount: 1}) // 8 µs, twice
				}
				if err == nil {
					_, err = x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: signaled}})
				}
				if err != nil {
					t.Error(err)
					return
				}
				if wc := x.next(); wc.Status != verbs.WCRetryExceeded {
					t.Errorf("completion %+v, want RETRY_EXC_ERR", wc)
					return
				}
				x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
				x.qp.Init(1, everything)
			}
		})
	}
	wg.Wait()
}

// TestAllocs: posting and polling allocate nothing, the network included.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("not with the race detector")
	}
	for _, name := range []string{"sim", "udp", "sim secured"} {
		t.Run(name, func(t *testing.T) {
			kind, _, secured := strings.Cut(name, " ")
			if kind == "udp" && portable {
				t.Skip("package net allocates")
			}
			x, y := pair(t, kind, options{secured: secured})
			const size = 20_000
			src, dst := x.mr(size), y.mr(size)
			wcs := make([]verbs.WC, 4)
			recvs := []verbs.RecvWR{{SGList: []verbs.SGE{dst.SGE(0, size)}}}
			for name, wrs := range map[string][]verbs.SendWR{
				"WRITE":     {{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}},
				"inline":    {{Op: verbs.OpRDMAWrite, Flags: signaled | verbs.SendInline, InlineData: make([]byte, 8), Remote: dst.Remote(0)}},
				"READ":      {{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}},
				"FETCH_ADD": {{Op: verbs.OpAtomicFetchAdd, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)}},
				"SEND":      {{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 100)}}},
			} {
				round := func() {
					want := 1
					if wrs[0].Op == verbs.OpSend {
						y.qp.PostRecv(recvs)
						want = 2
					}
					if _, err := x.qp.PostSend(wrs); err != nil {
						t.Fatal(err)
					}
					deadline := time.Now().Add(patience)
					for got := 0; got < want; {
						if time.Now().After(deadline) {
							t.Fatalf("%s: %d completions after %v, want %d", name, got, patience, want)
						}
						for _, e := range [2]*end{x, y} {
							n, err := e.cq.Poll(wcs)
							if err != nil || n > 0 && wcs[0].Status != verbs.WCSuccess {
								t.Fatal(err, wcs[0])
							}
							got += n
						}
					}
				}
				if n := testing.AllocsPerRun(200, round); n != 0 {
					t.Errorf("%s: %v allocations to post and poll, want none", name, n)
				}
			}
		})
	}
}

// TestServe: an address can be opened before anything is claimed at it.
func TestServe(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1)
	gsi, err := d.GSI()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := gsi.Serve(0); err != nil {
			t.Fatal(err)
		}
		if n := len(*impl(d).engines.Load()); n != 1 {
			t.Errorf("%d addresses are open, want 1", n)
		}
	}
	if err := gsi.Serve(99); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("a GID that does not exist: error %v, want %v", err, verbs.ErrNotFound)
	}
}

// shared is a network interface whose addresses other processes use too. It says what the device does as it closes.
type shared struct {
	*sim.Netdev
	device *Device
	calls  []string
}

func (s *shared) Open(addr netip.Addr) (link.Link, error) {
	l, err := s.Netdev.Open(addr)
	return &sharedLink{l, s}, err
}

func (s *shared) Close() error {
	s.calls = append(s.calls, "interface closes")
	return s.Netdev.Close()
}

type sharedLink struct {
	link.Link
	netdev *shared
}

func (l *sharedLink) Depart() {
	if e := (*l.netdev.device.engines.Load())[0]; e.rx.TryLock() {
		e.rx.Unlock()
		l.netdev.calls = append(l.netdev.calls, "departs unlocked")
		return
	}
	l.netdev.calls = append(l.netdev.calls, "departs")
}

func (l *sharedLink) Close() error {
	l.netdev.calls = append(l.netdev.calls, "link closes")
	return l.Link.Close()
}

// TestDepart: a device that closes passes on the datagrams that have come for others, while it still can.
func TestDepart(t *testing.T) {
	n := &shared{Netdev: sim.New(sim.Config{}).Netdev("eth0", simAddr(1))}
	pass := func(l link.Link) link.Link { return &counting{Link: l} } // the link is found behind its middleware
	d := openDevice(t, n, pass)
	n.device = impl(d)
	if _, err := n.device.engine(n.device.shards[0], simAddr(1)); err != nil {
		t.Fatal(err)
	}
	DepartAll() // as at the end of a program that does not close the device
	if want := []string{"departs"}; !slices.Equal(n.calls, want) {
		t.Errorf("a program that ends: %q, want %q", n.calls, want)
	}
	e := (*n.device.engines.Load())[0]
	e.rx.Lock() // somebody is at work, and does not end
	DepartAll()
	e.rx.Unlock()
	if want := []string{"departs"}; !slices.Equal(n.calls, want) {
		t.Errorf("a program that ends while somebody receives: %q, want %q", n.calls, want)
	}
	n.calls = nil
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if want := []string{"departs", "link closes", "interface closes"}; !slices.Equal(n.calls, want) {
		t.Errorf("a closing device: %q, want %q", n.calls, want)
	}
}
