package shm

import (
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/release"
)

// Out is the sender's end of a lane. Lock is held from the first Reserve to Publish.
type Out struct {
	release.Mutex
	ring
	bell   Bell   // the receiver's
	beside *Inbox // where the lane ends, if in this process
	hangup func()
	tell   func(f File, withdrawn bool) error // the receiver
	files  map[uint64]*lentFile

	accesses *accesses // or nil, before the first Ask
	ask      func(Ask) error

	pos  uint64
	look uint64 // pos from which on Reserve may begin at the ring's start again
	sent uint64 // pos at the latest Publish
	seen uint64 // the latest value of head

	broken    atomic.Bool
	closed    bool
	full      bool
	fullSince time.Duration
	fullAt    uint64 // head when the fullness began
	users     atomic.Int32
}

// Reserve returns n bytes for the next record, or nil if there is no room. The receiver does not see them
// before Publish. They are for writing only: the receiver can write there too.
func (o *Out) Reserve(n int) []byte {
	if o.closed {
		return nil
	}
	if o.pos >= o.look {
		o.turn()
	}
	if o.pos+space(n)-o.seen > o.size {
		head := o.head.Load()
		if o.pos-head > o.size || head < o.seen { // no receiver can have read records that were not written
			o.broken.Store(true)
			return nil
		}
		if o.seen = head; o.pos+space(n)-head > o.size {
			return nil
		}
	}
	return o.record(o.pos, n)
}

// turn begins at the ring's start again, unless the receiver is so far behind that its unread records would take the
// room. A skip record fills the rest of the ring.
func (o *Out) turn() {
	off := o.pos & (o.size - 1)
	if o.look = o.pos + hotBytes - off%hotBytes; off < hotBytes || o.pos-o.head.Load() > hotBytes/2 {
		return
	}
	o.putHeader(o.pos, int(o.size-off)-recordHeader, skipped)
	o.pos += o.size - off
	o.look = o.pos + hotBytes
}

// Commit makes the first n bytes of the reserved space a record, which stands for a number of packets.
func (o *Out) Commit(n, packets int) {
	o.putHeader(o.pos, n, inLane|uint32(packets)<<packetsShift)
	o.pos += space(n)
	prefetchStore(o.at(o.pos + writeAhead))
}

// Publish shows the receiver all records, and wakes a sleeping receiver.
func (o *Out) Publish() {
	if o.closed || o.pos == o.sent {
		return
	}
	o.sent, o.full = o.pos, false
	o.tail.Store(o.pos) // and then look, as the receiver announces its sleep and then looks
	if o.beside != nil && o.beside.Leave() {
		return
	}
	if o.asleep.Load() != 0 && o.asleep.Swap(0) != 0 {
		o.bell.Ring()
	}
	prefetchStore(o.at(o.pos)) // while the answer is on its way
}

// Roomy reports whether the sender should go on after a Reserve that has found no room: there is much room, or there
// will never be any.
func (o *Out) Roomy() bool {
	o.Lock()
	defer o.Unlock()
	return o.isRoomy()
}

func (o *Out) isRoomy() bool {
	return o.closed || o.broken.Load() || o.roomy(o.pos-o.head.Load()) // Reserve checks the head
}

// AwaitRoom is Roomy, and asks the receiver to ring the sender's bell if there is no room.
func (o *Out) AwaitRoom() bool {
	o.Lock()
	defer o.Unlock()
	if o.closed {
		return true
	}
	o.wants.Store(1)
	roomy := o.isRoomy()
	if roomy {
		o.wants.Store(0)
	}
	return roomy
}

// Stuck is called when Reserve has found no room. It reports whether the receiver has read nothing for so long that
// it seems to be stopped.
func (o *Out) Stuck(now, patience time.Duration) bool {
	if !o.full || o.fullAt != o.seen {
		o.full, o.fullAt, o.fullSince = true, o.seen, now
	}
	return now-o.fullSince >= patience
}

// FullSince returns when the receiver began to read nothing, after Stuck.
func (o *Out) FullSince() time.Duration { return o.fullSince }

// Broken reports whether the lane carries nothing any more: it was closed, or the receiver has ended or written
// nonsense.
func (o *Out) Broken() bool { return o.broken.Load() }

// Hangup gives the lane up. Its maker then closes it.
func (o *Out) Hangup() {
	o.broken.Store(true)
	o.hangup()
}

// Use counts n users more.
func (o *Out) Use(n int32) { o.users.Add(n) }

// Users returns how many users there are.
func (o *Out) Users() int32 { return o.users.Load() }

// Close ends the use of the memory, and takes back all loans: the receiver may live, and read on. Close waits for
// callers that have locked the lane or use the receiver's memory.
func (o *Out) Close() {
	o.Lock()
	o.broken.Store(true)
	if o.closed {
		o.Unlock()
		return
	}
	o.forgetFiles()
	o.closed = true
	lost := o.losers()
	o.Unlock()
	for _, f := range lost {
		f()
	}
	o.Lock()
	defer o.Unlock()
	o.unmap()
	o.bell.Close()
}

// Beside says that the lane ends in an inbox of this process, or nowhere if the inbox is nil.
func (o *Out) Beside(b *Inbox) {
	o.Lock()
	defer o.Unlock()
	o.beside = b
}
