package rdmatest_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestRoCEv1GIDs: the table has each address of both versions, and the version of an entry is its index's choice.
func TestRoCEv1GIDs(t *testing.T) {
	net := rdmatest.New(t, rdmatest.RoCEv1())
	es, err := net.Device().GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		gid string
		typ verbs.GIDType
	}{
		{"10.0.0.1", verbs.GIDTypeRoCEv1}, {"fd00::1", verbs.GIDTypeRoCEv1}, {"fe80::ff:fe00:1", verbs.GIDTypeRoCEv1},
		{"10.0.0.1", verbs.GIDTypeRoCEv2}, {"fd00::1", verbs.GIDTypeRoCEv2},
	}
	if len(es) != len(want) {
		t.Fatalf("%d GIDs, want %d: %v", len(es), len(want), es)
	}
	for i, e := range es {
		if e.GID.Addr() != netip.MustParseAddr(want[i].gid) || e.Type != want[i].typ {
			t.Errorf("GID %d is %v, %v, want %s, %v", i, e.GID, e.Type, want[i].gid, want[i].typ)
		}
	}
	plain, err := rdmatest.New(t).Device().GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range plain {
		if e.Type != verbs.GIDTypeRoCEv2 {
			t.Errorf("without Config.RoCEv1: GID %d is %v, %v", e.Index, e.GID, e.Type)
		}
	}
}

// TestRoCEv1Apart: the two versions are two networks. A QP of one does not hear a QP of the other.
func TestRoCEv1Apart(t *testing.T) {
	net := rdmatest.New(t, rdmatest.RoCEv1())
	x, y := rdmatest.Connect(t, net.Device(), net.Device())
	gid, err := y.Device.GID(1, 3)
	if err != nil {
		t.Fatal(err)
	}
	z, err := x.PD.CreateQP(verbs.QPInitAttr{SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	if err == nil {
		err = z.Init(1, rdmatest.Access)
	}
	if err == nil { // as x, but by RoCEv2
		err = z.RTR(verbs.Peer{QPN: y.QP.QPN(), PSN: 1, GID: gid.GID}, verbs.Path{SGIDIndex: 3})
	}
	if err == nil {
		err = z.RTS(1, verbs.Retry{Timeout: 8, RetryCount: 1, RNRRetryCount: 1, MaxRDAtomic: 1})
	}
	if err == nil {
		_, err = z.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
		t.Errorf("a WRITE by RoCEv2 to a QP of RoCEv1: %v, want %v", wc.Status, verbs.WCRetryExceeded)
	}
	mr := y.MR(8)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: mr.Remote(0)})
	x.Done()
}

