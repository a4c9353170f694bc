//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// Link is a link.Link of an address that processes share.
type Link struct {
	*udp.Link
	netdev   *Netdev
	steering steering

	passed  atomic.Uint64 // datagrams handed on to their owner's process
	strayed atomic.Uint64 // datagrams that nobody could be found for

	waiting atomic.Int32 // datagrams in injected, for a look without the lock
	mu      sync.Mutex
	inbox   []link.Datagram // what others have handed on
	scratch []byte          // Recv's own
}

func newLink(n *Netdev, u *udp.Link) *Link {
	l := &Link{Link: u, netdev: n}
	l.steering.init(l)
	return l
}

// Recv implements link.Link.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	if l.waiting.Load() > 0 {
		return l.takeInjected(batch), nil
	}
	for {
		n, err := l.Link.Recv(batch)
		if n == 0 || err != nil {
			return 0, err
		}
		// The common case is that all are ours.
		if n = l.sort(batch[:n]); n > 0 {
			return n, nil
		}
	}
}

// sort keeps what is for this process, at the front of batch, and passes on the rest.
func (l *Link) sort(batch []link.Datagram) int {
	kept := 0
	for i := range batch {
		d := &batch[i]
		qpn, ok := destQP(d.Payload)
		block := qpn >> blockBits
		switch {
		case !ok, l.netdev.owned[block].Load(), block == specialBlock, qpn == 1<<24-1:
			if kept != i {
				batch[kept] = *d
			}
			kept++
		case block == controlBlock:
			l.steering.probed(d, int(qpn&(1<<blockBits-1)))
		default:
			l.pass(block, d)
		}
	}
	return kept
}

// destQP reads the destination QPN of a datagram.
func destQP(b []byte) (uint32, bool) {
	if len(b) < destQPOffset+4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[destQPOffset:]) & (1<<24 - 1), true
}

// pass hands a datagram on to the owner of its block.
func (l *Link) pass(block uint32, d *link.Datagram) {
	m := message{kind: datagramMessage, from: l.netdev.owners.self, addr: l.Addr().Addr(), source: d.Src, class: d.TrafficClass, payload: d.Payload}
	l.scratch = m.appendTo(l.scratch[:0])
	if !l.netdev.owners.pass(block, l.scratch) {
		l.strayed.Add(1)
		return
	}
	l.passed.Add(1)
	l.renew()
}

// inject takes a datagram that another process has handed on.
func (l *Link) inject(m *message) {
	l.mu.Lock()
	full := len(l.inbox) >= injectedDatagrams
	if !full {
		l.inbox = append(l.inbox, link.Datagram{Src: m.source, Dst: l.Addr(), Payload: slices.Clone(m.payload), TrafficClass: m.class})
		l.waiting.Store(int32(len(l.inbox)))
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
	n := copy(batch, l.inbox)
	l.inbox = slices.Delete(l.inbox, 0, n)
	l.waiting.Store(int32(len(l.inbox)))
	return n
}

// renew has the program made anew, soon.
func (l *Link) renew() { l.steering.renew() }

// Close implements link.Link.
func (l *Link) Close() error {
	l.netdev.forget(l)
	l.steering.close()
	return l.Link.Close()
}
