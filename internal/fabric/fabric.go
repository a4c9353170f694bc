package fabric

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Values that this implementation has chosen.
const (
	dataVLs     = 8        // virtual lanes for data
	vlCap       = 4        // the code of dataVLs
	block       = 64       // bytes of a credit: fixed by the specification
	bufferSize  = 32 << 10 // bytes that a port can take in for each virtual lane
	minMTU      = 1        // code: 256 bytes
	maxMTU      = 5        // code: 4096 bytes
	speedEDR    = 2        // extended code: 25 Gbit/s a lane
	width4X     = 2        // code
	rate100     = 16       // code of a path's rate: 100 Gbit/s
	lifetime    = 18       // code of a packet's lifetime, OpenSM's own choice
	linearCap   = 0xc000   // entries of a linear forwarding table
	multiCap    = 1024     // entries of a multicast forwarding table
	pkeyCap     = 16       // entries of a P_Key table
	guidCap     = 1        // entries of a GUID table
	firstPrefix = 0xfe80 << 48
	maxQueue    = 1 << 16 // packets that a channel adapter keeps while it has no credits, or a router for a way; more are lost
)

// The states of a port: codes of PortInfo.
const (
	Down   = 1
	Init   = 2
	Armed  = 3
	Active = 4

	physDisabled = 3
	physLinkUp   = 5
)

// Fabric is a set of nodes with cables between them.
type Fabric struct {
	// Tap, unless nil, is called with each packet that leaves a port, before faults strike it.
	Tap func(from *Port, packet []byte)
	// Fault, unless nil, decides the fate of each packet on a cable: it returns the packet, damaged perhaps, or nil.
	Fault func(from *Port, packet []byte) []byte
	// Wait, unless nil, is called where the answer to Path, Join or Leave may be held up by packets that wait for
	// credits. It lets the ports' owners receive.
	Wait func()
	// Partitions are given to the ports by the subnet manager. Every port is a full member of the default partition.
	Partitions []Partition
	// MTU is the code of the largest MTU that ports take of nodes that are added from now on; 0 stands for that of 4096
	// bytes.
	MTU uint8

	nodes    []*node
	managers []*manager
	mgmt     []delivery // packets of virtual lane 15 under way
	kicks    []*Port    // that may be able to move packets
	touched  map[*Port]bool
	changes  uint64 // counts what may change the ways: ports that come and go, and sweeps
	settling bool
}

// Partition is a set of ports that may talk to each other.
type Partition struct {
	PKey    uint16 // with the membership bit of full members
	Members []*Port
}

// delivery is a packet that arrives at a port.
type delivery struct {
	to     *Port
	packet []byte
}

// node is a channel adapter, a switch or a router.
type node struct {
	f     *Fabric
	kind  uint8
	guid  uint64
	name  string
	ports []*Port // by number. Of a switch 0 is the port to itself; of other nodes there is none
	dead  bool    // it forwards and answers nothing

	lft     []uint8
	mft     map[uint16]uint64 // the ports of a group's LID, by bits
	top     uint16
	changed bool // a port has changed its state

	ways map[[16]byte]*way // of a router: by the destination
	asks []*way            // those that it asks for, in order
}

// New returns a fabric without nodes.
func New() *Fabric { return &Fabric{touched: map[*Port]bool{}} }

// Port is a port of a node.
type Port struct {
	node  *node
	num   uint8
	guid  uint64
	peer  *Port // at the other end of the cable
	off   bool  // out of order, or unplugged
	mtu   uint8 // code of the largest that it can
	info  wire.PortInfo
	pkeys [pkeyCap]uint16

	credits [dataVLs]int // bytes that the other end can take
	in      [dataVLs][]inside
	out     [dataVLs][][]byte // of a channel adapter or a router
	inbox   []received        // of a channel adapter

	groups    map[[16]byte]bool      // that a channel adapter takes packets for
	answers   map[uint64]*wire.SAMAD // to the questions that were asked; nil has not come
	lastTID   uint64
	manager   *manager
	requests  []request // for the manager
	rereg     uint64
	smChanges uint64

	Stats PortStats
}

// PortStats counts what happened at a port.
type PortStats struct {
	Sent, Received uint64 // packets, by the cable
	Waited         uint64 // packets that found no credits, and left later
	Damaged        uint64 // received with a wrong VCRC or length
	Discarded      uint64 // not sent, or taken for nobody
	Downed         uint64 // how often the cable failed
}

