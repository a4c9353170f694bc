package hca

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// gidTable returns the device's GID table, with "" for free entries, up to the last used one.
func gidTable(t testing.TB, d *verbs.Device) (table []string) {
	t.Helper()
	es, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		for len(table) < e.Index {
			table = append(table, "")
		}
		if e.Type != verbs.GIDTypeRoCEv2 || e.Port != 1 || e.Netdev == "" {
			t.Errorf("entry %+v, want RoCE v2, port 1 and a network interface", e)
		}
		table = append(table, e.GID.Addr().String())
	}
	return table
}

func wantGIDs(t testing.TB, d *verbs.Device, want ...string) {
	t.Helper()
	if got := gidTable(t, d); !slices.Equal(got, want) {
		t.Errorf("GIDs %q, want %q", got, want)
	}
}

func wantEvent(t testing.TB, d *verbs.Device, want verbs.EventType) {
	t.Helper()
	if ev := event(t, d); ev.Type != want || ev.Port != 1 {
		t.Errorf("event %v of port %d, want %v", ev.Type, ev.Port, want)
	}
}

// TestGIDTable: the table follows the interface's addresses, and entries keep their index.
func TestGIDTable(t *testing.T) {
	a, b, c, d6 := simAddr(1), simAddr(2), simAddr(3), netip.MustParseAddr("fe80::1")
	n := sim.New(sim.Config{}).Netdev("eth0", a, b, c)
	d := openDevice(t, n)
	wantGIDs(t, d, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	noEvent(t, d) // the table is not new

	n.RemoveAddr(b)
	wantEvent(t, d, verbs.EventGIDChange)
	wantGIDs(t, d, "10.0.0.1", "", "10.0.0.3")
	if _, err := d.GID(1, 1); !errors.Is(err, verbs.ErrNotFound) || !strings.Contains(err.Error(), "GID index 1 is empty") {
		t.Errorf("a free entry: %v, want ErrNotFound", err)
	}
	n.RemoveAddr(a)
	wantEvent(t, d, verbs.EventGIDChange)
	wantGIDs(t, d, "", "", "10.0.0.3")
	n.AddAddr(d6)
	wantEvent(t, d, verbs.EventGIDChange)
	n.AddAddr(b)
	wantEvent(t, d, verbs.EventGIDChange)
	wantGIDs(t, d, "fe80::1", "10.0.0.2", "10.0.0.3")
	n.AddAddr(b) // nothing new
	n.SetUp(false)
	if ev := event(t, d); ev.Type != verbs.EventPortErr || ev.Port != 1 || ev.Cause == nil || ev.Cause.Error() != "network interface eth0 is down" {
		t.Errorf("event %v of port %d for %v, want %v with the interface, and what has happened to it", ev.Type, ev.Port, ev.Cause, verbs.EventPortErr)
	}
	noEvent(t, d)

	for _, i := range []int{-1, gidTableLen, 1 << 30} {
		if _, err := d.GID(1, i); !errors.Is(err, verbs.ErrNotFound) {
			t.Errorf("GID index %d: %v, want ErrNotFound", i, err)
		}
	}
	for _, port := range []int{0, 2} {
		if _, err := d.GID(port, 0); !errors.Is(err, verbs.ErrNotFound) {
			t.Errorf("port %d: %v, want ErrNotFound", port, err)
		}
	}
	if k, err := d.PKey(1, 0); k != 0xffff || err != nil {
		t.Errorf("P_Key %v, %v; want 0xffff", k, err)
	}
	if _, err := d.PKey(1, 1); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("P_Key index 1: %v, want ErrNotFound", err)
	}
}

