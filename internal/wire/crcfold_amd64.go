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

// updateCRC is crc32.Update with the IEEE polynomial.
func updateCRC(c uint32, p []byte) uint32 {
	if len(p) >= foldLeast && hasFold && !(hasWide && len(p) > foldMost) {
		var out [16]byte
		n := len(p) &^ (foldBlock - 1)
		foldCRC(^c, &p[0], n, &foldBy, &out)
		register := move16(0, &out)
		for p = p[n:]; len(p) >= 16; p = p[16:] {
			register = move16(register, (*[16]byte)(p))
		}
		c = ^register
	}
	return crc32.Update(c, crc32.IEEETable, p)
}

// move16 moves the register on by 16 bytes. hash/crc32 calls its implementation through a variable, for which they
// might have to move to the heap.
func move16(register uint32, b *[16]byte) uint32 {
	t := (*[16][256]uint32)(crcBehind[:16])
	return t[15][b[0]^byte(register)] ^ t[14][b[1]^byte(register>>8)] ^
		t[13][b[2]^byte(register>>16)] ^ t[12][b[3]^byte(register>>24)] ^
		t[11][b[4]] ^ t[10][b[5]] ^ t[9][b[6]] ^ t[8][b[7]] ^
		t[7][b[8]] ^ t[6][b[9]] ^ t[5][b[10]] ^ t[4][b[11]] ^
		t[3][b[12]] ^ t[2][b[13]] ^ t[1][b[14]] ^ t[0][b[15]]
}
