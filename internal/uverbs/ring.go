//go:build linux

package uverbs

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/uapi"
)

// ring is a queue that a program shares with its driver: rxe_queue_buf. One of the two produces and the other consumes.
// Both indices are below the size, and the ring is empty if they are equal, so it holds size-1 elements.
//
// The program may write anything anywhere. So its index is masked, the driver's own is kept here and only shown there, and
// an element is copied before it is looked at.
//
// The store of an index follows the stores of the elements that it publishes, and its load comes before the loads of
// elements: both are atomic, as libibverbs has them with release and acquire.
type ring struct {
	piece *piece
	elem  int    // bytes, a power of two
	mask  uint32 // elements, less one
	own   uint32 // the driver's index: the consumer of work queues, the producer of CQs
}

// newRing makes a ring for n elements of so many bytes at least.
func newRing(a *area, n, elem int) (*ring, error) {
	elem = 1 << bits.Len(uint(elem-1))
	size := 1 << bits.Len(uint(n)) // one place stays free
	p, err := a.take(uapi.QueueData + size*elem)
	if err != nil {
		return nil, err
	}
	r := &ring{piece: p, elem: elem, mask: uint32(size - 1)}
	*r.word(uapi.QueueElemSize) = uint32(bits.TrailingZeros(uint(elem)))
	*r.word(uapi.QueueMask) = r.mask
	return r, nil
}

// word returns a word of the ring's head. The area is mapped at a page, so words are aligned.
func (r *ring) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.piece.bytes[at])) }

// at returns the place of an element.
func (r *ring) at(i uint32) []byte {
	off := uapi.QueueData + int(i&r.mask)*r.elem
	return r.piece.bytes[off : off+r.elem : off+r.elem]
}

// produced returns the program's index of a work queue.
func (r *ring) produced() uint32 { return atomic.LoadUint32(r.word(uapi.QueueProducer)) & r.mask }

// waiting returns how many elements of a work queue the driver has not taken.
func (r *ring) waiting() int { return int((r.produced() - r.own) & r.mask) }

// take copies the next element of a work queue into b, which has r.elem bytes, and takes it.
func (r *ring) take(b []byte) {
	copy(b, r.at(r.own))
	r.own = (r.own + 1) & r.mask
}

// untake takes the last element back.
func (r *ring) untake() { r.own = (r.own - 1) & r.mask }

// rewind makes the driver's index that of the consumer again, after elements were put into a work queue.
func (r *ring) rewind() { r.own = 0 }

// free shows the program that places of a work queue may be used again: those before the n-th since the last reset.
func (r *ring) free(n uint64) { atomic.StoreUint32(r.word(uapi.QueueConsumer), uint32(n)&r.mask) }

// freeTaken shows the program that the places of all elements that were taken may be used again.
func (r *ring) freeTaken() { atomic.StoreUint32(r.word(uapi.QueueConsumer), r.own) }

// put returns the place of a CQ's next element, or false if the ring is full.
func (r *ring) put() (place []byte, ok bool) {
	consumed := atomic.LoadUint32(r.word(uapi.QueueConsumer)) & r.mask
	if (r.own+1)&r.mask == consumed {
		return nil, false
	}
	return r.at(r.own), true
}

// publish shows the element that put gave the place of.
func (r *ring) publish() {
	r.own = (r.own + 1) & r.mask
	atomic.StoreUint32(r.word(uapi.QueueProducer), r.own)
}

// unread returns how many elements of a CQ the program has not consumed.
func (r *ring) unread() int {
	return int((r.own - atomic.LoadUint32(r.word(uapi.QueueConsumer))) & r.mask)
}

// reset empties a work queue.
func (r *ring) reset() {
	r.own = 0
	atomic.StoreUint32(r.word(uapi.QueueProducer), 0)
	atomic.StoreUint32(r.word(uapi.QueueConsumer), 0)
}

// cap returns how many elements the ring holds.
func (r *ring) cap() int { return int(r.mask) }

func (r *ring) info() uapi.MMInfo {
	return uapi.MMInfo{Offset: uint64(r.piece.off), Size: uint32(len(r.piece.bytes))}
}

func (r *ring) drop() { r.piece.drop() }