// TestGIDTableFull: with more addresses than entries, the rest waits for a free entry.
func TestGIDTableFull(t *testing.T) {
	n := sim.New(sim.Config{}).Netdev("eth0")
	for i := range gidTableLen + 1 {
		n.AddAddr(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	d := openDevice(t, n)
	if got := gidTable(t, d); len(got) != gidTableLen || slices.Contains(got, "10.1.1.0") {
		t.Errorf("%d entries, the last %s; want %d without 10.1.1.0", len(got), got[len(got)-1], gidTableLen)
	}
	n.RemoveAddr(netip.MustParseAddr("10.1.0.7"))
	wantEvent(t, d, verbs.EventGIDChange)
	if got := gidTable(t, d); len(got) != gidTableLen || got[7] != "10.1.1.0" {
		t.Errorf("%d entries, the eighth %s; want %d and 10.1.1.0", len(got), got[7], gidTableLen)
	}
}

func TestPortState(t *testing.T) {
	n := sim.New(sim.Config{}).Netdev("eth0", simAddr(1))
	d := openDevice(t, n)
	want := func(s verbs.PortState, p verbs.PhysState) {
		t.Helper()
		if a, err := d.QueryPort(1); err != nil || a.State != s || a.PhysState != p {
			t.Errorf("port %v, %v, %v; want %v, %v", a.State, a.PhysState, err, s, p)
		}
	}
	downed := func(n uint64) {
		t.Helper()
		device, err := d.Counters()
		port, portErr := d.PortCounters(1)
		if a, b := device.Value("link_downed"), port.Value("link_downed"); a != n || b != n || err != nil || portErr != nil {
			t.Errorf("link_downed of the device is %d, %v, and of its port %d, %v; want %d", a, err, b, portErr, n)
		}
	}
	want(verbs.PortActive, verbs.PhysLinkUp)
	downed(0)
	for i := range uint64(2) {
		n.SetUp(false)
		wantEvent(t, d, verbs.EventPortErr)
		want(verbs.PortDown, verbs.PhysDisabled)
		downed(i + 1)
		n.SetUp(true)
		wantEvent(t, d, verbs.EventPortActive)
		want(verbs.PortActive, verbs.PhysLinkUp)
		downed(i + 1)
	}
	noEvent(t, d)
}

// TestPortCounters: a port counts as many packets and bytes sent as its peer counts received.
func TestPortCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, "memory", options{})
		const size = 40_000
		x.transfer(x.mr(size), y.mr(size))
		synctest.Wait() // for the work behind the event
		of := func(e *end, name string) uint64 {
			t.Helper()
			c, err := e.dev.PortCounters(1)
			e.must(err)
			return c.Value(name)
		}
		for _, ends := range [][2]*end{{x, y}, {y, x}} {
			for _, unit := range []string{"packets", "data"} {
				sent, got := of(ends[0], "port_xmit_"+unit), of(ends[1], "port_rcv_"+unit)
				if sent != got || sent == 0 {
					t.Errorf("%s: one port has sent %d, and the other has received %d; want the same", unit, sent, got)
				}
			}
		}
		packets := of(x, "port_xmit_packets")
		if n := of(x, "port_xmit_data") * 4; n < size || n > size+packets*64 {
			t.Errorf("the port that sent %d bytes in %d packets counts %d", size, packets, n)
		}
		if back := of(x, "port_rcv_packets"); back >= packets {
			t.Errorf("the port that sent %d packets has received %d, want only what acknowledges them", packets, back)
		}
		for _, name := range []string{"port_rcv_errors", "port_xmit_discards", "link_downed"} {
			if n := of(x, name); n != 0 {
				t.Errorf("%s is %d, want 0", name, n)
			}
		}
	})
}

// TestCounter32: a counter of the port stays at its maximum, and does not begin anew.
func TestCounter32(t *testing.T) {
	var c counter32
	c.n.Store(1<<32 - 2)
	for range 3 {
		c.add()
	}
	if n := c.load(); n != 1<<32-1 {
		t.Errorf("got %d after the maximum, want %d", n, uint32(1<<32-1))
	}
}

// vanishing is a network interface that can be removed.
type vanishing struct {
	*sim.Netdev
	gone   atomic.Bool
	closed atomic.Int32
}

func (v *vanishing) Close() error {
	v.closed.Add(1)
	return v.Netdev.Close()
}

func (v *vanishing) State() (link.NetdevState, error) {
	if v.gone.Load() {
		return link.NetdevState{}, errors.New("no such network interface")
	}
	return v.Netdev.State()
}

// TestNetdevVanishes: when its interface is removed, a device has a port that is down and has no GIDs,
// until the interface comes back.
func TestNetdevVanishes(t *testing.T) {
	v := &vanishing{Netdev: sim.New(sim.Config{}).Netdev("eth0", simAddr(1), simAddr6(1))}
	d := openDevice(t, v)
	guid := d.Info().NodeGUID
	was, err := d.QueryPort(1)
	if err != nil || was.ActiveMTU == verbs.MTU256 {
		t.Fatalf("port %+v, %v; want an active MTU above 256", was, err)
	}
	v.gone.Store(true)
	v.SetUp(true) // signals a change
	wantEvent(t, d, verbs.EventGIDChange)
	wantEvent(t, d, verbs.EventPortErr)
	wantGIDs(t, d)
	a, err := d.QueryPort(1)
	if was.State, was.PhysState = verbs.PortDown, verbs.PhysDisabled; err != nil || a != was { // MTU and speed as they were
		t.Errorf("port %+v, %v; want %+v", a, err, was)
	}
	if q, err := d.Query(); err != nil || q.NodeGUID != guid {
		t.Errorf("GUID %v, %v; want it to stay %v", q.NodeGUID, err, guid)
	}
	v.gone.Store(false)
	v.SetUp(true)
	wantEvent(t, d, verbs.EventGIDChange)
	wantEvent(t, d, verbs.EventPortActive)
	wantGIDs(t, d, "10.0.0.1", "fd00::1")

	v = &vanishing{Netdev: sim.New(sim.Config{}).Netdev("eth1")}
	v.gone.Store(true)
	if d, err := Open(v, Config{}); err == nil || !strings.Contains(err.Error(), "open soft_eth1: no such") {
		t.Errorf("Open of an interface that is gone: %v, %v; want an error that says so", d, err)
	}
	if n := v.closed.Load(); n != 1 {
		t.Errorf("the interface of a device that was not opened was closed %d times, want once", n)
	}
}

