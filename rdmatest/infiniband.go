package rdmatest

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/ibnet"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/verbs"
)

// InfiniBand is the Config of a network that is a subnet of InfiniBand. Its devices have ports with LIDs, which
// packets bear in place of IP addresses, and link layer InfiniBand. Cables have credits for each virtual lane, so that
// nothing is lost by congestion. A subnet manager beside the first device's port finds nodes, gives LIDs, writes the
// switches' tables and answers for paths and groups, all by packets: see [Network.Capture].
//
//	net := rdmatest.New(t, rdmatest.InfiniBand())
//	x, y := rdmatest.Connect(t, net.Device(), net.Device())
//
// Package rdmacm finds a device there by its GID, as an IPv6 address: it is the link-local one that IPoIB would have.
// ADVERB_TRACE and ADVERB_PCAP do not count.
//
// Devices have cables to one switch, unless Switch makes more. Subnet makes further subnets, and Router what connects
// them. Only simulations have this link: on a real network of
// InfiniBand a card and provider/native are needed.
func InfiniBand() Config { return Config{InfiniBand: true} }

// switchPorts is how many ports a switch has.
const switchPorts = 36

// subnets is the InfiniBand of a Network.
type subnets struct {
	n    *Network
	net  *ibnet.Net
	lmc  uint8
	home *Subnet

	mu       sync.Mutex
	ports    map[string]*fabric.Port // by the devices' names
	managers map[string]*fabric.Manager
}

func newSubnets(n *Network, c Config) *subnets {
	if c.Duplicate != 0 || c.Reorder != 0 || c.Delay != 0 || c.Jitter != 0 || c.MarkCE != 0 || c.Rate != 0 || c.MarkCEAbove != 0 || c.RoCEv1 {
		n.t.Fatalf("rdmatest: a network of InfiniBand has Seed, Loss, Corrupt, MTU and LMC; leave the other fields of Config 0")
	}
	f := fabric.New()
	if c.MTU != 0 {
		mtu, ok := verbs.MTUFromBytes(c.MTU)
		if !ok {
			n.t.Fatalf("rdmatest: Config.MTU %d: on InfiniBand it is 256, 512, 1024, 2048 or 4096 bytes, or 0 for 4096", c.MTU)
		}
		f.MTU = uint8(mtu)
	}
	if c.Loss != 0 || c.Corrupt != 0 {
		f.Fault = func(_ *fabric.Port, packet []byte) []byte {
			n.mu.Lock()
			defer n.mu.Unlock()
			switch p := n.rng.Float64(); {
			case p < c.Loss:
				return nil
			case p < c.Loss+c.Corrupt:
				packet = append([]byte(nil), packet...)
				packet[n.rng.IntN(len(packet))] ^= 1 << n.rng.IntN(8)
			}
			return packet
		}
	}
	s := &subnets{n: n, net: ibnet.New(f), lmc: c.LMC, ports: map[string]*fabric.Port{}, managers: map[string]*fabric.Manager{}}
	s.home = &Subnet{s: s, prefix: linkLocal}
	return s
}

// linkLocal is the prefix of a subnet that has no other.
const linkLocal = 0xfe80 << 48

// Subnet is a subnet of InfiniBand.
type Subnet struct {
	s      *subnets
	prefix uint64

	first   *Switch // guarded by s.mu, as is managed
	managed bool    // there has been a device, beside which a manager was started
}

// Subnet adds a subnet, whose ports have GIDs of a prefix: the first 64 bits. Routers forward no packets of the prefix
// fe80::, which the subnet has that a Network begins with. 0xfec0000000000001 would do. Beside the port of the subnet's
// first device is a subnet manager.
//
//	net := rdmatest.New(t, rdmatest.InfiniBand())
//	a, b := net.Subnet(0xfec0_0000_0000_0001), net.Subnet(0xfec0_0000_0000_0002)
//	net.Router(a.Switch("left"), b.Switch("right"))
//	x, y := rdmatest.Connect(t, a.Device(), b.Device())
func (n *Network) Subnet(prefix uint64) *Subnet {
	n.t.Helper()
	return &Subnet{s: n.need("Subnet"), prefix: prefix}
}

// Device adds a device with a cable to the subnet's first switch, which it makes if there is none.
func (u *Subnet) Device() *verbs.Device {
	u.s.n.t.Helper()
	u.s.mu.Lock()
	w := u.first
	u.s.mu.Unlock()
	if w == nil {
		w = u.Switch("switch0")
	}
	return w.Device()
}

// Router is a router between subnets. Within a subnet packets have an LRH alone. Those that a router forwards have a GRH
// too, and the router makes their LRH anew. Packets to groups end at a router.
type Router struct {
	s *subnets
	f *fabric.Router
}

