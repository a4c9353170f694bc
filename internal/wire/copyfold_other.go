//go:build !amd64 || adverb_portable

package wire

// A Fold copies the payload of a datagram, and folds it as it comes by, for [Flow.SealFolded]. Here it never does.
type Fold struct{ n int }

// Reset has f have copied nothing.
func (f *Fold) Reset() {}

// Copy copies nothing, and reports false.
func (f *Fold) Copy(dst, src []byte) bool { return false }

func (f *Fold) from(uint32, []byte) uint32 { panic("wire: nothing was folded") }

const hasWide = false
