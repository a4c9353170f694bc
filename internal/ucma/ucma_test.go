package ucma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestConnection is a connection from the first command to the last event, at both ends, with data both ways.
func TestConnection(t *testing.T) {
	a, b := two(t)
	lid, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	xqp := a.qp(verbs.QPTypeRC)
	a.move(x, xqp, verbs.QPStateInit)
	if got := a.attr(x, verbs.QPStateInit); got.QPAccessFlags != 0 || verbs.QPAttrMask(got.QPAttrMask) != verbs.MaskState|verbs.MaskAccessFlags|verbs.MaskPKeyIndex|verbs.MaskPort || got.PortNum != 1 {
		t.Errorf("INIT before the connection: got %+v, want port 1 and no access", got)
	}
	a.connect(x, xqp, "ping")

	ev := b.next(rdmacm.EventConnectRequest)
	y, c := ev.ID, conn(&ev)
	if ev.UID == 0 || y == lid || c.QPNum != uint32(xqp.QPN()) || c.InitiatorDepth != 4 || c.ResponderResources != 4 || c.RetryCount != 7 || c.RNRRetryCount != 7 || c.SRQ != 0 {
		t.Errorf("request: got ID %d of %d, %+v", y, ev.UID, c)
	}
	if data := c.PrivateData[:c.PrivateDataLen]; len(data) != 56 || !bytes.HasPrefix(data, []byte("ping\x00")) {
		t.Errorf("request: got private data %q, want ping in 56 bytes", data)
	}
	local, remote := b.ends(y)
	if from, to := a.ends(x); local != at || remote != from || to != at {
		t.Errorf("addresses: got %v->%v at the connecting end, and %v->%v at the other", from, to, local, remote)
	}
	yqp := b.qp(verbs.QPTypeRC)
	b.serve(y, yqp)
	yuid := b.accept(y, yqp, "pong")

	ev = a.next(rdmacm.EventConnectResponse)
	c = conn(&ev)
	if data := c.PrivateData[:c.PrivateDataLen]; ev.ID != x || c.QPNum != uint32(yqp.QPN()) || len(data) != 196 || !bytes.HasPrefix(data, []byte("pong\x00")) {
		t.Errorf("response: got QP %#x and %q, want %v and pong in 196 bytes", c.QPNum, data, yqp.QPN())
	}
	if got := a.attr(x, verbs.QPStateInit); verbs.Access(got.QPAccessFlags) != verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic {
		t.Errorf("INIT of a connection: got access %v", verbs.Access(got.QPAccessFlags))
	}
	a.serve(x, xqp)
	b.quiet() // the ACCEPT without parameters tells the peer
	a.do(uapi.CMAccept, uapi.CMAcceptArg{ID: x}, nil)
	if ev := b.next(rdmacm.EventEstablished); ev.UID != yuid || ev.ID != y || ev.Status != 0 {
		t.Errorf("ESTABLISHED: got %d of %d, want %d of %d", ev.ID, ev.UID, y, yuid)
	}
	for qp, p := range map[*verbs.QP]*program{xqp: a, yqp: b} {
		if _, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}}); err != nil {
			t.Fatal(err)
		}
		p.wait(qp)
	}

	b.do(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: y}, nil)
	for _, p := range []*program{a, b} {
		if ev := p.next(rdmacm.EventDisconnected); ev.Status != 0 {
			t.Errorf("DISCONNECTED: got status %d", int32(ev.Status))
		}
	}
	a.do(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: x}, nil) // as programs do on the event
	a.refused("INIT_QP_ATTR of what has ended", syscall.EINVAL, uapi.CMInitQPAttr, uapi.CMInitQPAttrArg{Response: respAt, ID: x, QPState: uint32(verbs.QPStateRTR)}, &uapi.QPAttr{})
	a.next(rdmacm.EventTimewaitExit)
	b.next(rdmacm.EventTimewaitExit)
	if n := a.destroy(x); n != 5 {
		t.Errorf("the connecting end has read %d events, want 5", n)
	}
	if n := b.destroy(y); n != 3 {
		t.Errorf("the accepting end has read %d events, want 3", n)
	}
	if n := b.destroy(lid); n != 1 {
		t.Errorf("the listener has read %d events, want 1", n)
	}
	a.quiet()
	b.quiet()
	a.refused("DESTROY_ID twice", syscall.ENOENT, uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: x}, &uapi.CMDestroyResp{})
}

