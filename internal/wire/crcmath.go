package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// A CRC is linear: the CRC of the XOR of two messages of one length is the XOR of their CRCs, except for a constant.
// So the part of a byte in a CRC depends only on its value and on the number of bytes after it. This has two uses.
// Short runs of bytes at a known place are summed from tables. And a difference between CRCs is traced back to the
// word that has caused it.
//
// CRC values are polynomials over GF(2) modulo the CRC's own, bit-reflected: bit 31 is the coefficient of x^0.

// crcMaxBehind is one more than the greatest number of bytes that a table below counts behind its
// byte.
const crcMaxBehind = udpSize + ipv6Size

// crcBehind[n][v] is the part of byte v in a CRC when n more bytes follow it. Some twenty rows are in use: the first
// 16, and those of the lengths and of the identification. The others cost nothing but address space.
var crcBehind = buildCRCBehind()

func buildCRCBehind() (t [crcMaxBehind][256]uint32) {
	t[0] = *crc32.IEEETable
	for n := 1; n < len(t); n++ {
		for v, c := range t[n-1] {
			t[n][v] = shift1(c)
		}
	}
	return t
}

// shift1 returns c·x^8: the CRC register c moved on by a zero byte.
func shift1(c uint32) uint32 { return c>>8 ^ crc32.IEEETable[c&0xff] }

// unshift4 returns c·x^-32.
func unshift4(c uint32) uint32 {
	for range 32 {
		// Multiplying by x shifts right, and subtracts the polynomial if bit 0 falls out. This is the inverse. The
		// reflected polynomial has bit 31 set, which shows whether it was subtracted.
		taken := c >> 31
		c = (c^crc32.IEEE&-taken)<<1 | taken
	}
	return c
}

// The powers x^-32n solve for a word that stands n words before the end of the covered bytes. There are two steps:
// the high table has multiples of the low table's length, and the low table has the remainder of n. Datagrams of up
// to 4 KiB of payload need the low table only.
const (
	crcLowWords  = 1056 // 4096 bytes of payload and all headers
	crcHighSteps = (1<<16)/4/crcLowWords + 1
)

var crcUnshiftLow, crcUnshiftHigh = buildUnshift()

func buildUnshift() (low [crcLowWords]uint32, high [crcHighSteps]uint32) {
	const one = 1 << 31 // x^0
	c := uint32(one)
	for i := range low {
		low[i] = c
		c = unshift4(c)
	}
	step := c // x^(-32·crcLowWords)
	c = one
	for i := range high {
		high[i] = c
		c = crcMul(c, step)
	}
	return low, high
}

// unshiftWords returns c·x^-32n for 0 <= n <= 2^14.
func unshiftWords(c uint32, n int) uint32 {
	if n >= crcLowWords {
		c = crcMul(c, crcUnshiftHigh[n/crcLowWords])
		n %= crcLowWords
	}
	return crcMul(c, crcUnshiftLow[n])
}

// crcMul returns a·b modulo the CRC polynomial.
func crcMul(a, b uint32) uint32 {
	// The product of the reflected factors has degree 62, its x^0 at bit 62; one more shift puts it
	// to bit 63, so that the upper word is the low half of the polynomial, already reduced, and the
	// lower word is to be multiplied by x^32.
	p := clmul(a, b) << 1
	lo := uint32(p)
	return uint32(p>>32) ^ crcBehind[3][lo&0xff] ^ crcBehind[2][lo>>8&0xff] ^ crcBehind[1][lo>>16&0xff] ^ crcBehind[0][lo>>24]
}

// clmul returns the carry-less product of a and b. Each factor is split into four with three zero
// bits between one bit and the next, so that the carries of an ordinary multiplication (a sum of at
// most eight bits needs four) stay clear of the bits that count.
func clmul(a, b uint32) uint64 {
	const (
		m0 = 0x1111111111111111
		m1 = m0 << 1
		m2 = m0 << 2
		m3 = m0 << 3
	)
	a0, a1, a2, a3 := uint64(a)&m0, uint64(a)&m1, uint64(a)&m2, uint64(a)&m3
	b0, b1, b2, b3 := uint64(b)&m0, uint64(b)&m1, uint64(b)&m2, uint64(b)&m3
	return (a0*b0^a1*b3^a2*b2^a3*b1)&m0 |
		(a0*b1^a1*b0^a2*b3^a3*b2)&m1 |
		(a0*b2^a1*b1^a2*b0^a3*b3)&m2 |
		(a0*b3^a1*b2^a2*b1^a3*b0)&m3
}

// crcHalfBehind returns the part of the 16-bit big-endian word v in a CRC when n bytes follow it.
func crcHalfBehind(v uint16, n int) uint32 {
	return crcBehind[n+1][v>>8] ^ crcBehind[n][v&0xff]
}

// shortCRC is below how many bytes hash/crc32, which finds its implementation anew at each call, takes longer
// than tables do.
const shortCRC = 64

// updateCRC is crc32.Update with the IEEE polynomial.
func updateCRC(c uint32, p []byte) uint32 {
	if len(p) < shortCRC {
		return updateShort(c, p)
	}
	return updateLong(c, p)
}

// updateShort is crc32.Update with the IEEE polynomial, for a few bytes.
func updateShort(c uint32, p []byte) uint32 {
	register := ^c
	for ; len(p) >= crcStep; p = p[crcStep:] {
		register = move16(register, (*[crcStep]byte)(p))
	}
	for ; len(p) >= 4; p = p[4:] {
		register ^= binary.LittleEndian.Uint32(p)
		register = crcBehind[3][byte(register)] ^ crcBehind[2][byte(register>>8)] ^ crcBehind[1][byte(register>>16)] ^ crcBehind[0][register>>24]
	}
	for _, v := range p {
		register = shift1(register ^ uint32(v))
	}
	return ^register
}

// moveBTH is move16 for the bytes of a BTH.
func moveBTH(register uint32, b *[BTHSize]byte) uint32 {
	t := (*[BTHSize][256]uint32)(crcBehind[:BTHSize])
	return t[11][b[0]^byte(register)] ^ t[10][b[1]^byte(register>>8)] ^
		t[9][b[2]^byte(register>>16)] ^ t[8][b[3]^byte(register>>24)] ^
		t[7][b[4]] ^ t[6][b[5]] ^ t[5][b[6]] ^ t[4][b[7]] ^
		t[3][b[8]] ^ t[2][b[9]] ^ t[1][b[10]] ^ t[0][b[11]]
}

// crcStep is how many bytes move16 takes.
const crcStep = 16

// move16 moves the register on by 16 bytes. hash/crc32 calls its implementation through a variable, for which they
// might have to move to the heap.
func move16(register uint32, b *[crcStep]byte) uint32 {
	t := (*[crcStep][256]uint32)(crcBehind[:crcStep])
	return t[15][b[0]^byte(register)] ^ t[14][b[1]^byte(register>>8)] ^
		t[13][b[2]^byte(register>>16)] ^ t[12][b[3]^byte(register>>24)] ^
		t[11][b[4]] ^ t[10][b[5]] ^ t[9][b[6]] ^ t[8][b[7]] ^
		t[7][b[8]] ^ t[6][b[9]] ^ t[5][b[10]] ^ t[4][b[11]] ^
		t[3][b[12]] ^ t[2][b[13]] ^ t[1][b[14]] ^ t[0][b[15]]
}
