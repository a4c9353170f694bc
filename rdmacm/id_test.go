package rdmacm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestScript is a connection from the first call to the last event, at both ends.
func TestScript(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))

	x := a.id(rdmacm.PortSpaceTCP)
	a.ok(x.ResolveAddr(netip.AddrPort{}, l.LocalAddr()))
	a.next(rdmacm.EventAddrResolved)
	if x.Device() != p.a || x.LocalAddr().Addr() != addr(t, p.a, false, 0).Addr() || x.LocalAddr().Port() == 0 {
		t.Errorf("resolved: got %v on %p, want a port of %v on %p", x.LocalAddr(), x.Device(), addr(t, p.a, false, 0).Addr(), p.a)
	}
	a.ok(x.ResolveRoute())
	a.next(rdmacm.EventRouteResolved)
	a.ok(x.CreateQP(nil, smallQP))
	if s := x.QP().State(); s != verbs.QPStateInit {
		t.Errorf("after CreateQP: got the QP in %v, want %v", s, verbs.QPStateInit)
	}
	a.ok(x.Connect(&rdmacm.ConnParam{PrivateData: []byte("ping"), ResponderResources: 1, InitiatorDepth: 2, FlowControl: true, RetryCount: 7, RNRRetryCount: 7}))

	ev := b.next(rdmacm.EventConnectRequest)
	y := ev.ID
	if ev.ListenID != l || y == l || y.PortSpace() != rdmacm.PortSpaceTCP {
		t.Errorf("request: got ID %p of listener %p in %v, want a new ID of listener %p in %v", y, ev.ListenID, y.PortSpace(), l, rdmacm.PortSpaceTCP)
	}
	if got := ev.Param; got.InitiatorDepth != 1 || got.ResponderResources != 2 || !got.FlowControl || got.QPN != x.QP().QPN() || got.SRQ {
		t.Errorf("request: got %+v, want initiator depth 1, responder resources 2, flow control, QP %v, no SRQ", got, x.QP().QPN())
	}
	if !bytes.Equal(bytes.TrimRight(ev.Param.PrivateData, "\x00"), []byte("ping")) || len(ev.Param.PrivateData) != rdmacm.MaxConnectData {
		t.Errorf("request: got private data %q, want ping in %d bytes", ev.Param.PrivateData, rdmacm.MaxConnectData)
	}
	if y.LocalAddr() != l.LocalAddr() || y.RemoteAddr() != x.LocalAddr() {
		t.Errorf("the new ID: got %v and %v, want %v and %v", y.LocalAddr(), y.RemoteAddr(), l.LocalAddr(), x.LocalAddr())
	}
	b.ok(y.CreateQP(nil, smallQP))
	b.ok(y.Accept(&rdmacm.ConnParam{PrivateData: []byte("pong"), ResponderResources: 2, InitiatorDepth: 1, RNRRetryCount: 3}))

	ev = a.next(rdmacm.EventEstablished)
	if ev.ID != x || ev.Param.QPN != y.QP().QPN() || ev.Param.RNRRetryCount != 3 || !bytes.HasPrefix(ev.Param.PrivateData, []byte("pong\x00")) {
		t.Errorf("established: got %+v, want QP %v, 3 RNR retries and pong", ev, y.QP().QPN())
	}
	if ev = b.next(rdmacm.EventEstablished); ev.ID != y {
		t.Errorf("established: got ID %p, want %p", ev.ID, y)
	}
	for _, id := range []*rdmacm.ID{x, y} {
		if s := id.QP().State(); s != verbs.QPStateRTS {
			t.Errorf("established: got a QP in %v, want %v", s, verbs.QPStateRTS)
		}
	}
	b.ok(y.Disconnect())
	a.next(rdmacm.EventDisconnected)
	b.next(rdmacm.EventDisconnected)
	a.ok(x.Disconnect()) // as programs do on the event
	a.next(rdmacm.EventTimewaitExit)
	b.next(rdmacm.EventTimewaitExit)
	a.quiet()
	b.quiet()
	for _, id := range []*rdmacm.ID{x, y, l} {
		a.ok(id.Close())
		a.ok(id.Close())
	}
	a.ok(a.ch.Close())
	b.ok(b.ch.Close())
	a.ok(p.a.Close())
	b.ok(p.b.Close())
}

