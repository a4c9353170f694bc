//go:build !adverb_portable

package mem

import (
	"runtime"
	"runtime/metrics"
)

// idleShare is by how much the idle part of the heap is to be larger than what is wanted, to be taken for room: it
// is in pieces.
const idleShare = 4

// HoldsHeap returns an error if so many bytes more of the Go heap could be beyond RLIMIT_AS. The runtime would end
// the program.
func HoldsHeap(size int) error {
	err := memory.host.holdsAddresses(uint64(size))
	if err == nil || hasIdle(size) {
		return nil
	}
	runtime.GC() // what was closed makes room
	if hasIdle(size) {
		return nil
	}
	return err
}

// hasIdle reports whether the heap surely has room for so many bytes in the addresses that it has.
func hasIdle(size int) bool {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	idle := uint64(0)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			idle += s.Value.Uint64()
		}
	}
	return idle/idleShare >= uint64(size)
}
