package rsocket

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/crowd"
)

// places are those of the connections of a listener that are made, or on the way, before Accept takes them. Anybody can
// send a request and never answer, so those that are on the way are a crowd, as with the connection manager. A place is
// given away only when its former holder has freed its resources.
type places struct {
	limit int

	mu       sync.Mutex
	taken    int                    // by attempts, and by connections that are made
	made     int                    // of them the latter
	making   *crowd.Crowd[*attempt] // that have a place, or are promised one
	promised []*attempt             // of them the latter: somebody lets go of a place. The oldest first.
	waiting  *crowd.Crowd[*attempt]
}

// attempt is a request whose connection is being made, or waits for its turn.
type attempt struct {
	seat   crowd.Seat[*attempt]
	from   netip.Addr
	place  chan struct{}      // closed when it has a place
	placed bool               // place is closed
	cancel context.CancelFunc // ends it, since another one needs its place
}

func newPlaces(limit int) *places {
	// Of those that wait the connection manager's backlog is the bound.
	return &places{limit: limit, making: crowd.New[*attempt](limit, limit), waiting: crowd.New[*attempt](0, 0)}
}

// join has an attempt wait for a place.
func (p *places) join(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.Take(&a.seat, a.from, a)
	p.serve()
}

// leave ends an attempt that has come to nothing.
func (p *places) leave(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.seat.Leave()
	if a.placed {
		p.taken--
	} else {
		p.unpromise(a)
	}
	p.serve()
}

// unpromise takes a promise back, if there was one.
func (p *places) unpromise(a *attempt) {
	p.promised = slices.DeleteFunc(p.promised, func(b *attempt) bool { return a == b })
}

// complete ends an attempt whose connection is made. It keeps its place.
func (p *places) complete(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.seat.Leave()
	p.made++
	p.serve()
}

// accepted gives the place of a connection back.
func (p *places) accepted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made--
	p.taken--
	p.serve()
}

// serve gives places to those that wait, the source with the fewest first, and has others make room. The caller holds
// p.mu.
func (p *places) serve() {
	p.making.SetLimit(p.limit - p.made)
	for {
		next, ok := p.waiting.Next(p.making)
		if !ok {
			break
		}
		loser, ok := p.making.Room(next.from)
		if !ok {
			break
		}
		if loser != nil {
			loser.seat.Leave()
			loser.cancel()
			p.unpromise(loser)
		}
		next.seat.Leave()
		p.making.Take(&next.seat, next.from, next)
		p.promised = append(p.promised, next)
	}
	for len(p.promised) > 0 && p.taken < p.limit {
		a := p.promised[0]
		p.promised = slices.Delete(p.promised, 0, 1)
		p.taken++
		a.placed = true
		close(a.place)
	}
}
