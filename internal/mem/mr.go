package mem

import "github.com/adverb-rdma/adverb/verbs"

// MR is what package verbs holds of a region. Rereg puts another region in its place.
type MR struct{ *Region }

var _ verbs.ProviderMR = (*MR)(nil)

// Rereg implements verbs.ProviderMR. It makes a new region and closes the old one, so the keys
// change, and a packet in flight sees one or the other.
func (h *MR) Rereg(flags verbs.ReregFlags, to verbs.ProviderPD, attr verbs.MRAttr) error {
	old := h.Region
	if n := old.windows.Load(); n > 0 {
		return verbs.Errorf(verbs.ErrBusy, "%d memory windows are bound to the region", n)
	}
	keepMemory := flags&verbs.ReregTranslation == 0
	if keepMemory && old.base != addrOf(old.buf) {
		attr.IOVA, attr.HasIOVA = old.base, true // the region keeps the addresses that it was given
	}
	next, err := to.(Domain).Domain().register(attr)
	if err != nil {
		return err
	}
	if keepMemory {
		next.backing, old.backing = old.backing, next.backing
	}
	h.Region = next
	return old.Close()
}
