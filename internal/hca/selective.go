package hca

import "github.com/adverb-rdma/adverb/verbs"

// RepeatsSelectively implements verbs.ProviderSelective.
func (q *qp) RepeatsSelectively() bool { return q.typ == verbs.QPTypeRC && !q.dev.config.Standard }

// PeerRepeatsSelectively implements verbs.ProviderSelective.
func (q *qp) PeerRepeatsSelectively() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch state := q.t.State(); {
	case q.closed:
		return verbs.ErrClosed
	case state < verbs.QPStateRTR || state == verbs.QPStateErr:
		return verbs.Errorf(verbs.ErrState, "it is in %v: agree when it is in RTR or RTS", state)
	case q.lane.out != nil: // a lane loses nothing
		return nil
	}
	q.t.PeerIsOurs()
	q.transmit(q.dev.now())
	return nil
}
