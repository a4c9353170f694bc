//go:build !adverb_portable

package mem

import (
	"math"
	"runtime"
	"runtime/metrics"
)

// The idle part of the heap is taken for room if it is idleShare times as large as the bytes wanted: idle
// memory is in pieces.
const idleShare = 4

// HeapIsBounded reports whether RLIMIT_AS bounds the Go heap.
func HeapIsBounded() bool { return addressLimit() != math.MaxUint64 }

// HoldsHeap returns an error if so many bytes more of the Go heap could be beyond RLIMIT_AS. The runtime would end
// the program.
func HoldsHeap(size int) error {
	err := memory.host.holdsAddresses(uint64(size))
	if err == nil || hasIdle(size) {
		return nil
	}
	runtime.GC() // regions that were closed make room
	if hasIdle(size) {
		return nil
	}
	return err
}

// hasIdle reports whether the heap has room for so many bytes in its addresses. Idle memory is in pieces, and where
// others of this size lie between them, each piece may be a little too short. Then no more is idle than used.
func hasIdle(size int) bool {
	idle := heapBytes("free") + heapBytes("released")
	used := heapBytes("objects") + heapBytes("unused")
	return idle/idleShare >= uint64(size) && idle >= used+uint64(size)
}

// heapBytes returns the size of a part of the heap.
func heapBytes(part string) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/" + part + ":bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