// TestNetdevReplaced: another interface that takes the name of a device's is not the device's, whether or not the device has
// seen that there was none in between. Its sockets are those of the interface that was.
func TestNetdevReplaced(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprintf("Seen=%v", seen), func(t *testing.T) {
			r := sim.New(sim.Config{}).Netdev("eth0", simAddr(1))
			d := openDevice(t, r)
			now, cancel := context.WithCancel(t.Context())
			cancel()
			wantEnd := func() {
				t.Helper()
				for _, want := range []verbs.EventType{verbs.EventDeviceFatal, verbs.EventGIDChange, verbs.EventPortErr} {
					if ev, err := d.NextEvent(now); err != nil || ev.Type != want {
						t.Errorf("event %v, %v; want %v", ev.Type, err, want)
					}
				}
			}
			look := func() { impl(d).port.refresh(impl(d), false) }
			if seen {
				r.Remove()
				look()
				wantEnd()
			}
			r.Replace()
			if look(); !seen {
				wantEnd()
			}
			noEvent(t, d)
			wantGIDs(t, d)
			if a, err := d.QueryPort(1); err != nil || a.State != verbs.PortDown {
				t.Errorf("port %+v, %v; want it down", a, err)
			}
		})
	}
}

// TestGIDsAfterUnreadable: a state that could not be read for a moment, as for want of descriptors, costs no address its
// index. Programs go on with the indexes that they have.
func TestGIDsAfterUnreadable(t *testing.T) {
	v := &vanishing{Netdev: sim.New(sim.Config{}).Netdev("eth0", simAddr(1), simAddr(2), simAddr(3))}
	d := openDevice(t, v)
	v.RemoveAddr(simAddr(1))
	wantEvent(t, d, verbs.EventGIDChange)
	v.gone.Store(true)
	v.SetUp(true) // signals a change
	wantEvent(t, d, verbs.EventGIDChange)
	wantEvent(t, d, verbs.EventPortErr)
	v.gone.Store(false)
	v.AddAddr(simAddr(4))
	wantEvent(t, d, verbs.EventGIDChange)
	wantEvent(t, d, verbs.EventPortActive)
	wantGIDs(t, d, "10.0.0.4", "10.0.0.2", "10.0.0.3")
}

func TestActiveMTU(t *testing.T) {
	for _, tt := range []struct {
		netdev int
		want   verbs.MTU
	}{
		{0, verbs.MTU256}, {256 + packetOverhead, verbs.MTU256}, {576, verbs.MTU256},
		{512 + packetOverhead - 1, verbs.MTU256}, {512 + packetOverhead, verbs.MTU512},
		{1400, verbs.MTU1024}, {1500, verbs.MTU1024}, {2200, verbs.MTU2048}, {4096, verbs.MTU2048},
		{4096 + packetOverhead - 1, verbs.MTU2048}, {4200, verbs.MTU4096}, {9000, verbs.MTU4096}, {65536, verbs.MTU4096},
	} {
		if got := activeMTU(tt.netdev); got != tt.want {
			t.Errorf("active MTU on an interface of %d: %v, want %v", tt.netdev, got, tt.want)
		}
	}
}