// TestNewForms uses the commands for addresses of any family.
func TestNewForms(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		a, b := two(t)
		size := uint16(uapi.SockaddrInSize)
		if ipv6 {
			size = uapi.SockaddrIn6Size
		}
		l, luid := b.create(uapi.PSTCP)
		b.do(uapi.CMBind, uapi.CMBindArg{ID: l, AddrSize: size, Addr: storage(b.addr(ipv6, 0))}, nil)
		b.do(uapi.CMListen, uapi.CMListenArg{ID: l}, nil)
		var q uapi.CMQueryAddrResp
		b.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: l, Option: uapi.CMQueryAddr}, &q)
		at, err := address(q.SrcAddr[:])
		attr, _ := b.dev().Query()
		if err != nil || at.Addr() != b.addr(ipv6, 0).Addr() || at.Port() == 0 || q.SrcSize != size || q.DstSize != size || q.NodeGUID != attr.NodeGUID || q.PortNum != 1 || q.IBDevIndex != NoIndex {
			t.Errorf("the listener's address: got %v, %+v", at, q)
		}

		x, _ := a.create(uapi.PSTCP)
		a.do(uapi.CMResolveAddr, uapi.CMResolveAddrArg{ID: x, SrcSize: size, DstSize: size, SrcAddr: storage(a.addr(ipv6, 0)), DstAddr: storage(at)}, nil)
		a.next(rdmacm.EventAddrResolved)
		var path uapi.CMQueryPathResp
		a.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: x, Option: uapi.CMQueryPath}, &path)
		if path.NumPaths != 0 {
			t.Errorf("before RESOLVE_ROUTE: got %d paths, want none", path.NumPaths)
		}
		a.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: x}, nil)
		a.next(rdmacm.EventRouteResolved)
		if err := a.write(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: x, Option: uapi.CMQueryPath}, 8+6*72); err != nil {
			t.Fatal(err)
		}
		var rec uapi.PathRecData
		_ = uapi.Decode(a.arena, &path)
		_ = uapi.Decode(a.arena[8:], &rec)
		raw := uapi.Append(nil, rec.PathRec)
		src, dst := verbs.GIDFromAddr(a.addr(ipv6, 0).Addr()), verbs.GIDFromAddr(at.Addr())
		if path.NumPaths != 1 || rec.Flags != 0x2b || !bytes.Equal(raw[8:24], dst[:]) || !bytes.Equal(raw[24:40], src[:]) || raw[47] != 64 || raw[49] != 0x80 ||
			binary.BigEndian.Uint16(raw[50:]) != 0xffff || raw[54] != 0x80|uint8(verbs.MTU4096) {
			t.Errorf("path: got %d, flags %#x, %x", path.NumPaths, rec.Flags, raw)
		}
		var g uapi.CMQueryAddrResp
		a.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: x, Option: uapi.CMQueryGID}, &g)
		if g.SrcSize != uapi.SockaddrIBSize || !bytes.Equal(g.SrcAddr[8:24], src[:]) || !bytes.Equal(g.DstAddr[8:24], dst[:]) ||
			binary.BigEndian.Uint64(g.DstAddr[24:]) != 0x01060000|uint64(at.Port()) {
			t.Errorf("GIDs: got %x and %x", g.SrcAddr[:48], g.DstAddr[:48])
		}
		a.connect(x, a.qp(verbs.QPTypeRC), "")
		if ev := b.next(rdmacm.EventConnectRequest); ev.UID != luid {
			t.Errorf("request: got the number %d of the listener, want %d", ev.UID, luid)
		}
	}
}

// TestRoute is what QUERY_ROUTE answers before and after the route is known, to programs of any age.
func TestRoute(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.resolved(uapi.PSTCP, at)
	var r uapi.CMQueryRouteResp
	ask := func() {
		t.Helper()
		a.do(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: x}, &r)
	}
	ask()
	dst := verbs.GIDFromAddr(at.Addr())
	attr, _ := a.dev().Query()
	if r.NumPaths != 0 || r.IBRoute[0].DGID != dst || r.IBRoute[0].PKey != [2]byte{0xff, 0xff} || r.NodeGUID != attr.NodeGUID || r.PortNum != 1 {
		t.Errorf("before RESOLVE_ROUTE: got %+v", r)
	}
	a.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: x}, nil)
	a.next(rdmacm.EventRouteResolved)
	ask()
	local, _ := a.ends(x)
	label := uint32(local.Port())*31 + uint32(at.Port())
	if p := r.IBRoute[0]; r.NumPaths != 1 || p.DGID != dst || p.SGID != verbs.GIDFromAddr(local.Addr()) || p.MTU != uint32(verbs.MTU4096) || p.HopLimit != 64 || p.Reversible != 1 ||
		binary.BigEndian.Uint32(p.FlowLabel[:]) != label&0xfffff {
		t.Errorf("after RESOLVE_ROUTE: got %+v", r)
	}
	clear(a.arena[:512])
	if err := a.write(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: x}, uapi.CMQueryRouteLeast); err != nil {
		t.Errorf("a program that does not know of indices: %v", err)
	}
	if !bytes.Equal(a.arena[uapi.CMQueryRouteLeast:uapi.CMQueryRouteLeast+8], make([]byte, 8)) {
		t.Error("more was written than the program has room for")
	}
	if err := a.write(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: x}, uapi.CMQueryRouteLeast-1); Errno(err) != syscall.ENOSPC {
		t.Errorf("too little room: got %v, want ENOSPC", err)
	}
}

