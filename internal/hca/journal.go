package hca

import (
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// record hands an event of q to Config.Journal, which is not nil. The caller holds q.mu.
func (q *qp) record(e journal.Event, words string, args ...any) {
	e.QPN, e.Words = q.num, fmt.Sprintf(words, args...)
	if q.out.eng != nil {
		e.Addr = q.out.src.Addr()
	}
	q.dev.config.Journal(e)
}

// recordSend records a posted send work request.
func (q *qp) recordSend(wr *verbs.SendWR) {
	n := len(wr.InlineData)
	if wr.InlineData == nil {
		n = total(wr.SGList)
	}
	var more strings.Builder
	switch wr.Op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
		fmt.Fprintf(&more, ", remote 0x%x, rkey %v", wr.Remote.VA, wr.Remote.RKey)
	}
	if wr.Flags&verbs.SendSignaled == 0 {
		more.WriteString(", unsignaled")
	}
	q.record(journal.Event{Kind: journal.KindSend, ID: wr.ID, Len: uint64(n)}, "%v, wr_id %d, %d bytes%s", wr.Op, wr.ID, n, more.String())
}

// recordReceives records posted receives.
func (q *qp) recordReceives(wrs []verbs.RecvWR) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		n := total(wrs[i].SGList)
		q.record(journal.Event{Kind: journal.KindReceive, ID: wrs[i].ID, Len: uint64(n)}, "wr_id %d, %d bytes", wrs[i].ID, n)
	}
}

func total(list []verbs.SGE) (n int) {
	for i := range list {
		n += int(list[i].Length)
	}
	return n
}

// recordDone records completions.
func (q *qp) recordDone(done []queue.CQE) {
	for i := range done {
		wc := &done[i].WC
		kind := journal.KindDone
		if wc.Op&verbs.WCRecv != 0 {
			kind = journal.KindReceived
		}
		q.record(journal.Event{Kind: kind, ID: wc.ID, Len: uint64(wc.ByteLen), Key: uint32(wc.Status)}, "wr_id %d, %v, %v", wc.ID, wc.Op, wc.Status.String())
	}
}

// recordState records another state.
func (q *qp) recordState(before, state verbs.QPState) {
	short := func(s verbs.QPState) string { return strings.TrimPrefix(s.String(), "QPS_") }
	q.record(journal.Event{Kind: journal.KindState}, "%s to %s", short(before), short(state))
}

// recordRegion records a region that peers may use.
func (d *Device) recordRegion(mr verbs.ProviderMR, attr *verbs.MRAttr) {
	const remote = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	if attr.Access&remote == 0 {
		return
	}
	n := attr.Length
	if attr.Buf != nil {
		n = len(attr.Buf)
	}
	d.config.Journal(journal.Event{
		Kind: journal.KindRegion, ID: mr.Addr(), Len: uint64(n), Key: uint32(mr.RKey()),
		Words: fmt.Sprintf("rkey %v, %d bytes at 0x%x, %v", mr.RKey(), n, mr.Addr(), attr.Access),
	})
}
