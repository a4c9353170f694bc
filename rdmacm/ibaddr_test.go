package rdmacm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// ibAddr is a device's first GID with a service.
func ibAddr(t *testing.T, d *verbs.Device, service uint64) rdmacm.IBAddr {
	t.Helper()
	return rdmacm.IBAddr{GID: verbs.GIDFromAddr(addr(t, d, false, 0).Addr()), Service: service}
}

// TestIBAddr connects by GID and service ID: to one of a port space, to any other, and to one that the listener has found.
func TestIBAddr(t *testing.T) {
	const own = 0x1000_dead_beef_4321 // of a service that no port space has
	for _, service := range []uint64{rdmacm.PortSpaceTCP.Service(7471), own, rdmacm.PortSpaceTCP.Service(0), 0, own &^ 0xffff} {
		for _, all := range []bool{false, true} {
			p := newPair(t)
			at := ibAddr(t, p.b, service)
			if all {
				at.GID = verbs.GID{}
			}
			l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).ListenIB(at)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got := l.AddrIB()
			if got.GID != at.GID || service&0xffff != 0 && got.Service != service || got.Service&0xffff == 0 || service != 0 && got.Service&^0xffff != service&^0xffff {
				t.Errorf("listening at %v: got %v", at, got)
			}
			done := accept(t, l, nil)
			private := bytes.Repeat([]byte("x"), rdmacm.MaxIBConnectData)
			to := ibAddr(t, p.b, got.Service)
			c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).DialIB(patience(t), to, &rdmacm.Config{PrivateData: private})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			a := <-done
			if a.err != nil {
				t.Fatal(a.err)
			}
			defer a.conn.Close()
			if !bytes.Equal(a.req.PrivateData(), private) {
				t.Errorf("private data: got %d bytes, want all %d", len(a.req.PrivateData()), len(private))
			}
			if got := c.ID().RemoteIB(); got != to {
				t.Errorf("the peer of the dialer: got %v, want %v", got, to)
			}
			if got := a.conn.ID().LocalIB(); got != to {
				t.Errorf("the listener's end: got %v, want %v", got, to)
			}
			if got, want := a.conn.ID().RemoteIB(), (rdmacm.IBAddr{GID: c.ID().LocalIB().GID}); got != want {
				t.Errorf("the peer of the listener's end: got %v, want %v", got, want)
			}
			if c.QP().State() != verbs.QPStateRTS || a.conn.QP().State() != verbs.QPStateRTS {
				t.Errorf("QPs: %v, %v", c.QP().State(), a.conn.QP().State())
			}
		}
	}
}

// TestIBAddrFamilies: requests of one family are for nobody of the other, and the families share the ports.
func TestIBAddrFamilies(t *testing.T) {
	p := newPair(t)
	ip := p.listen(t, addr(t, p.b, false, 7471))
	ib, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).ListenIB(ibAddr(t, p.b, rdmacm.PortSpaceTCP.Service(7472)))
	if err != nil {
		t.Fatal(err)
	}
	defer ib.Close()
	var no *rdmacm.RejectError
	if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).DialIB(patience(t), ibAddr(t, p.b, rdmacm.PortSpaceTCP.Service(7471)), nil); !errors.As(err, &no) || no.Reason != rdmacm.RejectConsumerDefined {
		t.Errorf("AF_IB to a listener of IP: got %v, want a refusal", err)
	}
	if _, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).ListenIB(ibAddr(t, p.b, rdmacm.PortSpaceTCP.Service(7471))); !errors.Is(err, rdmacm.ErrAddrInUse) {
		t.Errorf("a service whose port is taken: got %v, want ErrAddrInUse", err)
	}
	if got := ip.AddrIB(); got != ibAddr(t, p.b, rdmacm.PortSpaceTCP.Service(7471)) {
		t.Errorf("a listener of IP: got %v", got)
	}
}

