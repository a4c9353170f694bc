package iwarp

import (
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// iWARP has no acknowledgements, and TCP's are the host's, not the device's. So this end says a little more than it
// must where a peer may be lost otherwise. Both messages are empty and name no memory, as those of RFC 6581 that say
// that an initiator is ready: every device takes them.

// Wake has an empty WRITE sent if this end has sent something and the peer has not. If an initiator's first bytes come
// before Linux's siw is ready, siw looks at them only when more bytes come. A peer that listens takes no notice.
func (q *QP) Wake() {
	if s := &q.tx; q.terms.Initiator && !q.rx.heard && !q.deaf() && s.began && s.rtr == 0 {
		s.rtr = mpa.RTRWrite
	}
}

// Speak has a responder send though its initiator has sent nothing. RFC 5044 has the initiator speak first, so that no FPDU
// comes before the initiator is ready. An initiator that has agreed to say so will. Others, as Linux's siw, say nothing before
// their program does, which may wait for this end's. After a while they are ready.
func (q *QP) Speak() {
	if q.terms.RTR == 0 {
		q.tx.waits = false
	}
}

// asks reports whether a READ of no bytes is due: the last message of a connection that ends in order. The answer says
// that the peer has taken all that was sent, and that all that the peer had sent before is done at the peer. siw fails
// a message whose end is on the way when the stream ends, though all of it has arrived. A peer that answers no READs
// is not asked, nor one that has ended the stream.
func (q *QP) asks() bool {
	s := &q.tx
	return q.attr.State == verbs.QPStateSQD && !s.asked && !s.waits && !q.rx.dead && !q.rx.emptyRead &&
		q.terms.PeerIRD > 0 && q.drained()
}

// Unasked reports whether the end is near of a connection to a peer that has spoken, and could not be asked: it answers
// no READs, or the program has taken the QP to the error state, as rdma_disconnect does.
func (q *QP) Unasked() bool {
	if q.attr.State == verbs.QPStateErr {
		return q.rx.heard && q.failure == errModified
	}
	return q.attr.State == verbs.QPStateSQD && q.rx.heard && !q.tx.asked && !q.rx.dead
}

// Asks reports whether the answer to the last message is due, for which the end of the stream waits.
func (q *QP) Asks() bool { return q.tx.asked && q.rx.emptyRead && !q.rx.dead }
