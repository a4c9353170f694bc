//go:build !amd64 || adverb_portable

package wire

import "hash/crc32"

// updateCRC is crc32.Update with the IEEE polynomial.
func updateCRC(c uint32, p []byte) uint32 {
	if len(p) < shortCRC {
		return updateShort(c, p)
	}
	return crc32.Update(c, crc32.IEEETable, p)
}
