//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Link is a link.Link of an address that processes share.
type Link struct {
	*udp.Link
	netdev   *Netdev
	steering steering

	passed  atomic.Uint64 // datagrams that were passed on to another process
	strayed atomic.Uint64 // datagrams that were lost, for want of a receiver or of room
	nobodys atomic.Uint64 // those of them that were for QPs of no process

	leaveTime time.Duration // how long Depart waits for the others

	parted   atomic.Bool // only datagrams for other processes still count
	closed   atomic.Bool
	inboxLen atomic.Int32 // datagrams in inbox that Recv has not returned, to be read without the lock
	mu       sync.Mutex
	inbox    []link.Datagram // datagrams from other processes, and those of trains that were taken apart
	taken    int             // how many of inbox Recv has returned

	hearsBell bool // Wait ends when the bell of the lanes rings; owned by Wait

	// Owned by Recv.
	scratch   []byte
	cancelled time.Time // when cancels began to count
	cancels   int
}

func newLink(n *Netdev, u *udp.Link) *Link {
	l := &Link{Link: u, netdev: n, leaveTime: leaveTime}
	l.steering.init(l)
	return l
}

// Recv implements link.Link. At least half of the batch is left for datagrams from the network,
// however many others have passed on.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	n := 0
	if l.inboxLen.Load() > 0 {
		n = l.takeInjected(batch[:(len(batch)+1)/2])
	}
	for range strayBatches {
		got, err := l.Link.Recv(batch[n:])
		if err != nil {
			return 0, err
		}
		// Most often all datagrams are ours.
		if n += l.sort(batch[n : n+got]); n > 0 || got == 0 {
			return n, nil
		}
	}
	return 0, nil // there may be more: Wait returns at once then
}

// sort moves the datagrams and trains for this process to the front of batch, and passes on the rest. It returns how
// many it has kept.
func (l *Link) sort(batch []link.Datagram) int {
	kept := 0
	behind := false // datagrams of a train are in the inbox, and the rest must not overtake them
	for i := range batch {
		if !l.allOurs(&batch[i]) {
			behind = l.takeApart(&batch[i]) || behind
			continue
		}
		if behind {
			l.inject(batch[i])
			continue
		}
		if kept != i {
			batch[kept] = batch[i]
		}
		kept++
	}
	return kept
}

// allOurs reports whether a datagram is for this process or, of a train, whether all of it is.
func (l *Link) allOurs(d *link.Datagram) bool {
	for s := range d.Segments() {
		if !l.isOurs(d, d.Segment(s)) {
			return false
		}
	}
	return true
}

// isOurs reports whether this process keeps a datagram, of payload b. It keeps datagrams for its own QPs,
// and datagrams for QPs of nobody.
func (l *Link) isOurs(d *link.Datagram, b []byte) bool {
	qpn, ok := destQP(b)
	block := qpn >> blockBits
	switch {
	case !ok, l.netdev.owned[block].Load(), qpn == 1<<24-1:
		return true
	case block == specialBlock: // only QP1 of it is ever passed on
		return qpn != wire.GSIQPN || d.Dst != l.Addr() || l.isOurMAD(b)
	}
	return d.Dst != l.Addr() // every member of a multicast group has got its own copy
}

// takeApart deals with the datagrams of a train one by one. The kernel joins the datagrams of one
// source to a train, even if they are for QPs of several processes. Our datagrams are put into the
// inbox; injected reports whether there were any.
func (l *Link) takeApart(d *link.Datagram) (injected bool) {
	for s := range d.Segments() {
		one := *d
		one.Payload, one.SegmentSize, one.ID = d.Segment(s), 0, d.ID+uint16(s)
		qpn, _ := destQP(one.Payload)
		switch block := qpn >> blockBits; {
		case l.isOurs(&one, one.Payload):
			l.inject(one)
			injected = true
		case block == controlBlock:
			l.steering.probed(&one, int(qpn&(1<<blockBits-1)))
		case block == specialBlock:
			l.passMAD(&one)
		default:
			sent, found := l.pass(blockName(block), &one)
			l.count(sent, found)
			if sent {
				l.steering.renew()
			}
		}
	}
	return injected
}