// TestCrossingDisconnects has both ends disconnect at the same time.
func TestCrossingDisconnects(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
	for range 20 {
		x, y := connected(a, b, l.LocalAddr())
		done := make(chan error)
		go func() { done <- x.Disconnect() }()
		b.ok(y.Disconnect())
		a.ok(<-done)
		a.next(rdmacm.EventDisconnected)
		b.next(rdmacm.EventDisconnected)
		x.Close()
		y.Close()
	}
	a.quiet()
	b.quiet()
}

// TestExternalQP connects QPs that the program makes itself and takes through their states.
func TestExternalQP(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
	makeQP := func(d *verbs.Device) *verbs.QP {
		pd, err := d.AllocPD()
		a.ok(err)
		cq, err := d.CreateCQ(32)
		a.ok(err)
		attr := smallQP
		attr.SendCQ, attr.RecvCQ = cq, cq
		qp, err := pd.CreateQP(attr)
		a.ok(err)
		return qp
	}
	serve := func(id *rdmacm.ID, qp *verbs.QP) {
		for _, s := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS} {
			attr, mask, err := id.QPAttr(s)
			a.ok(err)
			a.ok(qp.Modify(&attr, mask))
		}
	}
	q, r := makeQP(p.a), makeQP(p.b)
	x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
	if err := x.Connect(nil); !errors.Is(err, verbs.ErrState) {
		t.Errorf("Connect without a QP: got error %v, want %v", err, verbs.ErrState)
	}
	if _, _, err := x.QPAttr(verbs.QPStateRTR); !errors.Is(err, verbs.ErrState) {
		t.Errorf("QPAttr without a peer: got error %v, want %v", err, verbs.ErrState)
	}
	param := rdmacm.DefaultConnParam()
	// From now on a QP by CreateQP would not be the one that the peer was told of.
	tooLate := func(id *rdmacm.ID, named *verbs.QP) {
		t.Helper()
		if err := id.CreateQP(nil, smallQP); !errors.Is(err, verbs.ErrState) || !strings.Contains(err.Error(), named.QPN().String()) {
			t.Errorf("CreateQP after the peer was told of %v: got error %v, want %v with that in it", named.QPN(), err, verbs.ErrState)
		}
		if id.QP() != nil {
			t.Errorf("the ID has QP %v, want none", id.QP().QPN())
		}
	}
	param.QPN = q.QPN()
	a.ok(x.Connect(&param))
	tooLate(x, q)
	y := b.next(rdmacm.EventConnectRequest).ID
	param.QPN = r.QPN()
	serve(y, r)
	b.ok(y.Accept(&param))
	tooLate(y, r)
	if ev := a.next(rdmacm.EventConnectResponse); ev.Param.QPN != r.QPN() {
		t.Errorf("response: got QP %v, want %v", ev.Param.QPN, r.QPN())
	}
	tooLate(x, q)
	serve(x, q)
	a.ok(x.Establish())
	tooLate(x, q)
	b.next(rdmacm.EventEstablished)
	tooLate(y, r)
	if _, err := q.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	wait(t, q.SendCQ())
}

// TestTypeOfOwnQP connects UC QPs that the program makes, which only the IDs' type tells.
func TestTypeOfOwnQP(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceIB, addr(t, p.b, false, 0))
	x := a.id(rdmacm.PortSpaceIB)
	if typ := x.QPType(); typ != verbs.QPTypeRC {
		t.Errorf("a new ID: got %v, want %v", typ, verbs.QPTypeRC)
	}
	a.ok(x.SetQPType(verbs.QPTypeUC))
	a.ok(x.ResolveAddr(netip.AddrPort{}, l.LocalAddr()))
	a.next(rdmacm.EventAddrResolved)
	a.ok(x.ResolveRoute())
	a.next(rdmacm.EventRouteResolved)
	param := rdmacm.DefaultConnParam()
	param.QPN = 77
	a.ok(x.Connect(&param))
	y := b.next(rdmacm.EventConnectRequest).ID
	if typ := y.QPType(); typ != verbs.QPTypeUC {
		t.Errorf("the request: got %v, want %v", typ, verbs.QPTypeUC)
	}
	if _, mask, err := y.QPAttr(verbs.QPStateRTR); err != nil || mask&verbs.MaskMinRNRTimer != 0 {
		t.Errorf("RTR: got mask %v and error %v, want no RNR timer", mask, err)
	}
	for id, typ := range map[*rdmacm.ID]verbs.QPType{x: verbs.QPTypeRC, y: verbs.QPTypeRC} {
		if err := id.SetQPType(typ); !errors.Is(err, verbs.ErrState) {
			t.Errorf("another type for an ID that connects: got error %v, want %v", err, verbs.ErrState)
		}
	}
	tcp := a.id(rdmacm.PortSpaceTCP)
	a.ok(tcp.SetQPType(verbs.QPTypeRC))
	for typ, id := range map[verbs.QPType]*rdmacm.ID{verbs.QPTypeUC: tcp, verbs.QPTypeUD: a.id(rdmacm.PortSpaceIB)} {
		if err := id.SetQPType(typ); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v in %v: got error %v, want %v", typ, id.PortSpace(), err, verbs.ErrInvalid)
		}
	}
}

