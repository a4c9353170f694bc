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
type ladder struct {
	of    uint64    // sequence number, plus 1, of the packet that goes unanswered; 0 when there is none
	turns uint8     // acknowledge timeouts since, up to ladderFrom
	vain  uint8     // after how many of these, before the latest, smaller ones were answered
	heard bool      // a smaller one was answered since the latest
	due   bool      // the packet of rung is to be sent
	out   bool      // and was sent, and not answered
	rung  verbs.MTU // the size that is tried
	most  verbs.MTU // the largest that is of use
	fits  verbs.MTU // the largest that was answered
}

const (
	// ladderFrom is how many acknowledge timeouts a packet costs before smaller ones are tried.
	ladderFrom = 2
	// vainRepeats is after how many of them smaller ones must be answered, the latest included, for the packet to
	// be lost by its size.
	vainRepeats = 2
)

// mountLadder takes note of an acknowledge timeout: the oldest packet goes out again.
func (r *rc) mountLadder() {
	l, una := &r.ladder, r.recovery.Una()
	if l.of != una+1 {
		*l = ladder{of: una + 1}
	}
	l.turns, l.most = min(l.turns+1, ladderFrom), below(r.stuck())
	if l.turns < ladderFrom || l.most == 0 {
		return
	}
	if l.heard {
		l.vain, l.heard = min(l.vain+1, vainRepeats), false
	}
	l.rung, l.due, l.out = max(l.fits, verbs.MTU256), true, false
}

// dismount forgets a packet that is acknowledged, unless a smaller one has still to be answered: the quick ways are for
// QPs without a ladder.
func (l *ladder) dismount(una uint64) {
	if l.of != 0 && l.of <= una && !l.due && !l.out {
		*l = ladder{}
	}
}

// stuck returns how many bytes of data the oldest packet that is not acknowledged has, or the response that is
// due to it.
func (r *rc) stuck() uint32 {
	w := r.completer.owner(r.recovery.Una())
	if w == nil || w.isAtomic() {
		return 0
	}
	return min(w.length-uint32(r.recovery.Una()-w.seq)*r.qp.mtu, r.qp.mtu)
}

// below returns the largest path MTU that is less than n bytes, or 0.
func below(n uint32) verbs.MTU {
	m := verbs.MTU4096
	for m > 0 && uint32(m.Bytes()) >= n {
		m--
	}
	return m
}

// climb writes the packet of the ladder's rung into buf.
func (r *rc) climb(buf []byte) int {
	l := &r.ladder
	l.due, l.out = false, true
	p := r.qp.header(wire.RCSendOnly, psn(r.recovery.Una()-1))
	p.AckReq = true
	h := len(p.AppendHeaders(buf[:0]))
	n := h + l.rung.Bytes()
	clear(buf[h:n])
	return finish(buf, n, 0)
}

// probeAnswered takes note of an acknowledgement that brings nothing new. It reports whether a packet of the ladder has
// asked for it.
func (l *ladder) probeAnswered() bool {
	if !l.out {
		return false
	}
	l.out, l.heard, l.fits = false, true, max(l.fits, l.rung)
	if l.rung < l.most {
		l.rung++
		l.due = true
	}
	return true
}

// blackHole adds to the failure of a peer that does not answer that it answers smaller packets, if it has.
func (r *rc) blackHole(f *fault) *fault {
	l := &r.ladder
	if l.of != r.recovery.Una()+1 || !l.heard || l.vain+1 < vainRepeats {
		return f
	}
	r.qp.counters.BlackHoles++
	w := r.completer.owner(r.recovery.Una())
	hole := &verbs.PathMTUError{PathMTU: r.qp.attr.PathMTU, Lost: int(r.stuck()), Fits: l.fits, Response: w.op == verbs.OpRDMARead}
	return &fault{f.status, fmt.Errorf("%w; %w", f.cause, hole)}
}
