//go:build !amd64 || adverb_portable

package mem

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Atomics keep the order on any processor. Under the race detector they would be seen, and be reported
// beside plain accesses of the program's that a completion orders.

//go:norace
func load64(p unsafe.Pointer) uint64 {
	if raceEnabled {
		return *(*uint64)(p)
	}
	return atomic.LoadUint64((*uint64)(p))
}

//go:norace
func load32(p unsafe.Pointer) uint32 {
	if raceEnabled {
		return *(*uint32)(p)
	}
	return atomic.LoadUint32((*uint32)(p))
}

//go:norace
func store64(p unsafe.Pointer, v uint64) {
	if raceEnabled {
		*(*uint64)(p) = v
		return
	}
	atomic.StoreUint64((*uint64)(p), v)
}

//go:norace
func store32(p unsafe.Pointer, v uint32) {
	if raceEnabled {
		*(*uint32)(p) = v
		return
	}
	atomic.StoreUint32((*uint32)(p), v)
}

// copyWordsTo copies words from src to dst, which is aligned to them.
//
//go:norace
func copyWordsTo(dst, src unsafe.Pointer, words int) {
	for i := 0; i < 8*words; i += 8 {
		store64(unsafe.Add(dst, i), binary.NativeEndian.Uint64((*[8]byte)(unsafe.Add(src, i))[:]))
	}
}

// copyWordsFrom copies words from src, which is aligned to them, to dst.
//
//go:norace
func copyWordsFrom(dst, src unsafe.Pointer, words int) {
	for i := 0; i < 8*words; i += 8 {
		binary.NativeEndian.PutUint64((*[8]byte)(unsafe.Add(dst, i))[:], load64(unsafe.Add(src, i)))
	}
}

// pairsInOrder says that copyTo, from memory that is aligned as its own is, loads upward too.
const pairsInOrder = false

// copyLinesTo copies cache lines from src to dst, which is aligned to them.
func copyLinesTo(dst, src unsafe.Pointer, lines int) { copyWordsTo(dst, src, lines*lineSize/8) }

// copyLinesFrom copies cache lines from src, which is aligned to them, to dst.
func copyLinesFrom(dst, src unsafe.Pointer, lines int) { copyWordsFrom(dst, src, lines*lineSize/8) }
