//go:build !adverb_portable

package wire

import (
	"math/bits"
	"unsafe"
)

// A Fold copies the payload of a datagram, and folds it as it comes by, for [Flow.SealFolded]. So the ICRC costs no
// second way over the payload. A Fold that was reset has copied nothing.
type Fold struct {
	sum [16]byte // leaves the same remainder as the payload
	n   int      // bytes of the payload
}

// Reset has f have copied nothing.
func (f *Fold) Reset() { f.n = 0 }

// The lengths that a Fold copies are the payloads of whole packets from foldCopyLeast on.
const (
	foldCopyLeast = 1 << foldCopyShift
	foldCopyShift = 10
)

// foldBehind are the multipliers that move the first 16 bytes of a payload on to its last 16.
var foldBehind = [3][2]uint64{foldConstants(8 * (1024 - 16)), foldConstants(8 * (2048 - 16)), foldConstants(8 * (4096 - 16))}

// Copy copies src to dst, which is as long. It loads upward, and each cache line in one piece, if src begins with a
// line. It copies nothing, and reports false, where the CPU or the length does not suit.
func (f *Fold) Copy(dst, src []byte) bool {
	n := len(src)
	if !hasWide || n < foldCopyLeast || n > foldCopyLeast<<(len(foldBehind)-1) || n&(n-1) != 0 || len(dst) < n {
		return false
	}
	f.n = n
	copyFold(unsafe.SliceData(dst), unsafe.SliceData(src), n, forICRC, &f.sum)
	return true
}

// behind returns the CRC of what c is the CRC of, and the payload behind it.
func (f *Fold) behind(c uint32) uint32 {
	return ^foldOnto(^c, &foldBehind[bits.TrailingZeros(uint(f.n))-foldCopyShift], &f.sum, forICRC)
}

// copyFold copies n bytes from src to dst, and folds them to 16 bytes. n is a multiple of wideBlock, and at least two.
//
//go:noescape
func copyFold(dst, src *byte, n int, by *icrcConstants, sum *[16]byte)

// foldOnto moves the register on by the multipliers, adds sum, and returns the register behind it.
//
//go:noescape
func foldOnto(register uint32, over *[2]uint64, sum *[16]byte, by *icrcConstants) uint32
