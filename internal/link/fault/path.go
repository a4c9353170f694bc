package fault

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A Path leads from one address to another. It counts its datagrams, which decides their fates.
type Path struct {
	dice    Dice
	n       uint64        // datagrams so far
	lastDue time.Duration // when the latest datagram that is not held arrives; 0 if all have arrived
	held    []heldParcel
	planned map[uint64]Plan // by the datagram's number
}

// Plan is what becomes of one datagram in any case, beside what the Faults do.
type Plan struct {
	Lost, Duplicate, Corrupt bool
	HoldBehind               int // datagrams that overtake it, for 1 ms at most
}

// Plan plans for the nth datagram from now on, counted from 1. A second plan for the same one replaces
// the first.
func (p *Path) Plan(nth uint64, what Plan) {
	if p.planned == nil {
		p.planned = map[uint64]Plan{}
	}
	p.planned[p.n+nth-1] = what
}

// apply adds what is planned to a fate.
func (t *Fate) apply(p Plan) {
	t.Lost = t.Lost || p.Lost
	t.Duplicate = t.Duplicate || p.Duplicate
	t.HoldBehind = max(t.HoldBehind, p.HoldBehind)
	if p.Corrupt {
		t.Flips = max(1, t.Flips)
	}
}

type heldParcel struct {
	p      *parcel
	behind uint64 // the number of the datagram that releases it
}

// Counts is what paths did to datagrams. A datagram counts once in the field of each fault that it
// met.
type Counts struct {
	Lost, Duplicated, Reordered, Corrupted, Marked uint64
}

// NewPath returns the path from src to dst.
func NewPath(seed uint64, src, dst netip.Addr) *Path {
	return &Path{dice: NewDice(seed, src, dst)}
}

// Clear reports whether a network without faults may deliver the path's next datagram at once. It
// may not if that would overtake a datagram of the path that is still under way, or if something is
// planned.
func (p *Path) Clear() bool { return p.lastDue == 0 && len(p.held) == 0 && len(p.planned) == 0 }

// Skip numbers datagrams that do not come through Pass.
func (p *Path) Skip(n int) { p.n += uint64(n) }

// Pass takes the path's next datagram, which must not be a train, and puts into q what f leaves of
// it.
func (p *Path) Pass(q *Queue, f *Faults, now time.Duration, d *link.Datagram, c *Counts) {
	q.Arrive(now)
	n := p.n
	p.n++
	fate := p.dice.Fate(f, n)
	if what, ok := p.planned[n]; ok {
		fate.apply(what)
		delete(p.planned, n)
	}
	marked := *d
	if (fate.Marked || f.MarkCEAbove > 0 && q.backlog(f, now) > f.MarkCEAbove) && d.TrafficClass&link.ECNMask != link.NotECT {
		marked.TrafficClass |= link.CE
		d = &marked
	}
	due := now + fate.Delay
	if f.Rate > 0 && !fate.Lost {
		due = q.through(f, now, len(d.Payload)) + fate.Delay
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
		p.put(q, d, &fate, now, due, fate.HoldBehind)
		if fate.Duplicate {
			c.Duplicated++
			p.put(q, d, &fate, now, due, fate.DuplicateHold)
		}
	}
	// A lost datagram releases others too. They need not wait for it any longer.
	for i := 0; i < len(p.held); {
		if h := p.held[i]; h.behind <= n {
			p.forget(h.p)
			q.advance(h.p, min(due, h.p.due))
			continue
		}
		i++
	}
	q.Arrive(now)
}

// put adds a copy of d to q. It arrives at due or, if hold is not 0, behind the hold-th datagram
// after it.
func (p *Path) put(q *Queue, d *link.Datagram, fate *Fate, now, due time.Duration, hold int) {
	if hold == 0 && due <= now && q.limit > 0 && q.count >= q.limit {
		q.dropped++
		return
	}
	c := q.copy(d)
	fate.Corrupt(c.d.Payload)
	c.path = nil
	switch {
	case hold > 0:
		c.due = due + maxHold
		c.path = p
		p.held = append(p.held, heldParcel{c, p.n - 1 + uint64(hold)})
		q.pushLate(c)
	case due <= now:
		q.arrive(c)
	default:
		c.due = due
		p.lastDue = due
		q.pushLate(c)
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
