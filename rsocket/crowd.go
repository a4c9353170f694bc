package rsocket

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// crowd are the connections of a listener that are made, or on the way, before Accept takes them, and the
// requests that wait for a place. Anybody can send a request and never answer, so the rule is the connection
// manager's: when there is no place, the source with the most connections on the way loses its oldest one to a source
// that has fewer. A place is given away only when its former holder has let go of what it had.
type crowd struct {
	limit int

	mu      sync.Mutex
	n       int        // places that are taken
	making  []*attempt // those of them that are on the way, the oldest first
	waiting []*attempt // the oldest first
}

// attempt is a request whose connection is being made, or waits for that.
type attempt struct {
	from   netip.Addr
	place  chan struct{}      // closed when it has a place
	cancel context.CancelFunc // ends it
	loses  bool               // it has been ended, since another one needs its place
}

// join has an attempt wait for a place.
func (c *crowd) join(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, a)
	c.serve()
}

// leave ends an attempt that has come to nothing.
func (c *crowd) leave(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if remove(&c.making, a) {
		c.n--
	} else {
		remove(&c.waiting, a)
	}
	c.serve()
}

// made ends an attempt whose connection is made. It keeps its place.
func (c *crowd) made(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	remove(&c.making, a)
	c.serve()
}

// taken gives the place of a connection back.
func (c *crowd) taken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	c.serve()
}

func remove(list *[]*attempt, a *attempt) bool {
	i := slices.Index(*list, a)
	if i < 0 {
		return false
	}
	*list = slices.Delete(*list, i, i+1)
	return true
}

// serve gives places to those that wait, the source with the fewest first, and has others make room. The caller holds
// c.mu.
func (c *crowd) serve() {
	size, losers := map[netip.Addr]int{}, 0
	for _, a := range c.making {
		if a.loses {
			losers++
		} else {
			size[a.from]++
		}
	}
	bySize := func(a, b *attempt) int { return size[a.from] - size[b.from] }
	for len(c.waiting) > 0 && c.n < c.limit {
		next := slices.MinFunc(c.waiting, bySize) // the first of the smallest
		remove(&c.waiting, next)
		c.making = append(c.making, next)
		c.n++
		size[next.from]++
		close(next.place)
	}
	// Those for whom others make room already are out of the question.
	for waiting := slices.Clone(c.waiting); len(waiting) > 0; losers-- {
		next := slices.MinFunc(waiting, bySize)
		remove(&waiting, next)
		if losers <= 0 {
			loser := c.largest(size)
			if loser == nil || size[loser.from] <= size[next.from] {
				return
			}
			loser.loses = true
			loser.cancel()
			size[loser.from]--
		}
		size[next.from]++
	}
}

// largest returns the oldest attempt of the source with the most on the way, or nil if there is none.
func (c *crowd) largest(size map[netip.Addr]int) (loser *attempt) {
	for _, a := range c.making {
		if !a.loses && (loser == nil || size[a.from] > size[loser.from]) {
			loser = a
		}
	}
	return loser
}