// TestIdentity has programs know a device by other numbers than its own.
func TestIdentity(t *testing.T) {
	a, _ := two(t)
	m := New(Config{Devices: a.m.config.Devices, Identify: func(*verbs.Device) Identity { return Identity{verbs.GUID{7}, 3} }})
	t.Cleanup(func() { m.Close() })
	p := newProgram(t, m)
	id, _ := p.create(uapi.PSTCP)
	p.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(p.addr(false, 0))}, nil)
	var r uapi.CMQueryRouteResp
	p.do(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: id}, &r)
	if r.NodeGUID != (verbs.GUID{7}) || r.IBDevIndex != 3 {
		t.Errorf("got %v and index %d, want those of the configuration", r.NodeGUID, r.IBDevIndex)
	}
}

// TestDatagrams has programs of UD look up a service, and refuse one.
func TestDatagrams(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSUDP, 0)
	x := a.routed(uapi.PSUDP, at)
	xqp, yqp := a.qp(verbs.QPTypeUD), b.qp(verbs.QPTypeUD)
	a.move(x, xqp, verbs.QPStateInit)
	if got := a.attr(x, verbs.QPStateInit); got.QKey != uint32(rdmacm.UDQKey) || verbs.QPAttrMask(got.QPAttrMask) != verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey {
		t.Errorf("INIT of UD: got %+v", got)
	}
	a.connect(x, xqp, "who")
	ev := b.next(rdmacm.EventConnectRequest)
	if u := ud(&ev); u.PrivateDataLen != 180 || !bytes.HasPrefix(u.PrivateData[:], []byte("who\x00")) {
		t.Errorf("request: got %q of %d bytes", u.PrivateData[:4], u.PrivateDataLen)
	}
	y := ev.ID
	b.move(y, yqp, verbs.QPStateInit)
	b.accept(y, yqp, "me")
	ev = a.next(rdmacm.EventEstablished)
	dst := verbs.GIDFromAddr(at.Addr())
	if u := ud(&ev); u.QPNum != uint32(yqp.QPN()) || u.QKey != uint32(rdmacm.UDQKey) || u.AHAttr.GRH.DGID != dst || u.AHAttr.IsGlobal != 1 || u.PrivateDataLen != 136 || !bytes.HasPrefix(u.PrivateData[:], []byte("me\x00")) {
		t.Errorf("ESTABLISHED: got %+v", u)
	}
	b.quiet()
	a.do(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: x}, nil) // nothing is to be done
	a.quiet()

	z := a.routed(uapi.PSUDP, at)
	a.connect(z, xqp, "")
	ev = b.next(rdmacm.EventConnectRequest)
	reject := uapi.CMRejectArg{ID: ev.ID}
	reject.PrivateDataLen = uint8(copy(reject.PrivateData[:], "no"))
	b.do(uapi.CMReject, reject, nil)
	ev = a.next(rdmacm.EventUnreachable)
	if u := ud(&ev); ev.Status != 2 || !bytes.HasPrefix(u.PrivateData[:u.PrivateDataLen], []byte("no\x00")) {
		t.Errorf("refusal: got status %d and %q, want 2 and no", int32(ev.Status), u.PrivateData[:u.PrivateDataLen])
	}
}

