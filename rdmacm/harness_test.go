package rdmacm_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// pair is a network of two devices.
type pair struct {
	net  *rdmatest.Network
	a, b *verbs.Device // b listens
}

func newPair(t *testing.T, c ...rdmatest.Config) pair {
	n := rdmatest.New(t, c...)
	return pair{n, n.Device(), n.Device()}
}

// addr returns the device's first address of an IP version, with a port.
func addr(t *testing.T, d *verbs.Device, ipv6 bool, port uint16) netip.AddrPort {
	t.Helper()
	es, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if e.GID.Addr().Is6() == ipv6 {
			return netip.AddrPortFrom(e.GID.Addr(), port)
		}
	}
	t.Fatalf("%s has no address of the IP version", d.Name())
	return netip.AddrPort{}
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// listen listens on b.
func (p pair) listen(t *testing.T, at netip.AddrPort) *rdmacm.Listener {
	t.Helper()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from a.
func (p pair) dial(t *testing.T, to netip.AddrPort, c *rdmacm.Config) (*rdmacm.Conn, error) {
	conn, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(patience(t), to, c)
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// accept accepts the next request, in the background.
func accept(t *testing.T, l *rdmacm.Listener, c *rdmacm.Config) <-chan accepted {
	ctx := patience(t)
	done := make(chan accepted, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			done <- accepted{err: err}
			return
		}
		conn, err := r.Accept(ctx, c)
		done <- accepted{r, conn, err}
	}()
	return done
}

type accepted struct {
	req  *rdmacm.Request
	conn *rdmacm.Conn
	err  error
}

// connect makes a connection from a to a new listener on b.
func (p pair) connect(t *testing.T, dialer, listener *rdmacm.Config) (x, y *rdmacm.Conn) {
	t.Helper()
	l := p.listen(t, addr(t, p.b, false, 0))
	done := accept(t, l, listener)
	x, err := p.dial(t, l.Addr(), dialer)
	if err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { got.conn.Close() })
	return x, got.conn
}

// wait takes one completion, which must be a success.
func wait(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	if _, err := cq.Wait(patience(t), wcs[:]); err != nil {
		t.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		t.Fatal(err)
	}
	return wcs[0]
}

// inbox returns a Config.Setup that registers n bytes and posts them as a receive.
func inbox(mr **verbs.MR, n int) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) (err error) {
		if *mr, err = c.PD().AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic); err != nil {
			return err
		}
		_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{(*mr).SGE(0, n)}}})
		return err
	}
}

// script drives IDs. Its methods fail the test on an error.
type script struct {
	t        *testing.T
	ch       *rdmacm.EventChannel
	patience time.Duration
}

func newScript(t *testing.T, devices ...*verbs.Device) *script {
	return &script{t, rdmacm.NewEventChannel(devices...), rdmatest.Patience}
}

func (s *script) id(ps rdmacm.PortSpace) *rdmacm.ID {
	s.t.Helper()
	id, err := rdmacm.NewID(s.ch, ps)
	s.ok(err)
	s.t.Cleanup(func() { id.Close() })
	return id
}

func (s *script) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// next returns the next event, which must be of a type.
func (s *script) next(want rdmacm.EventType) rdmacm.Event {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.patience)
	defer cancel()
	ev, err := s.ch.Next(ctx)
	s.ok(err)
	if ev.Type == rdmacm.EventConnectRequest {
		s.t.Cleanup(func() { ev.ID.Close() })
	}
	if ev.Type != want {
		s.t.Fatalf("event %v (status %d, %v), want %v", ev.Type, ev.Status, ev.Err, want)
	}
	return ev
}

// quiet fails the test if there is an event.
func (s *script) quiet() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	if ev, err := s.ch.Next(ctx); err == nil {
		s.t.Fatalf("got event %v, want none", ev.Type)
	}
}

// listener returns an ID that listens.
func (s *script) listener(ps rdmacm.PortSpace, at netip.AddrPort) *rdmacm.ID {
	s.t.Helper()
	id := s.id(ps)
	s.ok(id.BindAddr(at))
	s.ok(id.Listen(0))
	return id
}

// routed returns an ID that is ready to connect.
func (s *script) routed(ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.ID {
	s.t.Helper()
	id := s.id(ps)
	s.ok(id.ResolveAddr(netip.AddrPort{}, to))
	s.next(rdmacm.EventAddrResolved)
	s.ok(id.ResolveRoute())
	s.next(rdmacm.EventRouteResolved)
	return id
}

var smallQP = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}

// connected makes a connection by IDs. x is of a, and y of b.
func connected(a, b *script, to netip.AddrPort) (x, y *rdmacm.ID) {
	a.t.Helper()
	x = a.routed(rdmacm.PortSpaceTCP, to)
	return x, establish(a, b, x)
}

// establish connects an ID of a that knows its route. The other end is y, of b.
func establish(a, b *script, x *rdmacm.ID) (y *rdmacm.ID) {
	a.t.Helper()
	a.ok(x.CreateQP(nil, smallQP))
	a.ok(x.Connect(nil))
	y = b.next(rdmacm.EventConnectRequest).ID
	b.ok(y.CreateQP(nil, smallQP))
	b.ok(y.Accept(nil))
	a.next(rdmacm.EventEstablished)
	b.next(rdmacm.EventEstablished)
	return y
}
