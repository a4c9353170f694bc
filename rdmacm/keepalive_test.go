package rdmacm_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestKeepAlive cuts the network between two ends that only wait. Both are told in the documented time,
// by default and with a period of their own, and not without keep-alive.
func TestKeepAlive(t *testing.T) {
	for _, c := range []struct {
		period, max time.Duration
	}{
		{0, 6200 * time.Millisecond},
		{time.Second, 2200 * time.Millisecond},
		{-1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t)
			var mr *verbs.MR
			x, y := p.connect(t, &rdmacm.Config{KeepAlive: c.period, Setup: inbox(&mr, 8)}, &rdmacm.Config{KeepAlive: c.period})
			quiet := time.NewTimer(time.Hour) // in which both are asked, and answer
			select {
			case <-quiet.C:
			case <-x.Disconnected():
				t.Fatalf("period %v: the connection has ended: %v, want it to last", c.period, x.Cause())
			}
			p.net.Partition(p.a, p.b)
			if c.period < 0 {
				quiet.Reset(time.Hour)
				select {
				case <-quiet.C:
				case <-x.Disconnected():
					t.Errorf("without keep-alive: told %v, want nothing", x.Cause())
				}
				return
			}
			within(t, time.Second, c.max, func() { // the retries at least
				<-x.Disconnected()
				<-y.Disconnected()
			})
			told(t, "dialer", x, "does not answer any more", rdmacm.ErrTimeout, verbs.WCRetryExceeded)
			told(t, "listener", y, "does not answer any more", rdmacm.ErrTimeout, verbs.WCRetryExceeded)
			var wcs [2]verbs.WC
			if n, err := x.RecvCQ().Poll(wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.WCFlushErr {
				t.Errorf("receives after the end: got %d, %v, status %v, want one flushed", n, err, wcs[0].Status)
			}
			if n, err := x.SendCQ().Poll(wcs[:]); n != 0 || err != nil {
				t.Errorf("sends after the end: got %d, %v, want none: nothing was posted", n, err)
			}
		})
	}
}

// TestKeepAliveRefused asks for a period where nobody can ask the peer: UC has no acknowledgements. The
// default is no reason to fail.
func TestKeepAliveRefused(t *testing.T) {
	p := newPair(t)
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}, UC: true}).Listen(addr(t, p.b, false, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	uc := verbs.QPInitAttr{Type: verbs.QPTypeUC}
	_, err = (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(t.Context(), l.Addr(), &rdmacm.Config{QP: uc, KeepAlive: time.Second})
	if !errors.Is(err, verbs.ErrUnsupported) || !strings.Contains(err.Error(), "Config.KeepAlive is 1s, and would do nothing") {
		t.Errorf("a period for UC: got %v, want %v with the option's name", err, verbs.ErrUnsupported)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			if _, e := r.Accept(t.Context(), &rdmacm.Config{QP: uc, KeepAlive: time.Second}); !errors.Is(e, verbs.ErrUnsupported) {
				t.Errorf("a period for UC at the listener: got %v, want %v", e, verbs.ErrUnsupported)
			}
			r, err = l.Accept(t.Context())
		}
		if err == nil {
			var c *rdmacm.Conn
			if c, err = r.Accept(t.Context(), &rdmacm.Config{QP: uc}); err == nil {
				defer c.Close()
			}
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Devices: []*verbs.Device{p.a}}
	if c, err := d.Dial(t.Context(), l.Addr(), &rdmacm.Config{QP: uc, KeepAlive: -1}); err == nil {
		c.Close()
		t.Error("the dialer is connected to a listener that has refused")
	}
	c, err := d.Dial(t.Context(), l.Addr(), &rdmacm.Config{QP: uc})
	if err == nil {
		err = <-accepted
		defer c.Close()
	}
	if err != nil {
		t.Errorf("UC without a period: %v", err)
	}
}

// TestKeepAliveLossy keeps idle connections alive on a network that loses one packet in twenty.
func TestKeepAliveLossy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, rdmatest.Config{Seed: 7})
		x, y := p.connect(t, nil, nil)
		p.net.SetFaults(rdmatest.Config{Loss: 0.05, Duplicate: 0.1, Reorder: 0.1})
		limit := time.NewTimer(time.Hour)
		select {
		case <-limit.C:
		case <-x.Disconnected():
			t.Errorf("the dialer: %v, want no end", x.Cause())
		case <-y.Disconnected():
			t.Errorf("the listener: %v, want no end", y.Cause())
		}
		p.net.SetFaults(rdmatest.Config{})
	})
}

// TestIDKeepAlive sets the option before the connection is made, and during it. An ID that sets it not
// asks nobody.
func TestIDKeepAlive(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
		a.ok(x.SetKeepAlive(time.Second))
		y := establish(a, b, x)
		p.net.Partition(p.a, p.b)
		a.patience, b.patience = time.Hour, time.Hour
		within(t, time.Second, 2200*time.Millisecond, func() { isEnd(t, a.next(rdmacm.EventDisconnected)) })
		b.quiet()
		b.ok(y.SetKeepAlive(2 * time.Second))
		within(t, 2*time.Second, 3200*time.Millisecond, func() { isEnd(t, b.next(rdmacm.EventDisconnected)) })
		u := a.id(rdmacm.PortSpaceUDP)
		if err := u.SetKeepAlive(time.Second); !errors.Is(err, verbs.ErrUnsupported) {
			t.Errorf("for UD: got error %v, want %v", err, verbs.ErrUnsupported)
		}
	})
}

// TestIDKeepAliveWhileAccepting sets the option between Accept and the peer's word that it is there. A names a QP
// that it does not have, so that its end is the test's to establish.
func TestIDKeepAliveWhileAccepting(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
		param := rdmacm.DefaultConnParam()
		param.QPN = 0x123
		a.ok(x.Connect(&param))
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		b.ok(y.Accept(nil))
		a.next(rdmacm.EventConnectResponse)
		b.ok(y.SetKeepAlive(time.Second))
		a.ok(x.Establish())
		b.next(rdmacm.EventEstablished)
		p.net.Partition(p.a, p.b)
		b.patience = time.Hour
		isEnd(t, b.next(rdmacm.EventDisconnected))
	})
}

// TestIDKeepAliveFails: a QP that the program has closed cannot ask, and the program is told.
func TestIDKeepAliveFails(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	x, _ := connected(a, b, b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0)).LocalAddr())
	a.ok(x.QP().Close())
	if err := x.SetKeepAlive(time.Second); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("for a QP that is closed: got error %v, want %v", err, verbs.ErrClosed)
	}
}

// isEnd checks the event of a connection whose peer has vanished.
func isEnd(t *testing.T, ev rdmacm.Event) {
	t.Helper()
	if ev.Status != -110 || !errors.Is(ev.Err, rdmacm.ErrTimeout) || !errors.Is(ev.Err, verbs.WCRetryExceeded) {
		t.Errorf("got status %d, %v, want -110, %v and %v", ev.Status, ev.Err, rdmacm.ErrTimeout, verbs.WCRetryExceeded)
	}
}