// TestRejections are a program's no, with private data, and that of a port without a listener.
func TestRejections(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	for _, reason := range []uint8{0, consumerDefined, vendorOptionNotSupported} {
		x := a.routed(uapi.PSTCP, at)
		a.connect(x, a.qp(verbs.QPTypeRC), "")
		y := b.next(rdmacm.EventConnectRequest).ID
		reject := uapi.CMRejectArg{ID: y, Reason: reason}
		reject.PrivateDataLen = uint8(copy(reject.PrivateData[:], "not you"))
		b.refused("an unknown reason", syscall.EINVAL, uapi.CMReject, uapi.CMRejectArg{ID: y, Reason: 3}, nil)
		b.do(uapi.CMReject, reject, nil)
		ev := a.next(rdmacm.EventRejected)
		if c := conn(&ev); ev.Status != consumerDefined || c.PrivateDataLen != 148 || !bytes.HasPrefix(c.PrivateData[:], []byte("not you\x00")) {
			t.Errorf("got status %d and %q in %d bytes, want 28 and the reason in 148", int32(ev.Status), c.PrivateData[:8], c.PrivateDataLen)
		}
		b.refused("ACCEPT of what was rejected", syscall.EINVAL, uapi.CMAccept, uapi.CMAcceptArg{UID: 1, ID: y, ConnParam: param(a.qp(verbs.QPTypeRC), "")}, nil)
		a.destroy(x)
		b.destroy(y)
	}
	x := a.routed(uapi.PSTCP, withPort(at, at.Port()+1))
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	if ev := a.next(rdmacm.EventRejected); ev.Status != 8 {
		t.Errorf("nobody listens: got status %d, want 8", int32(ev.Status))
	}
}

// TestRejectedReply has the connecting end take back its wish, once the other end has accepted.
func TestRejectedReply(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	y := b.next(rdmacm.EventConnectRequest).ID
	yuid := b.accept(y, b.qp(verbs.QPTypeRC), "")
	a.next(rdmacm.EventConnectResponse)
	a.refused("ACCEPT with parameters at the connecting end", syscall.EINVAL, uapi.CMAccept, uapi.CMAcceptArg{UID: 1, ID: x, ConnParam: param(a.qp(verbs.QPTypeRC), "")}, nil)
	if ev := b.next(rdmacm.EventRejected); ev.UID != yuid || ev.Status != consumerDefined {
		t.Errorf("got status %d of %d, want 28 of %d", int32(ev.Status), ev.UID, yuid)
	}
}

// TestFailedAccept: what cannot be accepted is rejected, as on Linux, and has no number of the program's.
func TestFailedAccept(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	y := b.next(rdmacm.EventConnectRequest).ID
	long := param(b.qp(verbs.QPTypeRC), strings.Repeat("x", 197))
	b.refused("197 bytes of private data", syscall.EINVAL, uapi.CMAccept, uapi.CMAcceptArg{UID: 99, ID: y, ConnParam: long}, nil)
	a.next(rdmacm.EventRejected)
	b.quiet()
}

// TestCloseFile: what a program leaves behind ends with it, and its peers are told.
func TestCloseFile(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	l := connected(a, b, at)
	waits := a.routed(uapi.PSTCP, at) // is requested, and not answered
	a.connect(waits, a.qp(verbs.QPTypeRC), "")
	b.next(rdmacm.EventConnectRequest)
	unread := a.routed(uapi.PSTCP, at)
	a.connect(unread, a.qp(verbs.QPTypeRC), "")
	<-b.f.Readable()
	b.f.Close()
	seen := map[uint32]rdmacm.EventType{}
	for len(seen) < 3 {
		var ev uapi.CMEventResp
		<-a.f.Readable()
		if err := a.try(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &ev); err != nil {
			t.Fatal(err)
		}
		seen[ev.ID] = rdmacm.EventType(ev.Event)
	}
	if seen[l.x] != rdmacm.EventDisconnected || seen[waits] != rdmacm.EventRejected || seen[unread] != rdmacm.EventRejected {
		t.Errorf("got %v, want the connection disconnected, and both requests rejected", seen)
	}
	b.refused("a command after the end", syscall.EIO, uapi.CMCreateID, uapi.CMCreate{Response: respAt, PS: uapi.PSTCP}, &uapi.CMCreateResp{})
	select {
	case <-b.f.Readable():
	default:
		t.Error("who waits for an event of a closed file is not told")
	}
	b.f.Close()
}

// TestManyEvents: a program that reads no events cannot have more and more of them.
func TestManyEvents(t *testing.T) {
	a, b := two(t)
	x, _ := a.create(uapi.PSTCP)
	in := uapi.CMResolveIPArg{ID: x, SrcAddr: in6(b.addr(false, 7)), DstAddr: in6(b.addr(false, 8))} // which is no address of a's
	n := 0
	for ; n < 4*maxEvents; n++ {
		if err := a.try(uapi.CMResolveIP, in, nil); err != nil {
			if Errno(err) != syscall.ENOMEM {
				t.Fatal(err)
			}
			break
		}
		if n >= maxEvents {
			runtime.Gosched() // the events are on the way
		}
	}
	if n < maxEvents || n == 4*maxEvents {
		t.Errorf("%d events were taken, want about %d", n, maxEvents)
	}
	a.next(rdmacm.EventAddrError)
}

