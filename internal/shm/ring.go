package shm

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// The layout of a ring, which both ends must know. Positions count bytes from the ring's making on.
const (
	tailAt   = 0   // up to where records are complete; written by the sender
	headAt   = 128 // up to where they were read; written by the receiver
	asleepAt = 256 // set by a receiver that wants its bell; cleared by either
	wantsAt  = 384 // set by a sender that wants its bell when there is room; cleared by either

	headerSize = 64 << 10 // a multiple of every page size

	recordHeader = 8  // 4 for the length, 4 for state and packets
	recordAlign  = 64 // a record shares no cache line with another
)

const (
	// ringBytes is the space for records: two windows of a QP at a path MTU of 4096.
	ringBytes = 2 << 20

	// hotBytes is the part of the records that a sender keeps to while its receiver keeps up: that part stays in the
	// caches of both processors, and is mapped from the beginning, while the kernel makes the other pages at their
	// first use.
	hotBytes = 128 << 10

	// While short records follow one another, a sender prefetches the lines that it writes writeAhead bytes later,
	// and a receiver those that it reads readAhead bytes later. A line takes as long as one or two such records.
	writeAhead = 2 << 10
	readAhead  = 1 << 10

	// FileSize is the size of a lane's memfd. A pair of processes that talk with each other has two lanes.
	FileSize = headerSize + ringBytes
)

// ring is the memory that both ends see. data is mapped twice, one after the other, so that no record is cut.
type ring struct {
	header     []byte
	tail, head *atomic.Uint64
	asleep     *atomic.Uint32
	wants      *atomic.Uint32
	data       []byte // 2·size
	size       uint64 // a power of two
	unmap      func()
}

// newRing makes a ring of a header and of records' space, which is mapped twice.
func newRing(header, data []byte, unmap func()) ring {
	r := ring{header: header, data: data, size: uint64(len(data) / 2), unmap: unmap}
	flag := func(off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&header[off])) }
	r.tail, r.head, r.asleep, r.wants = r.word(tailAt), r.word(headAt), flag(asleepAt), flag(wantsAt)
	return r
}

// word returns a word of the header.
func (r *ring) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&r.header[at])) }

// space returns how many bytes a record of n bytes takes.
func space(n int) uint64 { return (uint64(n) + recordHeader + recordAlign - 1) &^ (recordAlign - 1) }

// roomy reports whether a sender that has waited for room goes on, with so many unread bytes. It does not go on for
// each record that is read, but for half of the lane.
func (r *ring) roomy(unread uint64) bool { return unread <= r.size/2 }

// at returns the address of a position.
func (r *ring) at(pos uint64) unsafe.Pointer { return unsafe.Pointer(&r.data[pos&(r.size-1)]) }

// record returns the n bytes of the record at a position.
func (r *ring) record(pos uint64, n int) []byte {
	at := pos&(r.size-1) + recordHeader
	return r.data[at : at+uint64(n) : at+uint64(n)]
}

// putHeader is for records that the receiver does not see yet. state has the packets too.
func (r *ring) putHeader(pos uint64, n int, state uint32) {
	h := r.data[pos&(r.size-1):]
	binary.NativeEndian.PutUint32(h, uint32(n))
	binary.NativeEndian.PutUint32(h[4:], state)
}

// state returns the word that holds a record's state.
func (r *ring) state(pos uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.data[pos&(r.size-1)+4]))
}

// length reads a record's length, once.
func (r *ring) length(pos uint64) uint64 {
	return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[pos&(r.size-1)]))))
}
