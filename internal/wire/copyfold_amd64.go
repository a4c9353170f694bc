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

// payloadFolds are the multipliers that move 16 bytes on by a payload's length.
var payloadFolds = [3][2]uint64{foldConstants(8 * 1024), foldConstants(8 * 2048), foldConstants(8 * 4096)}

// Copy copies src to dst, which is as long. It loads upward, and each cache line in one piece, if src begins with a
// line. It copies nothing, and reports false, where the CPU or the length does not suit.
func (f *Fold) Copy(dst, src []byte) bool {
	n := len(src)
	if !hasWide || n < foldCopyLeast || n > foldCopyLeast<<(len(payloadFolds)-1) || n&(n-1) != 0 || len(dst) < n {
		return false
	}
	f.n = n
	copyFold(unsafe.SliceData(dst), unsafe.SliceData(src), n, forICRC, &f.sum)
	return true
}

// from goes on from the CRC up to the BTH over headers, which begin with the BTH, and the payload behind them.
func (f *Fold) from(c uint32, headers []byte) uint32 {
	over := &payloadFolds[bits.TrailingZeros(uint(f.n))-foldCopyShift]
	return ^foldAround(^c, icrcOnes, unsafe.SliceData(headers), len(headers), over, &f.sum, forICRC)
}

// copyFold copies n bytes from src to dst, and folds them to 16 bytes. n is a multiple of wideBlock, and at least two.
//
//go:noescape
func copyFold(dst, src *byte, n int, by *icrcConstants, sum *[16]byte)

// foldAround moves the register on by n bytes at p, which are a BTH at least and a multiple of 4, as foldFew does, and by
// the multipliers over what has left sum. What is behind the n bytes is there, up to 16.
//
//go:noescape
func foldAround(register uint32, ones uint64, p *byte, n int, over *[2]uint64, sum *[16]byte, by *icrcConstants) uint32