// TestCloseManager: nothing is left of a manager, whose device can be closed then.
func TestCloseManager(t *testing.T) {
	dev := rdmatest.New(t).Device()
	m := New(Config{Devices: []*verbs.Device{dev}})
	p := newProgram(t, m)
	p.listener(uapi.PSTCP, 0)
	id, _ := p.create(uapi.PSTCP)
	p.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, DstAddr: in6(p.addr(false, 1))}, nil)
	p.next(rdmacm.EventAddrResolved)
	if len(m.pins) != 1 {
		t.Errorf("got %d connectors that are kept, want 1", len(m.pins))
	}
	if err := errors.Join(m.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := m.Open(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Open after Close: got error %v, want %v", err, verbs.ErrClosed)
	}
}

// TestUnreadEvents: events that the program has not read go with the ID, and requests with their listener.
func TestUnreadEvents(t *testing.T) {
	a, b := two(t)
	lid, at := b.listener(uapi.PSTCP, 0)
	x, _ := a.create(uapi.PSTCP)
	a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: x, DstAddr: in6(at)}, nil)
	<-a.f.Readable()
	if n := a.destroy(x); n != 0 {
		t.Errorf("DESTROY_ID: got %d events read, want none", n)
	}
	a.quiet()

	x = a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	<-b.f.Readable()
	if n := b.destroy(lid); n != 0 {
		t.Errorf("DESTROY_ID of the listener: got %d events read, want none", n)
	}
	b.quiet()
	if ev := a.next(rdmacm.EventRejected); ev.ID != x {
		t.Errorf("got a rejection of %d, want of %d", ev.ID, x)
	}
	if len(b.m.ids.v) != 1+1 || b.m.ids.get(0) != nil || b.m.ids.get(1) != nil || len(b.m.of) != 0 {
		t.Errorf("there is something left: %v, %v", b.m.ids, b.m.of)
	}
}

// TestWithdrawnRequest: a request is not seen whose peer has given up before the program reads it.
func TestWithdrawnRequest(t *testing.T) {
	a, b := two(t)
	lid, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	<-b.f.Readable()
	b.refused("the ID of a request that was not read", syscall.ENOENT, uapi.CMReject, uapi.CMRejectArg{ID: lid + 1}, nil)
	a.destroy(x)
	eventually(t, "the request is withdrawn", func() bool {
		b.m.mu.Lock()
		defer b.m.mu.Unlock()
		return len(b.f.queue) == 0
	})
	b.quiet()
	if n := b.destroy(lid); n != 0 {
		t.Errorf("the listener: got %d events read, want none", n)
	}
}

// TestUnacceptedEvents: an ID has no events before the program has accepted it.
func TestUnacceptedEvents(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	y := b.next(rdmacm.EventConnectRequest).ID
	a.destroy(x)
	eventually(t, "the request is over", func() bool {
		b.m.mu.Lock()
		defer b.m.mu.Unlock()
		return b.m.ids.get(y).phase.over
	})
	b.quiet()
	b.refused("ACCEPT of what the peer has given up", syscall.EINVAL, uapi.CMAccept, uapi.CMAcceptArg{UID: 5, ID: y, ConnParam: param(b.qp(verbs.QPTypeRC), "")}, nil)
	b.destroy(y)
}

// TestBacklog: more requests than a listener's backlog wait until the program has answered some.
func TestBacklog(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 2)
	for range 3 {
		a.connect(a.routed(uapi.PSTCP, at), a.qp(verbs.QPTypeRC), "")
	}
	first := b.next(rdmacm.EventConnectRequest).ID
	b.next(rdmacm.EventConnectRequest)
	b.quiet()
	b.do(uapi.CMReject, uapi.CMRejectArg{ID: first}, nil)
	a.next(rdmacm.EventRejected)
	b.next(rdmacm.EventConnectRequest) // by the peer's repeat
}

