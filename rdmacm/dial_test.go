package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestConnection makes a connection, sends each way, reads, and ends it.
func TestConnection(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		p := newPair(t)
		l := p.listen(t, addr(t, p.b, ipv6, 0))
		var in, back *verbs.MR
		done := accept(t, l, &rdmacm.Config{PrivateData: []byte("welcome"), Setup: inbox(&in, 64)})
		x, err := p.dial(t, l.Addr(), &rdmacm.Config{PrivateData: []byte("hello"), Setup: inbox(&back, 64)})
		if err != nil {
			t.Fatal(err)
		}
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		y := got.conn
		if d := x.PrivateData(); len(d) != rdmacm.MaxAcceptData || string(bytes.TrimRight(d, "\x00")) != "welcome" {
			t.Errorf("the dialer: got private data %q, want welcome in %d bytes", d, rdmacm.MaxAcceptData)
		}
		if d := got.req.PrivateData(); len(d) != rdmacm.MaxConnectData || string(bytes.TrimRight(d, "\x00")) != "hello" {
			t.Errorf("the listener: got private data %q, want hello in %d bytes", d, rdmacm.MaxConnectData)
		}
		if x.LocalAddr() != y.RemoteAddr() || x.RemoteAddr() != y.LocalAddr() || x.RemoteAddr() != l.Addr() {
			t.Errorf("got addresses %v->%v and %v->%v, want each other's, and the listener's %v", x.LocalAddr(), x.RemoteAddr(), y.LocalAddr(), y.RemoteAddr(), l.Addr())
		}
		copy(back.Bytes()[32:], "from the dialer")
		if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{back.SGE(32, 15)}}}); err != nil {
			t.Fatal(err)
		}
		if wc := wait(t, y.RecvCQ()); string(in.Bytes()[:wc.ByteLen]) != "from the dialer" {
			t.Errorf("received: got %q, want from the dialer", in.Bytes()[:wc.ByteLen])
		}
		wait(t, x.SendCQ())
		if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{back.SGE(0, 15)}, Remote: in.Remote(0)}}); err != nil {
			t.Fatal(err)
		}
		wait(t, x.SendCQ())
		if s := string(back.Bytes()[:15]); s != "from the dialer" {
			t.Errorf("read: got %q, want from the dialer", s)
		}
		if err := x.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*rdmacm.Conn{x, y} {
			select {
			case <-c.Disconnected():
			case <-patience(t).Done():
				t.Fatal("Disconnected: got no word of the disconnect, want one at each end")
			}
			if s := c.QP().State(); s != verbs.QPStateErr {
				t.Errorf("the QP is in %v after the end, want QPS_ERR", s)
			}
		}
		for _, c := range []interface{ Close() error }{in, back, x, y, l} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, d := range []*verbs.Device{p.a, p.b} { // nothing of ours is left
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestNegotiation checks the QPs' attributes against the parameters of the two ends.
func TestNegotiation(t *testing.T) {
	p := newPair(t)
	x, y := p.connect(t,
		&rdmacm.Config{Param: &rdmacm.ConnParam{ResponderResources: 3, InitiatorDepth: 5, RetryCount: 2, RNRRetryCount: 1}},
		&rdmacm.Config{Param: &rdmacm.ConnParam{ResponderResources: rdmacm.MaxResources, InitiatorDepth: rdmacm.MaxResources, RetryCount: 6, RNRRetryCount: 4}})
	query := func(c *rdmacm.Conn) verbs.QPAttr {
		a, _, err := c.QP().Query()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, b := query(x), query(y)
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %d, want %d", what, got, want)
		}
	}
	check("dialer's MaxRDAtomic", a.MaxRDAtomic, 5)
	check("dialer's MaxDestRDAtomic", a.MaxDestRDAtomic, 3)
	check("listener's MaxRDAtomic", b.MaxRDAtomic, 3)
	check("listener's MaxDestRDAtomic", b.MaxDestRDAtomic, 5)
	check("dialer's RetryCnt", int(a.RetryCnt), 2)
	check("listener's RetryCnt", int(b.RetryCnt), 2)
	check("dialer's RNRRetry", int(a.RNRRetry), 4)
	check("listener's RNRRetry", int(b.RNRRetry), 1)
	check("path MTU", a.PathMTU.Bytes(), b.PathMTU.Bytes())
	less, _ := p.connect(t,
		&rdmacm.Config{Param: &rdmacm.ConnParam{ResponderResources: 3, InitiatorDepth: 5}},
		&rdmacm.Config{Param: &rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 1}})
	check("MaxRDAtomic of a dialer whose listener answers fewer READs", query(less).MaxRDAtomic, 2)
	check("MaxDestRDAtomic of a dialer whose listener makes fewer READs", query(less).MaxDestRDAtomic, 1)
	if a.SQPSN != b.RQPSN || a.RQPSN != b.SQPSN {
		t.Errorf("PSNs: got %v>%v, %v<%v, want the same ones at both ends", a.SQPSN, b.RQPSN, a.RQPSN, b.SQPSN)
	}
	if a.DestQPN != y.QP().QPN() || b.DestQPN != x.QP().QPN() {
		t.Errorf("destination QPs: got %v and %v, want %v and %v", a.DestQPN, b.DestQPN, y.QP().QPN(), x.QP().QPN())
	}
	if got := y.Param(); got.InitiatorDepth != 3 || got.ResponderResources != 5 || got.RetryCount != 2 {
		t.Errorf("the listener: got %+v, want initiator depth 3, responder resources 5, 2 retries", got)
	}
}

