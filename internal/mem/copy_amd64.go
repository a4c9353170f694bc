//go:build !adverb_portable

package mem

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// x86 keeps loads in order, and stores, so plain instructions do.

//go:norace
func load64(p unsafe.Pointer) uint64 { return *(*uint64)(p) }

//go:norace
func load32(p unsafe.Pointer) uint32 { return *(*uint32)(p) }

//go:norace
func store64(p unsafe.Pointer, v uint64) { *(*uint64)(p) = v }

//go:norace
func store32(p unsafe.Pointer, v uint32) { *(*uint32)(p) = v }

// copyWordsTo copies words from src to dst, which is aligned to them.
//
//go:norace
func copyWordsTo(dst, src unsafe.Pointer, words int) {
	for i := 0; i < 8*words; i += 8 {
		*(*uint64)(unsafe.Add(dst, i)) = *(*uint64)(unsafe.Add(src, i))
	}
}

// copyWordsFrom copies words from src, which is aligned to them, to dst.
//
//go:norace
func copyWordsFrom(dst, src unsafe.Pointer, words int) { copyWordsTo(dst, src, words) }

// pairsInOrder says that copyTo, from memory that is aligned as its own is, loads upward too.
const pairsInOrder = true

var hasAVX = cpu.X86.HasAVX

// copyLinesTo copies cache lines from src to dst, which is aligned to them. lines is at least 1.
func copyLinesTo(dst, src unsafe.Pointer, lines int) { copyLines(dst, src, lines, hasAVX) }

// copyLinesFrom copies cache lines from src, which is aligned to them, to dst.
func copyLinesFrom(dst, src unsafe.Pointer, lines int) { copyLines(dst, src, lines, hasAVX) }

// copyLines copies upward, 16 bytes at a time or, with AVX, 32.
//
//go:noescape
func copyLines(dst, src unsafe.Pointer, lines int, avx bool)
