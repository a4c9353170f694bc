package fabric

import (
	"errors"
	"math/bits"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// ErrNotActive is the error for packets that a port does not send, since no subnet manager has made it active.
var ErrNotActive = errors.New("the port is not active: no subnet manager has brought it into service, or its cable is down")

// ErrQueueFull is the error for packets that a port does not keep, since too many wait for credits.
var ErrQueueFull = errors.New("too many packets wait for credits")

// ErrTooLong is the error for packets that exceed the MTU of a port's cable.
var ErrTooLong = errors.New("the packet is longer than the MTU that the ports at both ends of the cable can")

// pump moves packets until none can move.
func (f *Fabric) pump() {
	for {
		switch {
		case len(f.mgmt) > 0:
			d := f.mgmt[0]
			f.mgmt = f.mgmt[1:]
			d.to.arriveSMP(d.packet)
		case len(f.kicks) > 0:
			p := f.kicks[0]
			f.kicks = f.kicks[1:]
			p.move()
		default:
			return
		}
	}
}

// kick has the port look whether its packets can move.
func (p *Port) kick() { p.node.f.kicks = append(p.node.f.kicks, p) }

// VL returns the virtual lane of a service level.
func VL(sl uint8) uint8 { return sl % dataVLs }

// Send takes a packet, from the LRH to the ICRC, for the port's cable. The packet is kept. Settle moves it on.
func (p *Port) Send(packet []byte) error {
	if p.info.State != Active {
		p.Stats.Discarded++
		return ErrNotActive
	}
	if mtuBytes(p.info.MTU)+overhead < len(packet)+wire.VCRCSize {
		p.Stats.Discarded++
		return ErrTooLong
	}
	dlid, vl := uint16(packet[2])<<8|uint16(packet[3]), int(packet[0]>>4)
	if p.owns(dlid) { // the channel adapter's own loop
		p.take(packet, -1)
		return nil
	}
	if dlid >= wire.MulticastLID && dlid != wire.PermissiveLID && p.groups[dgid(packet)] {
		p.take(append([]byte(nil), packet...), -1)
	}
	if len(p.out[vl]) >= maxQueue {
		p.Stats.Discarded++
		return ErrQueueFull
	}
	p.out[vl] = append(p.out[vl], wire.AppendVCRC(packet))
	if len(p.out[vl]) == 1 {
		p.kick()
	}
	return nil
}

// Recv returns the next packet for the port's owner, from the LRH to the ICRC. Taking it grants credits, so Settle
// should follow.
func (p *Port) Recv() ([]byte, bool) {
	if len(p.inbox) == 0 {
		return nil, false
	}
	r := p.inbox[0]
	p.inbox[0] = received{}
	p.inbox = p.inbox[1:]
	if r.vl >= 0 {
		p.grant(r.vl, blocks(r.packet))
		r.packet = r.packet[:len(r.packet)-wire.VCRCSize]
	}
	return r.packet, true
}

// Pending returns how many packets Recv would return.
func (p *Port) Pending() int { return len(p.inbox) }

// owns reports whether a LID is one of the port's.
func (p *Port) owns(lid uint16) bool {
	return p.info.LID != 0 && lid>>p.info.LMC == p.info.LID>>p.info.LMC
}

// dgid returns the destination in a packet's GRH, or the zero GID.
func dgid(packet []byte) (g [16]byte) {
	if wire.LNH(packet[1]&3) == wire.LNHGlobal && len(packet) >= wire.LRHSize+wire.GRHSize {
		copy(g[:], packet[wire.LRHSize+24:])
	}
	return g
}

// grant gives credits to the other end.
func (p *Port) grant(vl, n int) {
	if q := p.peer; q != nil {
		q.credits[vl] = min(q.credits[vl]+n, bufferSize)
		q.release()
	}
}

// release has those look whose packets may wait for the port: a channel adapter or a router itself, of a switch or a router any
// port.
func (p *Port) release() {
	if p.node.kind != wire.NodeSwitch {
		p.kick()
	}
	if p.node.kind != wire.NodeCA {
		p.node.kickWaiting()
	}
}

// kickWaiting is for when a port can send again. Any port may have packets for it.
func (n *node) kickWaiting() {
	for _, p := range n.ports[1:] {
		if p.waiting() {
			p.kick()
		}
	}
}

func (p *Port) waiting() bool {
	for vl := range p.in {
		if len(p.in[vl]) > 0 {
			return true
		}
	}
	return false
}

// queued reports whether a channel adapter or a router has packets to send.
func (p *Port) queued() bool {
	for vl := range p.out {
		if len(p.out[vl]) > 0 {
			return true
		}
	}
	return false
}

// move sends what the credits allow.
func (p *Port) move() {
	for vl := range p.out { // a switch has nothing there
		had := len(p.out[vl])
		for len(p.out[vl]) > 0 && p.transmit(p.out[vl][0], vl) {
			p.out[vl][0] = nil
			p.out[vl] = p.out[vl][1:]
		}
		if had > 0 && len(p.out[vl]) == 0 && p.node.kind == wire.NodeRouter {
			p.node.kickWaiting()
		}
	}
	for vl := range p.in {
		for len(p.in[vl]) > 0 && p.forward(&p.in[vl][0], vl) {
			n := blocks(p.in[vl][0].packet)
			p.in[vl][0] = inside{}
			p.in[vl] = p.in[vl][1:]
			p.grant(vl, n)
		}
	}
}

// forward sends the packet at the head of a switch's or a router's buffer by the ports that it is for, and reports whether it is
// gone.
func (p *Port) forward(in *inside, vl int) bool {
	for len(in.to) > 0 {
		q := p.node.ports[in.to[0]]
		switch {
		case p.node.dead, q.info.State != Active && q.info.State != Armed, mtuBytes(q.info.MTU)+overhead < len(in.packet):
			q.Stats.Discarded++
		case len(q.out[vl]) > 0, !q.transmit(in.packet, vl): // what a router keeps was there before
			if !in.waited {
				in.waited = true
				q.Stats.Waited++
			}
			return false
		}
		in.to = in.to[1:]
	}
	return true
}

// overhead is what the longest packet has besides its payload: InfiniBand's headers, the transport's, and the CRCs.
const overhead = wire.LRHSize + wire.GRHSize + wire.MaxHeaderLen + wire.ImmDtSize + wire.FETHSize + wire.RETHSize + wire.ICRCSize + wire.VCRCSize

// mtuBytes is the payload of an MTU's code.
func mtuBytes(code uint8) int { return 128 << code }

// transmit puts a packet on the cable, if there are credits.
func (p *Port) transmit(packet []byte, vl int) bool {
	n := blocks(packet)
	if p.info.State < Armed || p.peer == nil {
		p.Stats.Discarded++
		return true
	}
	if p.credits[vl] < n {
		return false
	}
	p.credits[vl] -= n
	p.Stats.Sent++
	if packet = p.onCable(packet); packet == nil {
		p.peer.grant(vl, n)
		return true
	}
	p.peer.arrive(packet, vl)
	return true
}

// onCable lets the watcher see a packet, and faults strike it.
func (p *Port) onCable(packet []byte) []byte {
	f := p.node.f
	if f.Tap != nil {
		f.Tap(p, packet)
	}
	if f.Fault != nil {
		return f.Fault(p, packet)
	}
	return packet
}

// arrive takes a packet of data from the cable. The other end has spent credits for it.
func (p *Port) arrive(packet []byte, vl int) {
	whole, ok := wire.CutVCRC(packet)
	h, err := wire.DecodeLRH(whole)
	switch {
	case !ok, err != nil, int(h.Length)*4 != len(whole), int(h.VL) != vl:
		p.Stats.Damaged++
		p.grant(vl, blocks(packet))
		return
	case p.info.State != Active && p.info.State != Armed:
		p.Stats.Discarded++
		p.grant(vl, blocks(packet))
		return
	}
	p.Stats.Received++
	if p.node.kind == wire.NodeRouter {
		p.enter(packet, whole, &h, vl)
		return
	}
	if p.node.kind == wire.NodeCA {
		switch {
		case p.owns(h.DLID), h.DLID >= wire.MulticastLID && h.DLID != wire.PermissiveLID && p.groups[dgid(packet)]:
			if p.administration(whole) {
				break
			}
			p.inbox = append(p.inbox, received{packet, vl})
			p.touch()
			return
		default:
			p.Stats.Discarded++
		}
		p.grant(vl, blocks(packet))
		return
	}
	to := p.node.route(h.DLID, p.num)
	if len(to) == 0 {
		p.Stats.Discarded++
		p.grant(vl, blocks(packet))
		return
	}
	p.keep(inside{packet: packet, to: to}, vl)
}

// keep puts a packet into the port's buffer, on its way to other ports.
func (p *Port) keep(in inside, vl int) {
	p.in[vl] = append(p.in[vl], in)
	p.kick()
}

// take puts a packet of the adapter's own into its inbox.
func (p *Port) take(whole []byte, vl int) {
	if !p.administration(whole) {
		p.inbox = append(p.inbox, received{whole, vl})
		p.touch()
	}
}

// route returns the ports by which a switch forwards a LID, for a packet that came by a port.
func (n *node) route(dlid uint16, in uint8) (to []uint8) {
	if dlid < wire.MulticastLID {
		if out := (&Switch{n}).Forwards(dlid); out != noPort && out != 0 && out != in && int(out) < len(n.ports) {
			to = append(to, out)
		}
		return to
	}
	for mask := n.mft[dlid] &^ (1 << in); mask != 0; mask &= mask - 1 {
		if out := bits.TrailingZeros64(mask); out > 0 && out < len(n.ports) {
			to = append(to, uint8(out))
		}
	}
	return to
}