// TestIBAddrErrors: what cannot be meant is refused, and the ID goes on.
func TestIBAddrErrors(t *testing.T) {
	p := newPair(t)
	ch := rdmacm.NewEventChannel(p.a)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	stranger := rdmacm.IBAddr{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 9}, Service: rdmacm.PortSpaceTCP.Service(1)}
	for _, step := range []struct {
		what string
		do   func() error
		want error
	}{
		{"bind to a stranger's GID", func() error { return id.BindIB(stranger) }, rdmacm.ErrNoDevice},
		{"resolve nothing", func() error { return id.ResolveIB(rdmacm.IBAddr{}, rdmacm.IBAddr{}) }, verbs.ErrInvalid},
		{"ask for a path before there is a device", func() error { return pathErr(id.Path()) }, verbs.ErrState},
		{"bind to the GID", func() error { return id.BindIB(ibAddr(t, p.a, 0)) }, nil},
		{"resolve an IP address", func() error { return id.ResolveAddr(netip.AddrPort{}, addr(t, p.b, false, 1)) }, verbs.ErrInvalid},
		{"bind again", func() error { return id.BindAddr(addr(t, p.a, false, 1)) }, verbs.ErrState},
		{"resolve with a source", func() error { return id.ResolveIB(ibAddr(t, p.a, 0), ibAddr(t, p.b, 1)) }, verbs.ErrInvalid},
		{"resolve", func() error { return id.ResolveIB(rdmacm.IBAddr{}, ibAddr(t, p.b, 1)) }, nil},
		{"set a path with an MTU that there is not", func() error { return id.SetPath(rdmacm.PathRecord{MTU: 6}) }, verbs.ErrInvalid},
		{"set a path with a service level that there is not", func() error { return id.SetPath(rdmacm.PathRecord{SL: 16}) }, verbs.ErrInvalid},
		{"ask for a path too early", func() error { return pathErr(id.Path()) }, verbs.ErrState},
	} {
		if err := step.do(); !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.what, err, step.want)
		}
	}
}

// TestIBAddrNotFound: an ID that has found no way to a GID is as it was, and may look for an IP address.
func TestIBAddrNotFound(t *testing.T) {
	p := newPair(t)
	ch := rdmacm.NewEventChannel(p.a)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	from := rdmacm.IBAddr{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 9}} // a stranger's
	for _, step := range []struct {
		do   func() error
		want rdmacm.EventType
	}{
		{func() error { return id.ResolveIB(from, ibAddr(t, p.b, 1)) }, rdmacm.EventAddrError},
		{func() error { return id.ResolveAddr(netip.AddrPort{}, addr(t, p.b, false, 1)) }, rdmacm.EventAddrResolved},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if ev, err := ch.Next(patience(t)); err != nil || ev.Type != step.want {
			t.Fatalf("event %v, %v, %v; want %v", ev.Type, ev.Err, err, step.want)
		}
	}
	if got := id.RemoteIB(); got.Service != rdmacm.PortSpaceTCP.Service(1) {
		t.Errorf("the peer is %v, want that of port 1", got)
	}
}

func pathErr(_ rdmacm.PathRecord, err error) error { return err }

// TestPath tells the path, and takes one of the program's.
func TestPath(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	for _, own := range []*rdmacm.PathRecord{nil, {MTU: verbs.MTU512, TrafficClass: 0x48, PacketLifetime: 14}} {
		ch := rdmacm.NewEventChannel(p.a)
		id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		due := func(want rdmacm.EventType) {
			t.Helper()
			if ev, err := ch.Next(patience(t)); err != nil || ev.Type != want {
				t.Fatalf("event %v, %v, %v; want %v", ev.Type, ev.Err, err, want)
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check(id.ResolveAddr(netip.AddrPort{}, l.Addr()))
		due(rdmacm.EventAddrResolved)
		want := rdmacm.PathRecord{MTU: verbs.MTU4096, PacketLifetime: 12}
		if own == nil {
			check(id.ResolveRoute())
		} else {
			check(id.SetPath(*own))
			want = *own
		}
		due(rdmacm.EventRouteResolved)
		path, err := id.Path()
		if err != nil || path.MTU != want.MTU || path.TrafficClass != want.TrafficClass || path.PacketLifetime != want.PacketLifetime ||
			path.DGID != verbs.GIDFromAddr(l.Addr().Addr()) || path.SGID != verbs.GIDFromAddr(id.LocalAddr().Addr()) || path.PKey != 0xffff {
			t.Errorf("path: got %+v, %v; want %+v", path, err, want)
		}
		check(id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		done := accept(t, l, nil)
		check(id.Connect(nil))
		due(rdmacm.EventEstablished)
		a := <-done
		check(a.err)
		attr, _, err := id.QP().Query()
		if err != nil || attr.PathMTU != want.MTU || attr.AH.TrafficClass != want.TrafficClass {
			t.Errorf("the QP: MTU %v, traffic class %#x, %v; want %v, %#x", attr.PathMTU, attr.AH.TrafficClass, err, want.MTU, want.TrafficClass)
		}
		check(a.conn.Close())
	}
}
