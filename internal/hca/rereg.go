package hca

import "github.com/adverb-rdma/adverb/verbs"

// mrHandle is what the facade holds of a region: Rereg puts another one in its place.
type mrHandle struct{ *mr }

// Rereg implements verbs.ProviderMR. The region gets new keys.
func (h *mrHandle) Rereg(flags verbs.ReregFlags, to verbs.ProviderPD, attr verbs.MRAttr) error {
	old := h.mr
	if n := old.windows.Load(); n > 0 {
		return verbs.Errorf(verbs.ErrBusy, "%d memory windows are bound to the region", n)
	}
	if flags&verbs.ReregTranslation == 0 && old.base != addrOf(old.buf) {
		attr.IOVA, attr.HasIOVA = old.base, true // it keeps the addresses that it was given
	}
	next, err := to.(*pd).register(attr)
	if err != nil {
		return err
	}
	if flags&verbs.ReregTranslation == 0 {
		old.free, next.free = nil, old.free // the memory goes on being what it was
	}
	h.mr = next
	return old.Close()
}
