package queue

import "sync/atomic"

// Receives is where a transport takes the receives of a QP from: [RecvQueue], or [SRQUser] with a shared queue.
type Receives interface {
	// Take returns the oldest posted receive, or nil. The QP holds it until Complete, or until
	// RESET, which forgets it without a call.
	Take() *Recv
	// TakeFor is Take for a message of n bytes. If the oldest receive is shorter, TakeFor leaves it and reports
	// short.
	TakeFor(n uint32) (r *Recv, short bool)
	// Complete gives back a receive that is done. It returns the slots that the receive's completion must free when
	// it is polled.
	Complete(*Recv) (slots *atomic.Uint64, freed uint64)
	// Credits returns the number of posted receives, or -1 where the peer must not count on a number.
	Credits() int
}

var (
	_ Receives = (*RecvQueue)(nil)
	_ Receives = (*SRQUser)(nil)
)