// TestDialTOS checks that the dialer's type of service is that of both ends' packets.
func TestDialTOS(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	done := accept(t, l, nil)
	x, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}, TOS: 0x20}).Dial(patience(t), l.Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	defer got.conn.Close()
	for i, c := range []*rdmacm.Conn{x, got.conn} {
		if attr, _, err := c.QP().Query(); err != nil || attr.AH.TrafficClass != 0x20 {
			t.Errorf("end %d: got traffic class %#x, error %v, want 0x20", i, attr.AH.TrafficClass, err)
		}
	}
}

// TestSourceScope checks that a global address is reached from a global one, though the device has a link-local one too.
func TestSourceScope(t *testing.T) {
	local, global := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("2001:db8::1")
	d, err := hca.Open(sim.New(sim.Config{}).Netdev("sim0", local, global), hca.Config{Name: "sim0"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := newScript(t, verbs.NewDevice(d))
	for _, c := range []struct {
		to   string
		want netip.Addr
	}{{"2001:db8::2", global}, {"fe80::2", local}} {
		id := s.id(rdmacm.PortSpaceTCP)
		s.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(c.to), 7471)))
		s.next(rdmacm.EventAddrResolved)
		if got := id.LocalAddr().Addr(); got != c.want {
			t.Errorf("to %s: got local address %v, want %v", c.to, got, c.want)
		}
		s.ok(id.Close())
	}
}

