package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// told fails the test unless c has ended by now, for a cause of a kind, in words.
func told(t *testing.T, who string, c *rdmacm.Conn, words string, kinds ...error) {
	t.Helper()
	select {
	case <-c.Disconnected():
	default:
		t.Fatalf("%s: Disconnected is open, want it closed, since %q", who, words)
	}
	err := c.Cause()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%s: got cause %v, want one that is %v", who, err, kind)
		}
	}
	if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), c.RemoteAddr().String()) {
		t.Errorf("%s: got cause %v, want %q and the peer's address in it", who, err, words)
	}
	if s := c.QP().State(); s == verbs.QPStateRTS {
		t.Errorf("%s: the QP is in %v after the end, want it to have left RTS", who, s)
	}
}

// write posts one WRITE of n bytes to rkey.
func write(c *rdmacm.Conn, mr *verbs.MR, n int, rkey verbs.RKey) error {
	_, err := c.QP().PostSend([]verbs.SendWR{{
		Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, n)},
		Remote: verbs.RemoteAddr{VA: mr.Addr(), RKey: rkey},
	}})
	return err
}

// TestCause ends connections in every way there is. Each end must be told, when, and why.
func TestCause(t *testing.T) {
	const retries = 2 * time.Second // 8 × 0.13 s, and some
	for _, c := range []struct {
		name string
		do   func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error
		wait time.Duration
		x, y []error // kinds of the causes; nil: not told
		in   [2]string
	}{
		{
			"the peer closes", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error { return y.Close() }, time.Second,
			[]error{rdmacm.ErrDisconnected}, []error{verbs.ErrClosed}, [2]string{"the peer has disconnected", "this end has closed"},
		},
		{
			"the peer disconnects", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error { return y.Disconnect() }, time.Second,
			[]error{rdmacm.ErrDisconnected}, []error{verbs.ErrClosed}, [2]string{"the peer has disconnected", "this end has closed"},
		},
		{
			"the peer's ID disconnects", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error { return y.ID().Disconnect() }, time.Second,
			[]error{rdmacm.ErrDisconnected}, []error{verbs.ErrClosed}, [2]string{"the peer has disconnected", "this end has closed"},
		},
		{
			"the network is cut, and something sent", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error {
				p.net.Partition(p.a, p.b)
				return write(x, mr, 1, 0)
			}, retries,
			[]error{rdmacm.ErrTimeout, verbs.WCRetryExceeded}, nil, [2]string{"does not answer any more"},
		},
		{
			"closed while the network is cut", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error {
				p.net.Partition(p.a, p.b)
				return x.Close()
			}, 0,
			[]error{verbs.ErrClosed}, nil, [2]string{"this end has closed"},
		},
		{
			"disconnected while the network is cut", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error {
				p.net.Partition(p.a, p.b)
				return x.Disconnect()
			}, 0,
			[]error{verbs.ErrClosed}, nil, [2]string{"this end has closed"},
		},
		{
			"a WRITE to memory that is not there", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error { return write(x, mr, 1, 1) }, time.Second,
			[]error{verbs.WCRemAccessErr}, nil, [2]string{"WC_REM_ACCESS_ERR"},
		},
		{
			"a WRITE from memory that is not there", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error {
				_, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}}}})
				return err
			}, time.Second,
			[]error{verbs.WCLocProtErr}, []error{rdmacm.ErrDisconnected}, [2]string{"WC_LOC_PROT_ERR", "the peer has disconnected"},
		},
		{
			"the program fails its QP", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error {
				return x.QP().Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
			}, time.Second,
			[]error{verbs.ErrState}, []error{rdmacm.ErrDisconnected}, [2]string{"error state", "the peer has disconnected"},
		},
		{
			"the device goes", func(p pair, x, y *rdmacm.Conn, mr *verbs.MR) error { return p.a.Provider().Close() }, time.Second,
			[]error{rdmacm.ErrNoDevice}, nil, [2]string{"is gone"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(t *testing.T, p pair) {
				var mr *verbs.MR
				x, y := p.connect(t, &rdmacm.Config{Setup: inbox(&mr, 8)}, nil)
				if x.Cause() != nil || y.Cause() != nil {
					t.Fatalf("causes before the end: got %v and %v, want none", x.Cause(), y.Cause())
				}
				if err := c.do(p, x, y, mr); err != nil {
					t.Fatal(err)
				}
				within(t, 0, c.wait, func() {
					<-x.Disconnected()
					if c.y != nil {
						<-y.Disconnected()
					}
				})
				told(t, "dialer", x, c.in[0], c.x...)
				if c.y != nil {
					told(t, "listener", y, c.in[1], c.y...)
				}
				before := x.Cause().Error()
				x.Close()
				if after := x.Cause(); after.Error() != before {
					t.Errorf("the cause after Close: got %v, want %v still", after, before)
				}
			})
		})
	}
}

