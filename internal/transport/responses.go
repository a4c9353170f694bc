package transport

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// response is the answer to a READ or an atomic.
type response struct {
	psn     wire.PSN
	packets uint32
	sent    uint32

	va     uint64 // READ
	rkey   verbs.RKey
	length uint32

	atomic bool
	orig   uint64

	replay bool // the request has come before
}

// end returns the PSN after the response.
func (e *response) end() wire.PSN { return e.psn.Add(int(e.packets)) }

// responses are the READs and atomics that are to be answered, in the order of their PSNs, and
// the results of the latest atomics, for when the answers get lost.
type responses struct {
	pending []response
	depth   int        // max_dest_rd_atomic
	results []response // as many as there were, up to depth; then a ring
	next    int        // the oldest of results
}

// resize sets the depth. Room is made on use: the depth is often the largest that there is, and few use it.
func (rs *responses) resize(depth int) {
	rs.depth = depth
	if len(rs.results) < depth && rs.next != 0 {
		rs.results = slices.Concat(rs.results[rs.next:], rs.results[:rs.next])
		rs.next = 0
	}
}

// full reports whether a new request is one too many. Repeated ones are the network's doing
// and do not count.
func (rs *responses) full() bool { return len(rs.pending)-rs.replays() >= rs.depth }

func (rs *responses) replays() int {
	n := 0
	for i := range rs.pending {
		if rs.pending[i].replay {
			n++
		}
	}
	return n
}

// oldest returns the response that is next to be sent, or nil.
func (rs *responses) oldest() *response {
	if len(rs.pending) == 0 {
		return nil
	}
	return &rs.pending[0]
}

// drop removes the oldest.
func (rs *responses) drop() { rs.pending = slices.Delete(rs.pending, 0, 1) }

// cut removes what would answer psn and all behind it.
func (rs *responses) cut(psn, epsn wire.PSN) {
	rs.pending = slices.DeleteFunc(rs.pending, func(e response) bool { return e.end().Diff(epsn) > psn.Diff(epsn) })
}

func (rs *responses) clear() { rs.pending = rs.pending[:0] }

// add appends the answer to a new request.
func (rs *responses) add(e response) { rs.pending = append(rs.pending, e) }

// replay inserts the answer to a repeated request. It takes the place of one that is being
// given for the same PSNs. When there are too many the request is dropped, to be repeated.
func (rs *responses) replay(e response, epsn wire.PSN) {
	rs.pending = slices.DeleteFunc(rs.pending, func(o response) bool {
		return o.psn.Less(e.end()) && e.psn.Less(o.end())
	})
	if rs.replays() < maxReplays {
		e.replay = true
		rs.insert(e, epsn)
	}
}

func (rs *responses) insert(e response, epsn wire.PSN) {
	i := len(rs.pending)
	for i > 0 && e.psn.Diff(epsn) < rs.pending[i-1].psn.Diff(epsn) {
		i--
	}
	rs.pending = slices.Insert(rs.pending, i, e)
}

// save keeps an atomic's result.
func (rs *responses) save(e response) {
	if len(rs.results) < rs.depth {
		rs.results = append(rs.results, e)
		return
	}
	rs.results[rs.next] = e
	rs.next = (rs.next + 1) % len(rs.results)
}

// saved returns the result of the atomic with this PSN, if it is one of the latest.
func (rs *responses) saved(p wire.PSN) (response, bool) {
	// From the newest back: an old one may have the same PSN.
	for i := range rs.results {
		n := len(rs.results)
		if e := &rs.results[(rs.next+n-1-i)%n]; e.packets != 0 && e.psn == p {
			return *e, true
		}
	}
	return response{}, false
}
