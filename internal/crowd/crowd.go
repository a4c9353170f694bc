// Package crowd has the rule by which strangers share what is limited: places of a backlog, connections that have said
// nothing yet, sessions of a server. Anybody may come, and no host can keep the others out.
//
// Members are counted by where they come from. A source is an IPv4 address, or the network of an IPv6 address, a /64,
// since each host has all addresses of one. The hosts of a network share what the network has by the same rule, so that
// one of them does not keep its neighbors out either.
package crowd

import (
	"cmp"
	"container/heap"
	"iter"
	"net/netip"
	"slices"
)

// Crowd is a bounded set of members. When there is no room, the source with the most members loses its oldest one to a
// source that has fewer: the oldest is the least likely to be genuine, since a genuine one is done soon, or is heard
// from, see Seat.Refresh. It has no lock.
type Crowd[T any] struct {
	limit, share int
	lead         int    // by how many members a source has more that loses one
	arrivals     uint64 // so far
	all          source[T]
	sources      map[netip.Prefix]*source[T]
}

// Seat is the place of a member in a crowd. The zero seat is free.
type Seat[T any] struct {
	who        T
	in         *Crowd[T]
	of         *source[T]
	prev, next *Seat[T] // of the same host
	arrival    uint64
}

// source is a host, the network of IPv6 hosts, or all of these.
type source[T any] struct {
	name        netip.Prefix
	of          *source[T] // that it is a part of; nil: none
	n           int        // members
	place       int        // in the heap of what it is a part of
	parts       bySize[T]  // of a network or of all
	first, last *Seat[T]   // of a host, the oldest first
}

// networkBits is how long the prefix of an IPv6 network is. Its hosts choose the rest of their addresses.
const networkBits = 64

// names returns the source of an address, and the host in that. IPv4 hosts are sources themselves. Members without an
// address, as of unix sockets, are of one host.
func names(from netip.Addr) (source, host netip.Prefix) {
	from = from.Unmap().WithZone("")
	host = netip.PrefixFrom(from, from.BitLen())
	if !from.Is6() {
		return host, host
	}
	return netip.PrefixFrom(from, networkBits).Masked(), host
}

// New returns a crowd of up to limit members, up to share of them of one source.
func New[T any](limit, share int) *Crowd[T] {
	return &Crowd[T]{limit: limit, share: share, lead: 1, sources: map[netip.Prefix]*source[T]{}}
}

// NewReturning is New for a crowd whose members come again when they had to leave. A source loses one only if it has no
// fewer than the other then. So members do not take one another's place for ever.
func NewReturning[T any](limit, share int) *Crowd[T] {
	c := New[T](limit, share)
	c.lead = 2
	return c
}

// Len returns how many members there are.
func (c *Crowd[T]) Len() int { return c.all.n }

// Of returns how many members an address's source has, and how many of them its host has.
func (c *Crowd[T]) Of(from netip.Addr) (ofSource, ofHost int) {
	src, host := names(from)
	return c.sources[src].size(), c.sources[host].size()
}

// SetLimit changes how many members there may be. Nobody leaves for that.
func (c *Crowd[T]) SetLimit(limit int) { c.limit = limit }

// Room returns whether there is room for another member from an address. If a member has to leave for that, Room returns
// that one.
func (c *Crowd[T]) Room(from netip.Addr) (loser T, ok bool) {
	srcName, hostName := names(from)
	src, host := c.sources[srcName], c.sources[hostName]
	switch {
	case src.size() >= c.share:
		return src.contest(host, c.lead)
	case c.all.n < c.limit:
		return loser, true
	}
	if loser, ok = c.all.contest(src, c.lead); ok {
		return loser, ok
	}
	return src.contest(host, c.lead)
}

// contest returns who of a source leaves for another member of one of its parts, if a part has so many members more.
func (s *source[T]) contest(part *source[T], lead int) (loser T, ok bool) {
	if s == nil || len(s.parts) == 0 || s.parts[0].n < part.size()+lead {
		return loser, false
	}
	return s.oldest().who, true
}

// Oldest returns the oldest member from an address, if there is one.
func (c *Crowd[T]) Oldest(from netip.Addr) (who T, ok bool) {
	_, name := names(from)
	host := c.sources[name]
	if host == nil {
		return who, false
	}
	return host.first.who, true
}

