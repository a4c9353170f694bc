//go:build linux

package uverbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// postAtOnce is how many work requests are posted in one list.
const postAtOnce = 16

// poster turns elements of a send queue into work requests. What it allocates it keeps.
type poster struct {
	q     *qp
	elems []byte
	wrs   [postAtOnce]verbs.SendWR
	binds [postAtOnce]verbs.MWBind
	sges  []verbs.SGE
}

func newPoster(q *qp) *poster {
	return &poster{q: q, elems: make([]byte, postAtOnce*q.sq.elem), sges: make([]verbs.SGE, 0, postAtOnce*max(1, q.cap.MaxSendSGE))}
}

// Doorbell posts the send work requests that a program has put into the ring of a QP.
func (c *Context) Doorbell(handle uint32) error {
	c.mu.RLock()
	q, err := c.qps.get(handle)
	c.mu.RUnlock()
	if err != nil {
		return err
	}
	return q.ring()
}

// postSend is the doorbell as a command. Linux takes no work requests in it from a program that has rxe's rings.
func (c *Context) postSend(k *call) error {
	var in uapi.PostSend
	if err := k.in(&in); err != nil {
		return err
	}
	q, err := c.qps.get(in.QPHandle)
	if err != nil {
		return err
	}
	return q.ring()
}

// ring posts the elements of the send queue. Before RTS Linux refuses the doorbell, and leaves the elements where they are.
func (q *qp) ring() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sq == nil { // the QP was destroyed meanwhile
		return unix.EINVAL
	}
	switch s := q.v.State(); s {
	case verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR:
		return unix.EINVAL
	case verbs.QPStateErr:
		q.flush()
		return nil
	}
	for n := q.sq.waiting(); n > 0; {
		posted, err := q.post.post(min(n, postAtOnce))
		n -= posted
		if err != nil {
			return q.refused(err)
		}
	}
	return nil
}

// refused deals with the next element, which verbs did not take. Where it is wrong by itself, Linux completes it with
// LOC_QP_OP_ERR and takes the QP to ERR, which flushes the rest.
func (q *qp) refused(cause error) error {
	switch {
	case errors.Is(cause, verbs.ErrQueueFull):
		return nil // stays in the ring, whose places the program has overrun
	case errors.Is(cause, verbs.ErrState), errors.Is(cause, verbs.ErrClosed):
		return unix.EINVAL
	}
	q.completeNext(verbs.WCLocQPOpErr)
	_ = q.v.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
	q.flush()
	return nil
}

// completeNext completes the next element without posting it.
func (q *qp) completeNext(status verbs.WCStatus) {
	_ = q.post.take(0)
	q.refuse()
	wc := verbs.WC{ID: q.post.wrs[0].ID, Status: status, QPN: q.v.QPN(), QP: q.v}
	q.sendCQ.Complete(&wc, 0) // in ERR, where an overrun is no news
}

// post posts up to k of the next elements, and takes as many from the ring. If it returns no error it has posted one at
// least.
func (p *poster) post(k int) (n int, err error) {
	p.sges = p.sges[:0]
	taken := 0
	defer func() {
		for range taken - n {
			p.q.sq.untake()
		}
	}()
	for taken < k {
		err = p.take(taken)
		taken++
		wrong, window := err != nil, err == nil && p.bindsType1(taken-1)
		switch {
		case !wrong && !window:
			continue
		case taken > 1: // those before it go first
			return p.q.v.PostSend(p.wrs[:taken-1])
		case window:
			if err := p.q.v.BindMW(p.wrs[0], p.binds[0]); err != nil {
				return 0, err
			}
			return 1, nil
		}
		return 0, err
	}
	return p.q.v.PostSend(p.wrs[:taken])
}

// bindsType1 reports whether the i-th work request binds a window of type 1, which verbs does by another call. It then
// takes the window from the work request.
func (p *poster) bindsType1(i int) bool {
	if p.wrs[i].Bind == nil || p.binds[i].MW.Type() != verbs.MWType1 {
		return false
	}
	p.wrs[i].Bind = nil
	return true
}

