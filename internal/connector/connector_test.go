package connector_test

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The port spaces of connections and of datagrams.
const (
	tcp connector.PortSpace = 0x0106
	udp connector.PortSpace = 0x0111
)

// testTOS is the type of service of all requests. It has bits in both halves, which an IPv6 header has in different bytes.
const testTOS = 0xb8

// end is a device with its connector. Its events are those of all its connections.
type end struct {
	t        *testing.T
	dev      *verbs.Device
	addr     netip.Addr
	c        connector.Connector
	events   chan connector.Event
	requests chan *connector.Request
	gone     chan error
}

func newEnd(t *testing.T, dev *verbs.Device) *end {
	t.Helper()
	e := &end{t: t, dev: dev, events: make(chan connector.Event, 16), requests: make(chan *connector.Request, 1), gone: make(chan error, 1)}
	gid, err := dev.GID(1, 0)
	e.ok(err)
	e.addr = gid.GID.Addr()
	e.c, err = connector.Open(dev, connector.Watcher{Gone: func(err error) { e.gone <- err }, Changed: func() {}})
	e.ok(err)
	return e
}

func (e *end) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) handle(ev connector.Event) { e.events <- ev }

// listen takes requests at a port until the test ends.
func (e *end) listen(ps connector.PortSpace, number uint16) connector.Port {
	e.t.Helper()
	port, err := e.c.Claim(connector.Name{PS: ps, Addr: e.addr, Port: number}, false)
	e.ok(err)
	e.ok(port.Listen(8, func(r *connector.Request) func(connector.Event) {
		e.requests <- r
		return e.handle
	}))
	return port
}

// connect asks the other end's port for a connection.
func (e *end) connect(other *end, typ verbs.QPType, ps connector.PortSpace, number uint16, p connector.Params) connector.Conn {
	e.t.Helper()
	conn, err := e.c.NewConn(connector.Name{PS: ps, Addr: e.addr}, e.handle)
	e.ok(err)
	e.ok(conn.Connect(&connector.Call{Type: typ, Local: netip.AddrPortFrom(e.addr, 40000), Remote: netip.AddrPortFrom(other.addr, number), TOS: testTOS, Params: p}))
	return conn
}

// want takes the next event.
func (e *end) want(kind connector.Kind) connector.Event {
	e.t.Helper()
	ev := <-e.events
	if ev.Kind != kind {
		e.t.Fatalf("got event %d, want %d", ev.Kind, kind)
	}
	return ev
}

// between runs a test with two ends, in which time passes at once.
func between(t *testing.T, f func(t *testing.T, a, b *end)) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := newEnd(t, net.Device()), newEnd(t, net.Device())
		f(t, a, b)
		a.c.Close()
		b.c.Close()
		for _, e := range []*end{a, b} { // the connector has left nothing behind
			e.ok(e.dev.Close())
		}
	})
}

