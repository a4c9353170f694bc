package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// bounded is the time within which every attempt ends, whatever the peer does.
const bounded = 30 * time.Second

// in runs a test in which time passes at once.
func in(t *testing.T, f func(t *testing.T, p pair)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, newPair(t))
	})
}

// within fails the test unless f takes between min and max.
func within(t *testing.T, min, max time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d < min || d > max {
		t.Errorf("it took %v, want %v to %v", d, min, max)
	}
}

// connecting returns an ID of a that has asked for a connection to an address.
func connecting(a *script, to netip.AddrPort) *rdmacm.ID {
	a.t.Helper()
	x := a.routed(rdmacm.PortSpaceTCP, to)
	a.ok(x.CreateQP(nil, smallQP))
	a.ok(x.Connect(nil))
	return x
}

// isTimeout checks the event if nobody answers.
func isTimeout(t *testing.T, ev rdmacm.Event) {
	t.Helper()
	var net interface{ Timeout() bool }
	if ev.Status != -110 || !errors.Is(ev.Err, rdmacm.ErrTimeout) || !errors.As(ev.Err, &net) || !net.Timeout() || !strings.Contains(ev.Err.Error(), "4791") {
		t.Errorf("event %v: got status %d, %v, want -110, %v with a hint at port 4791", ev.Type, ev.Status, ev.Err, rdmacm.ErrTimeout)
	}
}

func TestNobodyThere(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a := newScript(t, p.a)
		x := connecting(a, netip.MustParseAddrPort("10.0.9.9:7471"))
		within(t, 10*time.Second, bounded, func() { isTimeout(t, a.next(rdmacm.EventUnreachable)) })
		if s := x.QP().State(); s != verbs.QPStateErr {
			t.Errorf("got the QP in %v, want %v", s, verbs.QPStateErr)
		}
		if err := x.Connect(nil); !errors.Is(err, verbs.ErrState) || !strings.Contains(err.Error(), "new ID") {
			t.Errorf("another Connect: got error %v, want %v with %q in it", err, verbs.ErrState, "new ID")
		}
		a.ok(x.Close())
		a.ok(p.a.Close())
	})
}

func TestNobodyThereUD(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a := newScript(t, p.a)
		x := a.routed(rdmacm.PortSpaceUDP, netip.MustParseAddrPort("10.0.9.9:7471"))
		a.ok(x.Connect(nil))
		within(t, 10*time.Second, bounded, func() { isTimeout(t, a.next(rdmacm.EventUnreachable)) })
	})
}

// TestVanishAfterREQ has a peer that asks for time and then falls silent.
func TestVanishAfterREQ(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		h := newByHand(t, p.b, addr(t, p.a, false, 0).Addr())
		h.claim(rdmacm.PortSpaceTCP, 7471)
		a := newScript(t, p.a)
		a.patience = time.Hour
		connecting(a, addr(t, p.b, false, 7471))
		req := h.recvREQ()
		h.send(wire.CMMRA, &wire.MRA{LocalCommID: h.newID(), RemoteCommID: req.LocalCommID, ServiceTimeout: 20})
		within(t, 20*time.Second, 5*time.Minute, func() { isTimeout(t, a.next(rdmacm.EventUnreachable)) })
	})
}

// TestVanishBeforeRTU has an active side that falls silent after its REQ.
func TestVanishBeforeRTU(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		b := newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		h.send(wire.CMREQ, h.req(addr(t, p.a, false, 999), l.LocalAddr(), 0x123456))
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		b.ok(y.Accept(nil))
		within(t, 5*time.Second, bounded, func() { isTimeout(t, b.next(rdmacm.EventUnreachable)) })
		b.ok(y.Close())
		b.ok(l.Close())
		b.ok(p.b.Close())
	})
}

