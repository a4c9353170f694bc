//go:build !adverb_portable

package wire

import "hash/crc32"

// hash/crc32 folds 16 bytes by an instruction, and 64 where the CPU has AVX-512. CPUs with VPCLMULQDQ alone fold 32,
// which takes half of the time that 16 take. What is folded is the register and the bytes, as a polynomial:
// foldCRC replaces foldBlock bytes at a time by 16 that leave the same remainder, and hash/crc32 does the rest.

const (
	foldBlock = 128  // bytes that a step folds
	foldLeast = 512  // bytes from which on folding pays
	foldMost  = 1023 // above it hash/crc32 folds 64 bytes by an instruction, where the CPU does
)

// foldBy are the multipliers that move the lower and the upper 8 of 16 bytes on by 128, 32 and 16 bytes.
var foldBy = [3][2]uint64{foldConstants(8 * foldBlock), foldConstants(256), foldConstants(128)}

// foldConstants returns the multipliers for a number of bits: x^(n+32) and x^(n-32), bit-reflected, and moved up
// by a bit, since the product of two reflected factors of 64 bits is one bit short.
func foldConstants(n int) [2]uint64 {
	return [2]uint64{uint64(xPower(n+32)) << 1, uint64(xPower(n-32)) << 1}
}

// xPower returns x^n.
func xPower(n int) uint32 {
	c := uint32(1) << 31
	for range n {
		c = c>>1 ^ crc32.IEEE&-(c&1)
	}
	return c
}

var hasFold, hasWide = canFold()

// canFold reports whether the CPU has AVX2 and VPCLMULQDQ, whether it has AVX-512 too as hash/crc32 uses it, and
// the system keeps their registers.
func canFold() (fold, wide bool)

// foldCRC folds the register and n bytes at p, which is at least one foldBlock and a multiple of it, to 16 bytes.
//
//go:noescape
func foldCRC(register uint32, p *byte, n int, by *[3][2]uint64, out *[16]byte)

// updateLong is crc32.Update with the IEEE polynomial, for more than a few bytes.
func updateLong(c uint32, p []byte) uint32 {
	if len(p) < foldLeast || !hasFold || hasWide && len(p) > foldMost {
		return crc32.Update(c, crc32.IEEETable, p)
	}
	var out [16]byte
	n := len(p) &^ (foldBlock - 1)
	foldCRC(^c, &p[0], n, &foldBy, &out)
	return updateShort(^move16(0, &out), p[n:])
}