// TestRefusedCause checks that the end whose memory was to be written is told which rule was broken.
func TestRefusedCause(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		var mr *verbs.MR
		x, y := p.connect(t, &rdmacm.Config{Setup: inbox(&mr, 8)}, nil)
		if err := write(x, mr, 1, 1); err != nil {
			t.Fatal(err)
		}
		<-x.Disconnected()
		<-y.Disconnected()
		told(t, "listener", y, "key 0x00000001: no such memory region", verbs.ErrNotFound)
	})
}

// TestEndEvent checks the event of an ID whose QP fails: one, with the cause.
func TestEndEvent(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x, _ := connected(a, b, l.LocalAddr())
		p.net.Partition(p.a, p.b)
		if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite}}); err != nil {
			t.Fatal(err)
		}
		within(t, time.Second, 2*time.Second, func() {
			ev := a.next(rdmacm.EventDisconnected)
			if ev.ID != x || ev.Status != -110 || !errors.Is(ev.Err, verbs.WCRetryExceeded) || !errors.Is(ev.Err, rdmacm.ErrTimeout) {
				t.Errorf("got status %d, %v, want -110 and %v", ev.Status, ev.Err, verbs.WCRetryExceeded)
			}
		})
		a.ok(x.Disconnect())
		a.patience = time.Minute
		a.next(rdmacm.EventTimewaitExit) // and no second end
	})
}

// TestEndOnce has the QP fail while the peer's wish to disconnect waits for messages that are being sent. The program
// hears of one end.
func TestEndOnce(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x, y := connected(a, b, l.LocalAddr())
		p.net.SetFaultsFrom(p.a, p.b, rdmatest.Config{Loss: 1})
		if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite}}); err != nil {
			t.Fatal(err)
		}
		b.ok(y.Disconnect())
		synctest.Wait()
		a.quiet()
		a.ok(x.QP().Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		a.next(rdmacm.EventDisconnected)
		a.patience = time.Minute
		a.next(rdmacm.EventTimewaitExit) // and no second end
	})
}

// TestAfterClose checks that the objects of a Conn stay usable when it is closed: their calls return the error.
func TestAfterClose(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		var mr *verbs.MR
		pd, err := p.a.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		x, _ := p.connect(t, &rdmacm.Config{PD: pd, Setup: inbox(&mr, 8)}, nil)
		for _, c := range []interface{ Close() error }{x, mr, pd} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var wcs [1]verbs.WC
		poll := func(cq *verbs.CQ) error {
			for {
				if n, err := cq.Poll(wcs[:]); n == 0 {
					return err
				}
			}
		}
		for name, err := range map[string]error{
			"post send":    second(x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite}})),
			"post receive": second(x.QP().PostRecv([]verbs.RecvWR{{}})),
			"modify":       x.QP().Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccessFlags),
			"poll sends":   poll(x.SendCQ()),
			"poll recvs":   poll(x.RecvCQ()),
			"wait":         second(x.RecvCQ().Wait(t.Context(), wcs[:])),
			"alloc mr":     second(x.PD().AllocMR(8, verbs.AccessLocalWrite)),
			"disconnect":   x.Disconnect(),
		} {
			if !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s after Close: got error %v, want %v", name, err, verbs.ErrClosed)
			}
		}
		if x.Device() != p.a || !x.LocalAddr().IsValid() {
			t.Errorf("after Close: got device %v, address %v, want what they were", x.Device(), x.LocalAddr())
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestCloseRaces closes a connection from several goroutines while others use it. Nothing panics,
// every Close is the same, and every other call works or says that it is closed.
func TestCloseRaces(t *testing.T) {
	p := newPair(t)
	for range 20 {
		var mr *verbs.MR
		x, y := p.connect(t, &rdmacm.Config{Setup: inbox(&mr, 8)}, nil)
		var users, closers sync.WaitGroup
		begin := make(chan struct{})
		user := func(name string, f func() error) {
			users.Go(func() {
				<-begin
				for limit := patience(t); ; {
					err := f()
					switch {
					case errors.Is(err, verbs.ErrClosed):
						return
					case limit.Err() != nil:
						t.Errorf("%s: still goes on, with error %v, want %v", name, err, verbs.ErrClosed)
						return
					case err != nil && !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrState):
						t.Errorf("%s: got error %v, want %v when it is closed", name, err, verbs.ErrClosed)
						return
					}
				}
			})
		}
		var wcs [2][1]verbs.WC
		user("post", func() error { return second(x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite}})) })
		user("receive", func() error { return second(x.QP().PostRecv([]verbs.RecvWR{{}})) })
		user("poll", func() error { return second(x.SendCQ().Poll(wcs[0][:])) })
		user("wait", func() error { return second(x.RecvCQ().Wait(t.Context(), wcs[1][:])) })
		user("query", func() error { _, _, err := x.QP().Query(); return err })
		errs := make([]error, 4)
		for i := range errs {
			closers.Go(func() {
				<-begin
				errs[i] = x.Close()
			})
		}
		close(begin)
		closers.Wait()
		users.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatalf("concurrent Closes: got errors %v, want none", errs)
			}
		}
		y.Close()
		mr.Close()
	}
}

