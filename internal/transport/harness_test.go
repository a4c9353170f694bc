package transport

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// region is registered memory. One key serves as lkey and rkey.
type region struct {
	key    uint32
	base   uint64
	data   []byte
	access verbs.Access
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// remoteAccess is what a test QP lets its peer do unless the test says otherwise.
const remoteAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// sendDone is a completion of the send queue.
type sendDone struct {
	wc    verbs.WC
	freed uint64
}

type recvDone struct {
	wc        verbs.WC
	solicited bool
}

// testHost is a device with one QP: memory, a receive queue, and a record of what completed.
type testHost struct {
	t       testing.TB
	name    string
	regions []*region

	recvs  []RecvWQE // posted and not taken
	taken  int       // by NextRecv, and not completed
	recv   RecvWQE   // the taken one
	credit bool      // announce the number of posted receives
	shared *sharedRecvs

	sends  []sendDone
	recvd  []recvDone
	events []verbs.EventType
	before []int // sends that were complete at each event

	established int // calls

	state func() verbs.QPState // of the QP

	written int // bytes that WriteRemote has placed
	atomics int // executed

	anyWindow          bool // every bind and invalidation goes well, without a trace
	lastBind           verbs.MWBind
	bound, invalidated []verbs.RKey // by BindMW and Invalidate, in order
}

// sharedRecvs is a receive queue that several hosts take from.
type sharedRecvs struct {
	posted []RecvWQE
	out    int // taken and not completed
}

func (h *testHost) register(base uint64, n int, access verbs.Access) *region {
	r := &region{key: 0x100*uint32(len(h.regions)+1) + 0x55, base: base, data: make([]byte, n), access: access}
	h.regions = append(h.regions, r)
	return r
}

// deregister makes the key of r invalid.
func (h *testHost) deregister(r *region) {
	for i := range h.regions {
		if h.regions[i] == r {
			h.regions[i] = &region{} // keys are never 0
		}
	}
}

func (r *region) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.base + uint64(off), Length: uint32(n), LKey: verbs.LKey(r.key)}
}

func (r *region) remote(off int) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: r.base + uint64(off), RKey: verbs.RKey(r.key)}
}

func (h *testHost) find(key uint32, va, length uint64, need verbs.Access, status verbs.WCStatus) ([]byte, *Fault) {
	for _, r := range h.regions {
		if r.key != key || key == 0 {
			continue
		}
		off := va - r.base
		if va < r.base || off > uint64(len(r.data)) || length > uint64(len(r.data))-off {
			return nil, &Fault{status, fmt.Errorf("%s: key %#x: %#x+%d is outside", h.name, key, va, length)}
		}
		if r.access&need != need {
			return nil, &Fault{status, fmt.Errorf("%s: key %#x lacks %v", h.name, key, need)}
		}
		return r.data[off : off+length], nil
	}
	return nil, &Fault{status, fmt.Errorf("%s: no key %#x", h.name, key)}
}

