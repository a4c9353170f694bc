//go:build linux && (amd64 || arm64)

package native

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// sendQueue is the lock of a send queue, and the memory in which C finds the work requests.
type sendQueue struct {
	mu     sync.Mutex
	mem    *ibv.SendQueue
	closed bool
}

// close ends the queue. The caller holds the lock.
func (s *sendQueue) close() {
	s.closed = true
	s.free()
}

// free gives the memory back, if there is any.
func (s *sendQueue) free() {
	if s.mem != nil {
		s.mem.Free()
	}
}

// PostSend implements verbs.ProviderQP. Work requests go to C in batches, as many as the memory holds.
func (q *qp) PostSend(wrs []verbs.SendWR) (done int, err error) {
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	if q.sq.closed {
		return 0, verbs.ErrClosed
	}
	if err := q.d.usable(); err != nil {
		return 0, err
	}
	if s := q.known(); s < verbs.QPStateRTS && len(wrs) > 0 {
		return 0, verbs.Errorf(verbs.ErrState, "the QP is in %v: a QP sends from RTS on", s)
	}
	for done < len(wrs) {
		if w := &wrs[done]; w.Op >= verbs.OpFlush || w.Op == verbs.OpBindMW && w.Bind.MW.Type() == verbs.MWType1 {
			if err := q.postAlone(w); err != nil {
				return done, err
			}
			done++
			continue
		}
		n, binds, ferr := q.fill(wrs[done:])
		if n > 0 {
			posted, err := q.sq.mem.Post(n)
			if binds {
				noteBinds(wrs[done : done+posted])
			}
			done += posted
			if err != nil {
				return done, postFault(err)
			}
		}
		if ferr != nil {
			return done, ferr
		}
	}
	return done, nil
}

// fill writes as many work requests as there is memory for, and returns how many, and whether one of them binds a window. The
// error is that of the next one.
func (q *qp) fill(wrs []verbs.SendWR) (n int, binds bool, err error) {
	mem := q.sq.mem
	sge, inline := 0, 0
	for n < min(len(wrs), ibv.Batch) {
		w := &wrs[n]
		c := &mem.WRs[n]
		first := sge
		switch {
		case w.Flags&verbs.SendInline != 0:
			var data int
			if data, err = q.gather(w, inline); err != nil || data < 0 {
				return n, binds, err
			}
			if sge == len(mem.SGEs) {
				return n, binds, nil
			}
			if data > 0 {
				mem.SetInline(sge, inline, data)
				sge++
			}
			inline += data
		case max(len(w.SGList), q.d.quirks.least(w.Op == verbs.OpRDMARead)) > len(mem.SGEs)-sge:
			return n, binds, nil
		default:
			sge += putSGEs(mem.SGEs[sge:], w.SGList, q.d.quirks.least(w.Op == verbs.OpRDMARead))
		}
		c.WRID, c.Opcode, c.SendFlags, c.Imm = w.ID, uint32(w.Op), uint32(w.Flags), network(w.Imm)
		switch w.Op {
		case verbs.OpSend, verbs.OpSendWithImm:
			if q.typ == verbs.QPTypeUD {
				c.SetAH(w.AH.Provider().(*ah).r, uint32(w.RemoteQPN), uint32(w.RemoteQKey))
			}
		case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead:
			if w.Op == verbs.OpRDMARead && sge-first > 1 && q.d.quirks.oneSGE {
				return n, binds, verbs.Errorf(verbs.ErrLimit, "%d SGEs: the driver reads into one alone (max_sge_rd)", sge-first)
			}
			c.RemoteAddr, c.Key = w.Remote.VA, uint64(w.Remote.RKey)
		case verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
			c.RemoteAddr, c.Key, c.Swap, c.AtomicRKey = w.Remote.VA, w.CompareAdd, w.Swap, uint32(w.Remote.RKey)
		case verbs.OpSendWithInv, verbs.OpLocalInv:
			c.Imm = uint32(w.InvalidateRKey)
		case verbs.OpBindMW:
			if n > 0 && w.Bind.MW.Type() == verbs.MWType1 || binds {
				return n, binds, nil // one of type 1 goes alone, and C takes the key that the bind before has left
			}
			binds = true
			c.Imm, sge = 0, first // some refuse a bind that has more than its window
			c.BindMW = ibv.SendBindMW{MW: w.Bind.MW.Provider().(*mw).r, RKey: uint32(w.Bind.RKey), BindInfo: bindInfo(w.Bind)}
		case verbs.OpFlush, verbs.OpAtomicWrite:
			return n, binds, nil // they go alone
		}
		if q.typ == verbs.QPTypeXRCSend {
			c.RemoteSRQN = uint32(w.RemoteSRQN)
		}
		mem.SetSGEs(n, first, sge-first)
		n++
	}
	return n, binds, nil
}