// TestVanishDuringAccept has Request.Accept wait, without a deadline, for a peer that falls silent: as long
// as the peer's numbers say, and no longer than is documented if they are large.
func TestVanishDuringAccept(t *testing.T) {
	for _, c := range []struct {
		timeout  uint8 // code: 2 to the power of it, divided by 256, in ms
		min, max time.Duration
	}{
		{18, 16 * time.Second, 17 * time.Second}, // an adverb's
		{20, 65 * time.Second, 66 * time.Second}, // Linux's
		{31, rdmacm.MaxAcceptTime, rdmacm.MaxAcceptTime},
	} {
		in(t, func(t *testing.T, p pair) {
			l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(addr(t, p.b, false, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			h := newByHand(t, p.a, l.Addr().Addr())
			req := h.req(addr(t, p.a, false, 999), l.Addr(), 0x123456)
			req.LocalCMTimeout = c.timeout
			h.send(wire.CMREQ, req)
			r, err := l.Accept(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			within(t, c.min, c.max, func() {
				if _, err := r.Accept(context.Background(), nil); !errors.Is(err, rdmacm.ErrTimeout) {
					t.Errorf("timeout code %d: got %v, want %v", c.timeout, err, rdmacm.ErrTimeout)
				}
			})
		})
	}
}

// TestLostRTU checks that the peer's first packet stands in for a lost RTU.
func TestLostRTU(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		b := newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		qp, err := h.pd.CreateQP(verbs.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: smallQP.Cap})
		h.ok(err)
		req := h.req(addr(t, p.a, false, 999), l.LocalAddr(), uint32(qp.QPN()))
		h.send(wire.CMREQ, req)
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		b.ok(y.Accept(nil))
		rep, err := wire.DecodeREP(h.recv(wire.CMREP))
		h.ok(err)
		h.ok(qp.Init(1, rdmatest.Access))
		h.ok(qp.RTR(verbs.Peer{QPN: verbs.QPN(rep.LocalQPN), PSN: verbs.PSN(req.StartingPSN), GID: verbs.GIDFromAddr(l.LocalAddr().Addr())}, verbs.Path{MTU: verbs.MTU1024}))
		h.ok(qp.RTS(verbs.PSN(rep.StartingPSN), verbs.DefaultRetry))
		b.quiet()
		_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite}}) // and no RTU
		h.ok(err)
		within(t, 0, 500*time.Millisecond, func() { b.next(rdmacm.EventEstablished) })
		h.send(wire.CMRTU, &wire.RTU{LocalCommID: req.LocalCommID, RemoteCommID: rep.LocalCommID}) // too late
		b.ok(y.Disconnect())
		h.recv(wire.CMDREQ)
	})
}

// TestDisconnectForRTU has a peer end a connection whose RTU was lost. Accept returns it all the same, as
// the peer may have sent something.
func TestDisconnectForRTU(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(addr(t, p.b, false, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		h := newByHand(t, p.a, l.Addr().Addr())
		req := h.req(addr(t, p.a, false, 999), l.Addr(), 0x123456)
		h.send(wire.CMREQ, req)
		done := accept(t, l, nil)
		rep, err := wire.DecodeREP(h.recv(wire.CMREP))
		h.ok(err)
		h.send(wire.CMDREQ, &wire.DREQ{LocalCommID: req.LocalCommID, RemoteCommID: rep.LocalCommID, RemoteQPN: rep.LocalQPN})
		a := <-done
		if a.err != nil {
			t.Fatalf("Accept: got %v, want a connection that has ended", a.err)
		}
		<-a.conn.Disconnected()
		if err := a.conn.Cause(); !errors.Is(err, rdmacm.ErrDisconnected) {
			t.Errorf("the connection's end: got %v, want %v", err, rdmacm.ErrDisconnected)
		}
		h.ok(a.conn.Close())
	})
}

// TestNotify tells an ID that the peer's first packet has come, as programs with a QP of their own
// do.
func TestNotify(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		b := newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		h.send(wire.CMREQ, h.req(addr(t, p.a, false, 999), l.LocalAddr(), 0x123456))
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		b.ok(y.Accept(nil))
		if err := y.Notify(verbs.EventSQDrained); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Notify of another event: got error %v, want %v", err, verbs.ErrInvalid)
		}
		b.ok(y.Notify(verbs.EventCommEst))
		b.next(rdmacm.EventEstablished)
		h.recv(wire.CMREP)
	})
}

// TestVanishConnected checks that a peer which is cut off does not hold up Disconnect, Close or the
// device.
func TestVanishConnected(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x, y := connected(a, b, l.LocalAddr())
		p.net.Partition(p.a, p.b)
		a.ok(x.Disconnect())
		within(t, 5*time.Second, bounded, func() {
			ev := a.next(rdmacm.EventDisconnected)
			if ev.Status != -110 || !errors.Is(ev.Err, rdmacm.ErrTimeout) {
				t.Errorf("disconnected from a peer that is gone: got status %d, %v, want -110, %v", ev.Status, ev.Err, rdmacm.ErrTimeout)
			}
		})
		within(t, 0, time.Second, func() { // one DREQ that nobody answers
			for _, id := range []*rdmacm.ID{x, y, l} {
				b.ok(id.Close())
			}
			b.ok(p.a.Close())
			b.ok(p.b.Close())
		})
	})
}

