package queue

import (
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// wqeSize is the least number of bytes that a work request costs beside its SGEs and inline data, whatever the device.
const wqeSize = 384

// firstPlaces is how many places the ring of a queue begins with.
const firstPlaces = 16

// FirstPlaces returns how many places the ring of a queue begins with, that may have most in the end: few, since most
// connections are idle. Where RLIMIT_AS bounds the heap it has all from the beginning, and so whoever makes the queue
// hears that there is no room. Later nobody would: the runtime ends a program whose heap cannot grow.
func FirstPlaces(most int) int {
	if mem.HeapIsBounded() {
		return most
	}
	return min(most, firstPlaces)
}

// HoldsCQ returns an error if the host cannot hold a CQ of so many entries.
func HoldsCQ(entries int) error { return mem.HoldsHeap(entries * int(unsafe.Sizeof(CQE{}))) }

// HoldsQP returns an error if the host cannot hold the queues of a QP.
func HoldsQP(c verbs.QPCap) error {
	const sge = int(unsafe.Sizeof(verbs.SGE{}))
	send := RingSize(c.MaxSendWR) * (wqeSize + max(1, c.MaxSendSGE)*sge + c.MaxInlineData)
	recv := RingSize(c.MaxRecvWR) * (wqeSize + max(1, c.MaxRecvSGE)*sge)
	return mem.HoldsHeap(send + recv)
}

// HoldsSRQ returns an error if the host cannot hold the receives of an SRQ.
func HoldsSRQ(a verbs.SRQAttr) error {
	return HoldsQP(verbs.QPCap{MaxRecvWR: a.MaxWR, MaxRecvSGE: a.MaxSGE})
}