// TestMigrate moves IDs between the files of a program.
func TestMigrate(t *testing.T) {
	a, b := two(t)
	other := newProgram(t, b.m)
	b.files, other.files = map[uint32]*File{7: other.f, 8: nil}, map[uint32]*File{3: b.f, 4: nil, 5: a.f}
	lid, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	<-b.f.Readable()

	var resp uapi.CMDestroyResp
	other.refused("a number that is no descriptor", syscall.ENOENT, uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: lid, FD: 99}, &resp)
	other.refused("a descriptor of something else", syscall.EINVAL, uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: lid, FD: 4}, &resp)
	other.refused("a file of another program", syscall.EINVAL, uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: lid, FD: 5}, &resp)
	other.refused("an ID that does not exist", syscall.ENOENT, uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: 99, FD: 3}, &resp)
	query := uapi.CMQueryArg{Response: respAt, ID: lid, Option: uapi.CMQueryAddr}
	other.refused("a command for an ID of another file", syscall.EINVAL, uapi.CMQuery, query, &uapi.CMQueryAddrResp{})
	other.do(uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: lid, FD: 3}, &resp)
	if resp.EventsReported != 0 {
		t.Errorf("got %d events read, want none", resp.EventsReported)
	}
	b.quiet()
	b.refused("a command by the old file", syscall.EINVAL, uapi.CMQuery, query, &uapi.CMQueryAddrResp{})
	y := other.next(rdmacm.EventConnectRequest).ID
	yqp := other.qp(verbs.QPTypeRC)
	other.serve(y, yqp)
	other.accept(y, yqp, "")
	a.next(rdmacm.EventConnectResponse)
	a.do(uapi.CMAccept, uapi.CMAcceptArg{ID: x}, nil)
	other.next(rdmacm.EventEstablished)

	// The ID of the connection goes back, and what happens to it afterwards is told there. The listener stays.
	b.do(uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: y, FD: 7}, &resp)
	if resp.EventsReported != 1 {
		t.Errorf("got %d events read, want 1", resp.EventsReported)
	}
	b.files[7] = b.f
	b.do(uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: y, FD: 7}, &resp) // to where it is
	a.destroy(x)
	b.next(rdmacm.EventDisconnected)
	other.f.Close()
	b.destroy(y)
}

// TestReuseAddr has IDs share a port.
func TestReuseAddr(t *testing.T) {
	_, b := two(t)
	at := b.addr(false, 4321)
	ids := make([]uint32, 3)
	for i := range ids {
		ids[i], _ = b.create(uapi.PSTCP)
	}
	binary.NativeEndian.PutUint32(b.arena[4096:], 1)
	reuse := func(id uint32) {
		t.Helper()
		b.do(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: optionAt, ID: id, Level: uapi.OptionID, OptName: uapi.OptionIDReuseAddr, OptLen: 4}, nil)
	}
	reuse(ids[0])
	reuse(ids[1])
	for _, id := range ids[:2] {
		b.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(at)}, nil)
	}
	b.refused("a port that others share", syscall.EADDRINUSE, uapi.CMBindIP, uapi.CMBindIPArg{ID: ids[2], Addr: in6(at)}, nil)
	b.refused("LISTEN at a port that others share", syscall.EADDRINUSE, uapi.CMListen, uapi.CMListenArg{ID: ids[0]}, nil)
	b.destroy(ids[1])
	b.do(uapi.CMListen, uapi.CMListenArg{ID: ids[0]}, nil)
	reuse(ids[0]) // too late, as on Linux
}

