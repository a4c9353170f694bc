package transport

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// windowKey is where the labels of memory windows begin. Tests name a window by a label in the place of its
// key, which is random; posting puts the key there. Keys below are nobody's.
const windowKey = 0x10000

// window is a memory window of type 2.
type window struct {
	mw  *verbs.MW
	key verbs.RKey // that it is bound under, once it is
	va  uint64     // of its first byte then
}

// labelled returns the window with a label. It allocates the window at first use.
func (h *testHost) labelled(label verbs.RKey) *window {
	if w := h.windows[label]; w != nil {
		return w
	}
	mw, err := h.pd.AllocMW(verbs.MWType2)
	if err != nil {
		h.t.Fatal(err)
	}
	w := &window{mw: mw, key: verbs.IncRKey(mw.RKey())}
	h.windows[label] = w
	return w
}

// keyOf returns the key that a label stands for, or a key that is nobody's as it is.
func (h *testHost) keyOf(label verbs.RKey) verbs.RKey {
	if label < windowKey {
		return label
	}
	return h.labelled(label).key
}

// wasBound and isBound report the fate of the window with a label.
func (h *testHost) wasBound(label verbs.RKey) bool {
	w := h.windows[label]
	return w != nil && w.mw.RKey() == w.key
}

func (h *testHost) isBound(label verbs.RKey) bool {
	w := h.windows[label]
	if w == nil {
		return false
	}
	s, err := h.qp.cfg.PD.Open(w.key, h.qp.cfg.QPN, w.va, 0, 0)
	s.Release()
	return err == nil
}

// resolve replaces the labels of windows in a work request by keys.
func (e *node) resolve(wr *verbs.SendWR) {
	switch wr.Op {
	case verbs.OpBindMW:
		b := wr.Bind
		label := max(b.RKey, windowKey)
		b.MW = e.labelled(label).mw
		b.RKey = e.keyOf(b.RKey)
		if b.MR == nil {
			b.MR = e.mem.mr
		}
		if b.Length == 0 {
			b.Addr, b.Length = e.mem.base, uint64(len(e.mem.data))
		}
		e.labelled(label).va = b.Addr
	case verbs.OpLocalInv:
		wr.InvalidateRKey = e.keyOf(wr.InvalidateRKey)
	case verbs.OpSendWithInv:
		wr.InvalidateRKey = e.peer.keyOf(wr.InvalidateRKey)
	}
}

// bindWindow binds the window with a label to all of e's memory, without a work request.
func (e *node) bindWindow(label verbs.RKey) *region {
	w := e.labelled(label)
	w.va = e.mem.base
	err := mem.Bind(&verbs.MWBind{
		MW: w.mw, RKey: w.key, MR: e.mem.mr, Addr: e.mem.base, Length: uint64(len(e.mem.data)), Access: remoteAccess,
	}, e.qp.cfg.QPN)
	if err != nil {
		e.t.Fatal(err)
	}
	return &region{key: uint32(w.key), base: e.mem.base, data: e.mem.data}
}

// wantWindows checks that e's windows in bound were bound, and that those in invalidated have been invalidated since.
// A label stands there as often as its window was bound or invalidated. A window that was bound or invalidated twice
// in a row would have been an error.
func (e *node) wantWindows(bound, invalidated []verbs.RKey) {
	e.t.Helper()
	count := func(labels []verbs.RKey, l verbs.RKey) (n int) {
		for _, k := range labels {
			n += bit(k == l)
		}
		return n
	}
	labels := slices.Concat(bound, invalidated)
	for l := range e.windows {
		labels = append(labels, l)
	}
	for _, l := range labels {
		was, is := count(bound, l) > 0, count(bound, l) > count(invalidated, l)
		if e.wasBound(l) != was || e.isBound(l) != is {
			e.t.Errorf("%s: window %v was bound: %v, is bound: %v; want %v and %v", e.name, l, e.wasBound(l), e.isBound(l), was, is)
		}
	}
}

func labels(ks ...verbs.RKey) []verbs.RKey { return ks }
