package device

import (
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// Receives are the receives of one QP: a queue of its own, or its part of an SRQ. All methods but Post and SetSource are
// called by one goroutine at a time.
type Receives struct {
	own     *queue.RecvQueue // or nil, with an SRQ
	shared  *queue.SRQUser   // or nil, without one
	xrc     *queue.XRCUser   // of an XRC target, which has neither
	lastWQE bool             // the event that no receive of the SRQ will be taken was raised
}

// NewReceives makes the receives of a QP, and rounds attr.Cap up to the sizes of the QP's queues.
func (p *PD) NewReceives(attr *verbs.ProviderQPInitAttr) Receives {
	c := &attr.Cap
	c.MaxSendWR, c.MaxSendSGE = queue.RingSize(c.MaxSendWR), max(1, c.MaxSendSGE)
	if attr.SRQ != nil {
		return Receives{shared: &queue.SRQUser{SRQ: attr.SRQ.(*SRQ).SRQ}}
	}
	c.MaxRecvWR, c.MaxRecvSGE = queue.RingSize(c.MaxRecvWR), max(1, c.MaxRecvSGE)
	return Receives{own: queue.NewRecvQueue(p.PD, *c)}
}

// NewXRCReceives makes the receives of an XRC target: those of its domain's SRQs.
func NewXRCReceives(d *queue.XRCDomain) Receives {
	return Receives{xrc: &queue.XRCUser{Domain: d}}
}

// XRC returns the access of an XRC target to the SRQs of its domain, or nil for another QP.
func (r *Receives) XRC() *queue.XRCUser { return r.xrc }

// Source is where a transport takes the receives from.
func (r *Receives) Source() queue.Receives {
	switch {
	case r.shared != nil:
		return r.shared
	case r.xrc != nil:
		return r.xrc
	}
	return r.own
}

// SetSource has the queue take its receives from a source: see queue.RecvQueue.
func (r *Receives) SetSource(s verbs.RecvSource) { r.own.SetSource(s) }

var errShared = verbs.Errorf(verbs.ErrInvalid, "the QP takes its receives from an SRQ: post them there")

// Post is that of queue.RecvQueue. With an SRQ it adds no receive, as in RESET.
func (r *Receives) Post(wrs []verbs.RecvWR) (n int, state verbs.QPState, err error) {
	err = errShared // and state is RESET
	if r.own != nil {
		n, state, err = r.own.Post(wrs)
	}
	return n, state, err
}

// Enter takes note of another state of the QP. RESET takes back all receives, without completions. The receives of an
// SRQ serve other QPs.
func (r *Receives) Enter(state verbs.QPState) {
	switch reset := state == verbs.QPStateReset; {
	case r.own != nil:
		r.own.Enter(state)
	case r.xrc != nil && reset:
		r.xrc.Reset()
	case r.shared != nil && reset:
		r.shared.Reset()
		r.lastWQE = false
	}
}

// Flush completes all posted receives of a QP that is in error with WCFlushErr, in a CQ. The receives of an SRQ serve
// other QPs: an event says that this QP takes no more of them.
func (r *Receives) Flush(n verbs.QPN, user *verbs.QP, to *CQ) {
	if r.xrc != nil {
		return // an XRC target has no event of a last receive
	}
	if r.shared != nil {
		if !r.lastWQE {
			r.lastWQE = true
			to.base.Raise(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: user})
		}
		return
	}
	if flushed := r.own.Flush(n, user); len(flushed) > 0 {
		to.Push(flushed)
	}
}

// Look returns the receives that wait, but those of an SRQ.
func (r *Receives) Look() []queue.RecvLook {
	if r.own == nil {
		return nil
	}
	return r.own.Look()
}
