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
