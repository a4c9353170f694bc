//go:build !adverb_portable

package wire

import "testing"

// TestFoldCRC compares all lengths on a CPU whose longer payloads are left to hash/crc32.
func TestFoldCRC(t *testing.T) {
	if !hasFold {
		t.Skip("this CPU has no VPCLMULQDQ")
	}
	if !hasWide {
		t.Skip("TestUpdateCRC has compared them: this CPU has no AVX-512")
	}
	hasWide = false
	defer func() { hasWide = true }()
	TestUpdateCRC(t)
}