// walk calls do for the pieces of [off, off+n) of sg.
func (h *testHost) walk(sg []verbs.SGE, off, n uint32, need verbs.Access, do func(piece []byte, at uint32)) *Fault {
	done := uint32(0)
	for i := range sg {
		s := &sg[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		if done == n {
			return nil
		}
		k := min(s.Length-off, n-done)
		b, f := h.find(uint32(s.LKey), s.Addr+uint64(off), uint64(k), need, verbs.WCLocProtErr)
		if f != nil {
			return f
		}
		do(b, done)
		done += k
		off = 0
	}
	if done != n {
		h.t.Errorf("%s: %d bytes at %d asked of an SG list that ends before", h.name, n, off)
	}
	return nil
}

func (h *testHost) Gather(dst []byte, sg []verbs.SGE, off uint32) *Fault {
	return h.walk(sg, off, uint32(len(dst)), 0, func(b []byte, at uint32) { copy(dst[at:], b) })
}

func (h *testHost) Scatter(sg []verbs.SGE, off uint32, src []byte) *Fault {
	return h.walk(sg, off, uint32(len(src)), verbs.AccessLocalWrite, func(b []byte, at uint32) { copy(b, src[at:]) })
}

func (h *testHost) CheckRemote(key verbs.RKey, va uint64, length uint32, need verbs.Access) *Fault {
	_, f := h.find(uint32(key), va, uint64(length), need, verbs.WCRemAccessErr)
	return f
}

func (h *testHost) ReadRemote(dst []byte, key verbs.RKey, va uint64) *Fault {
	b, f := h.find(uint32(key), va, uint64(len(dst)), verbs.AccessRemoteRead, verbs.WCRemAccessErr)
	copy(dst, b)
	return f
}

func (h *testHost) WriteRemote(key verbs.RKey, va uint64, src []byte) *Fault {
	b, f := h.find(uint32(key), va, uint64(len(src)), verbs.AccessRemoteWrite, verbs.WCRemAccessErr)
	h.written += copy(b, src)
	return f
}

func (h *testHost) CompareSwap(key verbs.RKey, va uint64, compare, swap uint64) (uint64, *Fault) {
	b, f := h.find(uint32(key), va, 8, verbs.AccessRemoteAtomic, verbs.WCRemAccessErr)
	if f != nil {
		return 0, f
	}
	h.atomics++
	orig := nativeWord(b)
	if orig == compare {
		binary.NativeEndian.PutUint64(b, swap)
	}
	return orig, nil
}

func (h *testHost) FetchAdd(key verbs.RKey, va uint64, add uint64) (uint64, *Fault) {
	b, f := h.find(uint32(key), va, 8, verbs.AccessRemoteAtomic, verbs.WCRemAccessErr)
	if f != nil {
		return 0, f
	}
	h.atomics++
	orig := nativeWord(b)
	binary.NativeEndian.PutUint64(b, orig+add)
	return orig, nil
}

func (h *testHost) postRecv(id uint64, sg ...verbs.SGE) {
	w := RecvWQE{ID: id, SGList: sg}
	for _, s := range sg {
		w.Length += s.Length
	}
	h.recvs = append(h.recvs, w)
}

func (h *testHost) NextRecv() *RecvWQE {
	if h.taken > 0 {
		h.t.Errorf("%s: a second receive is taken before the first is completed", h.name)
	}
	if s := h.shared; s != nil && len(s.posted) > 0 {
		h.recvs = append(h.recvs, s.posted[0])
		s.posted = s.posted[1:]
		s.out++
	}
	if len(h.recvs) == 0 {
		return nil
	}
	h.recv = h.recvs[0]
	h.recvs = h.recvs[:copy(h.recvs, h.recvs[1:])]
	h.taken++
	return &h.recv
}

func (h *testHost) RecvCredits() int {
	if h.credit {
		return len(h.recvs)
	}
	return -1
}

func (h *testHost) CompleteRecv(w *RecvWQE, wc verbs.WC, solicited bool) {
	if w != &h.recv || h.taken == 0 {
		h.t.Errorf("%s: receive %d is completed without being taken", h.name, wc.ID)
	}
	h.checkState(wc)
	h.taken--
	if h.shared != nil {
		h.shared.out--
	}
	h.recvd = append(h.recvd, recvDone{wc, solicited})
}

func (h *testHost) FlushRecv() {
	for _, w := range h.recvs {
		h.recvd = append(h.recvd, recvDone{verbs.WC{ID: w.ID, Status: verbs.WCFlushErr}, true})
	}
	h.recvs = h.recvs[:0]
}

func (h *testHost) CompleteSend(wc verbs.WC, freed uint64) {
	h.checkState(wc)
	h.sends = append(h.sends, sendDone{wc, freed})
}

// heldRecv returns the receive that a message under way holds, or that a dropped one has left for
// the next, or nil.
func (q *QP) heldRecv() *RecvWQE {
	if w := q.res.spare; w != nil {
		return w
	}
	return q.res.msg.recv
}

// checkState checks that who polls a failed completion does not find the QP in RTS.
func (h *testHost) checkState(wc verbs.WC) {
	if wc.Status == verbs.WCSuccess || h.state == nil {
		return
	}
	if s := h.state(); s != verbs.QPStateErr && s != verbs.QPStateSQE {
		h.t.Errorf("%s: %v of work request %d in %v", h.name, wc.Status, wc.ID, s)
	}
}

func (h *testHost) Event(t verbs.EventType) {
	h.events = append(h.events, t)
	h.before = append(h.before, len(h.sends))
}

func (h *testHost) Established() { h.established++ }

func nativeWord(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
