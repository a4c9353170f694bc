// Package ibnet makes network interfaces of the ports of a simulated InfiniBand fabric, so that software devices run on
// them: see link.IBPort. The locks and the waiting are here; the fabric itself is pure.
package ibnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Net is a fabric with the lock that guards it.
type Net struct {
	mu     sync.Mutex
	fabric *fabric.Fabric
	devs   map[*fabric.Port]*Netdev
}

// New returns a Net of a fabric that nobody else uses.
func New(f *fabric.Fabric) *Net {
	n := &Net{fabric: f, devs: map[*fabric.Port]*Netdev{}}
	f.Wait = n.wait
	return n
}

// moment is how long a wait lasts for an answer that waits for credits.
const moment = time.Millisecond

// wait lets the ports' owners receive. The caller holds n.mu, which is free meanwhile.
func (n *Net) wait() {
	n.settle()
	n.mu.Unlock()
	time.Sleep(moment)
	n.mu.Lock()
}

// Do calls f with the fabric to itself, and then lets the fabric settle.
func (n *Net) Do(f func(*fabric.Fabric)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.fabric)
	n.settle()
}

// settle moves what can move, and tells the interfaces of it. The caller holds n.mu.
func (n *Net) settle() {
	for again := true; again; {
		again = false
		n.fabric.Settle()
		n.fabric.Touched(func(p *fabric.Port) {
			d := n.devs[p]
			if d != nil {
				d.look()
			}
			if d == nil || d.link == nil {
				again = discard(p) || again
			}
		})
	}
}

// discard takes the packets of a port that nobody receives at, which must not hold credits. It reports whether there
// were any.
func discard(p *fabric.Port) (any bool) {
	for ; p.Pending() > 0; any = true {
		p.Recv()
	}
	return any
}

// Netdev is a port as a network interface.
type Netdev struct {
	net   *Net
	port  *fabric.Port
	name  string
	index int

	// Guarded by net.mu.
	link    *Link
	last    fabric.State
	groups  map[netip.Addr]membership
	changed chan struct{}
	closed  bool
}

var _ link.IBNetdev = (*Netdev)(nil)

// Netdev makes a network interface of a channel adapter's port.
func (n *Net) Netdev(name string, p *fabric.Port) *Netdev {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &Netdev{net: n, port: p, name: name, index: len(n.devs) + 1, last: p.State(), groups: map[netip.Addr]membership{}, changed: make(chan struct{}, 1)}
	n.devs[p] = d
	return d
}

// membership is that of a port in a multicast group.
type membership struct {
	joins int
	pkey  uint16
}

// look takes note of what has happened to the port. The caller holds net.mu.
func (d *Netdev) look() {
	if d.link != nil && d.port.Pending() > 0 {
		d.link.Fill(true)
	}
	s := d.port.State()
	if s == d.last {
		return
	}
	d.last = s
	if !d.closed {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// Name implements link.Netdev.
func (d *Netdev) Name() string { return d.name }

// Codes of the C library.
const speedEDR = 32 // 25 Gbit/s a lane

// State implements link.Netdev.
func (d *Netdev) State() (link.NetdevState, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	s := d.port.State()
	return link.NetdevState{
		Index: d.index, Up: s.State == fabric.Active, SpeedMbps: s.SpeedMbps, Addrs: []netip.Addr{netip.AddrFrom16(s.GID)},
		IB: &link.IBPort{
			NodeGUID: s.NodeGUID, GUID: s.GUID, State: s.State, PhysState: s.PhysState, LID: s.LID, SMLID: s.SMLID, LMC: s.LMC, SMSL: s.SMSL,
			MTU: s.MTU, MaxMTU: s.MaxMTU, Width: s.Width, Speed: speedEDR, SubnetTimeout: s.SubnetTimeout, MaxVL: s.VLs, CapMask: s.CapMask,
			PKeys: s.PKeys[:], Reregistered: s.Reregister,
		},
	}, nil
}

// Changed implements link.Netdev.
func (d *Netdev) Changed() <-chan struct{} { return d.changed }

// Path implements link.IBNetdev.
func (d *Netdev) Path(to netip.Addr, pkey uint16) (link.IBPath, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	r, err := d.port.Path(to.As16(), pkey)
	d.net.settle()
	if err != nil {
		return link.IBPath{}, fmt.Errorf("ask for the path from %s to %v: %w", d.name, to, err)
	}
	return link.IBPath{DLID: r.DLID, SLID: r.SLID, SL: r.SL, MTU: r.MTU, Rate: r.Rate, PKey: r.PKey, Lifetime: r.Lifetime, HopLimit: r.HopLimit}, nil
}

// Join implements link.IBNetdev.
func (d *Netdev) Join(group netip.Addr, lid, pkey uint16) (uint16, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	m := d.groups[group]
	r, err := d.port.Join(group.As16(), lid, cmp.Or(pkey, m.pkey))
	d.net.settle()
	if err != nil {
		return 0, fmt.Errorf("join multicast group %v on %s: %w", group, d.name, err)
	}
	d.groups[group] = membership{m.joins + 1, r.PKey}
	return r.MLID, nil
}

// Leave implements link.IBNetdev. The last of as many calls as of Join ends the membership.
func (d *Netdev) Leave(group netip.Addr) error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	m := d.groups[group]
	switch m.joins--; {
	case m.joins > 0:
		d.groups[group] = m
		return nil
	case m.joins < 0:
		return link.GroupError("leave", d.addr(), group, link.ErrNotJoined)
	}
	delete(d.groups, group)
	err := d.port.Leave(group.As16())
	d.net.settle()
	return err
}

func (d *Netdev) addr() netip.Addr { return netip.AddrFrom16(d.port.GID()) }

// Open implements link.Netdev. One link can be open at a time.
func (d *Netdev) Open(addr netip.Addr) (link.Link, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if addr != d.addr() {
		return nil, fmt.Errorf("open link on %v: %s has the GID %v alone", addr, d.name, d.addr())
	}
	if d.link != nil {
		return nil, fmt.Errorf("open link on %v: a link is open on %s already; close it first", addr, d.name)
	}
	d.link = &Link{dev: d, addr: addr, Waiter: link.NewWaiter()}
	d.link.Fill(true) // packets may wait
	return d.link, nil
}

// Close implements link.Netdev.
func (d *Netdev) Close() error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if d.closed {
		return fmt.Errorf("close %s: closed already", d.name)
	}
	d.closed = true
	close(d.changed)
	return nil
}

