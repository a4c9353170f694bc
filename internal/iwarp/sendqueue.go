package iwarp

import (
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// sendWQE is a posted send work request.
type sendWQE struct {
	id         uint64
	op         verbs.Opcode
	flags      verbs.SendFlags
	imm        uint32
	remote     verbs.RemoteAddr
	compareAdd uint64
	swap       uint64
	sg         []verbs.SGE
	inline     []byte // the data, when SendInline was given
	length     uint32 // bytes; 2^31 at most
	invalidate verbs.RKey
	bind       verbs.MWBind

	msn     uint32 // of READs and atomics, once they are cut
	arrived uint32 // bytes of a READ's response
	done    bool   // may complete in its turn
}

func (w *sendWQE) isAtomic() bool {
	return w.op == verbs.OpAtomicCmpSwap || w.op == verbs.OpAtomicFetchAdd
}

// hasResponse reports whether w completes by an answer of the peer.
func (w *sendWQE) hasResponse() bool { return w.op == verbs.OpRDMARead || w.isAtomic() }

func (w *sendWQE) isLocal() bool { return w.op == verbs.OpLocalInv || w.op == verbs.OpBindMW }

// sendQueue is the ring of send WQEs. Places are counted from Attach on:
//
//	freed <= head <= cur <= tail
//
// Those before freed are free; those before head, complete; before cur, cut into segments; before tail,
// posted.
//
// The ring grows while work requests are under way, up to the room that was granted.
type sendQueue struct {
	wqes      []sendWQE // a power of two
	most      int       // as many there may be
	sges      []verbs.SGE
	maxSGE    int
	inline    []byte
	maxInline int

	freed           *atomic.Uint64 // set by polling
	head, cur, tail uint64
	limit           uint64 // in SQD: work requests that were posted later are not sent
	lastSignaled    uint64 // place of the newest signaled WQE, plus 1
	reading         int    // READs and atomics that wait for their answers
}

func newSendQueue(cap verbs.QPCap) sendQueue {
	sq := sendQueue{most: cap.MaxSendWR, maxSGE: cap.MaxSendSGE, maxInline: cap.MaxInlineData, freed: new(atomic.Uint64)}
	sq.make(queue.FirstPlaces(sq.most))
	return sq
}

// make makes the ring, of n places.
func (sq *sendQueue) make(n int) {
	sq.wqes = make([]sendWQE, n)
	sq.sges = make([]verbs.SGE, n*sq.maxSGE)
	sq.inline = make([]byte, n*sq.maxInline)
}

// grow makes a ring that is twice as large. Work requests that are in the queue keep the SGEs and inline data that they
// have of the smaller one.
func (sq *sendQueue) grow() {
	old := *sq
	sq.make(2 * len(old.wqes))
	for place := sq.freed.Load(); place != sq.tail; place++ {
		*sq.at(place) = *old.at(place)
	}
}

func (sq *sendQueue) at(place uint64) *sendWQE { return &sq.wqes[place&uint64(len(sq.wqes)-1)] }

// full explains why there is no room for one more, or returns nil: there is room then.
func (sq *sendQueue) full() error {
	n, freed := len(sq.wqes), sq.freed.Load()
	switch {
	case sq.tail-freed < uint64(n):
		return nil
	case n < sq.most:
		sq.grow()
		return nil
	case sq.lastSignaled <= freed:
		return verbs.Errorf(verbs.ErrQueueFull,
			"the send queue is full: all %d work requests in it are unsignaled, so no completion can free them; "+
				"set SendSignaled on at least one work request in %d and poll its completion", n, n)
	}
	return verbs.Errorf(verbs.ErrQueueFull,
		"the send queue is full: %d work requests are in it (max_send_wr), of which %d are done; "+
			"poll the send CQ, which frees a signaled work request's place and all before it", n, sq.head-freed)
}

// push copies wr into the ring, which has room.
func (sq *sendQueue) push(wr *verbs.SendWR) *sendWQE {
	w := sq.at(sq.tail)
	*w = sendWQE{
		id: wr.ID, op: wr.Op, flags: wr.Flags, imm: wr.Imm, remote: wr.Remote,
		compareAdd: wr.CompareAdd, swap: wr.Swap, invalidate: wr.InvalidateRKey,
	}
	if wr.Bind != nil {
		w.bind = *wr.Bind // the program may reuse its own once the post is done
		if w.op == verbs.OpBindMW {
			mem.Promise(&w.bind)
		}
	}
	if wr.InlineData != nil {
		w.length = uint32(len(wr.InlineData))
		w.inline = sq.inlineSpace(sq.tail, w.length)
		copy(w.inline, wr.InlineData)
	} else {
		w.sg = sq.sges[int(sq.tail&uint64(len(sq.wqes)-1))*sq.maxSGE:][:len(wr.SGList):sq.maxSGE]
		copy(w.sg, wr.SGList)
		for i := range w.sg {
			w.length += w.sg[i].Length
		}
	}
	sq.tail++
	return w
}

func (sq *sendQueue) inlineSpace(place uint64, n uint32) []byte {
	return sq.inline[int(place&uint64(len(sq.wqes)-1))*sq.maxInline:][:n:n]
}

// completeDone completes the oldest work requests that are done.
func (q *QP) completeDone() {
	for q.sq.head != q.sq.cur && q.sq.at(q.sq.head).done {
		q.completeSend(verbs.WCSuccess, nil)
	}
}

// completeSend takes the oldest work request off the send queue and makes its completion. Unsignaled
// successes make none.
func (q *QP) completeSend(status verbs.WCStatus, cause error) {
	w := q.sq.at(q.sq.head)
	q.sq.head++
	q.sq.cur = max(q.sq.cur, q.sq.head)
	if status == verbs.WCSuccess && w.flags&verbs.SendSignaled == 0 {
		return
	}
	c := queue.CQE{
		WC:    verbs.WC{ID: w.id, Status: status, Op: queue.SendOpcode(w.op), QPN: q.cfg.QPN, QP: q.cfg.User, Cause: cause},
		Slots: q.sq.freed, Freed: q.sq.head,
	}
	if w.hasResponse() && status == verbs.WCSuccess {
		c.WC.ByteLen = w.length
	}
	q.done = append(q.done, c)
}

func (q *QP) flushSend() {
	for q.sq.head != q.sq.tail {
		q.completeSend(verbs.WCFlushErr, nil)
	}
	q.sq.reading = 0
}

// completeRecv makes the completion of a receive.
func (q *QP) completeRecv(r *queue.Recv, wc verbs.WC, solicited bool) {
	wc.ID, wc.QPN, wc.QP = r.ID, q.cfg.QPN, q.cfg.User
	slots, freed := q.cfg.Receives.Complete(r)
	q.done = append(q.done, queue.CQE{WC: wc, Slots: slots, Freed: freed, Solicited: solicited})
}

// drained reports whether all that may go has gone, and been answered.
func (q *QP) drained() bool {
	return q.tx.count == 0 && q.sq.cur == q.sq.limit && q.sq.reading == 0
}
