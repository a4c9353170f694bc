package hca

import (
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// Look is how a QP and its queues stand.
type Look struct {
	transport.Look
	Receives       []queue.RecvLook // wait for messages
	SendCQ, RecvCQ []verbs.WC       // wait for polls; the same if the queues share a CQ
}

// LookAt returns how the QP with a number stands, for those who show it, and false if there is none.
func (d *Device) LookAt(qpn verbs.QPN) (l Look, ok bool) {
	for _, s := range d.shards {
		q := s.qps.Get(uint32(qpn))
		if q == nil {
			continue
		}
		q.mu.Lock()
		l.Look, l.Receives = q.t.Look(), q.receives.Look()
		q.mu.Unlock()
		l.SendCQ, l.RecvCQ = q.sendCQ.Look(), q.recvCQ.Look()
		return l, true
	}
	return Look{}, false
}
