//go:build !linux || adverb_portable

package udp

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
)

// receiveQueue is how many datagrams may wait for Recv, besides those in the socket.
const receiveQueue = 4096

// A queue is a ring of received datagrams. It keeps their buffers for the next ones.
type queue struct {
	slots [receiveQueue]struct {
		src     netip.AddrPort
		payload []byte
	}
	head  int
	count int // datagrams from head on
	lent  int // how many of them the latest pop has returned
}

// push adds a copy of a datagram. It reports false if there is no room.
func (q *queue) push(src netip.AddrPort, payload []byte) bool {
	if q.count == len(q.slots) {
		return false
	}
	s := &q.slots[(q.head+q.count)%len(q.slots)]
	s.src, s.payload = src, append(s.payload[:0], payload...)
	q.count++
	return true
}

// pop fills batch, with dst as destination. Payloads are valid until the next call.
func (q *queue) pop(batch []link.Datagram, dst netip.AddrPort) int {
	q.head = (q.head + q.lent) % len(q.slots)
	q.count -= q.lent
	q.lent = min(len(batch), q.count)
	for i := range q.lent {
		s := &q.slots[(q.head+i)%len(q.slots)]
		batch[i] = link.Datagram{Src: s.src, Dst: dst, Payload: s.payload}
	}
	return q.lent
}