// TestDatagrams finds a UD service and sends to it.
func TestDatagrams(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		p := newPair(t)
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceUDP, addr(t, p.b, ipv6, 0))
		x := a.routed(rdmacm.PortSpaceUDP, l.LocalAddr())
		a.ok(x.CreateQP(nil, smallQP))
		a.ok(x.Connect(&rdmacm.ConnParam{PrivateData: []byte("who?")}))
		ev := b.next(rdmacm.EventConnectRequest)
		if !bytes.HasPrefix(ev.UD.PrivateData, []byte("who?\x00")) || len(ev.UD.PrivateData) != rdmacm.MaxUDConnectData {
			t.Errorf("request: got private data %q, want who? in %d bytes", ev.UD.PrivateData, rdmacm.MaxUDConnectData)
		}
		y := ev.ID
		b.ok(y.CreateQP(nil, smallQP))
		in, err := y.PD().AllocMR(128, verbs.AccessLocalWrite)
		b.ok(err)
		_, err = y.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 128)}}})
		b.ok(err)
		b.ok(y.Accept(&rdmacm.ConnParam{PrivateData: []byte("me")}))
		ev = a.next(rdmacm.EventEstablished)
		if ev.UD.QPN != y.QP().QPN() || ev.UD.QKey != rdmacm.UDQKey || !bytes.HasPrefix(ev.UD.PrivateData, []byte("me\x00")) || len(ev.UD.PrivateData) != rdmacm.MaxUDAcceptData {
			t.Errorf("established: got %+v, want QP %v, Q_Key %v and me in %d bytes", ev.UD, y.QP().QPN(), rdmacm.UDQKey, rdmacm.MaxUDAcceptData)
		}
		ah, err := x.PD().CreateAH(ev.UD.AH)
		a.ok(err)
		_, err = x.QP().PostSend([]verbs.SendWR{{
			Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("datagram"), AH: ah, RemoteQPN: ev.UD.QPN, RemoteQKey: ev.UD.QKey,
		}})
		a.ok(err)
		if wc := wait(t, y.QP().RecvCQ()); string(in.Bytes()[verbs.GRHSize:wc.ByteLen]) != "datagram" || wc.SrcQPN != x.QP().QPN() {
			t.Errorf("received: got %q, %+v, want datagram from QP %v", in.Bytes()[verbs.GRHSize:wc.ByteLen], wc, x.QP().QPN())
		}
		a.ok(x.Disconnect())
		b.quiet()
		ah.Close()
		in.Close()
	}
}

func TestDatagramRefused(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceUDP, addr(t, p.b, false, 0))
	x := a.routed(rdmacm.PortSpaceUDP, l.LocalAddr())
	a.ok(x.Connect(nil))
	b.ok(b.next(rdmacm.EventConnectRequest).ID.Reject([]byte("no")))
	if ev := a.next(rdmacm.EventUnreachable); ev.Status != 2 || !errors.Is(ev.Err, rdmacm.ErrRefused) || !bytes.HasPrefix(ev.UD.PrivateData, []byte("no\x00")) {
		t.Errorf("rejected: got %+v, want status 2, %v and no", ev, rdmacm.ErrRefused)
	}
	x = a.routed(rdmacm.PortSpaceUDP, addr(t, p.b, false, 1))
	a.ok(x.Connect(nil))
	if ev := a.next(rdmacm.EventUnreachable); ev.Status != 1 || !strings.Contains(ev.Err.Error(), "no listener for port 1") {
		t.Errorf("nobody there: got %+v, want status 1, no listener for port 1", ev)
	}
}

