package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// keepAlive finds out whether a silent peer is alive, as TCP's keep-alive does. When the peer has been silent for a
// period, and no packet is in flight that needs an answer, keepAlive sends a probe: a WRITE of no bytes, which the
// peer's device acknowledges without its program, and which needs no memory key (IBTA C9-88). A probe has a PSN and
// counts as a message, but is no work request: it takes no place in the send queue and makes no completion. Recovery
// repeats the probe, and gives up, as with all packets.
type keepAlive struct {
	period time.Duration // 0: keep-alive is off
	heard  time.Duration // when the peer made progress last
	due    time.Duration // when to check again, or Never
	probe  uint64        // sequence number of the probe that is not acknowledged; 0 when there is none
}

// SetKeepAlive makes an RC QP probe its peer after a period of silence. A period of 0 turns that off, and so does
// RESET.
func (q *QP) SetKeepAlive(now, period time.Duration) error {
	r, ok := q.service.(*rc)
	if !ok {
		return verbs.Errorf(verbs.ErrUnsupported, "a %v QP has no acknowledgements", q.cfg.Type)
	}
	r.keepAlive.set(min(period, maxKeepAlive))
	if q.attr.State == verbs.QPStateRTS || q.attr.State == verbs.QPStateSQD {
		r.keepAlive.start(q.notBefore(now))
	}
	return nil
}

func (k *keepAlive) set(period time.Duration) { k.period, k.due = period, Never }

func (k *keepAlive) reset() { *k = keepAlive{due: Never} }

func (k *keepAlive) stop() { k.due = Never }

// progressed notes that the peer has made progress.
func (k *keepAlive) progressed(now time.Duration) { k.heard = now }

// isSilent reports whether the peer was silent for a period. It sets the time of the next check.
func (k *keepAlive) isSilent(now time.Duration) bool {
	if quiet := k.coalesce(k.heard + k.period); now < quiet {
		k.due = quiet
		return false
	}
	k.due = k.coalesce(now + k.period)
	return true
}

// probeSent notes the sequence number of the probe.
func (k *keepAlive) probeSent(seq uint64) { k.probe = seq }

// acknowledged notes that the peer has all packets before una.
func (k *keepAlive) acknowledged(una uint64) {
	if k.probe < una {
		k.probe = 0
	}
}

// start begins a period of silence, unless one has begun.
func (k *keepAlive) start(now time.Duration) {
	if k.period > 0 && k.due == Never {
		k.heard = now
		k.due = k.coalesce(now + k.period)
	}
}

// coalesce returns the latest time up to t at which QPs of this period may probe. They probe together: a device with
// many idle connections then wakes a few times in a period, and not for each connection.
func (k *keepAlive) coalesce(t time.Duration) time.Duration {
	return t - t%max(1, k.period/keepAliveSlots)
}

// keepAliveTimedOut probes the peer if it was silent for a period. The timer is not moved with each packet, so it
// mostly comes too early.
func (r *rc) keepAliveTimedOut(now time.Duration) {
	k, sq := &r.keepAlive, &r.qp.sq
	if !k.isSilent(now) {
		return
	}
	// A packet in flight has a timer of its own.
	if r.qp.attr.State == verbs.QPStateRTS && r.recovery.Una() == sq.nextSeq {
		k.probeSent(sq.skip())
	}
}

// probe writes the probe into buf. The probe is next: before the work requests that were posted since.
func (r *requester) probe(now time.Duration, buf []byte) int {
	q, rec := r.qp, &r.rc.recovery
	if rec.Nxt() == rec.Max() && q.attr.State == verbs.QPStateSQD || !rec.MayGo(now, 1, rec.Limit()) {
		return 0 // draining: nothing new starts
	}
	p := q.header(wire.RCRDMAWriteOnly, psn(rec.Nxt()))
	p.AckReq = true
	p.RETH = wire.RETH{}
	r.ackRequestedTo = rec.Nxt() + 1
	if rec.Sent(now, 1, false) {
		q.counters.Retransmits++
	}
	r.seek()
	return len(p.AppendHeaders(buf[:0])) + wire.ICRCSize
}