// TestRoCEv1CM: rdmacm connects by the GIDs that come first in the table, by IP addresses and by GIDs. The link-local GID
// is no address of IP.
func TestRoCEv1CM(t *testing.T) {
	net := rdmatest.New(t, rdmatest.RoCEv1())
	a, b := net.Device(), net.Device()
	ctx := t.Context()
	for _, to := range []string{"10.0.0.2", "fd00::2", "fe80::ff:fe00:2"} {
		gid, err := verbs.ParseGID(to)
		if err != nil {
			t.Fatal(err)
		}
		ib := gid.Addr().IsLinkLocalUnicast()
		lc := rdmacm.ListenConfig{Devices: []*verbs.Device{b}}
		var l *rdmacm.Listener
		if ib {
			l, err = lc.ListenIB(rdmacm.IBAddr{GID: gid})
		} else {
			l, err = lc.Listen(netip.AddrPortFrom(gid.Addr(), 0))
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			defer close(accepted)
			if req, err := l.Accept(ctx); err == nil {
				if c, err := req.Accept(ctx, nil); err == nil {
					accepted <- c
				}
			}
		}()
		d := rdmacm.Dialer{Devices: []*verbs.Device{a}}
		var c *rdmacm.Conn
		if ib {
			c, err = d.DialIB(ctx, l.AddrIB(), nil)
		} else {
			c, err = d.Dial(ctx, l.Addr(), nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		peer := <-accepted
		if peer == nil {
			t.Fatalf("%s: nothing was accepted", to)
		}
		for name, end := range map[string]struct {
			dev  *verbs.Device
			conn *rdmacm.Conn
		}{"dialer": {a, c}, "listener": {b, peer}} {
			attr, _, err := end.conn.QP().Query()
			if err != nil {
				t.Fatal(err)
			}
			if e, err := end.dev.GID(1, attr.AH.SGIDIndex); err != nil || e.Type != verbs.GIDTypeRoCEv1 {
				t.Errorf("%s: the %s has GID index %d, %v, %v, want one of RoCEv1", to, name, attr.AH.SGIDIndex, e, err)
			}
		}
		if !ib && (c.RemoteAddr() != l.Addr() || peer.LocalAddr() != l.Addr() || peer.RemoteAddr() != c.LocalAddr()) {
			t.Errorf("%s: from %v to %v, accepted from %v at %v", to, c.LocalAddr(), c.RemoteAddr(), peer.RemoteAddr(), peer.LocalAddr())
		}
		if err := errors.Join(c.Close(), peer.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestRoCEv1Group: a group that is joined by its IPv4 address has the GID that Linux's connection manager gives it on RoCEv1, by
// which the datagrams come.
func TestRoCEv1Group(t *testing.T) {
	for config, want := range map[*rdmatest.Config]string{{RoCEv1: true}: "ff0e::ffff:ef01:203", {}: "239.1.2.3"} {
		net := rdmatest.New(t, *config)
		group := netip.MustParseAddr("239.1.2.3")
		var to rdmacm.UDParam
		var ids [2]*rdmacm.ID
		var bufs [2]*verbs.MR
		for i := range ids {
			dev := net.Device()
			ch := rdmacm.NewEventChannel(dev)
			id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
			if err != nil {
				t.Fatal(err)
			}
			defer id.Close()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(id.BindAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 0)))
			must(id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
			bufs[i], err = id.PD().AllocMR(256, verbs.AccessLocalWrite)
			must(err)
			defer bufs[i].Close()
			_, err = id.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{bufs[i].SGE(128, 128)}}})
			must(err)
			must(id.JoinMulticast(group))
			ev, err := ch.Next(t.Context())
			must(err)
			if ev.Type != rdmacm.EventMulticastJoin || ev.UD.AH.DGID != verbs.GIDFromAddr(netip.MustParseAddr(want)) {
				t.Fatalf("event %v, %v, of %v; want one of %s", ev.Type, ev.Err, ev.UD.AH.DGID, want)
			}
			ids[i], to = id, ev.UD
		}
		sender := ids[1]
		ah, err := sender.PD().CreateAH(to.AH)
		if err != nil {
			t.Fatal(err)
		}
		defer ah.Close()
		n := copy(bufs[1].Bytes(), "to all")
		if _, err = sender.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{bufs[1].SGE(0, n)}, AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey}}); err != nil {
			t.Fatal(err)
		}
		for i, id := range ids {
			var wc [1]verbs.WC
			if _, err := id.QP().RecvCQ().Wait(t.Context(), wc[:]); err != nil {
				t.Fatal(err)
			}
			if got := string(bufs[i].Bytes()[128+40:][:n]); wc[0].Status != verbs.WCSuccess || got != "to all" {
				t.Errorf("%s: member %d has received %v, %q", want, i, wc[0].Status, got)
			}
			if err := id.LeaveMulticast(group); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRoCEv1Faults: faults hit RoCEv1's packets.
func TestRoCEv1Faults(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{RoCEv1: true, Loss: 0.05, Corrupt: 0.02, Duplicate: 0.05, Reorder: 0.05})
	x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Retry: verbs.Retry{Timeout: 12, RetryCount: 7}})
	const size = 1 << 20
	src, dst := x.MR(size), y.MR(size)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7 >> 3)
	}
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
	x.Done()
	if got := x.QP.Carrier(); got != verbs.CarrierV1 {
		t.Errorf("the carrier is %q, want %q", got, verbs.CarrierV1)
	}
	if string(src.Bytes()) != string(dst.Bytes()) {
		t.Error("the message has arrived with errors")
	}
	net.Partition(x.Device, y.Device)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 1)}, Remote: dst.Remote(0)})
	if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
		t.Errorf("between separated devices: %v, want %v", wc.Status, verbs.WCRetryExceeded)
	}
}

// TestRoCEv1Datagrams: one UD QP sends by the version of each address vector's GID, and one takes datagrams of both. A receive
// has the header of its own version, and tells the way back by that version.
func TestRoCEv1Datagrams(t *testing.T) {
	net := rdmatest.New(t, rdmatest.RoCEv1())
	x, y := rdmatest.Datagrams(t, net.Device(), net.Device())
	const nextHeaderRoCE, v2 = 0x1b, 3 // the place of the first GID of RoCEv2
	gid, err := y.Device.GID(1, v2)
	if err != nil {
		t.Fatal(err)
	}
	ah, err := x.PD.CreateAH(verbs.AHAttr{DGID: gid.GID, SGIDIndex: v2})
	if err != nil {
		t.Fatal(err)
	}
	src, dst := x.MR(8), y.MR(verbs.GRHSize+8)
	for _, c := range []struct {
		ah  *verbs.AH
		typ verbs.GIDType
	}{{x.AH, verbs.GIDTypeRoCEv1}, {ah, verbs.GIDTypeRoCEv2}, {x.AH, verbs.GIDTypeRoCEv1}} {
		clear(dst.Bytes())
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, verbs.GRHSize+8)}})
		wr := x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}})
		wr.AH = c.ah
		x.Send(wr)
		x.Done()
		wc := y.Done()
		header := dst.Bytes()[:verbs.GRHSize]
		v1 := header[0]>>4 == 6 && header[6] == nextHeaderRoCE // else IPv4's header stands in the last 20 bytes
		if v1 != (c.typ == verbs.GIDTypeRoCEv1) || !v1 && header[20] != 0x45 {
			t.Errorf("%v: the receive begins with % x", c.typ, header)
		}
		back, err := y.Device.AHAttrFromWC(1, &wc, dst.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if e, err := y.Device.GID(1, back.SGIDIndex); err != nil || e.Type != c.typ {
			t.Errorf("%v: the way back is by GID %d, %v, %v", c.typ, back.SGIDIndex, e, err)
		}
	}
}