// TestCloseAnywhere closes an ID in each state, with the peer there and cut off. The devices can be
// closed right after.
func TestCloseAnywhere(t *testing.T) {
	steps := []struct {
		name string
		do   func(a, b *script, l *rdmacm.ID) []*rdmacm.ID
	}{
		{"idle", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID { return []*rdmacm.ID{a.id(rdmacm.PortSpaceTCP)} }},
		{"routed", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			return []*rdmacm.ID{a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())}
		}},
		{"connecting", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			return []*rdmacm.ID{connecting(a, l.LocalAddr())}
		}},
		{"requested", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			x := connecting(a, l.LocalAddr())
			return []*rdmacm.ID{b.next(rdmacm.EventConnectRequest).ID, x}
		}},
		{"connected", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			x, y := connected(a, b, l.LocalAddr())
			return []*rdmacm.ID{x, y}
		}},
		{"disconnecting", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			x, y := connected(a, b, l.LocalAddr())
			a.ok(x.Disconnect())
			return []*rdmacm.ID{x, y}
		}},
		{"listening", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID { return []*rdmacm.ID{l} }},
		{"not fetched", func(a, b *script, l *rdmacm.ID) []*rdmacm.ID {
			x := connecting(a, l.LocalAddr())
			synctest.Wait()
			return []*rdmacm.ID{l, x}
		}},
	}
	for _, s := range steps {
		for _, cut := range []bool{false, true} {
			in(t, func(t *testing.T, p pair) {
				a, b := newScript(t, p.a), newScript(t, p.b)
				l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
				ids := s.do(a, b, l)
				if cut {
					p.net.Partition(p.a, p.b)
				}
				within(t, 0, time.Second, func() {
					for _, id := range append(ids, l) {
						if err := id.Close(); err != nil {
							t.Errorf("%s: closing the ID: got error %v, want none", s.name, err)
						}
					}
					for _, d := range []*verbs.Device{p.a, p.b} {
						if err := d.Close(); err != nil {
							t.Errorf("%s: closing the device: got error %v, want none", s.name, err)
						}
					}
				})
			})
		}
	}
}

// TestNotFetched checks that a peer whose request nobody has fetched hears that the listener is gone.
func TestNotFetched(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		connecting(a, l.LocalAddr())
		synctest.Wait()
		b.ok(l.Close())
		if ev := a.next(rdmacm.EventRejected); ev.Status != int(rdmacm.RejectConsumerDefined) {
			t.Errorf("rejected: got status %d, %v, want %v", ev.Status, ev.Err, rdmacm.RejectConsumerDefined)
		}
	})
}

// TestGivenUp checks that the accepting end hears that the dialer has given up.
func TestGivenUp(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x := connecting(a, l.LocalAddr())
		y := b.next(rdmacm.EventConnectRequest).ID
		a.ok(x.Close())
		ev := b.next(rdmacm.EventRejected)
		if ev.ID != y || ev.Status != int(rdmacm.RejectTimeout) || !errors.Is(ev.Err, rdmacm.ErrReset) || !strings.Contains(ev.Err.Error(), "given up") {
			t.Errorf("rejected: got status %d of ID %p, %v, want %d of %p, since the peer has given up", ev.Status, ev.ID, ev.Err, rdmacm.RejectTimeout, y)
		}
		b.ok(y.CreateQP(nil, smallQP))
		if err := y.Accept(nil); !errors.Is(err, verbs.ErrState) {
			t.Errorf("Accept after that: got error %v, want %v", err, verbs.ErrState)
		}
	})
}

