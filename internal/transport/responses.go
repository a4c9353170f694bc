package transport

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// response is the answer to a READ, an atomic, a FLUSH or an ATOMIC WRITE.
type response struct {
	psn     wire.PSN
	packets uint32
	sent    uint32

	va     uint64 // READ
	rkey   verbs.RKey
	length uint32
	pd     *mem.PD // of the SRQ that an XRC request names; nil for that of the QP

	kind responseKind
	orig uint64 // atomic

	replay bool // the request has come before
	gone   bool // and part of its memory is gone: a NAK answers
}

// responseKind says which request a response answers.
type responseKind uint8

const (
	readResponse   responseKind = iota
	atomicResponse              // with the value before
	emptyResponse               // of a FLUSH or an ATOMIC WRITE: that of a READ of no bytes
)

// end returns the PSN after the response.
func (e *response) end() wire.PSN { return e.psn.Add(int(e.packets)) }

func (e *response) overlaps(o *response) bool { return e.psn.Less(o.end()) && o.psn.Less(e.end()) }

// responses are the READs, atomics, FLUSHes and ATOMIC WRITEs that are to be answered, in the order of their PSNs. They
// keep the latest requests too, atomics with their results, in case the answers get lost.
type responses struct {
	pending []response // from first on
	first   int32
	repeats int32      // how many of pending answer a repeated request
	depth   int32      // max_dest_rd_atomic
	next    int32      // the oldest of latest
	latest  []response // as many as there were, up to depth; then a ring
}

// keepSent is how many sent answers are forgotten at a time.
const keepSent = 32

// resize sets the depth. Room is made on use: the depth is often the largest possible, and few programs use it.
func (rs *responses) resize(depth int) {
	rs.depth = int32(depth)
	if len(rs.latest) < depth && rs.next != 0 {
		rs.latest = slices.Concat(rs.latest[rs.next:], rs.latest[:rs.next])
		rs.next = 0
	}
}

// full reports whether a new request is one too many. Repeated requests are the network's doing and do not count.
func (rs *responses) full() bool { return len(rs.pending)-int(rs.first+rs.repeats) >= int(rs.depth) }

func (rs *responses) none() bool { return len(rs.pending) == 0 }

// oldest returns the response that is next to be sent, or nil.
func (rs *responses) oldest() *response {
	if rs.none() {
		return nil
	}
	return &rs.pending[rs.first]
}

// drop removes the oldest.
func (rs *responses) drop() {
	if rs.pending[rs.first].replay {
		rs.repeats--
	}
	if rs.first++; int(rs.first) == len(rs.pending) || rs.first == keepSent {
		rs.forgetSent()
	}
}

// forgetSent deletes the sent responses from pending.
func (rs *responses) forgetSent() {
	rs.pending = slices.Delete(rs.pending, 0, int(rs.first))
	rs.first = 0
}

func (rs *responses) clear() { rs.pending, rs.first, rs.repeats = rs.pending[:0], 0, 0 }

// add appends the answer to a new request, and remembers the request.
func (rs *responses) add(e response) {
	rs.pending = append(rs.pending, e)
	if len(rs.latest) < int(rs.depth) {
		rs.latest = append(rs.latest, e)
		return
	}
	rs.latest[rs.next] = e
	rs.next = (rs.next + 1) % int32(len(rs.latest))
}

// replay inserts the answer to a repeated request. It replaces an answer for the same PSNs, unless that answer ends
// later: an adverb repeats a part. When there are too many, the request is dropped, to be repeated, and changes
// nothing.
func (rs *responses) replay(e response, epsn wire.PSN) {
	if rs.repeats >= maxReplays {
		return
	}
	rs.forgetSent()
	rs.pending = slices.DeleteFunc(rs.pending, func(o response) bool {
		replaced := o.overlaps(&e) && !e.end().Less(o.end())
		if replaced && o.replay {
			rs.repeats--
		}
		return replaced
	})
	e.replay = true
	rs.repeats++
	rs.insert(e, epsn)
}

// overlaps reports whether an answer for PSNs of e is to be sent.
func (rs *responses) overlaps(e *response) bool {
	return slices.ContainsFunc(rs.pending[rs.first:], func(o response) bool { return o.overlaps(e) })
}

func (rs *responses) insert(e response, epsn wire.PSN) {
	i := len(rs.pending)
	for i > 0 && e.psn.Diff(epsn) < rs.pending[i-1].psn.Diff(epsn) {
		i--
	}
	rs.pending = slices.Insert(rs.pending, i, e)
}

// find returns the newest of the latest requests for which match holds, or nil.
func (rs *responses) find(match func(*response) bool) *response {
	n := len(rs.latest)
	for i := range n {
		if e := &rs.latest[(int(rs.next)+n-1-i)%n]; match(e) {
			return e
		}
	}
	return nil
}

// repeatsRead reports whether e repeats a READ that is among the latest, or the rest of it from the beginning of a
// packet on: IBTA §9.4.4. A PSN alone is no proof: whoever guesses one could read any memory that the QP's peer may
// read.
func (rs *responses) repeatsRead(e *response, mtu uint32) bool {
	return rs.find(func(o *response) bool {
		k := e.psn.Diff(o.psn)
		if o.kind != readResponse || k < 0 || k >= int(o.packets) {
			return false
		}
		off := uint32(k) * mtu
		return e.rkey == o.rkey && e.va == o.va+uint64(off) && e.length <= o.length-off
	}) != nil
}

// reach returns how far before epsn the oldest request that is remembered begins, in PSNs.
func (rs *responses) reach(epsn wire.PSN) int {
	n := 0
	for i := range rs.latest {
		n = max(n, -rs.latest[i].psn.Diff(epsn))
	}
	return n
}

// saved returns the saved response of a kind, which is not that of a READ, with a PSN, or nil.
func (rs *responses) saved(kind responseKind, psn wire.PSN) *response {
	return rs.find(func(o *response) bool { return o.kind == kind && o.psn == psn })
}
