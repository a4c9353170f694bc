package shm

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/release"
)

// In is the receiver's end of a lane. Next and Release are called by one goroutine at a time.
type In struct {
	ring
	box    *Inbox
	from   netip.Addr
	bell   Bell   // the sender's
	hangup func() // ends the connection to the sender

	grants  grants
	files   mapped
	packets int  // of the record that Next has returned
	lent    Lent // and its payload

	pos    uint64
	seen   uint64        // the latest value of tail
	read   atomic.Uint64 // pos at the latest Release
	broken atomic.Bool   // the sender has written nonsense
	gone   atomic.Bool   // the sender has ended
}

// From returns the lane's source address.
func (i *In) From() netip.Addr { return i.from }

// Next returns the next record, or nil if there is none. The record is valid until Release. The sender can still
// write to the record, so two reads of a byte can differ. Packets returns the number of its packets, and Lent its
// payload if that lies elsewhere.
func (i *In) Next() []byte {
	i.files.drop()
	for i.more() {
		n := i.length(i.pos)
		if n > i.size || space(int(n)) > i.seen-i.pos {
			i.broken.Store(true)
			i.seen = i.pos
			return nil
		}
		b := i.record(i.pos, int(n))
		word := i.state(i.pos)
		i.pos += space(int(n))
		switch state := word.Load(); state & (1<<packetsShift - 1) {
		case skipped:
			continue
		case inLane:
			i.packets, i.lent.state = min(int(state>>packetsShift), maxPackets), nil
			if i.pos+readAhead < i.seen {
				prefetchLoad(i.at(i.pos + readAhead))
			}
		default:
			i.packets, i.lent.state = 0, word
			b = i.borrow(b)
		}
		return b
	}
	return nil
}

// more reports whether there is a record at pos.
func (i *In) more() bool {
	if i.pos != i.seen {
		return true
	}
	tail := i.tail.Load()
	if tail == i.pos || i.broken.Load() {
		return false
	}
	if tail-i.pos > i.size {
		i.broken.Store(true)
		return false
	}
	i.seen = tail
	prefetchLoad(i.at(i.pos))
	return true
}

// End returns up to where the sender has written, for Before.
func (i *In) End() uint64 { return i.tail.Load() }

// Before reports whether Next has not come to an end yet.
func (i *In) Before(end uint64) bool { return int64(end-i.pos) > 0 }

// Packets returns how many packets the latest record of Next stands for. If the sender writes nonsense, it is any
// number from 0 to maxPackets.
func (i *In) Packets() int { return i.packets }

// Release gives the records that Next has returned back to the sender, and wakes a sender that waits for room.
func (i *In) Release() {
	if i.pos == i.read.Load() {
		return
	}
	release.Store(&i.read, i.pos)
	i.head.Store(i.pos) // and then look, as the sender announces its wait and then looks
	if i.wants.Load() != 0 && i.roomy(i.tail.Load()-i.pos) && i.wants.Swap(0) != 0 {
		i.bell.Ring()
	}
}

// end gives back the lane's memory and descriptors.
func (i *In) end() {
	i.endGrants()
	i.files.close()
	i.unmap()
	i.bell.Close()
	i.hangup()
}

// Leave takes note that the sender has ended. The records that it published before are still received.
func (i *In) Leave() { i.gone.Store(true) }

// Finished reports whether nothing more will come by the lane.
func (i *In) Finished() bool { return i.broken.Load() || i.gone.Load() && i.tail.Load() == i.pos }

// Inbox holds the lanes that end at a local address. The lanes that begin there share its bell, which rings when
// there is room again.
type Inbox struct {
	lanes atomic.Pointer[[]*In]
	rings atomic.Bool // others may ring the bell
	asked atomic.Pointer[func(*In, Ask)]

	worker atomic.Pointer[worker] // by OnRecords
	left   bool                   // in the backlog, whose lock guards it

	mu     sync.Mutex // held while lanes change and memory is unmapped
	bell   Bell
	closed bool
}

// Lanes returns the present lanes. The slice does not change. The memory of a lane in the slice stays until Drop.
func (b *Inbox) Lanes() []*In {
	if l := b.lanes.Load(); l != nil {
		return *l
	}
	return nil
}

// Rings reports whether there is a bell that others may ring.
func (b *Inbox) Rings() bool { return b.rings.Load() }

// Waiting reports whether there may be records. The goroutine that calls Next calls it.
func (b *Inbox) Waiting() bool {
	for _, i := range b.Lanes() {
		if i.tail.Load() != i.pos {
			return true
		}
	}
	return false
}

// add adds a lane, if there are fewer than limit. It reports whether it has.
func (b *Inbox) add(i *In, limit int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes := b.Lanes()
	if b.closed || len(lanes) >= limit {
		return false
	}
	b.lanes.Store(new(append(slices.Clip(slices.Clone(lanes)), i)))
	return true
}

// Drop removes a lane and unmaps its memory. The goroutine that calls Next and Release calls Drop.
func (b *Inbox) Drop(i *In) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes := b.Lanes()
	if k := slices.Index(lanes, i); k >= 0 {
		b.lanes.Store(new(slices.Delete(slices.Clone(lanes), k, k+1)))
		i.end()
	}
}

// Sleep asks all senders to ring the bell with their next record. It reports false if there are records already.
// Awake follows in either case.
func (b *Inbox) Sleep() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	quiet := true
	for _, i := range b.Lanes() {
		i.asleep.Store(1)
		quiet = quiet && i.tail.Load() == i.read.Load() && !i.gone.Load() && !i.broken.Load()
	}
	return quiet
}

// Awake undoes Sleep.
func (b *Inbox) Awake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range b.Lanes() {
		i.asleep.Store(0)
	}
	// A sender may ring late, when nobody sleeps any more. The bell would then end all sleeps to come.
	b.bell.Silence()
}

// Close drops all lanes. No other method may be under way, but for Sleep and Awake.
func (b *Inbox) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	for _, i := range b.Lanes() {
		i.end()
	}
	b.lanes.Store(nil)
	b.bell.Close()
}