// TestOptions sets each option, and gives each wrongly.
func TestOptions(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x, _ := a.create(uapi.PSTCP)
	set := func(id, level, name uint32, v ...byte) error {
		copy(a.arena[4096:], v)
		return a.try(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: optionAt, ID: id, Level: level, OptName: name, OptLen: uint32(len(v))}, nil)
	}
	for _, err := range []error{set(x, 0, uapi.OptionIDTOS, 0x28), set(x, 0, uapi.OptionIDACKTimeout, 19), set(x, 0, uapi.OptionIDAFOnly, 1, 0, 0, 0), set(x, 0, uapi.OptionIDReuseAddr, 0, 0, 0, 0)} {
		if err != nil {
			t.Error(err)
		}
	}
	u, _ := a.create(uapi.PSUDP)
	for what, c := range map[string]struct {
		err  error
		want syscall.Errno
	}{
		"a TOS of an int":        {set(x, 0, uapi.OptionIDTOS, 0, 0, 0, 0), syscall.EINVAL},
		"a yes of a byte":        {set(x, 0, uapi.OptionIDReuseAddr, 1), syscall.EINVAL},
		"nothing":                {set(x, 0, uapi.OptionIDAFOnly), syscall.EINVAL},
		"an unknown option":      {set(x, 0, 9, 1), syscall.ENOSYS},
		"an unknown level":       {set(x, 5, 0, 1), syscall.ENOSYS},
		"an unknown IB option":   {set(x, 1, 0, 1), syscall.ENOSYS},
		"the timeout of UD":      {set(u, 0, uapi.OptionIDACKTimeout, 19), syscall.EINVAL},
		"a timeout of 32":        {set(x, 0, uapi.OptionIDACKTimeout, 32), syscall.EINVAL},
		"a path without an end":  {set(x, 1, uapi.OptionIBPath, make([]byte, 71)...), syscall.EINVAL},
		"no path":                {set(x, 1, uapi.OptionIBPath), syscall.EINVAL},
		"a path of no use":       {set(x, 1, uapi.OptionIBPath, make([]byte, 72)...), syscall.EINVAL},
		"an ID that is not":      {set(99, 0, uapi.OptionIDTOS, 0), syscall.ENOENT},
		"memory that is not":     {a.try(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: 1, ID: x, OptLen: 4}, nil), syscall.EFAULT},
		"an option without end":  {a.try(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: optionAt, ID: x, OptLen: 1 << 31}, nil), syscall.EINVAL},
		"GET_OPTION":             {a.try(uapi.CMGetOption, uapi.CMSetOptionArg{}, nil), syscall.ENOSYS},
		"a path before the peer": {set(x, 1, uapi.OptionIBPath, uapi.Append(nil, uapi.PathRecData{Flags: uapi.PathFlags})...), syscall.EINVAL},
	} {
		if c.err == nil || Errno(c.err) != c.want {
			t.Errorf("%s: got %v, want %v", what, c.err, c.want)
		}
	}
	a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: x, DstAddr: in6(at)}, nil)
	a.next(rdmacm.EventAddrResolved)
	if err := set(x, 0, uapi.OptionIDReuseAddr, 0, 0, 0, 0); Errno(err) != syscall.EINVAL {
		t.Errorf("no REUSEADDR after all: got %v, want EINVAL", err)
	}
	alternate := uapi.Append(nil, uapi.PathRecData{Flags: 1 << 2})
	if err := set(x, 1, uapi.OptionIBPath, alternate...); Errno(err) != syscall.EINVAL {
		t.Errorf("an alternate path alone: got %v, want EINVAL", err)
	}
	if err := set(x, 1, uapi.OptionIBPath, uapi.Append(alternate, uapi.PathRecData{Flags: uapi.PathFlags})...); err != nil {
		t.Fatalf("a path: %v", err)
	}
	a.next(rdmacm.EventRouteResolved)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	y := b.next(rdmacm.EventConnectRequest).ID
	b.accept(y, b.qp(verbs.QPTypeRC), "")
	a.next(rdmacm.EventConnectResponse)
	if got := a.attr(x, verbs.QPStateRTR); got.AHAttr.GRH.TrafficClass != 0x28 {
		t.Errorf("RTR: got traffic class %#x, want 0x28", got.AHAttr.GRH.TrafficClass)
	}
	if got := a.attr(x, verbs.QPStateRTS); got.Timeout != 19 {
		t.Errorf("RTS: got timeout %d, want 19", got.Timeout)
	}
}

// TestMulticast joins groups by both commands, and leaves them.
func TestMulticast(t *testing.T) {
	a, b := two(t)
	group := netip.MustParseAddrPort("239.1.2.3:0")
	x, _ := a.create(uapi.PSUDP)
	var resp uapi.CMCreateResp
	a.refused("a join without a device", syscall.EINVAL, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, UID: 100, ID: x, Addr: in6(group)}, &resp)
	a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: x, Addr: in6(a.addr(false, 0))}, nil)
	a.do(uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, UID: 100, ID: x, Addr: in6(group)}, &resp)
	first := resp.ID
	ev := a.next(rdmacm.EventMulticastJoin)
	if u := ud(&ev); ev.UID != 100 || ev.ID != first || u.QPNum != 0xffffff || u.QKey != uint32(rdmacm.UDQKey) || u.AHAttr.GRH.DGID != verbs.GIDFromAddr(group.Addr()) {
		t.Errorf("join: got %d of %d, %+v", ev.ID, ev.UID, u)
	}
	second := netip.MustParseAddrPort("239.1.2.4:0")
	a.do(uapi.CMJoinMcast, uapi.CMJoinMcastArg{Response: respAt, UID: 101, ID: x, AddrSize: uapi.SockaddrInSize, JoinFlags: sendOnlyFullMember, Addr: storage(second)}, &resp)
	if resp.ID == first {
		t.Error("two groups have one number")
	}
	<-a.f.Readable()
	a.refused("a group twice", syscall.EBUSY, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, UID: 102, ID: x, Addr: in6(group)}, &uapi.CMCreateResp{})
	a.refused("an unknown flag", syscall.EINVAL, uapi.CMJoinMcast, uapi.CMJoinMcastArg{Response: respAt, ID: x, AddrSize: uapi.SockaddrInSize, JoinFlags: 2, Addr: storage(group)}, &uapi.CMCreateResp{})
	a.refused("a wrong size", syscall.EINVAL, uapi.CMJoinMcast, uapi.CMJoinMcastArg{Response: respAt, ID: x, AddrSize: 28, Addr: storage(group)}, &uapi.CMCreateResp{})
	a.refused("no group", syscall.EINVAL, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, ID: x, Addr: in6(b.addr(false, 0))}, &uapi.CMCreateResp{})

	var left uapi.CMDestroyResp
	a.do(uapi.CMLeaveMcast, uapi.CMDestroy{Response: respAt, ID: first}, &left)
	if left.EventsReported != 1 {
		t.Errorf("LEAVE_MCAST: got %d events read, want 1", left.EventsReported)
	}
	a.do(uapi.CMLeaveMcast, uapi.CMDestroy{Response: respAt, ID: resp.ID}, &left)
	if left.EventsReported != 0 {
		t.Errorf("LEAVE_MCAST before the event is read: got %d events read, want none", left.EventsReported)
	}
	a.quiet()
	a.refused("LEAVE_MCAST twice", syscall.ENOENT, uapi.CMLeaveMcast, uapi.CMDestroy{Response: respAt, ID: first}, &left)
	other := newProgram(t, a.m)
	a.do(uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, UID: 103, ID: x, Addr: in6(group)}, &resp)
	other.refused("a group of another file", syscall.EINVAL, uapi.CMLeaveMcast, uapi.CMDestroy{Response: respAt, ID: resp.ID}, &left)
	a.next(rdmacm.EventMulticastJoin)
	if n := a.destroy(x); n != 2 {
		t.Errorf("the ID has read %d events, want 2", n)
	}
	tcp, _ := a.create(uapi.PSTCP)
	a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: tcp, Addr: in6(a.addr(false, 0))}, nil)
	a.refused("a group in the port space TCP", syscall.EINVAL, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, ID: tcp, Addr: in6(group)}, &uapi.CMCreateResp{})
}

