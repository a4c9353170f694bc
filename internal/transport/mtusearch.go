package transport

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A network may carry small packets and lose the large ones: its MTU is smaller somewhere than the path MTU needs,
// and no ICMP message says so. RFC 8899 calls that a black hole. To the requester a black hole looks like a dead
// peer. So when a packet with more data than the least path MTU has cost two acknowledge timeouts, the requester
// searches for a smaller size. Beside the repeats it sends probes: at first with 256 bytes and, after each answered
// probe, with the next path MTU's. Each probe is a SEND with the PSN of the packet that was acknowledged last. The
// peer has had that PSN: it executes nothing and acknowledges again.
//
// An answer does not say to which probe it belongs. If the network duplicates an answer, a size may look better than
// it is, and the proposed path MTU too.
type mtuSearch struct {
	unanswered uint64    // sequence number, plus 1, of the packet without an answer; 0 when there is none
	timeouts   uint8     // acknowledge timeouts of that packet, up to mtuSearchFrom
	confirmed  uint8     // how many timeouts before the latest had answered probes
	answered   bool      // a probe was answered since the latest timeout
	due        bool      // a probe is to be sent
	inFlight   bool      // the probe was sent, and not answered
	size       verbs.MTU // of the probe
	largest    verbs.MTU // the largest size that is of use
	fits       verbs.MTU // the largest size that was answered
}

const (
	// mtuSearchFrom is how many acknowledge timeouts a packet costs before the search begins.
	mtuSearchFrom = 2
	// blackHoleTimeouts is how many timeouts, the latest included, must have answered probes before the size counts
	// as the cause of the loss.
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

// acknowledged ends the search for a packet that is acknowledged, unless a probe has still to be answered: onlyFast
// and precheck are for QPs without a search.
func (l *mtuSearch) acknowledged(una uint64) {
	if l.unanswered != 0 && l.unanswered <= una && !l.due && !l.inFlight {
		*l = mtuSearch{}
	}
}

// unansweredBytes returns how many bytes of data the oldest unacknowledged packet has, or its response.
func (r *rc) unansweredBytes() uint32 {
	w := r.completer.owner(r.recovery.Una())
	if w == nil || w.isOnePacket() {
		return 0
	}
	return min(w.length-uint32(r.recovery.Una()-w.seq)*r.qp.mtu, r.qp.mtu)
}

// mtuBelow returns the largest path MTU that is less than n bytes, or 0.
func mtuBelow(n uint32) verbs.MTU {
	m := verbs.MTU4096
	for m > 0 && uint32(m.Bytes()) >= n {
		m--
	}
	return m
}

// sendMTUProbe writes a probe of the search's size into buf.
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

// probeAnswered takes note of an acknowledgement that brings nothing new. It reports whether a probe has asked for
// that acknowledgement.
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

// withBlackHole adds a black hole to the failure of a peer that does not answer, if the peer answers smaller packets.
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
