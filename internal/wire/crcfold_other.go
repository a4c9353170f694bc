//go:build !amd64 || adverb_portable

package wire

import "hash/crc32"

// updateLong is crc32.Update with the IEEE polynomial, for more than a few bytes.
func updateLong(c uint32, p []byte) uint32 { return crc32.Update(c, crc32.IEEETable, p) }

// updateICRC has no implementation here.
func updateICRC(uint32, []byte) (uint32, bool) { return 0, false }