// TestNotify completes a connection by the news that the QP has got a packet.
func TestNotify(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	commEst := uint32(verbs.EventCommEst)
	a.refused("before CONNECT", syscall.EINVAL, uapi.CMNotify, uapi.CMNotifyArg{ID: x, Event: commEst}, nil)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	y := b.next(rdmacm.EventConnectRequest).ID
	b.refused("before ACCEPT", syscall.EINVAL, uapi.CMNotify, uapi.CMNotifyArg{ID: y, Event: commEst}, nil)
	b.accept(y, b.qp(verbs.QPTypeRC), "")
	b.refused("another event", syscall.EINVAL, uapi.CMNotify, uapi.CMNotifyArg{ID: y, Event: uint32(verbs.EventSQDrained)}, nil)
	b.do(uapi.CMNotify, uapi.CMNotifyArg{ID: y, Event: commEst}, nil)
	b.next(rdmacm.EventEstablished)
	b.refused("twice", syscall.EISCONN, uapi.CMNotify, uapi.CMNotifyArg{ID: y, Event: commEst}, nil)
}

// TestUC connects UC QPs in the port space that has them, and refuses a request for another type.
func TestUC(t *testing.T) {
	a, b := two(t)
	create := func(p *program, typ verbs.QPType) uint32 {
		p.uids++
		var resp uapi.CMCreateResp
		p.do(uapi.CMCreateID, uapi.CMCreate{UID: p.uids, Response: respAt, PS: uapi.PSIB, QPType: uint8(typ)}, &resp)
		return resp.ID
	}
	l := create(b, verbs.QPTypeUC)
	b.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: l, Addr: in6(b.addr(false, 0))}, nil)
	b.do(uapi.CMListen, uapi.CMListenArg{ID: l}, nil)
	at, _ := b.ends(l)
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		x := create(a, typ)
		a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: x, DstAddr: in6(at)}, nil)
		a.next(rdmacm.EventAddrResolved)
		a.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: x}, nil)
		a.next(rdmacm.EventRouteResolved)
		xqp := a.qp(typ)
		a.connect(x, xqp, "")
		if typ == verbs.QPTypeRC {
			a.next(rdmacm.EventRejected)
			continue
		}
		y, yqp := b.next(rdmacm.EventConnectRequest).ID, b.qp(typ)
		b.serve(y, yqp)
		b.accept(y, yqp, "")
		a.next(rdmacm.EventConnectResponse)
		a.serve(x, xqp)
		a.do(uapi.CMAccept, uapi.CMAcceptArg{ID: x}, nil)
		b.next(rdmacm.EventEstablished)
	}
}

// TestDeviceRemoval: an ID whose device has gone is told, and can be destroyed alone.
func TestDeviceRemoval(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	x := a.resolved(uapi.PSTCP, at)
	if err := a.dev().Provider().Close(); err != nil {
		t.Fatal(err)
	}
	a.next(rdmacm.EventDeviceRemoval)
	a.refused("a command", syscall.EIO, uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: x}, nil)
	if n := a.destroy(x); n != 2 {
		t.Errorf("got %d events read, want 2", n)
	}
}
