package wire

// A Fold copies the payload of a datagram, and folds the payload on the way, for [Flow.SealFolded]. So the ICRC need
// not read the payload a second time. A Fold that was reset has copied nothing.
type Fold struct {
	sum [16]byte // leaves the same remainder as the payload
	n   int      // bytes of the payload
}

// Reset has f have copied nothing.
func (f *Fold) Reset() { f.n = 0 }

// Copy copies src to dst, which is as long. It loads upward, and each cache line in one piece, if src begins with a
// line. It copies nothing, and reports false, where the CPU or the length does not suit.
func (f *Fold) Copy(dst, src []byte) bool {
	if !isWhole(len(src)) || len(dst) < len(src) {
		return false
	}
	f.n = len(src)
	copyFolded(dst, src, &f.sum)
	return true
}