// inside is a packet in a switch, on its way out.
type inside struct {
	packet []byte
	to     []uint8 // the ports that it is still to leave by
	waited bool
}

// received is a packet in a channel adapter.
type received struct {
	packet []byte
	vl     int // whose credits it holds, or -1
}

// Switch adds a switch.
func (f *Fabric) Switch(name string, ports int) *Switch {
	n := f.node(wire.NodeSwitch, name, ports)
	n.forget()
	return &Switch{n}
}

// noPort is an entry of a forwarding table for a LID that leads nowhere.
const noPort = 0xff

// Switch is a switch.
type Switch struct{ n *node }

// Port returns a port, counted from 1.
func (s *Switch) Port(n int) *Port { return s.n.ports[n] }

// Ports returns how many ports the switch has.
func (s *Switch) Ports() int { return len(s.n.ports) - 1 }

// LID returns the LID of the switch itself; 0 before a subnet manager has given one.
func (s *Switch) LID() uint16 { return s.n.ports[0].info.LID }

// Forwards returns the port by which the switch forwards a LID; 0xff is none.
func (s *Switch) Forwards(lid uint16) uint8 {
	if int(lid) >= len(s.n.lft) || lid > s.n.top {
		return noPort
	}
	return s.n.lft[lid]
}

// Fail takes the switch out of order: its cables go down, and its packets are lost. Repair undoes that. What it knew
// is gone then.
func (s *Switch) Fail() { s.n.fail() }

func (n *node) fail() {
	n.dead = true
	for _, p := range n.ports[1:] {
		p.drop()
		p.update()
	}
}

// Repair puts a failed switch back in order, as after power has returned.
func (s *Switch) Repair() {
	s.n.forget()
	s.n.repair()
}

func (n *node) repair() {
	n.dead = false
	for _, p := range n.ports {
		if p != nil {
			p.reset()
			p.update()
		}
	}
}

// SetMTU sets the code of the largest MTU that the switch's ports take. It is called before they have cables.
func (s *Switch) SetMTU(code uint8) {
	for _, p := range s.n.ports {
		p.mtu = code
		p.reset()
	}
}

// forget leaves a switch's forwarding tables without a route.
func (n *node) forget() {
	n.lft, n.mft, n.top = bytes.Repeat([]byte{noPort}, linearCap), map[uint16]uint64{}, 0
}

// Adapter adds a channel adapter with one port.
func (f *Fabric) Adapter(name string) *Port { return f.node(wire.NodeCA, name, 1).ports[1] }

func (f *Fabric) node(kind uint8, name string, ports int) *node {
	n := &node{f: f, kind: kind, name: name, guid: nodeGUID(len(f.nodes))}
	f.nodes = append(f.nodes, n)
	n.ports = make([]*Port, ports+1)
	for i := range n.ports {
		if i == 0 && kind != wire.NodeSwitch {
			continue
		}
		p := &Port{node: n, num: uint8(i), guid: n.guid, mtu: cmp.Or(f.MTU, maxMTU), groups: map[[16]byte]bool{}, answers: map[uint64]*wire.SAMAD{}}
		if kind != wire.NodeSwitch {
			p.guid = n.guid + uint64(i)
		}
		p.reset()
		n.ports[i] = p
	}
	return n
}

// nodeGUID is the GUID of the i-th node. It is of the vendor 02:00:00, which is nobody: the 02 says that it is local.
func nodeGUID(i int) uint64 { return 0x0200_0000_0000_0000 | uint64(i+1)<<8 }

// Connect puts a cable between two ports.
func (f *Fabric) Connect(a, b *Port) error {
	for _, p := range []*Port{a, b} {
		if p.peer != nil {
			return fmt.Errorf("connect %v with %v: %v has a cable to %v already", a, b, p, p.peer)
		}
		if p.num == 0 {
			return fmt.Errorf("connect %v with %v: port 0 of a switch is the switch itself", a, b)
		}
	}
	if a == b {
		return fmt.Errorf("connect %v with itself: a cable has two ends", a)
	}
	a.peer, b.peer = b, a
	a.update()
	b.update()
	return nil
}

// String names the port, as in "leaf1/3".
func (p *Port) String() string { return fmt.Sprintf("%s/%d", p.node.name, p.num) }

