//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A datagram for QP1 goes to the process that owns the service or the block which the datagram names. A datagram that
// begins a conversation names a service. Any other names a block, by its communication ID. If the service or block has no
// owner, the datagram still goes to a process with a QP1, which tells the sender so: to the process where the datagram
// has arrived or, if that has no QP1, to the process that stands in for all at the address.

// ClaimService claims the messages to QP1 that ask for a service of an address. It returns false if they
// are claimed already, with an error that is verbs.ErrBusy and says by whom if that is another process. The same holds
// for a service that somebody shares. A process must have claimed a block first.
func (n *Netdev) ClaimService(addr netip.Addr, service uint64) (release func(), ok bool, err error) {
	if n.alone != nil { // nobody else has the address
		return func() {}, true, nil
	}
	return n.claimService(serviceName(addr, service), 0)
}

// claimService is ClaimService for the holder of the share with an inode or, if the inode is 0, for a process without a
// share.
func (n *Netdev) claimService(name boxName, share uint64) (release func(), ok bool, err error) {
	addr, service := name.addr, name.service
	n.mu.Lock()
	_, claimed := n.named[name]
	closed := n.closed
	if !claimed && !closed {
		n.named[name] = nil // so that another claim of this process fails
	}
	n.mu.Unlock()
	switch {
	case closed:
		return nil, false, fmt.Errorf("claim service 0x%016x of %v: %w", service, addr, link.ErrClosed)
	case claimed:
		return nil, false, nil
	}
	box, err := openMailbox(name) // may take long, and the receivers need n.mu
	if err == nil && isShared(name, share) {
		box.close()
		err = errShared
	}
	n.mu.Lock()
	if err == nil && n.closed {
		box.close()
		err = link.ErrClosed
	}
	if err == nil {
		n.named[name] = box
		n.serve(box)
	} else {
		delete(n.named, name)
	}
	n.mu.Unlock()
	switch {
	case errors.Is(err, errTaken):
		return nil, false, n.servedBy(name)
	case errors.Is(err, errShared):
		return nil, false, verbs.Errorf(verbs.ErrBusy, "address in use: others share it at %v with those who share it too", addr)
	case err != nil:
		return nil, false, fmt.Errorf("claim service 0x%016x of %v: %w", service, addr, err)
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.named[name] == box {
			n.dropNamed(name)
		}
	}, true, nil
}

// errShared is the error for a service that others share.
var errShared = errors.New("others share it")

// servedBy says who has claimed a service.
func (n *Netdev) servedBy(name boxName) error {
	return verbs.Errorf(verbs.ErrBusy, "address in use: %s serves it at %v", holder(name), name.addr)
}

// ServeGSI sets whether this process has a QP1.
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

// standIn makes this process stand in for all at an address: it receives the datagrams for QP1 that belong to nobody.
// standIn does nothing if this process has no QP1, or if another one stands in already. The caller holds n.mu.
func (n *Netdev) standIn(addr netip.Addr) {
	name := gsiName(addr)
	if !n.gsi.Load() || n.closed || n.named[name] != nil {
		return
	}
	box, err := openMailbox(name) // quick, since such a name has no aliases
	if err != nil {
		return // tryStandIn tries again
	}
	n.named[name] = box
	n.serve(box)
	if l := n.links[addr]; l != nil {
		l.steering.renewNow()
	}
}

// tryStandIn is called from time to time, because the process that stands in may have ended.
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

// dropNamed closes the mailbox of a name if it is open. The caller holds n.mu.
func (n *Netdev) dropNamed(name boxName) {
	if box := n.named[name]; box != nil {
		delete(n.named, name)
		box.close()
	}
}

// owns reports whether this process owns the block, service or address of a name.
func (n *Netdev) owns(name boxName) bool {
	if name.kind == blockBox {
		return n.owned[name.block].Load()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.named[name] != nil
}

// route returns where a datagram for QP1 is to go, according to its contents. It reports false if
// the datagram is not one of the connection manager's.
func route(b []byte) (wire.Route, bool) {
	var p wire.Packet
	if p.Decode(b) != nil || p.Opcode != wire.UDSendOnly {
		return wire.Route{}, false
	}
	return wire.CMRoute(p.Payload)
}

// addressee returns the service or block that a datagram for QP1 names. It reports false if the datagram names neither.
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

// isOurMAD reports whether a datagram for QP1 is certainly for this process, without asking another
// one.
func (l *Link) isOurMAD(b []byte) bool {
	name, ok := l.addressee(b)
	if !ok {
		return l.netdev.gsi.Load() && !isCancel(b)
	}
	return l.netdev.gsi.Load() && l.netdev.owns(name)
}

// isCancel reports whether a datagram for QP1 is the REJ by which a peer takes back a REQ that
// nobody has answered. Such a REJ names only the peer's end of the conversation.
func isCancel(b []byte) bool {
	r, ok := route(b)
	return ok && r.Attr == wire.CMREJ && r.CommID == 0
}

// passCancel passes such a REJ on to all processes, because any of them may have received the REQ.
// It bounds how many it passes on, so that a flood of them is not multiplied.
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
		l.count(sent, true)
	}
	if l.netdev.gsi.Load() {
		l.inject(*d)
	}
}

// passMAD passes a datagram for QP1 on to its owner. If the datagram has no owner, this process takes it
// or, if this process has no QP1, the process that stands in.
func (l *Link) passMAD(d *link.Datagram) {
	if isCancel(d.Payload) {
		l.passCancel(d)
		return
	}
	if name, ok := l.addressee(d.Payload); ok && !l.netdev.owns(name) {
		if sent, found := l.pass(name, d); found {
			l.count(sent, found)
			return
		}
	}
	if l.netdev.gsi.Load() && !l.parted.Load() {
		l.inject(*d)
		return
	}
	l.count(l.pass(gsiName(l.Addr().Addr()), d))
}
