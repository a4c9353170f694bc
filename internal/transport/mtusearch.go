package transport

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A network may carry small packets and lose the large ones: its MTU is smaller somewhere than the path MTU
// needs, and nobody says so. To the requester that looks like a peer that is gone. So when a packet with more
// data than the least path MTU has cost two acknowledge timeouts, smaller ones are sent beside the repeats: at
// first with 256 bytes and, after each that is answered, with the next path MTU's. Each is a SEND with the
// PSN of what was acknowledged last. The peer has had that PSN: it executes nothing and acknowledges again.
//
// Answers do not say to which packet they are. One that the network doubles may make a size look better than it
// is, and the proposal then too.
type mtuSearch struct {
	unanswered uint64    // sequence number, plus 1, of the packet that goes unanswered; 0 when there is none
	timeouts   uint8     // acknowledge timeouts since, up to mtuSearchFrom
	confirmed  uint8     // after how many of these, before the latest, smaller ones were answered
	answered   bool      // a smaller one was answered since the latest
	due        bool      // the packet of rung is to be sent
	inFlight   bool      // and was sent, and not answered
	size       verbs.MTU // the size that is tried
	largest    verbs.MTU // the largest that is of use
	fits       verbs.MTU // the largest that was answered
}

const (
	// mtuSearchFrom is how many acknowledge timeouts a packet costs before smaller ones are tried.
	mtuSearchFrom = 2
	// blackHoleTimeouts is after how many of them smaller ones must be answered, the latest included, for the packet to
	// be lost by its size.
	blackHoleTimeouts = 2
)

// searchMTU takes note of an acknowledge timeout: the oldest packet goes out again.
func (r *rc) searchMTU() {
	l, una := &r.mtuSearch, r.recovery.Una()
	if l.unanswered != una+1 {
		*l = mtuSearch{unanswered: una + 1}
	}
	l.timeouts, l.largest = min(l.timeouts+1, mtuSearchFrom), mtuBelow(r.unansweredBytes())
	if l.timeouts < mtuSearchFrom || l.largest == 0 {
		return
	}
	if l.answered {
		l.confirmed, l.answered = min(l.confirmed+1, blackHoleTimeouts), false
	}
	l.size, l.due, l.inFlight = max(l.fits, verbs.MTU256), true, false
}

// acknowledged forgets a packet that is acknowledged, unless a smaller one has still to be answered: the quick ways are for
// QPs without a ladder.
func (l *mtuSearch) acknowledged(una uint64) {
	if l.unanswered != 0 && l.unanswered <= una && !l.due && !l.inFlight {
		*l = mtuSearch{}
	}
}

// stuck returns how many bytes of data the oldest packet that is not acknowledged has, or the response that is
// due to it.
func (r *rc) unansweredBytes() uint32 {
	w := r.completer.owner(r.recovery.Una())
	if w == nil || w.isAtomic() {
		return 0
	}
	return min(w.length-uint32(r.recovery.Una()-w.seq)*r.qp.mtu, r.qp.mtu)
}

// below returns the largest path MTU that is less than n bytes, or 0.
func mtuBelow(n uint32) verbs.MTU {
	m := verbs.MTU4096
	for m > 0 && uint32(m.Bytes()) >= n {
		m--
	}
	return m
}

// climb writes the packet of the ladder's rung into buf.
func (r *rc) sendMTUProbe(buf []byte) int {
	l := &r.mtuSearch
	l.due, l.inFlight = false, true
	p := r.qp.header(wire.RCSendOnly, psn(r.recovery.Una()-1))
	p.AckReq = true
	h := len(p.AppendHeaders(buf[:0]))
	n := h + l.size.Bytes()
	clear(buf[h:n])
	return finish(buf, n, 0)
}

// probeAnswered takes note of an acknowledgement that brings nothing new. It reports whether a packet of the ladder has
// asked for it.
func (l *mtuSearch) probeAnswered() bool {
	if !l.inFlight {
		return false
	}
	l.inFlight, l.answered, l.fits = false, true, max(l.fits, l.size)
	if l.size < l.largest {
		l.size++
		l.due = true
	}
	return true
}

// withBlackHole adds to the failure of a peer that does not answer that it answers smaller packets, if it has.
func (r *rc) withBlackHole(f *fault) *fault {
	l := &r.mtuSearch
	if l.unanswered != r.recovery.Una()+1 || !l.answered || l.confirmed+1 < blackHoleTimeouts {
		return f
	}
	r.qp.counters.BlackHoles++
	w := r.completer.owner(r.recovery.Una())
	hole := &verbs.PathMTUError{PathMTU: r.qp.attr.PathMTU, Lost: int(r.unansweredBytes()), Fits: l.fits, Response: w.op == verbs.OpRDMARead}
	return &fault{f.status, fmt.Errorf("%w; %w", f.cause, hole)}
}