// putSGEs writes the SGEs of a work request where C finds them, but for those of no bytes, and returns how many it wrote. They
// are at least so many: the last ones are empty.
func putSGEs(to []ibv.SGE, list []verbs.SGE, least int) (n int) {
	for i := range list {
		if s := &list[i]; s.Length > 0 { // 0 is 2^31 to some
			to[n] = ibv.SGE{Addr: s.Addr, Length: s.Length, LKey: uint32(s.LKey)}
			n++
		}
	}
	for ; n < least; n++ {
		to[n] = ibv.SGE{}
	}
	return n
}

// gather copies the inline data of a work request to the memory from at on, and returns how many bytes they are, or -1 if
// they do not fit behind those of others. C copies from the addresses of SGEs, which need not be addresses of this
// process: those of a region may have been chosen by the program, or be wrong. So the copy is made here.
func (q *qp) gather(w *verbs.SendWR, at int) (n int, err error) {
	room := q.sq.mem.Inline[at:]
	if w.InlineData != nil {
		if len(w.InlineData) > len(room) {
			return -1, nil
		}
		return copy(room, w.InlineData), nil
	}
	for i := range w.SGList {
		s := &w.SGList[i]
		if s.Length == 0 {
			continue
		}
		if int(s.Length) > len(room)-n {
			return -1, nil
		}
		b, err := q.d.bytesOf(s, w.Op)
		if err != nil {
			return 0, err
		}
		n += copy(room[n:], b)
	}
	return n, nil
}

// postAlone posts a work request that ibv_post_send does not take. The caller holds the lock, so those before and behind it keep
// their places.
func (q *qp) postAlone(w *verbs.SendWR) error {
	switch mem := q.sq.mem; w.Op {
	case verbs.OpFlush:
		if q.typ != verbs.QPTypeRC {
			return verbs.Errorf(verbs.ErrUnsupported, "FLUSH by a %v QP: no driver was known to have it; use an RC QP", q.typ)
		}
		f := &w.Flush
		return postFault(mem.Flush(w.ID, uint32(w.Flags), uint32(w.Remote.RKey), w.Remote.VA, uint64(f.Length), uint8(f.Placement), uint8(f.Selectivity)))
	case verbs.OpAtomicWrite:
		if _, err := q.gather(w, 0); err != nil { // its 8 bytes are always copied
			return err
		}
		return postFault(mem.AtomicWrite(w.ID, uint32(w.Flags&^verbs.SendInline), uint32(w.Remote.RKey), w.Remote.VA))
	}
	return q.bind(w)
}

// bind binds a window of type 1.
func (q *qp) bind(w *verbs.SendWR) error {
	m := w.Bind.MW.Provider().(*mw)
	if err := q.sq.mem.Bind(m.r, ibv.MWBind{WRID: w.ID, SendFlags: uint32(w.Flags), BindInfo: bindInfo(w.Bind)}); err != nil {
		return postFault(err)
	}
	m.bound(verbs.RKey(m.r.P().RKey))
	return nil
}

// noteBinds notes the keys of binds that are posted.
func noteBinds(wrs []verbs.SendWR) {
	for i := range wrs {
		if wrs[i].Op == verbs.OpBindMW {
			wrs[i].Bind.MW.Provider().(*mw).bound(wrs[i].Bind.RKey)
		}
	}
}

// recvQueue is the lock of a receive queue, and the memory in which C finds the work requests.
type recvQueue struct {
	mu     sync.Mutex
	mem    *ibv.RecvQueue // nil for a QP with an SRQ
	least  int            // SGEs of a receive that C takes
	closed bool
}

// close ends the queue. The caller holds the lock.
func (r *recvQueue) close() {
	r.closed = true
	if r.mem != nil {
		r.mem.Free()
	}
}

// post posts receives, whose SGEs are within the limit.
func (r *recvQueue) post(wrs []verbs.RecvWR) (done int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, verbs.ErrClosed
	}
	if r.mem == nil && len(wrs) > 0 {
		return 0, verbs.Errorf(verbs.ErrInvalid, "the QP takes its receives from an SRQ: post to that")
	}
	for done < len(wrs) {
		n, sge := 0, 0
		for n < min(len(wrs)-done, ibv.Batch) {
			w := &wrs[done+n]
			if max(len(w.SGList), r.least) > len(r.mem.SGEs)-sge {
				break
			}
			k := putSGEs(r.mem.SGEs[sge:], w.SGList, r.least)
			r.mem.WRs[n].WRID = w.ID
			r.mem.SetSGEs(n, sge, k)
			sge += k
			n++
		}
		posted, err := r.mem.Post(n)
		done += posted
		if err != nil {
			return done, postFault(err)
		}
	}
	return done, nil
}
