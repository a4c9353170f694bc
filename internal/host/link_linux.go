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

	passed  atomic.Uint64 // datagrams handed on to their owner's process
	strayed atomic.Uint64 // datagrams that nobody could be found for

	closed  atomic.Bool
	waiting atomic.Int32 // datagrams in injected, for a look without the lock
	mu      sync.Mutex
	inbox   []link.Datagram // what others have handed on
	taken   int             // of inbox

	// Recv's own.
	scratch   []byte
	cancelled time.Time // when the count of cancels began
	cancels   int
}

func newLink(n *Netdev, u *udp.Link) *Link {
	l := &Link{Link: u, netdev: n}
	l.steering.init(l)
	return l
}

// Recv implements link.Link. Whatever arrives meanwhile, half of the batch is for what comes from the network.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	n := 0
	if l.waiting.Load() > 0 {
		n = l.takeInjected(batch[:(len(batch)+1)/2])
	}
	for range strayBatches {
		got, err := l.Link.Recv(batch[n:])
		if err != nil {
			return 0, err
		}
		// The common case is that all are ours.
		if n += l.sort(batch[n : n+got]); n > 0 || got == 0 {
			return n, nil
		}
	}
	return 0, nil // Wait finds that there is more
}

// sort keeps what is for this process, at the front of batch, and passes on the rest.
func (l *Link) sort(batch []link.Datagram) int {
	kept := 0
	behind := false // something of ours is in the inbox, and must not be overtaken
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

// allOurs reports whether a datagram, or all of a train, is for this process.
func (l *Link) allOurs(d *link.Datagram) bool {
	for s := range d.Segments() {
		if !l.isOurs(d, d.Segment(s)) {
			return false
		}
	}
	return true
}

// isOurs reports whether what has arrived is for QPs of this process, or for nobody's.
func (l *Link) isOurs(d *link.Datagram, b []byte) bool {
	qpn, ok := destQP(b)
	block := qpn >> blockBits
	switch {
	case !ok, l.netdev.owned[block].Load(), qpn == 1<<24-1:
		return true
	case block == specialBlock: // of which nobody takes any but QP1
		return qpn != wire.GSIQPN || d.Dst != l.Addr() || l.isOurMAD(b)
	}
	return d.Dst != l.Addr() // sent to a group: every member has got it, and nobody must pass it on
}

// takeApart deals with the datagrams of a train one by one. A train may be for QPs of several
// processes: the kernel merges what comes of one source. What is ours is injected, and then the result is true.
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
			sent, _ := l.pass(blockName(block), &one)
			l.count(sent)
			if sent {
				l.steering.renew()
			}
		}
	}
	return injected
}

// destQP reads the destination QPN of a datagram.
func destQP(b []byte) (uint32, bool) {
	if len(b) < destQPOffset+4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[destQPOffset:]) & (1<<24 - 1), true
}

// pass hands a datagram on to the owner of a mailbox. It reports whether it was, and whether there is an owner. Nobody
// passes on what has been passed to him.
func (l *Link) pass(to boxName, d *link.Datagram) (sent, found bool) {
	owners := l.netdev.owners.Load()
	if owners == nil { // this process has no QPs, and so no name to give
		return false, true
	}
	m := message{kind: datagramMessage, from: owners.self, addr: l.Addr().Addr(), source: d.Src, class: d.TrafficClass, payload: d.Payload}
	l.scratch = m.appendTo(l.scratch[:0])
	return owners.pass(to, l.scratch)
}

func (l *Link) count(sent bool) {
	if sent {
		l.passed.Add(1)
	} else {
		l.strayed.Add(1)
	}
}

// inject has Recv return a datagram that came another way, of which it keeps a copy.
func (l *Link) inject(d link.Datagram) {
	d.Payload = slices.Clone(d.Payload)
	l.mu.Lock()
	full := len(l.inbox)-l.taken >= injectedDatagrams
	if !full {
		l.inbox = append(l.inbox, d)
		l.waiting.Add(1)
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
	l.waiting.Add(int32(-n))
	if l.taken > len(l.inbox)/2 {
		l.inbox = slices.Delete(l.inbox, 0, l.taken)
		l.taken = 0
	}
	return n
}

// Settle implements link.Settler: it waits for the program that knows this process. Until then
// datagrams for it come by way of others, and those that come directly from then on may overtake
// them.
func (l *Link) Settle() {
	if l.netdev.owners.Load() == nil {
		return // no QPs, so nothing comes
	}
	limit := time.NewTimer(probeTime)
	defer limit.Stop()
	select {
	case <-l.steering.ready:
	case <-l.steering.done:
	case <-limit.C:
	}
}

// Close implements link.Link.
func (l *Link) Close() error {
	if l.closed.Swap(true) {
		return link.ErrClosed
	}
	l.netdev.forget(l)
	l.steering.close()
	return l.Link.Close()
}
