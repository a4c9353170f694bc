//go:build !linux || adverb_portable

package udp

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
)

// receiveQueue is how many datagrams wait for Recv at most, beside those in the socket.
const receiveQueue = 4096

// A queue is a ring of received datagrams, which keeps its buffers.
type queue struct {
	slots [receiveQueue]struct {
		src     netip.AddrPort
		payload []byte
	}
	head  int
	count int // from head on
	lent  int // of them, by the latest pop
}

// push adds a copy. It reports false when there is no room.
func (q *queue) push(src netip.AddrPort, payload []byte) bool {
	if q.count == len(q.slots) {
		return false
	}
	s := &q.slots[(q.head+q.count)%len(q.slots)]
	s.src, s.payload = src, append(s.payload[:0], payload...)
	q.count++
	return true
}

// pop fills batch with datagrams to dst, whose payloads are valid until the next call.
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