// TestClosePrompt checks that Close returns once the peer has answered, and does not wait long for one that does not.
func TestClosePrompt(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		for _, reachable := range []bool{true, false} {
			x, y := p.connect(t, nil, nil)
			least, most := time.Duration(0), 10*time.Millisecond
			if !reachable {
				p.net.Partition(p.a, p.b)
				least, most = 250*time.Millisecond, 600*time.Millisecond
			}
			within(t, least, most, func() {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			})
			y.Close()
		}
	})
}

// TestCloseBusy checks that a Close which cannot be done fails each time in the same way, and works
// once it can be done.
func TestCloseBusy(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		x, _ := p.connect(t, nil, nil)
		other, err := x.PD().CreateQP(verbs.QPInitAttr{SendCQ: x.SendCQ(), RecvCQ: x.RecvCQ(), Cap: smallQP.Cap})
		if err != nil {
			t.Fatal(err)
		}
		first, again := x.Close(), x.Close()
		if !errors.Is(first, verbs.ErrBusy) || again == nil || first.Error() != again.Error() {
			t.Errorf("Close while another QP uses the CQs: got errors %v and %v, want %v twice", first, again, verbs.ErrBusy)
		}
		for _, c := range []interface{ Close() error }{other, x, x} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCloseInSetup closes the Conn that Setup is given, at either end. Accept and Dial give up.
func TestCloseInSetup(t *testing.T) {
	for _, when := range []string{"during Setup", "after it"} {
		closing := func(c *rdmacm.Conn) error {
			if when == "during Setup" {
				return c.Close()
			}
			go func() {
				synctest.Wait() // until Accept or Dial waits for the peer
				c.Close()
			}()
			return nil
		}
		in(t, func(t *testing.T, p pair) {
			// A dialer that says no more than its REQ.
			l := p.listen(t, addr(t, p.b, false, 0))
			h := newByHand(t, p.a, l.Addr().Addr())
			h.send(wire.CMREQ, h.req(addr(t, p.a, false, 999), l.Addr(), 0x123456))
			within(t, 0, 2*time.Second, func() {
				got := <-accept(t, l, &rdmacm.Config{Setup: closing})
				if !errors.Is(got.err, verbs.ErrClosed) {
					t.Errorf("Accept, closed %s: got error %v, want %v", when, got.err, verbs.ErrClosed)
				}
			})
			within(t, 0, 2*time.Second, func() {
				_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.b}}).Dial(t.Context(), netip.MustParseAddrPort("10.0.9.9:7471"), &rdmacm.Config{Setup: closing})
				if !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("Dial, closed %s: got error %v, want %v", when, err, verbs.ErrClosed)
				}
			})
		})
	}
}

// TestDialNobody dials without a deadline where nobody is.
func TestDialNobody(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		within(t, 16*time.Second, 18*time.Second, func() {
			_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(context.Background(), netip.MustParseAddrPort("10.0.9.9:7471"), nil)
			if !errors.Is(err, rdmacm.ErrTimeout) {
				t.Errorf("got error %v, want %v", err, rdmacm.ErrTimeout)
			}
		})
	})
}

// TestAcceptClosedListener checks that goroutines in Accept return when the listener closes, also
// those that have just taken a request.
func TestAcceptClosedListener(t *testing.T) {
	for n := range 20 {
		p := newPair(t)
		l := p.listen(t, addr(t, p.b, false, 0))
		dialed := make(chan error, 1)
		go func() {
			conn, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(patience(t), l.Addr(), nil)
			if err == nil {
				err = conn.Close()
			}
			dialed <- err
		}()
		closed := make(chan error, 2)
		var accepting sync.WaitGroup
		for range 4 {
			accepting.Go(func() {
				for {
					r, err := l.Accept(patience(t))
					if errors.Is(err, verbs.ErrClosed) {
						return
					}
					if err != nil {
						t.Errorf("Accept of a listener that closes: got error %v, want %v", err, verbs.ErrClosed)
						return
					}
					go func() { closed <- l.Close() }()
					if err := r.Reject([]byte(fmt.Sprint(n))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if err := <-dialed; !errors.Is(err, rdmacm.ErrRefused) {
			t.Errorf("Dial: got error %v, want %v", err, rdmacm.ErrRefused)
		}
		accepting.Wait()
		if err := <-closed; err != nil {
			t.Errorf("closing the listener: got error %v, want none", err)
		}
	}
}