// Router adds a router with a cable to a switch of each subnet that it connects. Routers know each other, so packets may
// pass several. Connect and package rdmacm ask subnet administration for the way.
func (n *Network) Router(to ...*Switch) *Router {
	n.t.Helper()
	s := n.need("Router")
	r := &Router{s: s}
	s.net.Do(func(f *fabric.Fabric) { r.f = f.Router("router", len(to)) })
	for i, w := range to {
		s.cable(r.f.Port(1+i), w.port())
	}
	return r
}

// Fail takes the router out of order: its packets are lost, and the ports at its cables go down.
func (r *Router) Fail() { r.s.net.Do(func(*fabric.Fabric) { r.f.Fail() }) }

// Repair undoes Fail.
func (r *Router) Repair() { r.s.net.Do(func(*fabric.Fabric) { r.f.Repair() }) }

// need fails the test on a network that is not InfiniBand.
func (n *Network) need(what string) *subnets {
	n.t.Helper()
	if n.ib == nil {
		n.t.Fatalf("rdmatest: %s: this network is not InfiniBand: make it by New(t, InfiniBand())", what)
	}
	return n.ib
}

// needIP fails the test on InfiniBand.
func (n *Network) needIP(what string) {
	n.t.Helper()
	if n.ib != nil {
		n.t.Fatalf("rdmatest: %s: not on InfiniBand: Switch, SetCable and StopManager make faults there", what)
	}
}

// Switch is a switch of InfiniBand, with 36 ports.
type Switch struct {
	s  *subnets
	in *Subnet
	f  *fabric.Switch

	used int // ports, guarded by s.mu
}

// Switch adds a switch.
func (n *Network) Switch(name string) *Switch {
	n.t.Helper()
	return n.need("Switch").home.Switch(name)
}

// Switch adds a switch to the subnet. It has no cables, and Connect gives it some.
func (u *Subnet) Switch(name string) *Switch {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	w := &Switch{s: u.s, in: u}
	u.s.net.Do(func(f *fabric.Fabric) { w.f = f.Switch(name, switchPorts) })
	if u.first == nil {
		u.first = w
	}
	return w
}

// SetMTU sets the largest path MTU that the switch's ports take, which else is Config.MTU. It is called before the switch
// has cables. The MTU of a cable is the smaller one of the ports at its ends, and that of a path the smallest on its way:
// Connect and package rdmacm ask subnet administration for it. Longer packets are lost.
//
//	net := rdmatest.New(t, rdmatest.InfiniBand())
//	left, old, right := net.Switch("left"), net.Switch("old"), net.Switch("right")
//	old.SetMTU(verbs.MTU2048)
//	left.Connect(old)
//	old.Connect(right)
func (w *Switch) SetMTU(mtu verbs.MTU) {
	w.s.n.t.Helper()
	w.s.mu.Lock()
	used := w.used
	w.s.mu.Unlock()
	if mtu < verbs.MTU256 || mtu > verbs.MTU4096 || used > 0 {
		w.s.n.t.Fatalf("rdmatest: SetMTU(%d): give one from MTU256 to MTU4096, before the switch has cables; it has %d", mtu, used)
	}
	w.s.net.Do(func(*fabric.Fabric) { w.f.SetMTU(uint8(mtu)) })
}

// port takes a free port.
func (w *Switch) port() *fabric.Port {
	w.s.n.t.Helper()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.used == switchPorts {
		w.s.n.t.Fatalf("rdmatest: all %d ports of a switch have cables", switchPorts)
	}
	w.used++
	return w.f.Port(w.used)
}

// Connect puts a cable between two switches.
func (w *Switch) Connect(to *Switch) {
	w.s.n.t.Helper()
	a, b := w.port(), to.port()
	w.s.cable(a, b)
}

func (s *subnets) cable(a, b *fabric.Port) {
	s.n.t.Helper()
	var err error
	s.net.Do(func(f *fabric.Fabric) { err = f.Connect(a, b) })
	if err != nil {
		s.n.t.Fatalf("rdmatest: %v", err)
	}
}

// Device adds a device with a cable to the switch. Its port is active when Device returns, if a subnet manager reaches
// it.
func (w *Switch) Device() *verbs.Device {
	s, n := w.s, w.s.n
	n.t.Helper()
	name := fmt.Sprintf("sim%d", n.nextDevice())
	var p *fabric.Port
	s.net.Do(func(f *fabric.Fabric) { p = f.Adapter(name) })
	s.mu.Lock()
	s.ports[name] = p
	first := !w.in.managed
	w.in.managed = true
	s.mu.Unlock()
	s.cable(p, w.port())
	if first {
		s.manage(name, 0, w.in.prefix)
	}
	return n.open(name, s.net.Netdev(name, p))
}

// Sent returns how many packets have left the switch, the subnet managers' among them.
func (w *Switch) Sent() (n uint64) {
	w.s.net.Do(func(*fabric.Fabric) {
		for i := 1; i <= w.f.Ports(); i++ {
			n += w.f.Port(i).Stats.Sent
		}
	})
	return n
}

