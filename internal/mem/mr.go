package mem

import (
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// MR is the provider's side of a verbs.MR. Rereg puts another region in its place.
type MR struct {
	*Region
	mu sync.Mutex // held while Region changes, and while a window is bound to it
}

var _ verbs.ProviderMR = (*MR)(nil)

// Rereg implements verbs.ProviderMR. It makes a new region and closes the old one, so the keys
// change, and a packet in flight sees one or the other.
func (h *MR) Rereg(flags verbs.ReregFlags, to verbs.ProviderPD, attr verbs.MRAttr) error {
	old, err := h.replace(flags, to, attr)
	if err != nil {
		return err
	}
	return old.retire()
}

// replace puts a new region in the place of the old one, which it returns. No window can be bound to the
// old one any more.
func (h *MR) replace(flags verbs.ReregFlags, to verbs.ProviderPD, attr verbs.MRAttr) (*Region, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.Region
	if n := old.windows.Load(); !old.windows.CompareAndSwap(0, noWindows) {
		return nil, verbs.Errorf(verbs.ErrBusy, "%d memory windows are bound to the region", max(n, 1))
	}
	keepMemory := flags&verbs.ReregTranslation == 0
	if zero := (old.access | attr.Access) & verbs.AccessZeroBased; keepMemory && zero == 0 && old.base != addrOf(old.buf) {
		attr.IOVA, attr.HasIOVA = old.base, true // the region keeps the addresses that it was given
	}
	next, err := to.(Domain).Domain().register(attr, keepMemory && old.backing.alloc != nil)
	if err != nil {
		old.windows.Store(0)
		return nil, err
	}
	if keepMemory {
		next.backing, old.backing = old.backing, next.backing
	}
	h.Region = next
	return old, nil
}

// Close implements verbs.ProviderMR.
func (h *MR) Close() error {
	h.mu.Lock()
	r := h.Region
	h.mu.Unlock()
	return r.Close()
}
