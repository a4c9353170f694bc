//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/lanes"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/user"
)

// Netdev is a network interface whose links share their addresses with other processes of the
// same user. It belongs to one device. The device's QPNs are from the blocks that Claim has taken.
type Netdev struct {
	*udp.Netdev

	alone  error // see Alone
	owned  [numBlocks]atomic.Bool
	owners atomic.Pointer[owners] // nil before the first Claim
	gsi    atomic.Bool            // this process has a QP1
	pool   *outletPool
	family *[]*Netdev // this one and the others of the device's shards, the first of which is [0]
	will   will
	wards  wards
	lanes  *lanes.Lanes // nil where this process shares no memory

	mu     sync.Mutex
	boxes  []*mailbox           // of the blocks claimed
	named  map[boxName]*mailbox // of the services claimed, nil while that is under way, and of the addresses where this process stands in
	links  map[netip.Addr]*Link
	closed bool
	served sync.WaitGroup
}

var _ link.Netdev = (*Netdev)(nil)

// Share returns a Netdev that shares the addresses of a network interface.
func Share(n *udp.Netdev) *Netdev {
	d := &Netdev{Netdev: n, alone: Alone(), pool: processOutlets, named: map[boxName]*mailbox{}, links: map[netip.Addr]*Link{}}
	d.family = &[]*Netdev{d}
	return d
}

// Alone returns nil where the kernel tells this process which others are of its user. Else it says why the kernel does not.
// The process then shares nothing with others, as on other systems: neither addresses nor memory, and no will. This is the
// case in a sandbox that refuses SO_REUSEPORT, or unix sockets whose messages have the sender's credentials.
func Alone() error {
	if err := user.Self(); err != nil {
		return err
	}
	if err := udp.Sharing(); err != nil {
		return err
	}
	fd, err := credentialSocket()
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) { // no sandbox's doing
		return nil
	}
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// Shard returns a further Netdev of the same network interface, for another shard of the device. Its links have
// sockets of their own, which get the datagrams for its own blocks, as if it were another process's. No process hands
// its will to a further shard: the first shard takes wills. Shard is called before anything else is. It returns nil if
// this process is alone: an address has one link then.
func (n *Netdev) Shard() *Netdev {
	if n.alone != nil {
		return nil
	}
	s := Share(n.Netdev.Again())
	s.family = n.family
	*n.family = append(*n.family, s)
	return s
}

// sibling returns the Netdev of another shard of the device that owns the block, service or address of a name, or nil.
// Datagrams for a sibling need no mailbox.
func (n *Netdev) sibling(name boxName) *Netdev {
	for _, s := range *n.family {
		if s != n && s.owns(name) {
			return s
		}
	}
	return nil
}

// take takes a datagram that has come to another shard. It reports false if this shard has no link at the address.
func (n *Netdev) take(addr netip.Addr, d link.Datagram) bool {
	n.mu.Lock()
	l := n.links[addr]
	n.mu.Unlock()
	if l != nil {
		l.inject(d)
	}
	return l != nil
}

// answer answers the process that answers to a block.
func (n *Netdev) answer(block uint32, m *message) {
	if s := n.sibling(blockName(block)); s != nil {
		s.message(m.appendTo(nil))
	} else if owners := n.owners.Load(); owners != nil {
		owners.answer(block, m)
	}
}

// Claim claims a block of QPNs for this process. It returns false if the block has an owner.
func (n *Netdev) Claim(block uint32) (bool, error) {
	if block == specialBlock || block >= controlBlock {
		return false, nil
	}
	if n.alone != nil { // as on other systems
		return true, nil
	}
	box, err := openMailbox(blockName(block))
	if errors.Is(err, errTaken) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim QPNs %#06x to %#06x: %w", block<<blockBits, (block+1)<<blockBits-1, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		box.close()
		return false, link.ErrClosed
	}
	if n.owners.Load() == nil {
		n.owners.Store(newOwners(block, n.pool))
		if n == (*n.family)[0] {
			n.takeWills(block)
		}
	}
	n.listen(block)
	n.boxes = append(n.boxes, box)
	n.owned[block].Store(true)
	n.serve(box)
	for _, l := range n.links {
		l.steering.renewNow()
	}
	return true, nil
}

// serve begins to handle the messages to a mailbox.
func (n *Netdev) serve(box *mailbox) { n.served.Go(func() { box.serve(n.message) }) }

// message handles a message that another process of the same user has sent to a mailbox.
func (n *Netdev) message(b []byte) {
	var m message
	owners := n.owners.Load()
	if m.decode(b) != nil || owners == nil {
		return
	}
	n.mu.Lock()
	l := n.links[m.addr]
	n.mu.Unlock()
	switch m.kind {
	case whoMessage:
		n.answer(m.from, &message{kind: meMessage, from: owners.self, nonce: m.nonce})
	case meMessage:
		owners.prove(m.nonce)
	case datagramMessage:
		if l != nil {
			l.inject(link.Datagram{Src: m.source, Dst: l.Addr(), Payload: m.payload, FlowLabel: m.label, TrafficClass: m.class})
		}
	case hereMessage:
		if l != nil {
			l.steering.here(&m)
		}
	}
}

// blocks returns the blocks that the process has claimed. If the process stands in for all at the
// address, the special block is one of them.
func (n *Netdev) blocks(addr netip.Addr) []uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	var bs []uint32
	if n.named[gsiName(addr)] != nil {
		bs = append(bs, specialBlock)
	}
	for _, b := range n.boxes {
		bs = append(bs, b.name.block)
	}
	return bs
}

// Open implements link.Netdev. An address has at most one link at a time.
func (n *Netdev) Open(addr netip.Addr) (link.Link, error) {
	if n.alone != nil {
		l, err := n.Netdev.Open(addr)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("open link on %v: another program, or another device of this one, has it, and this program shares no address: %w (%w)", addr, n.alone, err)
		}
		return l, err
	}
	u, err := n.OpenShared(addr)
	if err != nil {
		return nil, err
	}
	addr = u.Addr().Addr()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		u.Close()
		return nil, link.ErrClosed
	}
	if n.links[addr] != nil {
		u.Close()
		return nil, fmt.Errorf("open link on %v: this Netdev has one open on the address already", u.Addr())
	}
	l := newLink(n, u)
	n.links[addr] = l
	n.standIn(addr)
	l.steering.renewNow()
	return l, nil
}

// Close gives the blocks back. Links stay open, but only for the QPs of this process.
func (n *Netdev) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	boxes, owners := n.boxes, n.owners.Load()
	for name, b := range n.named {
		if delete(n.named, name); b != nil {
			boxes = append(boxes, b)
		}
	}
	n.mu.Unlock()
	if !closed {
		n.will.close()
		n.wards.close()
		n.closeLanes()
		for _, b := range boxes {
			b.close()
		}
		n.served.Wait()
		n.closeInboxes()
		if owners != nil {
			owners.close()
		}
	}
	return n.Netdev.Close()
}

// forget is called by a link that closes.
func (n *Netdev) forget(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr := l.Addr().Addr(); n.links[addr] == l {
		delete(n.links, addr)
		n.dropNamed(gsiName(addr))
	}
}
