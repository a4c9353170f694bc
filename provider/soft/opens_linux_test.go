//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// open opens a device and makes a PD of it. Both are closed at the end, which nothing may be in the way
// of.
func open(t *testing.T, name string) *verbs.PD {
	t.Helper()
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(pd.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return pd
}

// listenOn listens on an address. The device is that of the connection manager's own Open.
func listenOn(t *testing.T, addr string) *rdmacm.Listener {
	t.Helper()
	l, err := rdmacm.Listen(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A PD of the program's own Open of a device serves connections at both ends, and so does one of an
// Open that is restricted to an address.
func TestOwnOpenConnects(t *testing.T) {
	lo := loopback(t)
	for _, dialer := range []string{lo, lo + "@127.0.0.1", lo + "@" + loopAddr(2)} {
		t.Run(dialer, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			mine, yours := open(t, dialer), open(t, lo+"@127.0.0.1")
			l := listenOn(t, "127.0.0.1:0")
			accepted := make(chan error, 1)
			go func() {
				r, err := l.Accept(ctx)
				if err != nil {
					accepted <- err
					return
				}
				var e exchange
				conn, err := r.Accept(ctx, &rdmacm.Config{PD: yours, Setup: e.setup})
				if err != nil {
					accepted <- err
					return
				}
				text, err := e.recv(conn)
				if err == nil {
					err = e.send(conn, strings.ToUpper(text))
				}
				<-conn.Disconnected()
				accepted <- errors.Join(err, conn.Close(), e.mr.Close())
			}()
			var e exchange
			conn, err := rdmacm.Dial(ctx, l.Addr(), &rdmacm.Config{PD: mine, Setup: e.setup})
			if err != nil {
				t.Fatal(err)
			}
			if conn.PD() != mine || conn.Device() != mine.Device() {
				t.Errorf("got a QP of PD %p on device %p, want %p on %p", conn.PD(), conn.Device(), mine, mine.Device())
			}
			if err := e.send(conn, "hello"); err != nil {
				t.Fatal(err)
			}
			if text, err := e.recv(conn); err != nil || text != "HELLO" {
				t.Errorf("received %q, %v; want HELLO", text, err)
			}
			if err := errors.Join(conn.Close(), e.mr.Close()); err != nil {
				t.Error(err)
			}
			if err := <-accepted; err != nil {
				t.Error(err)
			}
		})
	}
}

// A QP for datagrams may be of another Open than the ID, too. The peer's path that it is told is then of
// that Open's GID table.
func TestOwnOpenDatagrams(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lo := loopback(t)
	ch := rdmacm.NewEventChannel()
	next := func(want rdmacm.EventType) rdmacm.Event {
		t.Helper()
		ev, err := ch.Next(ctx)
		if err != nil || ev.Type != want {
			t.Fatalf("got event %v, %v (%v), want %v", ev.Type, ev.Err, err, want)
		}
		return ev
	}
	id := func() *rdmacm.ID {
		id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { id.Close() })
		return id
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// The table of the one address has it first; the device's may have others before it.
	if d, err := verbs.Open(lo + "@::1"); err != nil {
		t.Skip(err)
	} else {
		ok(d.Close())
	}
	mine, yours := open(t, lo+"@::1"), open(t, lo)
	server, client := id(), id()
	ok(server.BindAddr(netip.MustParseAddrPort("[::1]:0")))
	ok(server.Listen(0))
	ok(client.ResolveAddr(netip.AddrPort{}, server.LocalAddr()))
	next(rdmacm.EventAddrResolved)
	ok(client.ResolveRoute())
	next(rdmacm.EventRouteResolved)
	caps := verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}
	ok(client.CreateQP(mine, caps))
	ok(client.Connect(nil))
	child := next(rdmacm.EventConnectRequest).ID
	t.Cleanup(func() { child.Close() })
	ok(child.CreateQP(yours, caps))
	in, err := yours.AllocMR(128, verbs.AccessLocalWrite)
	ok(err)
	_, err = child.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 128)}}})
	ok(err)
	ok(child.Accept(nil))
	peer := next(rdmacm.EventEstablished).UD
	ah, err := mine.CreateAH(peer.AH)
	ok(err)
	_, err = client.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		InlineData: []byte("hello"), AH: ah, RemoteQPN: peer.QPN, RemoteQKey: peer.QKey}})
	ok(err)
	_, err = done(client.QP().SendCQ())
	ok(err)
	wc, err := done(child.QP().RecvCQ())
	ok(err)
	if got := string(in.Bytes()[verbs.GRHSize:wc.ByteLen]); got != "hello" {
		t.Errorf("received %q, want hello", got)
	}
	for _, c := range []interface{ Close() error }{client, child, ah, in} {
		ok(c.Close())
	}
}

// Objects that do not go together are named, and so is the remedy.
func TestOwnOpenRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lo := loopback(t)
	mine, other := open(t, lo), open(t, lo)
	cq, err := other.Device().CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	to := netip.MustParseAddrPort("127.0.0.1:1")
	_, err = rdmacm.Dial(ctx, to, &rdmacm.Config{PD: mine, QP: verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq}})
	if want := "of another Open of device " + lo + " than its PD: name a PD of the same Open"; !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("CQs of another Open: got error %v, want %v with %q in it", err, verbs.ErrInvalid, want)
	}
	away := open(t, lo+"@"+loopAddr(3)) // which does not have the address of the ID
	id, err := rdmacm.NewID(rdmacm.NewEventChannel(), rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.BindAddr(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	err = id.CreateQP(away, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1}})
	if want := away.Device().Name() + " has no RoCE v2 GID of 127.0.0.1"; !errors.Is(err, rdmacm.ErrNoDevice) || !strings.Contains(err.Error(), want) {
		t.Errorf("a PD of another address: got error %v, want %v with %q in it", err, rdmacm.ErrNoDevice, want)
	}
}
