package perftest

import (
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// credits keep send_bw from sending more messages than the other end has receives for. Over RoCE an RNR NAK has
// the sender wait. iWARP knows none: a SEND that finds no receive ends the connection. So there each end
// writes into the other's memory how many messages of a QP it has taken, as the C program does: a word of 32
// bits in the order of the host, at the address and by the key that were exchanged for the QP.
type credits struct {
	mr     *verbs.MR // for each QP the word that the peer writes, and then for each the word that this end writes from
	window int64     // receives of each QP, at both ends
	every  int64     // messages from one WRITE to the next
}

const creditSize = 4

// needsCredits reports whether nothing else holds the senders back.
func (t *tester) needsCredits() bool {
	return t.isIWARP() && t.kind.verb == verbSend && !t.kind.latency
}

// makeCredits makes the words, and has the peer told of them.
func (t *tester) makeCredits() (err error) {
	window := t.rxDepth
	if t.srq {
		window /= t.qps
	}
	// The messages that are posted at once must fit beside those that the receiver has taken and not told of yet.
	if list := t.postList + t.recvList - 1; 3*list > 2*window {
		return fmt.Errorf("-r %d: over iWARP a sender waits for word that there are receives, and each QP needs %d of them", t.rxDepth, (3*list+1)/2)
	}
	c := &credits{window: int64(window), every: max(1, int64(window)/3)}
	if c.mr, err = t.pd.AllocMR(2*creditSize*t.qps, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return fail(err, "Couldn't allocate MR")
	}
	t.credits = c
	for i := range t.lanes {
		r := c.mr.Remote(i * creditSize)
		t.lanes[i].local.rkey, t.lanes[i].local.vaddr = r.RKey, r.VA
	}
	return nil
}

// beginCredits prepares the words for a run. No WRITE of the run before can come any more: the last message was
// sent because the last WRITE had come.
func (t *tester) beginCredits() {
	c := t.credits
	if c == nil {
		return
	}
	for i := range t.lanes {
		l := &t.lanes[i]
		l.granted, l.told = 0, 0
		c.mr.Store32(i*creditSize, 0)
		l.tell = []verbs.SendWR{{ID: uint64(i), Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{c.mr.SGE((t.qps+i)*creditSize, creditSize)},
			Remote: verbs.RemoteAddr{VA: l.remote.vaddr, RKey: l.remote.rkey}}}
	}
}

// granted reports whether the peer has receives for a lane's next list.
func (b *bandwidth) granted(i int) bool {
	c := b.credits
	if c == nil {
		return true
	}
	l := &b.lanes[i]
	free := func() bool { return l.posted+int64(b.postList)-l.granted < c.window }
	if free() {
		return true
	}
	// The word may be taken in the midst of being written. Its count is then too small.
	if more := int32(c.mr.Load32(i*creditSize) - uint32(l.granted)); more > 0 {
		l.granted += int64(more)
	}
	b.short = !free()
	return !b.short
}

// grant tells the peer of received messages, where that is due. One WRITE of a lane is under way at a time.
func (b *bandwidth) grant(l *lane) error {
	c := b.credits
	if c == nil || l.telling || !b.byTime && l.told > int64(b.iters)-c.window {
		return nil // in the last case the peer needs no more to send all
	}
	taken := l.received
	if b.byTime || l.promised+int64(b.recvList) <= int64(b.iters) {
		taken -= int64(l.unused) // their receives are not posted again
	}
	if taken-l.told < c.every {
		return nil
	}
	i := int(l.tell[0].ID)
	c.mr.Store32((b.qps+i)*creditSize, uint32(taken))
	if _, err := l.qp.PostSend(l.tell); err != nil {
		return fail(err, "Couldn't post send: qp %d credit=%d", i, taken)
	}
	l.told, l.telling = taken, true
	return nil
}