// TestRejectReasons checks that every reason that a peer may give reaches the program, with its text.
func TestRejectReasons(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		h := newByHand(t, p.b, addr(t, p.a, false, 0).Addr())
		h.claim(rdmacm.PortSpaceTCP, 7471)
		a := newScript(t, p.a)
		texts := map[string]uint16{}
		for reason := uint16(1); reason <= 36; reason++ {
			x := connecting(a, addr(t, p.b, false, 7471))
			req := h.recvREQ()
			rej := &wire.REJ{RemoteCommID: req.LocalCommID, Reason: wire.RejReason(reason)}
			if reason == uint16(rdmacm.RejectTimeout) { // a peer that gives up names itself: as the active side only
				a.ok(x.Close())
				h.recv(wire.CMREJ)
				continue
			}
			if reason == uint16(rdmacm.RejectInvalidMTU) {
				rej.ARILen, rej.ARI[0] = 1, uint8(verbs.MTU512)
			}
			copy(rej.PrivateData[:], fmt.Sprint("because ", reason))
			h.send(wire.CMREJ, rej)
			ev := a.next(rdmacm.EventRejected)
			var e *rdmacm.RejectError
			if ev.Status != int(reason) || !errors.As(ev.Err, &e) || e.Reason != rdmacm.RejectReason(reason) || !strings.HasPrefix(string(e.PrivateData), fmt.Sprint("because ", reason, "\x00")) {
				t.Errorf("reason %d: got status %d, %v, want the reason, and private data that names it", reason, ev.Status, ev.Err)
				continue
			}
			if before, ok := texts[e.Error()]; ok {
				t.Errorf("reasons %d and %d: got the text %v for both, want two texts", before, reason, e)
			}
			texts[e.Error()] = reason
			if reason == uint16(rdmacm.RejectInvalidMTU) && !strings.Contains(e.Error(), "512") {
				t.Errorf("got %v, want the peer's MTU 512 in it", e)
			}
			a.ok(x.Close())
		}
	})
}

// A peer may reject a connection just when this end has ended it, as a server does that accepts and closes. The end
// is the one that was asked for, or that was reported already, and there is one.
func TestRejectedWhileEnding(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		h := newByHand(t, p.b, addr(t, p.a, false, 0).Addr())
		h.claim(rdmacm.PortSpaceTCP, 7471)
		a := newScript(t, p.a)
		for what, end := range map[string]func(*rdmacm.ID) error{
			"Disconnect": (*rdmacm.ID).Disconnect,
			"a QP that fails": func(x *rdmacm.ID) error {
				return x.QP().Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
			},
		} {
			x := connecting(a, addr(t, p.b, false, 7471))
			req := h.recvREQ()
			rep := &wire.REP{LocalCommID: h.newID(), RemoteCommID: req.LocalCommID, LocalQPN: h.id, LocalGUID: 77}
			h.send(wire.CMREP, rep)
			a.next(rdmacm.EventEstablished)
			h.recv(wire.CMRTU)
			a.ok(end(x))
			h.recv(wire.CMDREQ)
			h.send(wire.CMREJ, &wire.REJ{LocalCommID: rep.LocalCommID, RemoteCommID: req.LocalCommID, Message: wire.CMMessageOther, Reason: wire.RejConsumerDefined})
			ev := a.next(rdmacm.EventDisconnected)
			if what == "Disconnect" && (ev.Status != 0 || ev.Err != nil) {
				t.Errorf("%s: got status %d, %v, want none", what, ev.Status, ev.Err)
			}
			synctest.Wait()
			a.quiet()
			a.ok(x.Close())
		}
	})
}

// TestBadRequests checks that a request which cannot be served is rejected with the reason, before
// a program sees it.
func TestBadRequests(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		b := newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		for _, c := range []struct {
			name   string
			change func(*wire.REQ)
			want   rdmacm.RejectReason
		}{
			{"nobody listens", func(r *wire.REQ) { r.ServiceID++ }, rdmacm.RejectInvalidServiceID},
			{"no IP CM header", func(r *wire.REQ) { clear(r.PrivateData[:]) }, rdmacm.RejectConsumerDefined},
			{"another destination", func(r *wire.REQ) { r.PrivateData[35]++ }, rdmacm.RejectConsumerDefined},
			{"UC in RDMA_PS_TCP", func(r *wire.REQ) { r.Transport = 1 }, rdmacm.RejectInvalidTransport},
			{"MTU above the port's", func(r *wire.REQ) { r.MTU = 7 }, 0},
		} {
			req := h.req(addr(t, p.a, false, 999), l.LocalAddr(), 0x123456+h.newID())
			c.change(req)
			h.send(wire.CMREQ, req)
			if c.want == 0 { // no MTU at all: no message to answer
				synctest.Wait()
				b.quiet()
				continue
			}
			rej, err := wire.DecodeREJ(h.recv(wire.CMREJ))
			h.ok(err)
			if rej.RemoteCommID != req.LocalCommID || rdmacm.RejectReason(rej.Reason) != c.want {
				t.Errorf("%s: got reason %v to %#x, want %v to %#x", c.name, rej.Reason, rej.RemoteCommID, c.want, req.LocalCommID)
			}
		}
		b.quiet()
	})
}

