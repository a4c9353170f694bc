package fault

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A Path leads from one address to another, or over a port's cable on the way there. It counts its datagrams, which
// decides their fates.
type Path struct {
	dice    Dice
	ahead   bool          // the path takes datagrams before their time, so that none may arrive at once
	n       uint64        // datagrams so far
	lastDue time.Duration // when the latest datagram that is not held arrives; 0 if all have arrived
	held    []heldParcel
	planned map[uint64]Plan // by the datagram's number
}

// Plan is a planned fate of one datagram, beside the Faults.
type Plan struct {
	Lost, Duplicate, Corrupt bool
	HoldBehind               int // datagrams that overtake this one, for 1 ms at most
}

// Plan plans for the nth datagram from now on, counted from 1. A second plan for the same one replaces
// the first.
func (p *Path) Plan(nth uint64, what Plan) {
	if p.planned == nil {
		p.planned = map[uint64]Plan{}
	}
	p.planned[p.n+nth-1] = what
}

// apply adds the plan to a fate.
func (t *Fate) apply(p Plan) {
	t.Lost = t.Lost || p.Lost
	t.Duplicate = t.Duplicate || p.Duplicate
	t.HoldBehind = max(t.HoldBehind, p.HoldBehind)
	if p.Corrupt {
		t.Flips = max(1, t.Flips)
	}
}

// mark has the datagram marked for congestion.
func (t *Fate) mark() { t.Marked = true }

type heldParcel struct {
	p      *parcel
	behind uint64 // the number of the datagram that releases it
}

// Counts counts the fates of datagrams on paths. A datagram counts once in the field of each fault that it met.
type Counts struct {
	Lost, Duplicated, Reordered, Corrupted, Marked uint64
}

// NewPath returns the path from src to dst.
func NewPath(seed uint64, src, dst netip.Addr) *Path {
	return &Path{dice: NewDice(seed, src, dst)}
}

// Clear reports whether a network without faults may deliver the path's next datagram at once. It may not if that
// datagram would overtake one of the path that is still under way, or if a fate is planned.
func (p *Path) Clear() bool { return p.lastDue == 0 && len(p.held) == 0 && len(p.planned) == 0 }

// Skip numbers datagrams that do not come through Pass.
func (p *Path) Skip(n int) { p.n += uint64(n) }

// Pass takes the path's next datagram, which must not be a train, and puts into q the copies that f leaves.
func (p *Path) Pass(q *Queue, f *Faults, now time.Duration, d *link.Datagram, c *Counts) {
	p.PassRoutes(q, nil, f, now, d, c)
}

// PassRoutes is Pass for a path that has routes, if r is not nil. The copies that f leaves come to the first port of
// one of them.
func (p *Path) PassRoutes(q *Queue, r *Routes, f *Faults, now time.Duration, d *link.Datagram, c *Counts) {
	q.Arrive(now)
	var to way
	if r != nil {
		to = way{p, r.choose(p.n, d)}
	}
	fate := p.fate(f)
	if f.MarkCEAbove > 0 && q.backlog(f, now) > f.MarkCEAbove {
		fate.mark()
	}
	due := now + fate.Delay
	if f.Rate > 0 && !fate.Lost {
		due = q.through(f, now, len(d.Payload)) + fate.Delay
	}
	p.meet(q, &fate, now, due, d, to, c)
	q.Arrive(now)
}

// fate returns the fate of the path's next datagram.
func (p *Path) fate(f *Faults) Fate {
	n := p.n
	p.n++
	fate := p.dice.Fate(f, n)
	if what, ok := p.planned[n]; ok {
		fate.apply(what)
		delete(p.planned, n)
	}
	return fate
}

// meet applies the fate of the latest datagram. Its copies are there at due, or later to keep the order.
func (p *Path) meet(q *Queue, fate *Fate, now, due time.Duration, d *link.Datagram, to way, c *Counts) {
	marked := *d
	if ecn := d.TrafficClass & link.ECNMask; fate.Marked && ecn != link.NotECT && ecn != link.CE {
		marked.TrafficClass |= link.CE
		d = &marked
	}
	if p.lastDue > now {
		due = max(due, p.lastDue)
	} else {
		p.lastDue = 0
	}
	if fate.Lost {
		c.Lost++
	} else {
		if fate.HoldBehind > 0 {
			c.Reordered++
		}
		if fate.Flips > 0 {
			c.Corrupted++
		}
		if d == &marked {
			c.Marked++
		}
		p.put(q, d, fate, now, due, fate.HoldBehind, to)
		if fate.Duplicate {
			c.Duplicated++
			p.put(q, d, fate, now, due, fate.DuplicateHold, to)
		}
	}
	// A lost datagram releases others too. They need not wait for it any longer.
	for i := 0; i < len(p.held); {
		if h := p.held[i]; h.behind < p.n {
			p.forget(h.p)
			q.advance(h.p, min(due, h.p.due))
			continue
		}
		i++
	}
}

// put adds a copy of d to q. It arrives, or comes to the next port, at due or, if hold is not 0, behind the hold-th
// datagram after it.
func (p *Path) put(q *Queue, d *link.Datagram, fate *Fate, now, due time.Duration, hold int, to way) {
	atOnce := hold == 0 && due <= now && !p.ahead
	if atOnce && len(to.ports) == 0 && q.full() {
		q.drop()
		return
	}
	c := q.copy(d, to)
	fate.Corrupt(c.d.Payload)
	switch {
	case atOnce && len(to.ports) > 0:
		q.hop(c, now)
	case atOnce:
		q.arrive(c)
	case hold > 0:
		c.path = p
		p.held = append(p.held, heldParcel{c, p.n - 1 + uint64(hold)})
		q.pushLate(c, due+maxHold)
	default:
		p.lastDue = due
		q.pushLate(c, due)
	}
}

func (p *Path) forget(c *parcel) {
	for i := range p.held {
		if p.held[i].p == c {
			p.held = append(p.held[:i], p.held[i+1:]...)
			break
		}
	}
	c.path = nil
}