// take copies the next element, and makes the i-th work request of it.
func (p *poster) take(i int) error {
	q := p.q
	e := p.elems[i*q.sq.elem : (i+1)*q.sq.elem]
	q.sq.take(e)
	var w uapi.SendWQE
	w.Decode(e)
	wr := &p.wrs[i]
	*wr = verbs.SendWR{ID: w.WRID, Op: verbs.Opcode(w.Opcode), Flags: verbs.SendFlags(w.SendFlags)}
	if w.Opcode > 0xff {
		return unix.EINVAL
	}
	data := e[uapi.SendWQESize:]
	if wr.Op == verbs.OpAtomicWrite { // the word is in the element, whatever the flags
		if len(data) < 8 {
			return unix.EINVAL
		}
		wr.Flags |= verbs.SendInline
		wr.InlineData = data[:8]
	} else if w.SendFlags&uapi.SendInline != 0 {
		if int64(w.Length) > int64(len(data)) {
			return unix.EINVAL
		}
		wr.InlineData = data[:w.Length]
	} else {
		if int64(w.NumSGE) > int64(max(1, q.cap.MaxSendSGE)) {
			return unix.EINVAL
		}
		at := len(p.sges)
		p.sges = appendSGEs(p.sges, data, int(w.NumSGE))
		wr.SGList = p.sges[at:len(p.sges):len(p.sges)]
	}
	be := uint32(w.Ex[0])<<24 | uint32(w.Ex[1])<<16 | uint32(w.Ex[2])<<8 | uint32(w.Ex[3])
	switch wr.Op {
	case verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm:
		wr.Imm = be
	case verbs.OpSendWithInv, verbs.OpLocalInv:
		wr.InvalidateRKey = verbs.RKey(w.Key())
	}
	switch wr.Op {
	case verbs.OpFlush:
		wr.Remote = verbs.RemoteAddr{VA: w.RemoteAddr, RKey: verbs.RKey(w.FlushRKey)}
		wr.Flush = verbs.Flush{Length: w.Length, Placement: verbs.FlushPlacement(w.FlushPlacement), Selectivity: verbs.FlushSelectivity(w.FlushSelectivity)}
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicWrite:
		wr.Remote = verbs.RemoteAddr{VA: w.RemoteAddr, RKey: verbs.RKey(w.RKey)}
	case verbs.OpAtomicCmpSwap:
		wr.Remote = verbs.RemoteAddr{VA: w.RemoteAddr, RKey: verbs.RKey(w.AtomicRKey)}
		wr.CompareAdd, wr.Swap = w.CompareAdd, w.Swap
	case verbs.OpAtomicFetchAdd:
		wr.Remote = verbs.RemoteAddr{VA: w.RemoteAddr, RKey: verbs.RKey(w.AtomicRKey)}
		wr.CompareAdd = w.CompareAdd
	case verbs.OpSend, verbs.OpSendWithImm:
		if q.v.Type() == verbs.QPTypeUD {
			ah, ok := q.c.named.ah(w.AHNum)
			if !ok {
				return unix.EINVAL
			}
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, verbs.QPN(w.RemoteQPN), verbs.QKey(w.RemoteQKey)
		}
	case verbs.OpBindMW:
		b := &p.binds[i]
		*b = verbs.MWBind{RKey: verbs.RKey(w.NewRKey), Addr: w.MWAddr, Length: w.MWLength, Access: verbs.Access(w.Access) &^ verbs.AccessLocalWrite} // which says nothing of a window
		var ok bool
		if b.MW, ok = q.c.named.mw(w.MWRKey); !ok {
			return unix.EINVAL
		}
		if b.MR, ok = q.c.named.mr(w.MRLKey); !ok && w.MWLength != 0 {
			return unix.EINVAL
		}
		wr.Bind = b
	}
	return nil
}

// flush completes all elements of both rings of a QP in ERR. The caller holds q.mu.
func (q *qp) flush() {
	for n := q.sq.waiting(); n > 0; {
		posted, err := q.post.post(min(n, postAtOnce)) // in ERR verbs flushes posted work requests
		n -= posted
		if err != nil { // wrong by itself, and flushed all the same
			q.completeNext(verbs.WCFlushErr)
			n--
		}
	}
	if q.rq != nil {
		_, _ = q.v.PostRecv(nil) // which flushes the receives of the source
	}
}

// flushErrored flushes receives that were posted to QPs in ERR. No call tells of them, so this is done when a program
// asks for an event.
func (c *Context) flushErrored() {
	for _, q := range c.qps {
		if q.rq != nil && q.rq.Waiting() > 0 && q.v.State() == verbs.QPStateErr {
			_, _ = q.v.PostRecv(nil)
		}
	}
}
