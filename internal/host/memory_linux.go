//go:build !adverb_portable

package host

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/lanes"
	"github.com/adverb-rdma/adverb/internal/shm"
)

// Between processes of one host packets need no network: they go by lanes (package lanes). Here are the parts of a Netdev
// that lanes depend on: the owners of blocks, the addresses, and the links that wait for packets.

// bellless is how often lanes are looked at where the system denies the bell that wakes a receiver.
const bellless = time.Millisecond

// laneName is the name of the socket at which the owner of a block takes lanes.
func laneName(block uint32) string {
	return "@adverb/lane/" + strings.TrimPrefix(blockName(block).String(), "@adverb/qpn/")
}

// ShareMemory lets packets between processes of this host go by shared memory. It is called before
// anything else is. A process that is alone has nobody to share memory with.
func (n *Netdev) ShareMemory() {
	if n.alone == nil {
		n.lanes = lanes.New(lanes.Config{Name: laneName, HasAddr: n.hasAddr, Wake: n.wake})
	}
}

// Inbox returns where the lanes to an address of this device end, or nil if the device has no lanes.
func (n *Netdev) Inbox(at netip.Addr) *shm.Inbox {
	if n.lanes == nil {
		return nil
	}
	return n.lanes.Inbox(at)
}

// Lane returns a lane from an address of this device to the process that owns a QPN, at an address, or nil: see
// lanes.Lanes.Lane.
func (n *Netdev) Lane(from, to netip.Addr, qpn uint32) *shm.Out {
	if n.lanes == nil {
		return nil
	}
	return n.lanes.Lane(from, to, qpn>>blockBits)
}

// listen begins to take the lanes to QPs of a block. Without a listener packets to these QPs come by UDP.
func (n *Netdev) listen(block uint32) {
	if n.lanes != nil {
		_ = n.lanes.Listen(block)
	}
}

// hasAddr reports whether the network interface has an address.
func (n *Netdev) hasAddr(addr netip.Addr) bool {
	state, err := n.State()
	return err == nil && slices.ContainsFunc(state.Addrs, func(a netip.Addr) bool { return a.Unmap().WithZone("") == addr })
}

// wake wakes the link of an address, if there is one.
func (n *Netdev) wake(at netip.Addr) {
	n.mu.Lock()
	l := n.links[at]
	n.mu.Unlock()
	if l != nil {
		l.Wake()
	}
}

func (n *Netdev) closeLanes() {
	if n.lanes != nil {
		n.lanes.Close()
	}
}

// closeInboxes waits for the end of the lanes, and gives back the memory of those that lead to addresses without a link.
// The device closes the inboxes of the others.
func (n *Netdev) closeInboxes() {
	if n.lanes == nil {
		return
	}
	n.lanes.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lanes.CloseInboxes(func(at netip.Addr) bool { return n.links[at] != nil })
}

// Wait implements link.Link. The bell of the lanes ends it too.
func (l *Link) Wait(d time.Duration) error {
	b := l.netdev.Inbox(l.Addr().Addr())
	if b == nil || !b.Rings() {
		return l.Link.Wait(d)
	}
	if !l.hearsBell {
		fd, err := b.Bell()
		if err == nil {
			err = l.Watch(fd)
		}
		if err != nil {
			return l.Link.Wait(bellless)
		}
		l.hearsBell = true
	}
	defer b.Awake()
	if !b.Sleep() {
		return nil
	}
	return l.Link.Wait(d)
}