// TestThisHost: an unspecified address stands for this host, by the IP version that its devices have, or that the source
// has.
func TestThisHost(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		has      []netip.Addr
		src, dst string
		want     netip.Addr
	}{
		{[]netip.Addr{v4, v6}, "", "0.0.0.0:7", v4}, {[]netip.Addr{v4, v6}, "", "[::]:7", v6},
		{[]netip.Addr{v4}, "", "[::]:7", v4}, {[]netip.Addr{v6}, "", "0.0.0.0:7", v6},
		{[]netip.Addr{v4, v6}, "10.0.0.1:0", "[::]:7", v4}, {[]netip.Addr{v4, v6}, "[fd00::1]:0", "0.0.0.0:7", v6},
		{[]netip.Addr{v4}, "[::]:7100", "[::]:7", v4},
	} {
		d, err := hca.Open(sim.New(sim.Config{}).Netdev("sim0", c.has...), hca.Config{Name: "sim0"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		s := newScript(t, verbs.NewDevice(d))
		id := s.id(rdmacm.PortSpaceTCP)
		src, _ := netip.ParseAddrPort(c.src)
		s.ok(id.ResolveAddr(src, netip.MustParseAddrPort(c.dst)))
		s.next(rdmacm.EventAddrResolved)
		if got := id.RemoteAddr(); got != netip.AddrPortFrom(c.want, 7) {
			t.Errorf("%s from %q on a host with %v: got %v, want %v", c.dst, c.src, c.has, got, c.want)
		}
		s.ok(id.Close())
	}
}

func TestRefused(t *testing.T) {
	p := newPair(t)
	p.listen(t, addr(t, p.b, false, 7000)) // so that somebody answers at all
	_, err := p.dial(t, addr(t, p.b, false, 7471), nil)
	if !errors.Is(err, rdmacm.ErrRefused) || !strings.Contains(err.Error(), "connection refused: no listener for port 7471") {
		t.Errorf("dialing a port without listener: got error %v, want %v with %q in it", err, rdmacm.ErrRefused, "connection refused: no listener for port 7471")
	}
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || rej.Reason != rdmacm.RejectInvalidServiceID {
		t.Errorf("the error: got %#v, want a RejectError with reason %v", err, rdmacm.RejectInvalidServiceID)
	}
}

func TestRejected(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	go func() {
		if r, err := l.Accept(patience(t)); err == nil {
			r.Reject([]byte("not today"))
		}
	}()
	_, err := p.dial(t, l.Addr(), nil)
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || rej.Reason != rdmacm.RejectConsumerDefined || !bytes.HasPrefix(rej.PrivateData, []byte("not today\x00")) || len(rej.PrivateData) != rdmacm.MaxRejectData {
		t.Errorf("the dialer: got error %v, want reason %v and not today in %d bytes", err, rdmacm.RejectConsumerDefined, rdmacm.MaxRejectData)
	}
}

// TestListenerClosed closes a listener. A connection that Accept has returned goes on, and a later
// dialer is refused.
func TestListenerClosed(t *testing.T) {
	p := newPair(t)
	p.listen(t, addr(t, p.b, false, 0)) // so that somebody answers once l is closed
	l := p.listen(t, addr(t, p.b, false, 0))
	done := make(chan error, 1)
	go func() {
		_, err := p.dial(t, l.Addr(), &rdmacm.Config{Setup: func(*rdmacm.Conn) error { return nil }})
		done <- err
	}()
	// Once Accept has returned the request, it belongs to the program.
	r, err := l.Accept(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(patience(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Accept after Close: got error %v, want %v", err, verbs.ErrClosed)
	}
	conn, err := r.Accept(patience(t), nil) // the connection that Accept has returned goes on
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	conn.Close()
	if _, err := p.dial(t, l.Addr(), nil); !errors.Is(err, rdmacm.ErrRefused) {
		t.Errorf("dialing a closed listener: got error %v, want %v", err, rdmacm.ErrRefused)
	}
}

// TestAnsweredOnce: a request is answered once. A later answer, such as a deferred Reject or an Accept that is tried
// again, is refused, and does not harm the connection.
func TestAnsweredOnce(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	done := accept(t, l, nil)
	c, err := p.dial(t, l.Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := <-done
	if a.err != nil {
		t.Fatal(a.err)
	}
	t.Cleanup(func() { a.conn.Close() })
	if _, err := a.req.Accept(patience(t), nil); !errors.Is(err, verbs.ErrState) {
		t.Errorf("Accept after Accept: got error %v, want %v", err, verbs.ErrState)
	}
	if err := a.req.Reject(nil); !errors.Is(err, verbs.ErrState) {
		t.Errorf("Reject after Accept: got error %v, want %v", err, verbs.ErrState)
	}
	sendText(t, a.conn, c, "still there")
}

func TestDialCancelled(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("changed my mind")
	requests := make(chan *rdmacm.Request, 1)
	go func() {
		r, err := l.Accept(patience(t)) // and never answer
		if err != nil {
			t.Error(err)
		}
		requests <- r
		cancel(why)
	}()
	_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(ctx, l.Addr(), nil)
	if !errors.Is(err, why) {
		t.Errorf("Dial: got error %v, want %v", err, why)
	}
	if err := p.a.Close(); err != nil { // nothing is left of the attempt
		t.Error(err)
	}
	if r := <-requests; r != nil {
		r.Reject(nil) // an error by now, but it frees the request's resources
	}
}

func TestSetupFails(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	why := errors.New("no memory")
	fails := &rdmacm.Config{Setup: func(*rdmacm.Conn) error { return why }}
	if _, err := p.dial(t, l.Addr(), fails); !errors.Is(err, why) {
		t.Errorf("Dial: got error %v, want %v", err, why)
	}
	done := accept(t, l, fails)
	_, err := p.dial(t, l.Addr(), nil)
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || rej.Reason != rdmacm.RejectConsumerDefined {
		t.Errorf("Dial: got error %v, want reason %v", err, rdmacm.RejectConsumerDefined)
	}
	if got := <-done; !errors.Is(got.err, why) {
		t.Errorf("Accept: got error %v, want %v", got.err, why)
	}
}

// TestDefaultPDStays checks that memory stays usable after the connection that it was registered for.
func TestDefaultPDStays(t *testing.T) {
	p := newPair(t)
	at := addr(t, p.b, false, 7471)
	l := p.listen(t, at)
	var mr *verbs.MR
	for i := range 3 {
		done := accept(t, l, nil)
		conn, err := p.dial(t, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if mr == nil {
			if mr, err = conn.PD().AllocMR(64, verbs.AccessLocalWrite); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := conn.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}}); err != nil {
			t.Errorf("connection %d, a receive in the same memory: got error %v, want none", i, err)
		}
		if conn.PD() != mr.PD() {
			t.Errorf("connection %d: got another default PD, want that of the first", i)
		}
		(<-done).conn.Close()
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

func TestListenTwice(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 7471))
	for _, at := range []string{l.Addr().String(), "0.0.0.0:7471", "[::]:7471"} {
		_, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(netip.MustParseAddrPort(at))
		if !errors.Is(err, rdmacm.ErrAddrInUse) || !strings.Contains(err.Error(), "address in use") {
			t.Errorf("listening on %s as well: got error %v, want %v with %q in it", at, err, rdmacm.ErrAddrInUse, "address in use")
		}
	}
	p.listen(t, addr(t, p.b, true, 7471)) // which is another address
	l.Close()
	p.listen(t, addr(t, p.b, false, 7471))
}

// TestWildcard checks that a listener on all addresses takes requests to any of them.
func TestWildcard(t *testing.T) {
	for _, c := range []struct {
		at   string
		ipv6 []bool
	}{{"0.0.0.0:0", []bool{false}}, {"[::]:0", []bool{false, true}}} {
		p := newPair(t)
		l := p.listen(t, netip.MustParseAddrPort(c.at))
		for _, ipv6 := range c.ipv6 {
			done := accept(t, l, nil)
			if _, err := p.dial(t, addr(t, p.b, ipv6, l.Addr().Port()), nil); err != nil {
				t.Errorf("listening on %s, dialing: got error %v, want none", c.at, err)
			}
			got := <-done
			if got.err != nil {
				t.Fatal(got.err)
			}
			got.conn.Close()
		}
	}
}

func TestNoDevice(t *testing.T) {
	p := newPair(t)
	_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}, LocalAddr: netip.MustParseAddrPort("192.0.2.7:0")}).Dial(patience(t), addr(t, p.b, false, 1), nil)
	if !errors.Is(err, rdmacm.ErrNoDevice) || !strings.Contains(err.Error(), "192.0.2.7") {
		t.Errorf("dialing from an address that no device has: got error %v, want %v with %q in it", err, rdmacm.ErrNoDevice, "192.0.2.7")
	}
	_, err = (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(netip.MustParseAddrPort("192.0.2.7:7471"))
	if !errors.Is(err, rdmacm.ErrNoDevice) {
		t.Errorf("listening there: got error %v, want %v", err, rdmacm.ErrNoDevice)
	}
}

// TestUC connects UC QPs.
func TestUC(t *testing.T) {
	p := newPair(t)
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}, UC: true}).Listen(addr(t, p.b, false, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var in *verbs.MR
	done := accept(t, l, &rdmacm.Config{Setup: inbox(&in, 64)})
	config := &rdmacm.Config{QP: verbs.QPInitAttr{Type: verbs.QPTypeUC, Cap: smallQP.Cap}}
	x, err := p.dial(t, l.Addr(), config)
	if err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	defer got.conn.Close()
	if y := got.conn; y.QP().Type() != verbs.QPTypeUC {
		t.Fatalf("the listener's QP: got %v, want %v", y.QP().Type(), verbs.QPTypeUC)
	}
	if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("hi")}}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, got.conn.RecvCQ()); string(in.Bytes()[:wc.ByteLen]) != "hi" {
		t.Errorf("received: got %q, want hi", in.Bytes()[:wc.ByteLen])
	}
}

// TestOneDevice connects two QPs of one device.
func TestOneDevice(t *testing.T) {
	d := rdmatest.New(t).Device()
	p := pair{a: d, b: d}
	p.connect(t, nil, nil)
}
