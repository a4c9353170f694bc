package mem

import (
	"encoding/binary"
	"unsafe"
)

// Copies from and to registered memory go upward: of two aligned words the lower one is loaded, or
// stored, no later than the higher one, and each of them whole. Cards do it so, by cache lines, and
// programs count on it: see docs/guide/memory.md. The builtin copy has no order: it may move the end
// first. The other side of a copy is the device's own, and has any alignment.
//
// The race detector sees none of it, since programs access the same memory by atomics. Where a program
// must not touch memory at all, [PD.Gather] and [PD.Scatter] tell the detector.

const lineSize = 64

// copyTo copies src to dst, which is as long and registered memory.
//
//go:norace
func copyTo(dst, src []byte) {
	if addrOf(dst)%8 != 0 { // up to an aligned word
		for align := 1; align < 8; align *= 2 {
			if addrOf(dst)&uint64(align) != 0 && len(dst) >= align {
				storePart(at(dst), src, align)
				dst, src = dst[align:], src[align:]
			}
		}
	}
	if lines := linesAt(dst); lines > 0 {
		for addrOf(dst)%lineSize != 0 {
			store64(at(dst), binary.NativeEndian.Uint64(src))
			dst, src = dst[8:], src[8:]
		}
		copyLinesTo(at(dst), at(src), lines)
		dst, src = dst[lines*lineSize:], src[lines*lineSize:]
	}
	if words := len(dst) / 8; words > 0 {
		copyWordsTo(at(dst), at(src), words)
		dst, src = dst[8*words:], src[8*words:]
	}
	for size := 4; size > 0 && len(dst) > 0; size /= 2 {
		if len(dst) >= size {
			storePart(at(dst), src, size)
			dst, src = dst[size:], src[size:]
		}
	}
}

// copyFrom fills dst from src, which is as long and registered memory.
//
//go:norace
func copyFrom(dst, src []byte) {
	if addrOf(src)%8 != 0 { // up to an aligned word
		for align := 1; align < 8; align *= 2 {
			if addrOf(src)&uint64(align) != 0 && len(dst) >= align {
				loadPart(at(src), dst, align)
				dst, src = dst[align:], src[align:]
			}
		}
	}
	if lines := linesAt(src); lines > 0 {
		for addrOf(src)%lineSize != 0 {
			binary.NativeEndian.PutUint64(dst, load64(at(src)))
			dst, src = dst[8:], src[8:]
		}
		copyLinesFrom(at(dst), at(src), lines)
		dst, src = dst[lines*lineSize:], src[lines*lineSize:]
	}
	if words := len(dst) / 8; words > 0 {
		copyWordsFrom(at(dst), at(src), words)
		dst, src = dst[8*words:], src[8*words:]
	}
	for size := 4; size > 0 && len(dst) > 0; size /= 2 {
		if len(dst) >= size {
			loadPart(at(src), dst, size)
			dst, src = dst[size:], src[size:]
		}
	}
}

// at returns the address of the first byte. There is no pointer behind the last one: it could be one into
// memory that is not in use, which the runtime takes for damage.
func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// linesAt returns how many whole cache lines there are in b, which is aligned to 8 bytes or short.
func linesAt(b []byte) int { return max(0, len(b)-int(-addrOf(b)%lineSize)) / lineSize }

// storePart stores the first 1, 2 or 4 bytes of src, at once where p is aligned to so many.
//
//go:norace
func storePart(p unsafe.Pointer, src []byte, size int) {
	switch size {
	case 4:
		store32(p, binary.NativeEndian.Uint32(src))
	case 2:
		*(*[2]byte)(p) = [2]byte(src)
	case 1:
		*(*byte)(p) = src[0]
	}
}

// loadPart loads the first 1, 2 or 4 bytes of dst, at once where p is aligned to so many.
//
//go:norace
func loadPart(p unsafe.Pointer, dst []byte, size int) {
	switch size {
	case 4:
		binary.NativeEndian.PutUint32(dst, load32(p))
	case 2:
		*(*[2]byte)(dst) = *(*[2]byte)(p)
	case 1:
		dst[0] = *(*byte)(p)
	}
}
