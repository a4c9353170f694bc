package soft_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// rnics returns the names of two devices that speak iWARP over loopback.
func rnics(t testing.TB, a, b int) (string, string) {
	t.Helper()
	lo := loopback(t)[len("soft_"):]
	return "iw_" + lo + "@" + loopAddr(a), "iw_" + lo + "@" + loopAddr(b)
}

// lacking are the capabilities that an RNIC lacks: it has RC QPs alone, which the connection manager connects, over a
// stream of TCP.
const lacking = verbstest.UC | verbstest.UD | verbstest.Multicast | verbstest.ByHand | verbstest.LastWordLast | verbstest.DatagramLimit |
	verbstest.Acknowledged | verbstest.SendImm | verbstest.RNR | verbstest.SQD |
	verbstest.AtomicWrites | verbstest.FlushGlobal | verbstest.FlushPersistent | verbstest.XRC

// TestConformanceIWARP runs the suite of package verbstest over TCP.
func TestConformanceIWARP(t *testing.T) {
	a, b := rnics(t, 41, 42)
	c := suite(a, b)
	c.Require = required() &^ lacking
	played := 0
	for _, cs := range verbstest.Cases() {
		script := cs.A
		cs.A = func(s *verbstest.Side) {
			if script != nil {
				script(s)
			}
			played++ // a script that is skipped does not come here
		}
		c.Cases = append(c.Cases, cs)
	}
	verbstest.Run(t, c)
	if least := 85; played < least && !t.Failed() {
		t.Errorf("%d of %d cases were played, want %d at least: QPs are connected by the connection manager", played, len(c.Cases), least)
	}
}

// iwarpPair connects two devices by rdmacm. Each end has a receive of n bytes posted.
func iwarpPair(t testing.TB, n int, setup func(*rdmacm.Config)) (x, y *rdmacm.Conn, mx, my *verbs.MR) {
	t.Helper()
	ctx := t.Context()
	na, nb := rnics(t, 43, 44)
	var devs [2]*verbs.Device
	for i, name := range []string{na, nb} {
		d, err := verbs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devs[i] = d
	}
	config := func(mr **verbs.MR) *rdmacm.Config {
		c := &rdmacm.Config{QP: verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}}
		c.Setup = func(c *rdmacm.Conn) error {
			m, err := c.QP().PD().AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
			if err != nil {
				return err
			}
			*mr = m
			t.Cleanup(func() { m.Close() })
			_, err = c.QP().PostRecv([]verbs.RecvWR{{ID: 1, SGList: []verbs.SGE{m.SGE(0, n)}}})
			return err
		}
		if setup != nil {
			setup(c)
		}
		return c
	}
	l, err := (&rdmacm.ListenConfig{Devices: devs[1:]}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(44)), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			y, err = req.Accept(ctx, config(&my))
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Devices: []*verbs.Device{devs[0]}}
	x, err = d.Dial(ctx, l.Addr(), config(&mx))
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close(); y.Close() })
	return x, y, mx, my
}

// wait waits for a completion.
func wait(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	if _, err := cq.Wait(t.Context(), wcs[:]); err != nil {
		t.Fatal(err)
	}
	return wcs[0]
}

