package cm

import (
	"cmp"
	"container/heap"
	"container/list"
	"net/netip"
	"time"
)

// crowd are the peers' attempts that hold something here and may come to nothing: anybody can send a
// REQ, under any address. Its size is bounded, and no source can keep the others out. When there is no
// room, the source with the most attempts loses its oldest one to a source that has fewer. The oldest
// is the least likely to be genuine: a genuine peer answers within a round trip.
type crowd struct {
	limit    int // of all sources
	share    int // of one
	n        int
	arrivals uint64 // so far
	sources  map[netip.Addr]*source
	order    bySize
}

// attempt is a member of a crowd.
type attempt interface {
	// displace gives the attempt up, since another source needs its place.
	displace(now time.Duration)
}

// seat is the place of an attempt in a crowd. The zero seat is free.
type seat struct {
	in *crowd
	of *source
	at *list.Element
}

// sitter is the entry of a seat in its source's list.
type sitter struct {
	who     attempt
	arrival uint64
}

// source is a peer's address with its attempts, the oldest first.
type source struct {
	addr    netip.Addr
	sitters list.List
	place   int // in the heap
}

func newCrowd(limit, share int) crowd {
	return crowd{limit: limit, share: share, sources: map[netip.Addr]*source{}}
}

// room returns whether there is room for another attempt from an address. If an attempt has to make
// room, room returns that one.
func (c *crowd) room(from netip.Addr) (loser attempt, ok bool) {
	own := 0
	if s := c.sources[bare(from)]; s != nil {
		own = s.sitters.Len()
	}
	switch {
	case own >= c.share:
		return nil, false
	case c.n < c.limit:
		return nil, true
	case c.order[0].sitters.Len() > own:
		return c.order[0].sitters.Front().Value.(sitter).who, true
	}
	return nil, false
}

// take gives an attempt a seat.
func (c *crowd) take(s *seat, from netip.Addr, who attempt) {
	from = bare(from)
	src := c.sources[from]
	if src == nil {
		src = &source{addr: from}
		c.sources[from] = src
		heap.Push(&c.order, src)
	}
	c.n++
	c.arrivals++
	s.in, s.of, s.at = c, src, src.sitters.PushBack(sitter{who, c.arrivals})
	heap.Fix(&c.order, src.place)
}

// leave makes a seat free.
func (s *seat) leave() {
	c := s.in
	if c == nil {
		return
	}
	c.n--
	s.of.sitters.Remove(s.at)
	if s.of.sitters.Len() > 0 {
		heap.Fix(&c.order, s.of.place)
	} else {
		heap.Remove(&c.order, s.of.place)
		delete(c.sources, s.of.addr)
	}
	*s = seat{}
}

// count returns how many members are requests that nobody has answered, and how many are half-open.
func (c *crowd) count() (requests, halfOpen int) {
	for _, src := range c.sources {
		for e := src.sitters.Front(); e != nil; e = e.Next() {
			if conn, ok := e.Value.(sitter).who.(*Conn); ok && mayEstablish.has(conn.state) {
				halfOpen++
			}
		}
	}
	return c.n - halfOpen, halfOpen
}

// bySize orders sources: the one with the most attempts first and, among several such, the one with the oldest
// attempt. It implements heap.Interface.
type bySize []*source

// oldest is the number of a source's oldest attempt. A source that has none yet is about to get one.
func (s *source) oldest() uint64 {
	if e := s.sitters.Front(); e != nil {
		return e.Value.(sitter).arrival
	}
	return 0
}

func (h bySize) Len() int { return len(h) }

func (h bySize) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].sitters.Len(), h[i].sitters.Len()), cmp.Compare(h[i].oldest(), h[j].oldest())) < 0
}

func (h bySize) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *bySize) Push(s any) {
	s.(*source).place = len(*h)
	*h = append(*h, s.(*source))
}

func (h *bySize) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return s
}

// hasRoom reports whether there is room for another request of a listener, or can be made, and how many
// communication IDs making it gives back. A request for which there is none is counted as refused, and
// nobody loses anything to it.
func (m *Machine) hasRoom(from netip.Addr, l *Listener) (freed int, ok bool) {
	for _, c := range [...]*crowd{&l.unanswered, &m.attempts} {
		loser, ok := c.room(from)
		if !ok {
			m.stats.Refused++
			return 0, false
		}
		if c, ok := loser.(*Conn); ok && mayAccept.has(c.state) { // what is half-open keeps its ID for a while
			freed = 1
		}
	}
	return freed, true
}

// makeRoom makes room for a request that is about to be taken, where hasRoom has said that it can be made.
func (m *Machine) makeRoom(now time.Duration, from netip.Addr, l *Listener) {
	for _, c := range [...]*crowd{&l.unanswered, &m.attempts} { // the first one's loser may have been in the way in the second, too
		if loser, _ := c.room(from); loser != nil {
			m.stats.Displaced++
			loser.displace(now)
		}
	}
}

// displace implements attempt. A peer whose request nobody has answered is told nothing: if it is
// genuine, it asks again.
func (c *Conn) displace(now time.Duration) {
	if mayAccept.has(c.state) {
		c.abandon()
		return
	}
	c.emit(Event{Type: EventUnreachable})
	c.reject(now, rejTimeout(c.m.cfg.GUID))
}

// abandon forgets a request that nobody has answered.
func (c *Conn) abandon() {
	if !c.delivered {
		c.closed = true // the user need not hear of it at all
	}
	c.emit(Event{Type: EventUnreachable})
	c.forget()
}

// displace implements attempt.
func (s *SIDR) displace(time.Duration) {
	if !s.delivered {
		s.closed = true
	}
	s.emit(Event{Type: EventUnreachable})
	s.forget()
}

// heard notes that a request came, again or for the first time, which nobody has answered. A peer that
// waits repeats it. A peer that does not is gone, or never was.
func (c *Conn) heard(now time.Duration) {
	repeats := min(c.peerRepeats, maxRepeatTime)
	if c.state == StateMRAREQSent {
		repeats = milliseconds(c.longestPromised) + milliseconds(min(c.ackTimeout, maxTimeWaitCode))
	}
	c.m.timers.set(&c.repeater.timer, now+silentRepeats*repeats)
}