// TestMulticast has three members. One of them joins without a QP, to send only.
func TestMulticast(t *testing.T) {
	for _, g := range []string{"239.1.2.3", "ff05::1:2"} {
		group := netip.MustParseAddr(g)
		n := rdmatest.New(t)
		var members []*rdmacm.ID
		var events []rdmacm.Event
		var boxes []*verbs.MR
		for i := range 3 {
			d := n.Device()
			s := newScript(t, d)
			id := s.id(rdmacm.PortSpaceUDP)
			s.ok(id.BindAddr(addr(t, d, group.Is6(), 0)))
			if i > 0 {
				s.ok(id.CreateQP(nil, smallQP))
				mr, err := id.PD().AllocMR(128, verbs.AccessLocalWrite)
				s.ok(err)
				t.Cleanup(func() { mr.Close() })
				_, err = id.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 128)}}})
				s.ok(err)
				boxes = append(boxes, mr)
			}
			s.ok(id.JoinMulticast(group))
			ev := s.next(rdmacm.EventMulticastJoin)
			if ev.UD.QPN != 0xffffff || ev.UD.QKey != rdmacm.UDQKey || ev.UD.AH.DGID != verbs.GIDFromAddr(group) {
				t.Errorf("joined: got %+v, want QP 0xffffff, Q_Key %v, GID %v", ev.UD, rdmacm.UDQKey, verbs.GIDFromAddr(group))
			}
			if i == 0 {
				s.ok(id.CreateQP(nil, smallQP))
			}
			members, events = append(members, id), append(events, ev)
		}
		x := members[0]
		ah, err := x.PD().CreateAH(events[0].UD.AH)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.QP().PostSend([]verbs.SendWR{{
			Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("to all"), AH: ah, RemoteQPN: events[0].UD.QPN, RemoteQKey: events[0].UD.QKey,
		}}); err != nil {
			t.Fatal(err)
		}
		ah.Close()
		for i, y := range members[1:] {
			if wc := wait(t, y.QP().RecvCQ()); string(boxes[i].Bytes()[verbs.GRHSize:wc.ByteLen]) != "to all" {
				t.Errorf("member %d: got %q, want to all", i, boxes[i].Bytes()[verbs.GRHSize:wc.ByteLen])
			}
			if err := y.LeaveMulticast(group); err != nil {
				t.Error(err)
			}
			if err := y.LeaveMulticast(group); !errors.Is(err, verbs.ErrNotFound) {
				t.Errorf("leaving twice: got error %v, want %v", err, verbs.ErrNotFound)
			}
		}
	}
}

// TestBacklog checks that a request which finds no room is dropped and comes again.
func TestBacklog(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.id(rdmacm.PortSpaceTCP)
		b.ok(l.BindAddr(addr(t, p.b, false, 0)))
		b.ok(l.Listen(1))
		for range 2 {
			x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
			a.ok(x.CreateQP(nil, smallQP))
			a.ok(x.Connect(nil))
		}
		synctest.Wait() // both have asked
		for range 2 {
			y := b.next(rdmacm.EventConnectRequest).ID
			b.quiet() // the other one has found no room
			b.ok(y.CreateQP(nil, smallQP))
			b.ok(y.Accept(nil))
			a.next(rdmacm.EventEstablished)
			b.next(rdmacm.EventEstablished)
		}
	})
}