// TestShortMAD sends a REQ that ends behind its header. The earlier contents of the receive must not be taken for the
// rest.
func TestShortMAD(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		l := p.listen(t, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.Addr().Addr())
		head := wire.NewCMHeader(wire.CMREQ, 1)
		_, err := h.qp.PostSend([]verbs.SendWR{{
			Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: head.AppendTo(nil), AH: h.ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey,
		}})
		h.ok(err)
		synctest.Wait()
		cs, err := p.b.Counters()
		h.ok(err)
		if n := cs.Value("cm_rx_msgs_req"); n != 0 {
			t.Errorf("got %d REQs, want none", n)
		}
	})
}

// TestMTUAbovePeer asks for an MTU above that of the listener's port. The rejection names the port's.
func TestMTUAbovePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, rdmatest.Config{MTU: 1500})
		b := newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		req := h.req(addr(t, p.a, false, 999), l.LocalAddr(), 0x123456)
		req.MTU = uint8(verbs.MTU4096)
		h.send(wire.CMREQ, req)
		rej, err := wire.DecodeREJ(h.recv(wire.CMREJ))
		h.ok(err)
		if rdmacm.RejectReason(rej.Reason) != rdmacm.RejectInvalidMTU || rej.ARILen != 1 || verbs.MTU(rej.ARI[0]) != verbs.MTU1024 {
			t.Errorf("got reason %v, information %v, want %v, MTU %v", rej.Reason, rej.Info(), rdmacm.RejectInvalidMTU, verbs.MTU1024)
		}
	})
}

// TestAcceptWithoutDevice: each Accept of a listener whose device is gone says so, one that waits already
// included, until Close.
func TestAcceptWithoutDevice(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		l := p.listen(t, addr(t, p.b, false, 0))
		const waiting = 3
		errs := make(chan error, waiting)
		for range waiting {
			go func() {
				_, err := l.Accept(patience(t))
				errs <- err
			}()
		}
		synctest.Wait()
		p.b.Provider().Close()
		first := <-errs
		if first == nil || errors.Is(first, context.DeadlineExceeded) || errors.Is(first, verbs.ErrClosed) && !strings.Contains(first.Error(), "use device") {
			t.Errorf("Accept without a device: got error %v, want that the device is gone", first)
		}
		for range waiting - 1 {
			if err := <-errs; err == nil || err.Error() != first.Error() {
				t.Errorf("another Accept that waited: got error %v, want %v", err, first)
			}
		}
		if _, err := l.Accept(patience(t)); err == nil || err.Error() != first.Error() {
			t.Errorf("a later Accept: got error %v, want %v", err, first)
		}
		l.Close()
		if _, err := l.Accept(patience(t)); !errors.Is(err, verbs.ErrClosed) || err.Error() == first.Error() {
			t.Errorf("Accept after Close: got error %v, want %v", err, verbs.ErrClosed)
		}
	})
}

// TestAcceptOnAllAddresses: a listener on the addresses of two devices goes on when one of them is gone.
// When both are gone, Accept says so.
func TestAcceptOnAllAddresses(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		c := p.net.Device()
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b, c}}).Listen(netip.MustParseAddrPort("[::]:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c.Provider().Close()
		done := accept(t, l, nil)
		if _, err := p.dial(t, addr(t, p.b, false, l.Addr().Port()), nil); err != nil {
			t.Fatalf("dialing the device that is left: got error %v, want none", err)
		}
		got := <-done
		if got.err != nil {
			t.Fatalf("Accept with one of two devices: got error %v, want a connection", got.err)
		}
		defer got.conn.Close()
		p.b.Provider().Close()
		for range 2 {
			if _, err := l.Accept(patience(t)); err == nil || !strings.Contains(err.Error(), "use device") {
				t.Errorf("Accept without devices: got error %v, want that the device is gone", err)
			}
		}
	})
}

// TestDeviceRemoval checks that IDs hear that their device is gone.
func TestDeviceRemoval(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x, _ := connected(a, b, l.LocalAddr())
		p.a.Provider().Close()
		if ev := a.next(rdmacm.EventDeviceRemoval); ev.ID != x || ev.Err == nil {
			t.Errorf("removal: got ID %p, %v, want ID %p and an error", ev.ID, ev.Err, x)
		}
	})
}