// TestIWARPLarge moves more than the buffers of a socket take, each way at the same time.
func TestIWARPLarge(t *testing.T) {
	const n = 8 << 20
	x, y, mx, my := iwarpPair(t, n, nil)
	for i := range mx.Bytes()[:n/2] {
		mx.Bytes()[i], my.Bytes()[i] = byte(i*3), byte(i*5)
	}
	want := [2][]byte{bytes.Clone(my.Bytes()[:n/2]), bytes.Clone(mx.Bytes()[:n/2])}
	for _, e := range []struct {
		c        *rdmacm.Conn
		own, far *verbs.MR
	}{{x, mx, my}, {y, my, mx}} {
		if _, err := e.c.QP().PostSend([]verbs.SendWR{
			{ID: 1, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{e.own.SGE(0, n/2)}, Remote: e.far.Remote(n / 2)},
			{ID: 2, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.own.SGE(0, 0)}, Remote: e.far.Remote(0)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range []struct {
		c   *rdmacm.Conn
		own *verbs.MR
	}{{x, mx}, {y, my}} {
		// The answer to the peer's READ comes behind its WRITE, and ours says that the peer has our WRITE.
		if wc := wait(t, e.c.QP().SendCQ()); wc.Err() != nil || wc.ID != 2 {
			t.Fatalf("end %d: %+v, %v, want the completion of 2", i, wc, wc.Err())
		}
	}
	for i, got := range []*verbs.MR{mx, my} {
		if !bytes.Equal(got.Bytes()[n/2:], want[i]) {
			t.Errorf("end %d has other bytes than were written to it, want the same", i)
		}
	}
}

// TestIWARPFailure checks that both ends hear why a connection has ended.
func TestIWARPFailure(t *testing.T) {
	x, y, mx, my := iwarpPair(t, 64, nil)
	to := my.Remote(0)
	to.RKey ^= 0xff00
	if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mx.SGE(0, 8)}, Remote: to}}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, x.QP().SendCQ()); wc.Err() != nil {
		t.Errorf("the WRITE: %v, and iWARP's are complete when they are sent", wc.Err())
	}
	<-x.Disconnected()
	<-y.Disconnected()
	if err := x.QP().Err(); !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("the end that wrote: %v, want %v", err, verbs.WCRemAccessErr)
	}
	if err := y.QP().Err(); err == nil {
		t.Error("the end that was written to has no error")
	}
	if wc := wait(t, y.QP().RecvCQ()); wc.Status != verbs.WCFlushErr {
		t.Errorf("the receive: %v, want it flushed", wc.Status)
	}
}