// TestMigrate checks that events follow an ID to another channel, also those that nobody has fetched.
func TestMigrate(t *testing.T) {
	p := newPair(t)
	a, b, c := newScript(t, p.a), newScript(t, p.b), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
	x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
	a.ok(x.CreateQP(nil, smallQP))
	a.ok(x.Connect(nil))
	y := b.next(rdmacm.EventConnectRequest).ID
	b.ok(y.CreateQP(nil, smallQP))
	b.ok(y.Accept(nil))
	a.next(rdmacm.EventEstablished)
	if err := b.ch.Close(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "2 IDs") {
		t.Errorf("closing a channel with two IDs: got error %v, want %v with %q in it", err, verbs.ErrBusy, "2 IDs")
	}
	b.ok(y.Migrate(c.ch))
	c.next(rdmacm.EventEstablished)
	a.ok(x.Disconnect())
	c.next(rdmacm.EventDisconnected)
	b.quiet()
	y.Close()
	l.Close()
	b.ok(b.ch.Close())
	if _, err := b.ch.Next(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Next on a closed channel: got error %v, want %v", err, verbs.ErrClosed)
	}
	if _, err := rdmacm.NewID(b.ch, rdmacm.PortSpaceTCP); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("NewID on a closed channel: got error %v, want %v", err, verbs.ErrClosed)
	}
	if err := c.ch.Close(); err != nil {
		t.Errorf("closing a channel whose migrated ID was closed: got error %v, want none", err)
	}
}

// TestOptions checks the effects of the options on QPs and ports.
func TestOptions(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
	x := a.id(rdmacm.PortSpaceTCP)
	a.ok(x.SetTOS(0x20))
	a.ok(x.SetACKTimeout(17))
	if err := x.SetACKTimeout(32); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("ack timeout 32: got error %v, want %v", err, verbs.ErrInvalid)
	}
	a.ok(x.ResolveAddr(netip.AddrPort{}, l.LocalAddr()))
	a.next(rdmacm.EventAddrResolved)
	a.ok(x.ResolveRoute())
	a.next(rdmacm.EventRouteResolved)
	a.ok(x.CreateQP(nil, smallQP))
	a.ok(x.Connect(nil))
	y := b.next(rdmacm.EventConnectRequest).ID
	b.ok(y.CreateQP(nil, smallQP))
	b.ok(y.Accept(nil))
	a.next(rdmacm.EventEstablished)
	for _, id := range []*rdmacm.ID{x, y} {
		attr, _, err := id.QP().Query()
		a.ok(err)
		if attr.Timeout != 17 {
			t.Errorf("QP timeout %d, want 17", attr.Timeout)
		}
		if attr.AH.TrafficClass != 0x20 { // at the accepting end by the request alone
			t.Errorf("got traffic class %#x, want 0x20", attr.AH.TrafficClass)
		}
	}
	// The accepting end takes the other end's value, though its device may take longer, until it sets its own.
	z := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
	a.ok(z.SetACKTimeout(7))
	a.ok(z.CreateQP(nil, smallQP))
	a.ok(z.Connect(nil))
	b.next(rdmacm.EventEstablished) // of y
	own := b.next(rdmacm.EventConnectRequest).ID
	if attr, _, err := own.QPAttr(verbs.QPStateRTS); err != nil || attr.Timeout != 7 {
		t.Errorf("timeout of an accepting end whose peer has set 7: got %d, %v, want 7", attr.Timeout, err)
	}
	b.ok(own.SetACKTimeout(9))
	if attr, _, err := own.QPAttr(verbs.QPStateRTS); err != nil || attr.Timeout != 9 {
		t.Errorf("timeout of an accepting end that has set 9: got %d, %v, want 9", attr.Timeout, err)
	}
	// To wait for ever is for one end alone. The other one waits as if nothing had been set.
	v := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
	a.ok(v.SetACKTimeout(0))
	a.ok(v.CreateQP(nil, smallQP))
	a.ok(v.Connect(nil))
	peer := b.next(rdmacm.EventConnectRequest).ID
	b.ok(peer.CreateQP(nil, smallQP))
	b.ok(peer.Accept(nil))
	a.next(rdmacm.EventEstablished)
	for id, want := range map[*rdmacm.ID]uint8{v: 0, peer: 15} {
		attr, _, err := id.QP().Query()
		a.ok(err)
		if attr.Timeout != want {
			t.Errorf("an end sets 0: got QP timeout %d, want %d", attr.Timeout, want)
		}
	}
	b.next(rdmacm.EventEstablished)
	if err := x.SetReuseAddr(true); !errors.Is(err, verbs.ErrState) {
		t.Errorf("SetReuseAddr on a connected ID: got error %v, want %v", err, verbs.ErrState)
	}

	at := addr(t, p.b, false, 7000)
	b.listener(rdmacm.PortSpaceTCP, at)
	// Each port space has ports of its own.
	b.listener(rdmacm.PortSpaceUDP, at)
	b.listener(rdmacm.PortSpaceIB, at)
	// [::] leaves IPv4 alone if it is told to.
	only := b.id(rdmacm.PortSpaceTCP)
	b.ok(only.SetAFOnly(true))
	b.ok(only.BindAddr(netip.MustParseAddrPort("[::]:7000")))
	b.ok(only.Listen(0))
}