// TestConnection is a connection from the request to the end. The attributes of both QPs must fit
// each other.
func TestConnection(t *testing.T) {
	between(t, func(t *testing.T, a, b *end) {
		port := b.listen(tcp, 7471)
		x := a.connect(b, verbs.QPTypeRC, tcp, 7471, connector.Params{QPN: 0x11, InitiatorDepth: 5, ResponderResources: 3, RetryCount: 2, RNRRetryCount: 1, PrivateData: []byte("hello")})
		if _, _, err := x.QPAttr(verbs.QPTypeRC, verbs.QPStateRTR); !errors.Is(err, connector.ErrNoPeer) {
			t.Errorf("QPAttr before the reply: got error %v, want %v", err, connector.ErrNoPeer)
		}
		r := <-b.requests
		if p := r.Params; r.Type != verbs.QPTypeRC || p.QPN != 0x11 || p.InitiatorDepth != 3 || p.ResponderResources != 5 || p.RetryCount != 2 ||
			len(p.PrivateData) != connector.MaxConnectData || !bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) {
			t.Errorf("request: got %v, %+v, want what a has said, seen from b", r.Type, p)
		}
		if r.Local != netip.AddrPortFrom(b.addr, 7471) || r.Remote != netip.AddrPortFrom(a.addr, 40000) || r.TOS != testTOS {
			t.Errorf("request: got %v to %v, TOS %#x, want port 40000 of %v to port 7471 of %v, TOS %#x", r.Remote, r.Local, r.TOS, a.addr, b.addr, testTOS)
		}
		y := r.Conn
		b.ok(y.Accept(connector.Params{QPN: 0x22, RNRRetryCount: 4}))
		if p := a.want(connector.Replied).Params; p.QPN != 0x22 || p.RNRRetryCount != 4 {
			t.Errorf("reply: got %+v, want QPN 0x22, 4 RNR retries", p)
		}
		attr := func(c connector.Conn, s verbs.QPState) verbs.QPAttr {
			t.Helper()
			attr, mask, err := c.QPAttr(verbs.QPTypeRC, s)
			a.ok(err)
			if mask&verbs.MaskState == 0 || attr.State != s {
				t.Errorf("attributes for %v: got %v, mask %v, want that state", s, attr.State, mask)
			}
			return attr
		}
		xr, xs, yr, ys := attr(x, verbs.QPStateRTR), attr(x, verbs.QPStateRTS), attr(y, verbs.QPStateRTR), attr(y, verbs.QPStateRTS)
		if xr.DestQPN != 0x22 || yr.DestQPN != 0x11 || xr.AH.DGID.Addr() != b.addr || yr.AH.DGID.Addr() != a.addr {
			t.Errorf("got %v at %v and %v at %v, want each other's QPs", xr.DestQPN, xr.AH.DGID, yr.DestQPN, yr.AH.DGID)
		}
		if xs.SQPSN != yr.RQPSN || ys.SQPSN != xr.RQPSN || xr.PathMTU != yr.PathMTU {
			t.Errorf("got PSNs %v>%v, %v<%v, MTUs %v, %v, want each pair equal", xs.SQPSN, yr.RQPSN, xr.RQPSN, ys.SQPSN, xr.PathMTU, yr.PathMTU)
		}
		if xs.RetryCnt != 2 || ys.RetryCnt != 2 || xs.RNRRetry != 4 || ys.RNRRetry != 1 {
			t.Errorf("got retries %d, %d, RNR retries %d, %d, want 2, 2, 4, 1", xs.RetryCnt, ys.RetryCnt, xs.RNRRetry, ys.RNRRetry)
		}
		if xs.Timeout != 15 || ys.Timeout != 15 { // the devices' delay of acknowledgements (local_ca_ack_delay) counts
			t.Errorf("got timeouts %d and %d, want 15 twice", xs.Timeout, ys.Timeout)
		}
		a.ok(x.Ready(nil))
		b.want(connector.Established)
		b.ok(y.Disconnect())
		a.want(connector.Disconnected)
		b.want(connector.Disconnected)
		a.ok(x.Disconnect()) // the peer was first
		if err := x.Ready(nil); !errors.Is(err, connector.ErrState) {
			t.Errorf("Ready after the end: got error %v, want %v", err, connector.ErrState)
		}
		a.want(connector.TimewaitExit)
		b.want(connector.TimewaitExit)
		x.Close()
		y.Close()
		port.Release()
	})
}