// TestIWARPListenerStays connects from an end whose port is by chance that of a listener on the same address,
// and from one with a port of its own: the listener stays, and the peer sees the port.
func TestIWARPListenerStays(t *testing.T) {
	name, _ := rnics(t, 48, 49)
	d, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := connector.Open(d, connector.Watcher{Gone: func(error) {}, Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	addr := netip.MustParseAddr(loopAddr(48))
	l, at := claim(t, c, addr)
	defer l.Release()
	own, from := claim(t, c, addr)
	defer own.Release()
	peers := make(chan netip.AddrPort, 2)
	if err := l.Listen(8, func(r *connector.Request) func(connector.Event) { peers <- r.Remote; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, call := range []connector.Call{{Local: at}, {Local: from, Bound: true}} {
		call.Type, call.Remote = verbs.QPTypeRC, at
		events := make(chan connector.Event, 1)
		conn, err := c.NewConn(connector.Name{PS: tcp, Addr: addr}, func(ev connector.Event) { events <- ev })
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Connect(&call); err != nil {
			t.Fatal(err)
		}
		if ev := <-events; ev.Kind != connector.Rejected || ev.Reason != 28 { // consumer defined
			t.Fatalf("a call from %v: event %v, reason %d, %v; want the listener's no", call.Local, ev.Kind, ev.Reason, ev.Err)
		}
		if got := <-peers; got == at || call.Bound && got != from {
			t.Errorf("a call from %v, bound %v: the listener sees %v, want another than %v, and the bound one of a call that is bound", call.Local, call.Bound, got, at)
		}
		conn.Close()
	}
}

// TestIWARPBurst has many more peers ask at once than a backlog has places for, while the program looks elsewhere. All are
// served then, as over RoCE. Those beyond the backlog were refused in the name of the program.
func TestIWARPBurst(t *testing.T) {
	const backlog, n = 4, 64
	name, _ := rnics(t, 50, 51)
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}, Backlog: backlog}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(50)), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := &rdmacm.Config{QP: verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}}
	dialed := make(chan error, n)
	for range n {
		go func() {
			c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(t.Context(), l.Addr(), config)
			if err == nil {
				defer c.Close()
			}
			dialed <- err
		}()
	}
	for asked := 0; asked < n; runtime.Gosched() { // until all have asked
		select {
		case err := <-dialed:
			t.Fatalf("a peer hears %v before the program has answered", err)
		default:
		}
		r, err := dev.Resources()
		if err != nil {
			t.Fatal(err)
		}
		asked = 0
		for _, id := range r.CMID {
			if id.State == "CONN_RECV" {
				asked++
			}
		}
	}
	for range n {
		req, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := req.Accept(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range n {
		if err := <-dialed; err != nil {
			t.Error(err)
		}
	}
}

// tcp is the port space of connections.
const tcp connector.PortSpace = 0x0106

// claim claims a port that is free.
func claim(t *testing.T, c connector.Connector, addr netip.Addr) (connector.Port, netip.AddrPort) {
	t.Helper()
	const first, last = 20000, 29999
	for port := uint16(first); ; port++ {
		p, err := c.Claim(connector.Name{PS: tcp, Addr: addr, Port: port}, false)
		if err == nil {
			return p, netip.AddrPortFrom(addr, port)
		}
		if port == last {
			t.Fatalf("no port from %d to %d can be claimed, want one: %v", first, last, err)
		}
	}
}

// TestIWARPPorts makes a connection from a port that somebody has. Both ends list the one that TCP has found instead.
func TestIWARPPorts(t *testing.T) {
	name, _ := rnics(t, 7, 8)
	d, err := verbs.Open(name)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	defer func() { must(d.Close()) }() // nothing of ours is left
	c, err := connector.Open(d, connector.Watcher{Gone: func(error) {}, Changed: func() {}})
	must(err)
	defer c.Close()
	l, at := claim(t, c, netip.MustParseAddr(loopAddr(7)))
	defer l.Release()
	events, requests := make(chan connector.Event, 4), make(chan *connector.Request, 1)
	handle := func(ev connector.Event) { events <- ev }
	must(l.Listen(8, func(r *connector.Request) func(connector.Event) { requests <- r; return handle }))
	pd, err := d.AllocPD()
	must(err)
	defer pd.Close()
	cq, err := d.CreateCQ(8)
	must(err)
	defer cq.Close()
	var qps [2]*verbs.QP
	for i := range qps {
		qps[i], err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
		must(err)
		defer qps[i].Close()
		must(qps[i].Init(1, 0))
	}
	x, err := c.NewConn(connector.Name{PS: tcp, Addr: at.Addr()}, handle)
	must(err)
	defer x.Close()
	must(x.Connect(&connector.Call{Type: verbs.QPTypeRC, Local: at, Remote: at, Params: connector.Params{QPN: qps[0].QPN()}}))
	y := (<-requests).Conn
	defer y.Close()
	must(y.Accept(connector.Params{QPN: qps[1].QPN()}))
	for range qps {
		if ev := <-events; ev.Kind != connector.Established {
			t.Fatalf("got event %v, %v, want %v", ev.Kind, ev.Err, connector.Established)
		}
	}
	r, err := d.Resources()
	must(err)
	of := map[verbs.QPN]verbs.CMID{}
	for _, id := range r.CMID {
		of[id.QPN] = id
	}
	a, b := of[qps[0].QPN()], of[qps[1].QPN()]
	if a.Local != b.Remote || a.Remote != b.Local || b.Local != at || a.Local == at {
		t.Errorf("listed are %v->%v and %v->%v, want each other's addresses, of the accepting end %v and of the other another", a.Local, a.Remote, b.Local, b.Remote, at)
	}
}

// TestIWARPLacks checks the errors of features that iWARP does not have.
func TestIWARPLacks(t *testing.T) {
	x, _, mx, _ := iwarpPair(t, 64, nil)
	if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSendWithImm, SGList: []verbs.SGE{mx.SGE(0, 8)}}}); !errors.Is(err, verbs.ErrUnsupported) {
		t.Errorf("a SEND with immediate data: %v, want %v", err, verbs.ErrUnsupported)
	}
	name, _ := rnics(t, 45, 46)
	d, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ch := rdmacm.NewEventChannel(d)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(45)), 0)); !errors.Is(err, verbs.ErrUnsupported) {
		t.Errorf("a port of datagrams: %v, want %v", err, verbs.ErrUnsupported)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{d}}).Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(loopAddr(45)), 9), nil); err == nil {
		t.Error("a dial whose context has ended: no error")
	}
}
