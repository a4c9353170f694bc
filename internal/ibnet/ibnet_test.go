package ibnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// pair is two ports at a switch, of which the first has the subnet manager.
func pair(t *testing.T) (n *Net, a, b *Netdev) {
	t.Helper()
	n, devs := subnet(t, 2)
	return n, devs[0], devs[1]
}

// subnet is ports at a switch, of which the first has the subnet manager.
func subnet(t testing.TB, ports int) (n *Net, devs []*Netdev) {
	t.Helper()
	n = New(fabric.New())
	list := make([]*fabric.Port, ports)
	n.Do(func(f *fabric.Fabric) {
		s := f.Switch("switch", ports)
		for i := range list {
			list[i] = f.Adapter("host")
			if err := f.Connect(list[i], s.Port(1+i)); err != nil {
				t.Fatal(err)
			}
		}
		list[0].Manager(0, 0)
	})
	for i, p := range list {
		devs = append(devs, n.Netdev(fmt.Sprintf("ib%d", i), p))
	}
	return n, devs
}

func state(t testing.TB, d *Netdev) link.NetdevState {
	t.Helper()
	s, err := d.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB, d *Netdev) link.Link {
	t.Helper()
	l, err := d.Open(state(t, d).Addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// datagram is a packet from one port to another, with an ICRC that nobody here looks at.
func datagram(t testing.TB, from, to *Netdev, grh bool) link.Datagram {
	a, b := state(t, from), state(t, to)
	d := link.Datagram{Payload: make([]byte, wire.MinDatagramLen+8), FlowLabel: wire.LinkLabelOf(0x12345, 6), TrafficClass: 7}
	src, dst := link.LIDAddr(a.IB.LID), link.LIDAddr(b.IB.LID)
	if grh {
		src, dst = a.Addrs[0], b.Addrs[0]
	}
	d.Src, d.Dst = netip.AddrPortFrom(src, a.IB.LID), netip.AddrPortFrom(dst, b.IB.LID)
	return d
}

func TestSend(t *testing.T) {
	_, a, b := pair(t)
	x, y := open(t, a), open(t, b)
	for _, grh := range []bool{false, true} {
		d := datagram(t, a, b, grh)
		if err := x.Send([]link.Datagram{d, d}); err != nil {
			t.Fatal(err)
		}
		var got [4]link.Datagram
		if n, err := y.Recv(got[:]); n != 2 || err != nil {
			t.Fatalf("%d datagrams, %v; want 2", n, err)
		}
		label, sl := wire.LinkLabel(got[1].FlowLabel)
		if got[1].Src != d.Src || got[1].Dst != d.Dst || len(got[1].Payload) != len(d.Payload) || sl != 6 || grh && (label != 0x12345 || got[1].TrafficClass != 7) {
			t.Errorf("GRH %v: %+v comes as %+v", grh, d, got[1])
		}
	}
	if s := x.Stats(); s.Sent != 4 || s.SendErrors != 0 || y.Stats().Received != 4 {
		t.Errorf("stats %+v and %+v, want 4 each", s, y.Stats())
	}
	if n, err := y.Recv(make([]link.Datagram, 1)); n != 0 || err != nil {
		t.Errorf("nothing has come, but %d, %v", n, err)
	}
}

func TestOpen(t *testing.T) {
	_, a, b := pair(t)
	x := open(t, a)
	if _, err := a.Open(state(t, a).Addrs[0]); err == nil {
		t.Error("a second link opens")
	}
	if _, err := b.Open(state(t, a).Addrs[0]); err == nil {
		t.Error("a link opens with the GID of another port")
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"Close": x.Close(), "Send": x.Send(nil), "Wait": x.Wait(-1)} {
		if !errors.Is(err, link.ErrClosed) {
			t.Errorf("%s of a closed link: %v", what, err)
		}
	}
	if _, err := x.Recv(nil); !errors.Is(err, link.ErrClosed) {
		t.Errorf("Recv of a closed link: %v", err)
	}
	open(t, a)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err == nil {
		t.Error("an interface closes twice")
	}
	for range a.Changed() { // it ends
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		x, y := open(t, a), open(t, b)
		y.Recv(make([]link.Datagram, 1))
		took := func(d time.Duration) time.Duration {
			start := time.Now()
			if err := y.Wait(d); err != nil {
				t.Error(err)
			}
			return time.Since(start)
		}
		if got := took(time.Second); got != time.Second {
			t.Errorf("Wait took %v, want 1s", got)
		}
		y.Wake()
		if got := took(-1); got != 0 {
			t.Errorf("after Wake, Wait took %v", got)
		}
		time.AfterFunc(time.Minute, func() { x.Send([]link.Datagram{datagram(t, a, b, false)}) })
		if got := took(-1); got != time.Minute {
			t.Errorf("Wait for a datagram took %v, want 1m0s", got)
		}
		y.Recv(make([]link.Datagram, 2))
		time.AfterFunc(time.Minute, func() { y.Close() })
		if err := y.Wait(-1); !errors.Is(err, link.ErrClosed) {
			t.Errorf("Wait of a link that closes: %v", err)
		}
	})
}

// A port that nobody receives at holds nobody's credits.
func TestUnattended(t *testing.T) {
	_, a, b := pair(t)
	x := open(t, a)
	d := datagram(t, a, b, false)
	d.Payload = make([]byte, 4096)
	for range 100 {
		if err := x.Send([]link.Datagram{d}); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.port.Pending(); n != 0 {
		t.Errorf("%d packets wait at a port without a link", n)
	}
	if s := a.port.Stats; s.Sent < 100 || s.Waited != 0 {
		t.Errorf("the sender's port: %+v, want all sent", s)
	}
}

func TestGroups(t *testing.T) {
	_, a, _ := pair(t)
	group := netip.MustParseAddr("ff12::5")
	for range 2 {
		if lid, err := a.Join(group, 0xc009, 0); err != nil || lid != 0xc009 {
			t.Fatalf("join: LID %#x, %v", lid, err)
		}
	}
	for i := range 2 {
		if err := a.Leave(group); err != nil {
			t.Errorf("leave %d: %v", i, err)
		}
	}
	if err := a.Leave(group); !errors.Is(err, link.ErrNotJoined) {
		t.Errorf("leaving once more: %v", err)
	}
}

func TestNoManager(t *testing.T) {
	n, a, b := pair(t)
	x := open(t, b)
	n.Do(func(*fabric.Fabric) { b.port.SetOff(true) })
	<-b.Changed()
	if err := x.Send([]link.Datagram{datagram(t, b, a, false)}); err != nil {
		t.Errorf("a port that is down is no error: %v", err)
	}
	if s := x.Stats(); s.SendErrors != 1 || s.LastSendError == nil {
		t.Errorf("%+v, want an error", s)
	}
	if _, err := b.Path(state(t, a).Addrs[0], 0); err == nil {
		t.Error("a port that is down has a path")
	}
}

// A link that closes gives back the credits of the packets that nobody has received.
func TestCloseUnread(t *testing.T) {
	_, devs := subnet(t, 3)
	a, b, c := devs[0], devs[1], devs[2]
	x, y, z := open(t, a), open(t, b), open(t, c)
	d := datagram(t, a, b, false)
	d.Payload = make([]byte, 4096)
	for range 100 { // more than all buffers on the way take in
		if err := x.Send([]link.Datagram{d}); err != nil {
			t.Fatal(err)
		}
	}
	if b.port.Pending() == 0 {
		t.Fatal("no packet waits at the port")
	}
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	if n := b.port.Pending(); n != 0 {
		t.Errorf("%d packets wait at a port whose link is closed", n)
	}
	if err := x.Send([]link.Datagram{datagram(t, a, c, false)}); err != nil {
		t.Fatal(err)
	}
	if n, err := z.Recv(make([]link.Datagram, 1)); n != 1 || err != nil {
		t.Errorf("behind packets for the closed link come %d to another port, %v; want 1", n, err)
	}
}
