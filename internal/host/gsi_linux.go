//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A datagram for QP1 goes to the process which owns what it names: the service, if it opens a conversation, or
// else the block that the communication ID is of. What names nothing that anybody owns goes to a process with a
// QP1, so that somebody answers that there is nobody: to the one that it has come to, or to the one
// that stands in for all at that address.

// ClaimService takes the messages to QP1 that want a service of an address, or returns false if another process has
// them. It is for who has claimed a block.
func (n *Netdev) ClaimService(addr netip.Addr, service uint64) (release func(), ok bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := serviceName(addr, service)
	if n.named[name] != nil {
		return nil, false, nil
	}
	switch err := n.openNamed(name); {
	case errors.Is(err, errTaken):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("claim service 0x%016x of %v: %w", service, addr, err)
	}
	box := n.named[name]
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.named[name] == box {
			n.dropNamed(name)
		}
	}, true, nil
}

// ServeGSI tells whether this process has a QP1.
func (n *Netdev) ServeGSI(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gsi.Store(on)
	for addr := range n.links {
		if on {
			n.standIn(addr)
		} else {
			n.dropNamed(gsiName(addr))
		}
	}
}

// standIn has this process take what comes to an address for QP1 and is nobody's, if it has a QP1 and no other process does
// it. The caller holds n.mu.
func (n *Netdev) standIn(addr netip.Addr) {
	if name := gsiName(addr); n.gsi.Load() && n.named[name] == nil {
		if l := n.links[addr]; n.openNamed(name) == nil && l != nil { // else tried again: see tryStandIn
			l.steering.renewNow()
		}
	}
}

// tryStandIn is called from time to time, for the case that the process which did it has ended.
func (n *Netdev) tryStandIn(l *Link) {
	if !n.gsi.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr := l.Addr().Addr(); n.links[addr] == l {
		n.standIn(addr)
	}
}

// openNamed opens a mailbox of a name. The caller holds n.mu.
func (n *Netdev) openNamed(name boxName) error {
	if n.closed {
		return link.ErrClosed
	}
	box, err := openMailbox(name)
	if err != nil {
		return err
	}
	n.named[name] = box
	n.serve(box)
	return nil
}

// dropNamed closes a mailbox, if it is open. The caller holds n.mu.
func (n *Netdev) dropNamed(name boxName) {
	if box := n.named[name]; box != nil {
		delete(n.named, name)
		box.close()
	}
}

// owns reports whether this process has a name.
func (n *Netdev) owns(name boxName) bool {
	if name.kind == blockBox {
		return n.owned[name.block].Load()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.named[name] != nil
}

// route returns where a datagram for QP1 says that it goes, if it is one of the connection manager's.
func route(b []byte) (wire.Route, bool) {
	var p wire.Packet
	if p.Decode(b) != nil || p.Opcode != wire.UDSendOnly {
		return wire.Route{}, false
	}
	return wire.CMRoute(p.Payload)
}

// addressee returns what a datagram for QP1 names, if it does name anything.
func (l *Link) addressee(b []byte) (boxName, bool) {
	r, ok := route(b)
	switch {
	case !ok:
		return boxName{}, false
	case r.Attr == wire.CMREQ || r.Attr == wire.CMSIDRREQ:
		return serviceName(l.Addr().Addr(), r.ServiceID), true
	}
	block := r.CommID >> (32 - (24 - blockBits))
	return blockName(block), block != specialBlock && block != controlBlock
}

// isOurMAD reports whether a datagram for QP1 is for this process, for all that it knows without asking.
func (l *Link) isOurMAD(b []byte) bool {
	name, ok := l.addressee(b)
	if !ok {
		return l.netdev.gsi.Load() && !isCancel(b)
	}
	return l.netdev.gsi.Load() && l.netdev.owns(name)
}

// isCancel reports whether a datagram for QP1 is the REJ by which a peer takes back a REQ that nobody has
// answered. It names the peer's end alone.
func isCancel(b []byte) bool {
	r, ok := route(b)
	return ok && r.Attr == wire.CMREJ && r.CommID == 0
}

// passCancel hands it to everybody: who has the REQ takes it. A flood of them does not become many.
func (l *Link) passCancel(d *link.Datagram) {
	if time.Since(l.cancelled) >= absentTime {
		l.cancelled, l.cancels = time.Now(), 0
	}
	if l.cancels++; l.cancels > maxCancels {
		l.strayed.Add(1)
		return
	}
	for _, process := range l.steering.others() {
		sent, _ := l.pass(blockName(process), d)
		l.count(sent)
	}
	if l.netdev.gsi.Load() {
		l.inject(*d)
	}
}

// passMAD hands a datagram for QP1 on, or takes it if it is nobody's.
func (l *Link) passMAD(d *link.Datagram) {
	if isCancel(d.Payload) {
		l.passCancel(d)
		return
	}
	if name, ok := l.addressee(d.Payload); ok && !l.netdev.owns(name) {
		if sent, found := l.pass(name, d); found {
			l.count(sent)
			return
		}
	}
	if l.netdev.gsi.Load() {
		l.inject(*d)
		return
	}
	sent, _ := l.pass(gsiName(l.Addr().Addr()), d)
	l.count(sent)
}