// TestPortsFrom: no two IDs connect from one port, since a peer tells connections apart by their addresses.
func TestPortsFrom(t *testing.T) {
	p := newPair(t)
	a := newScript(t, p.a)
	to := addr(t, p.b, false, 7000)
	ports := map[netip.AddrPort]bool{}
	for range 1000 {
		from := a.routed(rdmacm.PortSpaceTCP, to).LocalAddr()
		if ports[from] {
			t.Fatalf("after %d IDs a second one is at %v", len(ports), from)
		}
		ports[from] = true
	}
}

// TestConnectFails has a QP that does not go into service when the peer has said yes. The peer, which has a connection
// half open, must hear of that at once.
func TestConnectFails(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
		a.ok(x.CreateQP(nil, smallQP))
		a.ok(x.Connect(nil))
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		a.ok(x.QP().Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		within(t, 0, time.Second, func() {
			b.ok(y.Accept(nil))
			if ev := a.next(rdmacm.EventConnectError); !errors.Is(ev.Err, verbs.ErrState) {
				t.Errorf("the end that fails: got %v, want %v", ev.Err, verbs.ErrState)
			}
			b.next(rdmacm.EventRejected)
		})
	})
}

// TestMisuse checks that calls in the wrong order, and wrong arguments, are told their fault.
func TestMisuse(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
	expect := func(what string, err, kind error, text string) {
		t.Helper()
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got error %v, want %v with %q in it", what, err, kind, text)
		}
	}
	_, err := rdmacm.NewID(a.ch, 7)
	expect("port space 7", err, verbs.ErrUnsupported, "RDMA_PS_TCP")
	x := a.id(rdmacm.PortSpaceTCP)
	expect("Connect", x.Connect(nil), verbs.ErrState, "ResolveAddr")
	expect("ResolveRoute", x.ResolveRoute(), verbs.ErrState, "ResolveAddr")
	expect("Accept", x.Accept(nil), verbs.ErrState, "EventConnectRequest")
	expect("Reject", x.Reject(nil), verbs.ErrState, "the ID is idle")
	expect("Disconnect", x.Disconnect(), verbs.ErrState, "no connection")
	expect("Establish", x.Establish(), verbs.ErrState, "EventConnectResponse")
	expect("CreateQP", x.CreateQP(nil, smallQP), verbs.ErrState, "no device")
	_, _, err = x.QPAttr(verbs.QPStateInit)
	expect("QPAttr", err, verbs.ErrState, "no device")
	expect("JoinMulticast", x.JoinMulticast(netip.MustParseAddr("239.0.0.1")), verbs.ErrUnsupported, "RDMA_PS_UDP")
	expect("ResolveAddr", x.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}), verbs.ErrInvalid, "empty")
	expect("ResolveAddr", x.ResolveAddr(netip.MustParseAddrPort("[::1]:0"), l.LocalAddr()), verbs.ErrInvalid, "IP versions")
	expect("BindAddr", x.BindAddr(netip.AddrPort{}), verbs.ErrInvalid, "empty")

	x = a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
	expect("ResolveAddr twice", x.ResolveAddr(netip.AddrPort{}, l.LocalAddr()), verbs.ErrState, "route resolved")
	expect("Listen", x.Listen(1), verbs.ErrState, "BindAddr")
	expect("a UD QP", x.CreateQP(nil, verbs.QPInitAttr{Type: verbs.QPTypeUD}), verbs.ErrInvalid, "RDMA_PS_TCP")
	pd, err := p.b.AllocPD()
	b.ok(err)
	expect("another device's PD", x.CreateQP(pd, smallQP), verbs.ErrInvalid, "sim1")
	ib, uc := a.routed(rdmacm.PortSpaceIB, l.LocalAddr()), smallQP
	uc.Type = verbs.QPTypeUC
	expect("another device's PD", ib.CreateQP(pd, uc), verbs.ErrInvalid, "sim1")
	a.ok(ib.CreateQP(nil, smallQP))
	if typ := ib.QP().Type(); typ != verbs.QPTypeRC { // a choice that came to nothing
		t.Errorf("a QP after a UC QP could not be made: got %v, want %v", typ, verbs.QPTypeRC)
	}
	a.ok(x.CreateQP(nil, smallQP))
	expect("a second QP", x.CreateQP(nil, smallQP), verbs.ErrBusy, "has a QP")
	expect("57 bytes", x.Connect(&rdmacm.ConnParam{PrivateData: make([]byte, 57)}), verbs.ErrInvalid, "room for 56")
	expect("retry_count 8", x.Connect(&rdmacm.ConnParam{RetryCount: 8}), verbs.ErrInvalid, "retry_count 8")
	expect("too deep", x.Connect(&rdmacm.ConnParam{InitiatorDepth: 200}), verbs.ErrInvalid, "initiator_depth 200")
	a.ok(x.Connect(nil))
	expect("Connect twice", x.Connect(nil), verbs.ErrState, "connecting")
	expect("Notify", x.Notify(verbs.EventCommEst), verbs.ErrState, "accepted")

	y := b.next(rdmacm.EventConnectRequest).ID
	expect("Accept without QP", y.Accept(nil), verbs.ErrState, "CreateQP")
	b.ok(y.CreateQP(nil, smallQP))
	expect("197 bytes", y.Accept(&rdmacm.ConnParam{PrivateData: make([]byte, 197)}), verbs.ErrInvalid, "room for 196")
	expect("149 bytes", y.Reject(make([]byte, 149)), verbs.ErrInvalid, "room for 148")
	// A QP whose state the program has changed does not connect, and the error names the state.
	b.ok(y.QP().Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	expect("a QP in ERR", y.Accept(nil), verbs.ErrState, "QPS_ERR")
	b.ok(y.Reject(nil))
	a.next(rdmacm.EventRejected)
	b.ok(y.Close())
	expect("a closed ID", y.Accept(nil), verbs.ErrClosed, "closed")
	expect("a closed ID", y.CreateQP(nil, smallQP), verbs.ErrClosed, "closed")
	expect("a closed ID", y.SetTOS(1), verbs.ErrClosed, "closed")
	expect("a closed ID", y.Migrate(a.ch), verbs.ErrClosed, "closed")
	fresh := a.id(rdmacm.PortSpaceTCP)
	a.ok(fresh.Close())
	for _, closed := range []*rdmacm.ID{y, fresh} {
		_, _, err = closed.QPAttr(verbs.QPStateInit)
		expect("QPAttr of a closed ID", err, verbs.ErrClosed, "closed")
	}
}