// TestRefusals has nobody at the port, then somebody who says no, then one who takes no more
// requests.
func TestRefusals(t *testing.T) {
	between(t, func(t *testing.T, a, b *end) {
		refused := func(reason uint16) connector.Event {
			t.Helper()
			ev := a.want(connector.Rejected)
			if ev.Reason != reason {
				t.Errorf("rejected: got reason %d, want %d", ev.Reason, reason)
			}
			return ev
		}
		a.connect(b, verbs.QPTypeRC, tcp, 7471, connector.Params{QPN: 1}).Close() // which takes it back
		a.connect(b, verbs.QPTypeRC, tcp, 7471, connector.Params{QPN: 2})
		refused(8) // invalid service ID
		port := b.listen(tcp, 7471)
		a.connect(b, verbs.QPTypeRC, tcp, 7471, connector.Params{QPN: 3})
		b.ok((<-b.requests).Conn.Reject([]byte("no")))
		if ev := refused(28); !bytes.HasPrefix(ev.Params.PrivateData, []byte("no\x00")) { // consumer defined
			t.Errorf("rejected: got private data %q, want no", ev.Params.PrivateData)
		}
		a.connect(b, verbs.QPTypeUC, tcp, 7471, connector.Params{QPN: 4})
		refused(9) // invalid transport, before anybody is asked
		port.Release()

		closing, err := b.c.Claim(connector.Name{PS: tcp, Addr: b.addr, Port: 7471}, false)
		b.ok(err)
		b.ok(closing.Listen(8, func(*connector.Request) func(connector.Event) { return nil }))
		a.connect(b, verbs.QPTypeRC, tcp, 7471, connector.Params{QPN: 5})
		refused(28)
		closing.Release()
	})
}

// TestLookUp finds the QP of a UD service, over IPv4 and over IPv6, and is refused another time.
func TestLookUp(t *testing.T) {
	for index := range 2 {
		between(t, func(t *testing.T, a, b *end) {
			for _, e := range []*end{a, b} {
				gid, err := e.dev.GID(1, index)
				e.ok(err)
				e.addr = gid.GID.Addr()
			}
			lookUp(t, a, b)
		})
	}
}

func lookUp(t *testing.T, a, b *end) {
	port := b.listen(udp, 7471)
	a.connect(b, verbs.QPTypeUD, udp, 7471, connector.Params{PrivateData: []byte("who")})
	r := <-b.requests
	if r.Type != verbs.QPTypeUD || r.TOS != testTOS || len(r.Params.PrivateData) != connector.MaxLookUpData || !bytes.HasPrefix(r.Params.PrivateData, []byte("who\x00")) {
		t.Errorf("request from %v: got %v, TOS %#x, with private data %q, want UD, TOS %#x, with who", a.addr, r.Type, r.TOS, r.Params.PrivateData, testTOS)
	}
	b.ok(r.Conn.Accept(connector.Params{QPN: 0x33, PrivateData: []byte("me")}))
	if p := a.want(connector.Found).Peer; p.QPN != 0x33 || p.QKey != connector.UDQKey || p.AH.DGID.Addr() != b.addr || p.AH.TrafficClass != testTOS || !bytes.HasPrefix(p.PrivateData, []byte("me\x00")) {
		t.Errorf("found: got %+v, want QPN 0x33 at %v, Q_Key %#x, traffic class %#x and me", p, b.addr, connector.UDQKey, testTOS)
	}
	a.connect(b, verbs.QPTypeUD, udp, 7471, connector.Params{})
	b.ok((<-b.requests).Conn.Reject(nil))
	if ev := a.want(connector.NotFound); ev.Reason != 2 { // rejected
		t.Errorf("not found: got status %d, want 2", ev.Reason)
	}
	port.Release()
}

// TestClaim checks that a port has one owner, until it is released.
func TestClaim(t *testing.T) {
	between(t, func(t *testing.T, a, _ *end) {
		port, err := a.c.Claim(connector.Name{PS: tcp, Addr: a.addr, Port: 7471}, false)
		a.ok(err)
		if _, err := a.c.Claim(connector.Name{PS: tcp, Addr: a.addr, Port: 7471}, false); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second claim: got error %v, want %v", err, syscall.EADDRINUSE)
		}
		if _, err := a.c.Claim(connector.Name{PS: tcp, Addr: netip.MustParseAddr("192.0.2.7"), Port: 7471}, false); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("a claim at another host's address: got error %v, want %v", err, syscall.ENODEV)
		}
		port.Release()
		port, err = a.c.Claim(connector.Name{PS: tcp, Addr: a.addr, Port: 7471}, false)
		a.ok(err)
		port.Release()
	})
}

// TestGone checks that the failure of a device is reported.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, rdmatest.New(t).Device())
		e.dev.Provider().Close()
		if err := <-e.gone; err == nil {
			t.Error("gone: got no error, want one")
		}
		e.c.Close()
	})
}