// TestActiveMTUFits: packets of the active MTU fit the network, over both versions of IP.
func TestActiveMTUFits(t *testing.T) {
	for _, mtu := range []int{256 + packetOverhead, 1400, 1500, 2200, 4200, 9000, 65536} {
		for gid := range 2 {
			t.Run(fmt.Sprintf("%d/GID%d", mtu, gid), func(t *testing.T) {
				net := sim.New(sim.Config{MTU: mtu})
				x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{gid: gid})
				port, err := x.dev.QueryPort(1)
				x.must(err)
				size := 3 * port.ActiveMTU.Bytes()
				src, dst := x.mr(size), y.mr(size)
				y.recv(verbs.RecvWR{}, verbs.RecvWR{})
				for _, n := range []int{size / 3, size} { // the first is an ONLY with immediate
					x.send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, n)}, Remote: dst.Remote(0)})
					x.done()
				}
				x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
				x.done()
				for _, e := range []*end{x, y} {
					if s := stats(t, e.dev); s.Link.SendErrors != 0 {
						t.Error(s.Link.LastSendError)
					}
				}
				if port.ActiveMTU < verbs.MTU4096 {
					z := newEnd(t, x.dev, options{})
					err := z.qp.RTR(verbs.Peer{QPN: 1, GID: verbs.GIDFromAddr(simAddr(2))}, verbs.Path{MTU: port.ActiveMTU + 1})
					if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "PATH_MTU") {
						t.Errorf("a path MTU above the port's: %v, want ErrInvalid that names PATH_MTU", err)
					}
				}
			})
		}
	}
}

func TestGUID(t *testing.T) {
	lo, far := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("2001:db8::1234:5678")
	for _, tt := range []struct {
		mac   []byte
		addrs []netip.Addr
		want  string
	}{
		{[]byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55}, []netip.Addr{lo}, "0211:22ff:fe33:4455"},
		{[]byte{0x02, 0x00, 0x00, 0x00, 0x00, 0x01}, nil, "0000:00ff:fe00:0001"},
		{make([]byte, 6), []netip.Addr{lo, far}, "0200:00ff:fe00:0001"},
		{nil, []netip.Addr{far}, "0200:00ff:fe34:5678"},
		{make([]byte, 20), nil, "0200:00ff:fe00:0000"}, // IP over InfiniBand's are longer
	} {
		if got := guidOf(link.NetdevState{HardwareAddr: tt.mac, Addrs: tt.addrs}).String(); got != tt.want {
			t.Errorf("GUID of MAC %x and %v: %s, want %s", tt.mac, tt.addrs, got, tt.want)
		}
	}
}

// TestSpeed: width and speed codes multiply to the interface's speed, or to the next lower speed that
// the codes can say.
func TestSpeed(t *testing.T) {
	lanes := map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12}                                                            // width codes
	mbps := map[uint32]int{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000} // of a lane
	for speed, want := range map[int]int{
		0: 2500, 10: 2500, 1000: 2500, 10000: 10000, 25000: 25000, 40000: 40000, 50000: 50000, 56000: 50000,
		100000: 100000, 200000: 200000, 400000: 400000, 800000: 400000,
	} {
		p := port{state: link.NetdevState{SpeedMbps: speed}}
		a := p.query()
		if got := lanes[a.ActiveWidth] * mbps[a.ActiveSpeed]; got != want {
			t.Errorf("an interface of %d Mb/s: width %d and speed %d are %d Mb/s, want %d", speed, a.ActiveWidth, a.ActiveSpeed, got, want)
		}
	}
}

// TestResolve: a GID or an index that cannot lead to a peer is refused, with a reason.
func TestResolve(t *testing.T) {
	net := sim.New(sim.Config{})
	x := newEnd(t, simDevice(t, net, 1), options{})
	for _, tt := range []struct {
		gid   verbs.GID
		index int
		err   string
		is    error
	}{
		{verbs.GIDFromAddr(simAddr6(2)), 0, "different IP versions", verbs.ErrInvalid},
		{verbs.GIDFromAddr(simAddr(2)), 1, "different IP versions", verbs.ErrInvalid},
		{verbs.GIDFromAddr(simAddr(2)), 2, "GID index 2 is empty", verbs.ErrNotFound},
		{verbs.GIDFromAddr(netip.IPv4Unspecified()), 0, "no single host", verbs.ErrInvalid},
		{verbs.GIDFromAddr(netip.MustParseAddr("224.0.0.1")), 0, "no single host", verbs.ErrInvalid},
		{verbs.GIDFromAddr(netip.MustParseAddr("ff02::1")), 1, "no single host", verbs.ErrInvalid},
	} {
		err := x.qp.RTR(verbs.Peer{QPN: 5, GID: tt.gid}, verbs.Path{SGIDIndex: tt.index})
		if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, tt.is) {
			t.Errorf("peer %v from index %d: %v; want %q, %v", tt.gid, tt.index, err, tt.err, tt.is)
		}
	}
	if s := x.qp.State(); s != verbs.QPStateInit {
		t.Errorf("the QP is in %v after refusals, want INIT", s)
	}
}