// Link is the link of a port.
type Link struct {
	dev  *Netdev
	addr netip.Addr

	*link.Waiter

	// Guarded by dev.net.mu.
	stats link.Stats
}

var _ link.Link = (*Link)(nil)

// Addr implements link.Link. The port number is the LID.
func (l *Link) Addr() netip.AddrPort {
	l.dev.net.mu.Lock()
	defer l.dev.net.mu.Unlock()
	return netip.AddrPortFrom(l.addr, l.dev.port.State().LID)
}

// Source implements link.Link. A path says which LID its packets come from, so flows have no say.
func (l *Link) Source(uint32) netip.AddrPort { return l.Addr() }

// MaxTrain implements link.Link.
func (l *Link) MaxTrain() int { return 1 }

// Send implements link.Link.
func (l *Link) Send(batch []link.Datagram) error {
	if l.Closed() {
		return link.ErrClosed
	}
	n := l.dev.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		if err := l.send(d); err != nil {
			l.stats.SendErrors++
			l.stats.LastSendError = fmt.Errorf("send from %v to %v: %w", d.Src, d.Dst, err)
			continue
		}
		l.stats.Sent++
		l.stats.SentBytes += uint64(len(d.Payload))
	}
	n.settle()
	return nil
}

// send puts headers before a datagram, and gives it to the port.
func (l *Link) send(d *link.Datagram) error {
	label, sl := wire.LinkLabel(d.FlowLabel)
	h := wire.LRH{VL: fabric.VL(sl), SL: sl, LNH: wire.LNHLocal, DLID: d.Dst.Port(), SLID: d.Src.Port()}
	size := wire.LRHSize + len(d.Payload)
	global := !link.IsLID(d.Dst.Addr())
	if global {
		h.LNH = wire.LNHGlobal
		size += wire.GRHSize
	}
	h.Length = uint16(size / 4)
	b := h.AppendTo(make([]byte, 0, size+wire.VCRCSize))
	if global {
		g := wire.GRH{TrafficClass: d.TrafficClass, FlowLabel: label, Length: uint16(len(d.Payload)), NextHeader: wire.GRHNextHeader, HopLimit: d.HopLimit,
			SGID: d.Src.Addr().As16(), DGID: d.Dst.Addr().As16()}
		b = g.AppendTo(b)
	}
	return l.dev.port.Send(append(b, d.Payload...))
}

// Recv implements link.Link.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	if l.Closed() {
		return 0, link.ErrClosed
	}
	if !l.Filled() {
		return 0, nil
	}
	n := l.dev.net
	n.mu.Lock()
	defer n.mu.Unlock()
	got := 0
	for got < len(batch) {
		b, ok := l.dev.port.Recv()
		if !ok {
			l.Fill(false)
			break
		}
		if read(&batch[got], b) {
			l.stats.Received++
			l.stats.ReceivedBytes += uint64(len(batch[got].Payload))
			got++
		}
	}
	n.settle() // the credits that are free now
	return got, nil
}

// read makes a datagram of a packet. The packet may have other receivers, so the payload is a copy.
func read(d *link.Datagram, b []byte) bool {
	h, err := wire.DecodeLRH(b)
	if err != nil || h.LNH&wire.LNHLocal == 0 {
		return false
	}
	b = b[wire.LRHSize:]
	*d = link.Datagram{IDKnown: true, FlowLabel: wire.LinkLabelOf(0, h.SL)}
	src, dst := link.LIDAddr(h.SLID), link.LIDAddr(h.DLID)
	if h.LNH == wire.LNHGlobal {
		g, err := wire.DecodeGRH(b)
		if err != nil || g.NextHeader != wire.GRHNextHeader || int(g.Length) != len(b)-wire.GRHSize {
			return false
		}
		b = b[wire.GRHSize:]
		src, dst = netip.AddrFrom16(g.SGID), netip.AddrFrom16(g.DGID)
		d.TrafficClass, d.FlowLabel, d.HopLimit = g.TrafficClass, wire.LinkLabelOf(g.FlowLabel, h.SL), g.HopLimit
	}
	d.Src, d.Dst = netip.AddrPortFrom(src, h.SLID), netip.AddrPortFrom(dst, h.DLID)
	d.Payload = append([]byte(nil), b...)
	return true
}

// Stats implements link.Link.
func (l *Link) Stats() link.Stats {
	l.dev.net.mu.Lock()
	defer l.dev.net.mu.Unlock()
	return l.stats
}

// Close implements link.Link.
func (l *Link) Close() error {
	if err := l.Shut(); err != nil {
		return err
	}
	l.dev.net.mu.Lock()
	defer l.dev.net.mu.Unlock()
	l.dev.link = nil
	discard(l.dev.port)
	l.dev.net.settle()
	return nil
}
