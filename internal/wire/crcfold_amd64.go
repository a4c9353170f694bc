//go:build !adverb_portable

package wire

import (
	"hash/crc32"
	"math/bits"
	"unsafe"
)

// The register and the bytes are one long polynomial. To fold is to replace bytes by fewer that leave the same
// remainder. hash/crc32 folds by itself, but into one accumulator, and waits for each product. Here four take turns:
// of 32 bytes each with VPCLMULQDQ (foldCRC), of 64 with AVX-512 (foldMany).

const (
	foldBlock = 128 // bytes that a step of foldCRC folds
	wideBlock = 256 // and of foldMany
	foldLeast = 512 // bytes from which on foldCRC pays
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

var hasFew, hasFold, hasWide = canFold()

// canFold reports whether the CPU has AVX and PCLMULQDQ, whether it has AVX2 and VPCLMULQDQ too, whether it has AVX-512
// too, and the system keeps their registers.
func canFold() (few, fold, wide bool)

// foldCRC folds the register and n bytes at p, which is at least one foldBlock and a multiple of it, to 16 bytes.
//
//go:noescape
func foldCRC(register uint32, p *byte, n int, by *[3][2]uint64, out *[16]byte)

// updateLong is crc32.Update with the IEEE polynomial, for more than a few bytes.
func updateLong(c uint32, p []byte) uint32 {
	if len(p) < foldLeast || !hasFold {
		return crc32.Update(c, crc32.IEEETable, p)
	}
	var out [16]byte
	n := len(p) &^ (foldBlock - 1)
	foldCRC(^c, &p[0], n, &foldBy, &out)
	return updateShort(^move16(0, &out), p[n:])
}

// Most packets are short. foldFew folds them by 16 bytes, and needs no tables: after a system call the tables of
// updateShort are in no near cache. foldMany folds long ones with AVX-512, from the BTH on, so that they need no
// tables either.

// fewMost is up to how many bytes foldFew is faster than the others.
const fewMost = 384

// icrcConstants is laid out as foldFew and foldMany read it.
type icrcConstants struct {
	fold   [2]uint64    // multipliers that move on by 16 bytes
	reduce [2]uint64    // the polynomial, and the quotient of x^64 by it, reflected
	by64   [2]uint64    // the multiplier that moves 32 bits on by 64
	mask   [2]uint64    // the lower 32 bits
	shift  [32]uint8    // from byte n on, the PSHUFB that moves the first n bytes to the end, behind zeros
	wide   [3][2]uint64 // multipliers that move on by 256, 64 and 32 bytes
}

var forICRC = newICRCConstants()

func newICRCConstants() *icrcConstants {
	k := &icrcConstants{fold: foldConstants(128), by64: [2]uint64{uint64(xPower(64)) << 1}, mask: [2]uint64{1<<32 - 1}}
	const poly = 1<<32 | 0x04c11db7
	quotient, rest := uint64(0), uint64(1)<<32
	for i := 32; i >= 0; i-- {
		if rest>>32 == 1 {
			quotient |= 1 << i
			rest ^= poly
		}
		rest <<= 1
	}
	k.reduce = [2]uint64{bits.Reverse64(poly) >> 31, bits.Reverse64(quotient) >> 31}
	for i := range 16 {
		k.shift[i], k.shift[16+i] = 0x80, uint8(i)
	}
	k.wide = [3][2]uint64{foldConstants(8 * wideBlock), foldConstants(512), foldConstants(256)}
	return k
}

// foldFew moves the register on by n bytes at p, which are 16 at least and a multiple of 4. The bits of ones count as
// set in the first 8 bytes.
//
//go:noescape
func foldFew(register uint32, ones uint64, p *byte, n int, by *icrcConstants) uint32

// foldMany is foldFew for 272 bytes at least.
//
//go:noescape
func foldMany(register uint32, ones uint64, p *byte, n int, by *icrcConstants) uint32

// isFew reports whether foldICRC does n bytes.
func isFew(n int) bool { return hasFew && uint(n-16) <= fewMost-16 && n%4 == 0 }

// isMany reports whether foldLong does n bytes.
func isMany(n int) bool { return hasWide && n > fewMost && n%4 == 0 }

const icrcOnes = 0xff << (8 * bthCongestion)

// foldICRC is crc32.Update for the bytes that an ICRC covers, from the BTH on, if isFew is true of their length.
func foldICRC(c uint32, covered []byte) uint32 {
	return ^foldFew(^c, icrcOnes, unsafe.SliceData(covered), len(covered), forICRC)
}

// foldLong is foldICRC if isMany is true of the length.
func foldLong(c uint32, covered []byte) uint32 {
	return ^foldMany(^c, icrcOnes, unsafe.SliceData(covered), len(covered), forICRC)
}

// A whole payload is folded while it is copied, by copyFold. foldAround then joins it to its headers.

// isWhole reports whether copyFolded does n bytes: the payload of a whole packet, at the path MTUs where it pays.
func isWhole(n int) bool { return hasWide && (n == 1024 || n == 2048 || n == 4096) }

// payloadFolds are the multipliers that move 16 bytes on by such a payload, by its KiB halved.
var payloadFolds = [3][2]uint64{foldConstants(8 * 1024), foldConstants(8 * 2048), foldConstants(8 * 4096)}

// copyFolded copies a whole payload to dst, and folds it to sum.
func copyFolded(dst, src []byte, sum *[16]byte) {
	copyFold(unsafe.SliceData(dst), unsafe.SliceData(src), len(src), forICRC, sum)
}

// foldHeaders is foldICRC for headers, from the BTH on, and a payload of n bytes behind them that copyFolded has folded.
func foldHeaders(c uint32, headers []byte, n int, sum *[16]byte) uint32 {
	return ^foldAround(^c, icrcOnes, unsafe.SliceData(headers), len(headers), &payloadFolds[n>>11], sum, forICRC)
}

// copyFold copies n bytes from src to dst, and folds them to 16 bytes. n is a multiple of wideBlock, and at least two.
//
//go:noescape
func copyFold(dst, src *byte, n int, by *icrcConstants, sum *[16]byte)

// foldAround moves the register on by n bytes at p, which are a BTH at least and a multiple of 4, as foldFew does, and then
// by a payload that was folded to sum, with the payload's multipliers over. Up to 16 bytes behind the n can be read.
//
//go:noescape
func foldAround(register uint32, ones uint64, p *byte, n int, over *[2]uint64, sum *[16]byte, by *icrcConstants) uint32