// TestNoInitiatorDepth posts a READ on a connection that has no resources for it. The error says so.
func TestNoInitiatorDepth(t *testing.T) {
	p := newPair(t)
	x, _ := p.connect(t, &rdmacm.Config{Param: &rdmacm.ConnParam{RetryCount: 7, RNRRetryCount: 7}}, nil)
	_, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled}})
	if err == nil {
		var wcs [1]verbs.WC
		if _, err := x.SendCQ().Wait(patience(t), wcs[:]); err != nil {
			t.Fatal(err)
		}
		err = wcs[0].Err()
	}
	if err == nil || !strings.Contains(err.Error(), "MAX_QP_RD_ATOMIC") {
		t.Errorf("a READ without initiator depth: got error %v, want one that names MAX_QP_RD_ATOMIC", err)
	}
}

// TestNoRNRRetry checks that with rnr_retry 0 a SEND that finds no receive fails at once and says
// why.
func TestNoRNRRetry(t *testing.T) {
	p := newPair(t)
	x, _ := p.connect(t, nil, &rdmacm.Config{Param: &rdmacm.ConnParam{RNRRetryCount: 0}})
	if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	var wcs [1]verbs.WC
	if _, err := x.SendCQ().Wait(patience(t), wcs[:]); err != nil {
		t.Fatal(err)
	}
	if wcs[0].Status != verbs.WCRNRRetryExceeded {
		t.Errorf("a SEND without receive: got %v, want %v", wcs[0].Err(), verbs.WCRNRRetryExceeded)
	}
}