// destQP returns the destination QPN of a datagram. It reports false if the datagram is too short
// to have one.
func destQP(b []byte) (uint32, bool) {
	if len(b) < destQPOffset+4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[destQPOffset:]) & (1<<24 - 1), true
}

// pass passes a datagram on to the owner of a mailbox. It reports whether the datagram was sent,
// and whether the mailbox has an owner. A datagram that has been passed on once does not come here, and so is not
// passed on again.
func (l *Link) pass(to boxName, d *link.Datagram) (sent, found bool) {
	if s := l.netdev.sibling(to); s != nil {
		return s.take(l.Addr().Addr(), *d), true
	}
	owners := l.netdev.owners.Load()
	if owners == nil { // this process has no QPs, and so no block to answer to
		return false, true
	}
	m := message{kind: datagramMessage, from: owners.self, addr: l.Addr().Addr(), source: d.Src, class: d.TrafficClass, label: d.FlowLabel, payload: d.Payload}
	l.scratch = m.appendTo(l.scratch[:0])
	return owners.pass(to, l.scratch)
}

func (l *Link) count(sent, found bool) {
	if sent {
		l.passed.Add(1)
		return
	}
	l.strayed.Add(1)
	if !found {
		l.nobodys.Add(1)
	}
}

// Stats implements link.Link.
func (l *Link) Stats() link.Stats {
	s := l.Link.Stats()
	s.NoQP = l.nobodys.Load() // counted behind strayed, and so read before
	s.ReceiveDrops += l.strayed.Load() - s.NoQP
	return s
}

// inject has Recv return a copy of a datagram that another process has passed on, or that was taken
// out of a train.
func (l *Link) inject(d link.Datagram) {
	d.Payload = slices.Clone(d.Payload)
	l.mu.Lock()
	full := len(l.inbox)-l.taken >= injectedDatagrams
	if !full {
		l.inbox = append(l.inbox, d)
		l.inboxLen.Add(1)
	}
	l.mu.Unlock()
	if full {
		l.strayed.Add(1)
		return
	}
	l.Wake()
}

func (l *Link) takeInjected(batch []link.Datagram) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := copy(batch, l.inbox[l.taken:])
	clear(l.inbox[l.taken:][:n]) // lets go of the payloads
	l.taken += n
	l.inboxLen.Add(int32(-n))
	if l.taken > len(l.inbox)/2 {
		l.inbox = slices.Delete(l.inbox, 0, l.taken)
		l.taken = 0
	}
	return n
}

// Settle implements link.Settler: it waits until the BPF program knows this process. Before that,
// datagrams for this process come by way of other processes. Datagrams that come directly afterwards may
// overtake these.
func (l *Link) Settle() {
	if l.netdev.owners.Load() == nil {
		return // no QPs, so nothing comes
	}
	limit := time.NewTimer(probeTime)
	defer limit.Stop()
	select {
	case <-l.steering.surveyed:
	case <-l.steering.done:
	case <-limit.C:
	}
}

// Depart implements link.SharedLink. Datagrams for other processes may come to a socket for as long as it is open: the
// numbers of the sockets shift when another one closes. So the socket closes as soon as it is empty, and not behind the
// wait for the others.
func (l *Link) Depart() {
	l.part()
	var batch [32]link.Datagram
	l.CloseRecv(batch[:], leaveBatches, func(b []link.Datagram) { l.sort(b) })
	if owners := l.netdev.owners.Load(); owners != nil {
		owners.drain(l.leaveTime)
	}
}

// part ends the services of this process to the others at the address.
func (l *Link) part() {
	if !l.parted.Swap(true) {
		l.netdev.forget(l)
		l.steering.close()
	}
}

// Close implements link.Link.
func (l *Link) Close() error {
	if l.closed.Swap(true) {
		return link.ErrClosed
	}
	l.part()
	return l.Link.Close()
}