// reset is a port as it is after it was switched on.
func (p *Port) reset() {
	p.info = wire.PortInfo{
		Prefix: firstPrefix, LocalPort: p.num, Width: width4X, State: Down, PhysState: physDisabled, MTU: p.mtu, MTUCap: p.mtu,
		Speed: 4, SpeedExt: speedEDR, VLCap: vlCap, OperationalVLs: vlCap, GUIDCap: guidCap, RespTime: 16, CapMask: capMasks[p.node.kind],
	}
	if p.num == 0 {
		p.info.State, p.info.PhysState = Active, physLinkUp
	}
	p.pkeys = [pkeyCap]uint16{wire.DefaultPKey}
}

// What the ports of a kind of node can do.
var capMasks = map[uint8]uint32{
	wire.NodeCA:     capsOfAll | wire.CapAutomaticMigration | wire.CapCM | wire.CapClientReregister,
	wire.NodeSwitch: capsOfAll | wire.CapTrap,
	wire.NodeRouter: capsOfAll | wire.CapClientReregister,
}

const capsOfAll = wire.CapSLMapping | wire.CapSystemImageGUID | wire.CapExtendedSpeeds

// SetOff breaks the port's cable, or mends it.
func (p *Port) SetOff(off bool) {
	p.off = off
	if off {
		p.drop()
	}
	for _, end := range []*Port{p, p.peer} {
		if end != nil {
			end.update()
		}
	}
}

// linked reports whether the port's cable works.
func (p *Port) linked() bool {
	return p.peer != nil && !p.off && !p.peer.off && !p.node.dead && !p.peer.node.dead
}

// update takes note of a cable that has come or gone.
func (p *Port) update() {
	up := p.linked()
	if up == (p.info.PhysState == physLinkUp) {
		return
	}
	p.info.State, p.info.PhysState = Down, physDisabled
	if up {
		p.info.State, p.info.PhysState = Init, physLinkUp
		for vl := range p.credits {
			p.credits[vl] = bufferSize - p.peer.held(vl)
		}
	} else {
		p.Stats.Downed++
		p.drop()
	}
	p.touch()
	p.node.f.changes++
	p.node.changed = true
	if p.node.kind == wire.NodeSwitch && !p.node.dead {
		p.node.trap()
	}
	for _, m := range p.node.f.managers {
		if m.port == p { // it sees its own cable
			m.dirty = true
		}
	}
	if p.peer != nil {
		p.peer.update()
	}
}

// held is how many bytes of a virtual lane's buffer are in use.
func (p *Port) held(vl int) (n int) {
	for i := range p.in[vl] {
		n += blocks(p.in[vl][i].packet)
	}
	for i := range p.inbox {
		if p.inbox[i].vl == vl {
			n += blocks(p.inbox[i].packet)
		}
	}
	return n
}

// blocks is the room that a packet takes, in bytes.
func blocks(packet []byte) int { return (len(packet) + block - 1) / block * block }

// drop loses what waits to be sent. Of a switch the packets are in the buffers of other ports, which lose them when they
// look.
func (p *Port) drop() {
	for vl := range p.out {
		p.Stats.Discarded += uint64(len(p.out[vl]))
		p.out[vl] = nil
	}
	p.release()
}

// touch takes note that the owner of a channel adapter's port should look at it.
func (p *Port) touch() { p.node.f.touched[p] = true }

// Touched returns the ports of channel adapters to which something has happened since the latest call: packets have
// come, or the state has changed.
func (f *Fabric) Touched(yield func(*Port)) {
	for _, n := range f.nodes { // in an order that repeats
		if n.kind == wire.NodeCA && f.touched[n.ports[1]] {
			yield(n.ports[1])
		}
	}
	clear(f.touched)
}

// Settle moves everything as far as it gets. Calls from within, by Tap and Fault, do nothing.
func (f *Fabric) Settle() {
	if f.settling {
		return
	}
	f.settling = true
	defer func() { f.settling = false }()
	for {
		f.pump()
		if !f.manage() {
			return
		}
	}
}

// Congested reports whether packets wait for credits, which the owners of the ports grant by Recv.
func (f *Fabric) Congested() bool {
	for _, n := range f.nodes {
		for _, p := range n.ports {
			if p != nil && (p.waiting() || p.queued()) {
				return true
			}
		}
	}
	return false
}

// manage has one subnet manager do one thing, or else one router, and reports whether there was any.
func (f *Fabric) manage() bool {
	for _, m := range f.managers {
		if m.work() {
			return true
		}
	}
	for _, n := range f.nodes {
		if n.ask() {
			return true
		}
	}
	return false
}
