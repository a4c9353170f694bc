//go:build !amd64 || adverb_portable

package wire

import "hash/crc32"

// updateLong is crc32.Update with the IEEE polynomial, for more than a few bytes.
func updateLong(c uint32, p []byte) uint32 { return crc32.Update(c, crc32.IEEETable, p) }

// The following functions have no implementation here.
func foldICRC(uint32, []byte) uint32                    { return 0 }
func foldLong(uint32, []byte) uint32                    { return 0 }
func copyFolded([]byte, []byte, *[16]byte)              {}
func foldHeaders(uint32, []byte, int, *[16]byte) uint32 { return 0 }

func isFew(int) bool   { return false }
func isMany(int) bool  { return false }
func isWhole(int) bool { return false }