// Fail takes the switch out of order. Its packets are lost, and the ports at its cables go down. The subnet manager
// finds other ways, where there are any.
func (w *Switch) Fail() { w.s.net.Do(func(*fabric.Fabric) { w.f.Fail() }) }

// Repair undoes Fail.
func (w *Switch) Repair() { w.s.net.Do(func(*fabric.Fabric) { w.f.Repair() }) }

// SetCable takes the cable of a device's port away, or puts it back: its port goes down, or is brought into service
// again. The device learns of it a moment later, as a card does: wait for EventPortErr or EventPortActive.
func (n *Network) SetCable(d *verbs.Device, there bool) {
	n.t.Helper()
	p := n.need("SetCable").portOf(d)
	n.ib.net.Do(func(*fabric.Fabric) { p.SetOff(!there) })
}

func (s *subnets) portOf(d *verbs.Device) *fabric.Port {
	s.n.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ports[d.Name()]
	if p == nil {
		s.n.t.Fatalf("rdmatest: %s is no device of this network", d.Name())
	}
	return p
}

// StartManager starts a subnet manager beside a device's port. The first device of a subnet has one, of priority 0. The
// manager of the highest priority, 0 to 15, is the master, or of several the one of the lowest GUID, which the device has
// that was made first. The others stand by. A master that learns of one above it hands over to it.
func (n *Network) StartManager(d *verbs.Device, priority uint8) {
	n.t.Helper()
	s := n.need("StartManager")
	gid, err := d.GID(1, 0)
	if err != nil {
		n.t.Fatalf("rdmatest: %v", err)
	}
	s.portOf(d)
	s.manage(d.Name(), priority, binary.BigEndian.Uint64(gid.GID[:]))
}

func (s *subnets) manage(name string, priority uint8, prefix uint64) {
	s.n.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.managers[name] != nil {
		s.n.t.Fatalf("rdmatest: %s has a subnet manager already", name)
	}
	s.net.Do(func(*fabric.Fabric) {
		m := s.ports[name].Manager(priority, s.lmc)
		m.SetPrefix(prefix)
		s.managers[name] = m
	})
}

// StopManager kills the subnet manager beside a device's port. Another that stands by takes over, once it has asked
// the dead one in vain. That takes seconds in real subnets, and no time here.
func (n *Network) StopManager(d *verbs.Device) {
	n.t.Helper()
	s := n.need("StopManager")
	s.mu.Lock()
	m := s.managers[d.Name()]
	delete(s.managers, d.Name())
	s.mu.Unlock()
	if m == nil {
		n.t.Fatalf("rdmatest: %s has no subnet manager", d.Name())
	}
	s.net.Do(func(f *fabric.Fabric) {
		m.Stop()
		f.Poll()
	})
}

// SetPartition makes ports full members of a partition, besides the default one, by a P_Key from 0x8001 to 0xfffe. The
// subnet manager writes it into their P_Key tables.
func (n *Network) SetPartition(pkey verbs.PKey, devs ...*verbs.Device) {
	n.t.Helper()
	s := n.need("SetPartition")
	p := fabric.Partition{PKey: uint16(pkey)}
	for _, d := range devs {
		p.Members = append(p.Members, s.portOf(d))
	}
	s.net.Do(func(f *fabric.Fabric) {
		f.Partitions = append(f.Partitions, p)
		f.Poll()
	})
}

// Capture writes the packets on all cables to w from now on, those of the subnet manager too, as a pcapng file with an
// interface for each port that sends. A packet stands there once for each cable. Wireshark knows InfiniBand's packets by
// ERF headers, so the file has these. An error of w ends it, and fails the test.
func (n *Network) Capture(w io.Writer) {
	n.t.Helper()
	s := n.need("Capture")
	file, err := pcap.NewFrames(w, "adverb")
	if err != nil {
		n.t.Fatalf("rdmatest: begin a capture: %v", err)
	}
	var (
		interfaces = map[*fabric.Port]int{}
		last       time.Time
	)
	write := func(from *fabric.Port, p []byte) (err error) {
		iface, ok := interfaces[from]
		if !ok {
			if iface, err = file.AddInterface(from.String(), pcap.LinkTypeERF); err != nil {
				return err
			}
			interfaces[from] = iface
		}
		at := time.Now()
		if soonest := last.Add(time.Microsecond); at.Before(soonest) { // the fabric itself takes no time
			at = soonest
		}
		last = at
		return file.WriteERF(iface, at, pcap.ERFInfiniBand, p)
	}
	s.net.Do(func(f *fabric.Fabric) {
		f.Tap = func(from *fabric.Port, p []byte) {
			if err != nil {
				return
			}
			if err = write(from, p); err != nil {
				n.t.Errorf("rdmatest: write a capture: %v", err)
			}
		}
	})
}
