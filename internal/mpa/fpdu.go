package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

// An FPDU is a length, that many bytes (the ULPDU), padding to a multiple of four, and a CRC. The
// CRC's place is there without CRCs too, and then holds anything.
const (
	LengthSize = 2
	CRCSize    = 4
	// MaxULPDU is the largest ULPDU: its FPDU is as large as a length of 16 bits lets it be.
	MaxULPDU = 1<<16 - 1
	// MaxFPDU is the size of the largest FPDU.
	MaxFPDU = (LengthSize+MaxULPDU+3)&^3 + CRCSize
)

// TrailerSize returns how many bytes follow a ULPDU of n bytes: padding and CRC.
func TrailerSize(n int) int { return -(LengthSize+n)&3 + CRCSize }

// AppendLength begins an FPDU whose ULPDU has n bytes.
func AppendLength(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(b, uint16(n)) }

// Length returns the size of the ULPDU that an FPDU begins with.
func Length(b []byte) int { return int(binary.BigEndian.Uint16(b)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Seal writes padding and CRC to the end of an FPDU, whose trailer has room in it.
func Seal(fpdu []byte) {
	body := len(fpdu) - CRCSize
	n := LengthSize + Length(fpdu)
	clear(fpdu[n:body])
	binary.LittleEndian.PutUint32(fpdu[body:], checksum(fpdu[:body]))
}

// Verify reports whether the CRC of a whole FPDU is right, which has its markers, if there are any.
func Verify(fpdu []byte) bool {
	body := len(fpdu) - CRCSize
	return binary.LittleEndian.Uint32(fpdu[body:]) == checksum(fpdu[:body])
}
