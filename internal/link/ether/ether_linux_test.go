//go:build !adverb_portable

package ether_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/ether"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	macA, macB = linktest.MACA, linktest.MACB
	llA, llB   = "fe80::ff:fe00:101", "fe80::ff:fe00:102"
)

type host struct{ linktest.Host }

// twoHosts makes two hosts with a wire between them.
func twoHosts(t *testing.T) (a, b host) {
	x, y := linktest.TwoHosts(t)
	return host{x}, host{y}
}

// vlan adds a VLAN, v0 and v1, to the wire of two hosts. It skips the test where the kernel has none.
func vlan(t *testing.T, hosts ...host) {
	t.Helper()
	for i, h := range hosts {
		var out []byte
		h.Do(func() {
			out, _ = exec.Command("ip", strings.Fields(fmt.Sprintf("link add link w%d name v%d type vlan id 93", i, i))...).CombinedOutput()
		})
		if strings.Contains(string(out), "Unknown device type") {
			t.Skip("this kernel has no VLANs")
		}
		h.IP(t, fmt.Sprintf("addr add 10.94.0.%d/24 dev v%d", i+1, i), fmt.Sprintf("link set v%d up", i))
	}
}

// netdev opens a network interface of the host, or one address of it: lo@127.0.0.2.
func (h host) netdev(t *testing.T, name string, o ether.Options) *ether.Netdev {
	t.Helper()
	var n *ether.Netdev
	var err error
	h.Do(func() {
		var u *udp.Netdev
		dev, only, one := strings.Cut(name, "@")
		if o.One = one; one {
			u, err = udp.NetdevForAddr(dev, netip.MustParseAddr(only))
		} else {
			u, err = udp.OpenNetdev(dev)
		}
		if err == nil {
			n, err = ether.New(u, o)
		}
	})
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// open opens a link of the host.
func (h host) open(t *testing.T, name, addr string) link.Link {
	t.Helper()
	l, err := h.tryOpen(t, name, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (h host) tryOpen(t *testing.T, name, addr string) (l link.Link, err error) {
	t.Helper()
	n := h.netdev(t, name, ether.Options{})
	h.Do(func() { l, err = n.Open(link.V1(netip.MustParseAddr(addr))) })
	return l, err
}

// TestConformance runs the suite of links over a wire, over a VLAN, and on one host.
func TestConformance(t *testing.T) {
	a, b := twoHosts(t)
	for name, c := range map[string]struct {
		far                   host
		dev, addr, peer, far1 string
	}{
		"IPv4":      {b, "w0", "10.93.0.1", "w1", "10.93.0.2"},
		"IPv6":      {b, "w0", "fd93::1", "w1", "fd93::2"},
		"LinkLocal": {b, "w0", llA, "w1", llB},
		"VLAN":      {b, "v0", "10.94.0.1", "v1", "10.94.0.2"},
		"OneHost":   {a, "w0", "10.93.0.1", "w0", "fd93::1"},
		"Loopback":  {a, "lo", "127.0.0.1", "lo@127.0.0.2", "127.0.0.2"},
		"Itself":    {a, "w0", "10.93.0.1", "", ""},
	} {
		open := func(t *testing.T) (x, y link.Link) {
			if c.dev == "v0" {
				a, b := twoHosts(t)
				vlan(t, a, b)
				return a.open(t, c.dev, c.addr), b.open(t, c.peer, c.far1)
			}
			x = a.open(t, c.dev, c.addr)
			if c.peer == "" {
				return x, x
			}
			return x, c.far.open(t, c.peer, c.far1)
		}
		t.Run(name, func(t *testing.T) {
			linktest.Run(t, open)
			linktest.TrafficClass(t, open)
		})
		t.Run(name+"/Allocs", func(t *testing.T) { linktest.Allocs(t, open) })
		if name == "OneHost" {
			continue // two IP versions
		}
		group, other := link.V1(netip.MustParseAddr("239.1.2.3")), link.V1(netip.MustParseAddr("239.1.2.4"))
		if netip.MustParseAddr(c.addr).Is6() {
			group, other = link.V1(netip.MustParseAddr("ff12::1:3")), link.V1(netip.MustParseAddr("ff02::1:4"))
		}
		t.Run(name+"/Multicast", func(t *testing.T) { linktest.Multicast(t, group, other, open) })
	}
}

// TestAddrs: each address has one of RoCEv1 too, and the interface has its link-local GID besides.
func TestAddrs(t *testing.T) {
	a, _ := twoHosts(t)
	for o, want := range map[ether.Options]string{
		{}:            "10.93.0.1 fd93::1 fe80::ff:fe00:101 ::ffff:10.93.0.1%rocev1 fd93::1%rocev1 fe80::ff:fe00:101%rocev1",
		{First: true}: "::ffff:10.93.0.1%rocev1 fd93::1%rocev1 fe80::ff:fe00:101%rocev1 10.93.0.1 fd93::1 fe80::ff:fe00:101",
	} {
		n := a.netdev(t, "w0", o)
		var got []string
		a.Do(func() {
			s, err := n.State()
			if err != nil {
				t.Error(err)
			}
			for _, addr := range s.Addrs {
				got = append(got, addr.String())
			}
		})
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: addresses %s, want %s", o, got, want)
		}
	}
}

// TestTaken: an address has one link among all programs, until that is closed.
func TestTaken(t *testing.T) {
	a := host{linktest.NewHost(t)}
	first := a.open(t, "lo", "127.0.0.1")
	if _, err := a.tryOpen(t, "lo", "127.0.0.1"); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a second link: %v, want that another program has the address", err)
	}
	a.open(t, "lo@127.0.0.2", "127.0.0.2")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	a.open(t, "lo", "127.0.0.1")
	if _, err := a.tryOpen(t, "lo", "10.1.2.3"); err == nil {
		t.Error("the link of an address that the interface does not have opens")
	}
}

// TestNoNeighbor: frames to nobody are counted as lost, and the cause is said.
func TestNoNeighbor(t *testing.T) {
	a, _ := twoHosts(t)
	l := a.open(t, "w0", "10.93.0.1")
	dst := netip.AddrPortFrom(link.V1(netip.MustParseAddr("10.93.0.9")), link.PortV1)
	for range 3 {
		if err := l.Send([]link.Datagram{{Src: l.Source(0), Dst: dst, Payload: make([]byte, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	for limit := time.Now().Add(linktest.Patience); l.Stats().SendErrors < 3; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%+v, want 3 frames lost", l.Stats())
		}
	}
	if s := l.Stats(); s.Sent != 0 || !strings.Contains(fmt.Sprint(s.LastSendError), "to 10.93.0.9: no neighbor answers") {
		t.Errorf("%+v, want that no neighbor answers", s)
	}
}

// TestGroupLoopbackDown: a datagram to a group counts once, by the frame that the network gets. The copy for this host is no
// other, and an error where it cannot go.
func TestGroupLoopbackDown(t *testing.T) {
	a, _ := twoHosts(t)
	l := a.open(t, "w0", "10.93.0.1")
	d := link.Datagram{Src: l.Source(0), Dst: netip.AddrPortFrom(link.V1(netip.MustParseAddr("239.1.2.3")), link.PortV1), Payload: make([]byte, 64)}
	for i, down := range []string{"", "lo", "w0"} {
		if down != "" {
			a.IP(t, "link set "+down+" down")
		}
		before := l.Stats()
		if err := l.Send([]link.Datagram{d}); err != nil {
			t.Fatal(err)
		}
		after := l.Stats()
		sent, bytes, errs := after.Sent-before.Sent, after.SentBytes-before.SentBytes, after.SendErrors-before.SendErrors
		if want := []uint64{1, 1, 0}[i]; sent != want || bytes != want*64 || errs != uint64(i) {
			t.Errorf("down: %q: %d sent, %d bytes, %d errors; want %d, %d, %d", down, sent, bytes, errs, want, want*64, i)
		}
	}
}

// TestPermission: without privileges the error names what is missing.
func TestPermission(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends without its capabilities
		var none [2]unix.CapUserData
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(&h, &none[0]); err != nil {
			t.Error(err)
		}
		u, err := udp.OpenNetdev("lo")
		if err != nil {
			t.Error(err)
			return
		}
		defer u.Close()
		if _, err := ether.New(u, ether.Options{}); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
			t.Errorf("without privileges: %v, want that CAP_NET_RAW is missing", err)
		}
	}()
	<-done
}

// TestFrames: on the wire are frames of RoCEv1 between the MAC addresses of the two ends, with the VLAN's tag where there
// is a VLAN, and with a right ICRC.
func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		dev, addr, peer, to string
		tagged              bool
	}{
		"IPv4":      {"w0", "10.93.0.1", "w1", "10.93.0.2", false},
		"LinkLocal": {"w0", llA, "w1", llB, false},
		"VLAN":      {"v0", "10.94.0.1", "v1", "10.94.0.2", true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoHosts(t)
			if c.tagged {
				vlan(t, a, b)
			}
			var live *capture.Live
			var err error
			b.Do(func() { live, err = capture.OpenLive("w1") })
			if err != nil {
				t.Fatal(err)
			}
			x, y := a.open(t, c.dev, c.addr), b.open(t, c.peer, c.to)
			src, dst := x.Source(0), y.Addr()
			p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: 1}, Payload: []byte("odd")}
			d := link.Datagram{Src: src, Dst: dst, Payload: p.AppendTo(nil), TrafficClass: 0x6a, FlowLabel: 0x12345}
			flow := wire.NewFlow(src, dst)
			flow.Seal(0, d.Payload)
			if err := x.Send([]link.Datagram{d}); err != nil {
				t.Fatal(err)
			}
			var dec capture.Decoder
			for limit := time.Now().Add(linktest.Patience); ; {
				f, err := live.Next()
				if errors.Is(err, capture.ErrQuiet) && time.Now().Before(limit) {
					continue // the frame waits for its neighbor
				}
				if err != nil {
					t.Fatal(err)
				}
				got, kind := dec.Decode(f)
				if kind != capture.KindRoCE {
					continue // ARP
				}
				if got.Version != capture.RoCEv1 || got.ICRC() != capture.ICRCGood || string(got.Datagram) != string(d.Payload) || got.TrafficClass != 0x6a || got.FlowLabel != 0x12345 {
					t.Errorf("%s: RoCEv%d, ICRC %v, class %#x, label %#x", c.dev, got.Version, got.ICRC(), got.TrafficClass, got.FlowLabel)
				}
				if from, to := fmt.Sprintf("%x", got.SrcMAC), fmt.Sprintf("%x", got.DstMAC); from != strings.ReplaceAll(macA, ":", "") || to != strings.ReplaceAll(macB, ":", "") {
					t.Errorf("%s: from %s to %s, want from %s to %s", c.dev, from, to, macA, macB)
				}
				if got.Tagged != c.tagged || c.tagged && got.VLAN&0xfff != 93 {
					t.Errorf("%s: tagged %v, VLAN %d", c.dev, got.Tagged, got.VLAN&0xfff)
				}
				break
			}
			live.Close()
		})
	}
}