// Next returns the member whose source has the fewest members of another crowd, and of such the one whose host has, and of
// such the oldest. It returns false if there is nobody.
func (c *Crowd[T]) Next(of *Crowd[T]) (who T, ok bool) {
	var next *Seat[T]
	var least [2]int
	for _, host := range c.sources {
		if host.first == nil { // a network
			continue
		}
		src := host
		if host.of != &c.all {
			src = host.of
		}
		size := [2]int{of.sources[src.name].size(), of.sources[host.name].size()}
		order := slices.Compare(size[:], least[:])
		if next == nil || order < 0 || order == 0 && host.first.arrival < next.arrival {
			next, least = host.first, size
		}
	}
	if next == nil {
		return who, false
	}
	return next.who, true
}

// Take gives a member a free seat. The caller has asked for Room, or does without.
func (c *Crowd[T]) Take(s *Seat[T], from netip.Addr, who T) {
	srcName, hostName := names(from)
	host := c.source(&c.all, srcName)
	if hostName != srcName {
		host = c.source(host, hostName)
	}
	s.who, s.in, s.of = who, c, host
	host.append(s)
	host.grow()
}

// source returns a source of a name, which may be a new one.
func (c *Crowd[T]) source(of *source[T], name netip.Prefix) *source[T] {
	s := c.sources[name]
	if s == nil {
		s = &source[T]{name: name, of: of}
		c.sources[name] = s
	}
	return s
}

// grow counts another member of a host.
func (s *source[T]) grow() {
	for ; s.of != nil; s = s.of {
		if s.n++; s.n == 1 {
			heap.Push(&s.of.parts, s)
		} else {
			heap.Fix(&s.of.parts, s.place)
		}
	}
	s.n++
}

// shrink counts a member of a host less. A source without members is none of the crowd any more.
func (s *source[T]) shrink(in *Crowd[T]) {
	for ; s.of != nil; s = s.of {
		if s.n--; s.n == 0 {
			heap.Remove(&s.of.parts, s.place)
			delete(in.sources, s.name)
		} else {
			heap.Fix(&s.of.parts, s.place)
		}
	}
	s.n--
}

// Leave makes a seat free.
func (s *Seat[T]) Leave() {
	if s.in == nil {
		return
	}
	s.of.remove(s)
	s.of.shrink(s.in)
	*s = Seat[T]{}
}

// Refresh makes a member the youngest of its host, since it has been heard from.
func (s *Seat[T]) Refresh() {
	if s.in == nil {
		return
	}
	s.of.remove(s)
	s.of.append(s)
	for src := s.of; src.of != nil; src = src.of {
		heap.Fix(&src.of.parts, src.place)
	}
}

// All goes over the members, in no order. None may come or leave meanwhile.
func (c *Crowd[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, src := range c.sources {
			for s := src.first; s != nil; s = s.next {
				if !yield(s.who) {
					return
				}
			}
		}
	}
}

// size is how many members a source has. One that is not there has none.
func (s *source[T]) size() int {
	if s == nil {
		return 0
	}
	return s.n
}

// oldest returns the oldest seat of the host with the most.
func (s *source[T]) oldest() *Seat[T] {
	for len(s.parts) > 0 {
		s = s.parts[0]
	}
	return s.first
}

// append makes a seat the youngest of a host.
func (s *source[T]) append(seat *Seat[T]) {
	seat.in.arrivals++
	seat.arrival, seat.prev, seat.next = seat.in.arrivals, s.last, nil
	if s.last == nil {
		s.first = seat
	} else {
		s.last.next = seat
	}
	s.last = seat
}

func (s *source[T]) remove(seat *Seat[T]) {
	if seat.prev == nil {
		s.first = seat.next
	} else {
		seat.prev.next = seat.next
	}
	if seat.next == nil {
		s.last = seat.prev
	} else {
		seat.next.prev = seat.prev
	}
}

// bySize orders sources: the one with the most members first and, among several such, the one with the oldest that would
// leave. It implements heap.Interface.
type bySize[T any] []*source[T]

func (h bySize[T]) Len() int { return len(h) }

func (h bySize[T]) Less(i, j int) bool {
	if h[i].n != h[j].n {
		return h[i].n > h[j].n
	}
	return cmp.Less(h[i].arrival(), h[j].arrival())
}

// arrival is the number of the oldest seat. A source that is about to go has none.
func (s *source[T]) arrival() uint64 {
	if seat := s.oldest(); seat != nil {
		return seat.arrival
	}
	return 0
}

func (h bySize[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *bySize[T]) Push(s any) {
	s.(*source[T]).place = len(*h)
	*h = append(*h, s.(*source[T]))
}

func (h *bySize[T]) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return s
}
