package fault

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A Path leads from one address to another, and knows what it did to the datagrams so far.
type Path struct {
	dice    Dice
	n       uint64        // datagrams so far
	lastDue time.Duration // of the datagrams so far that are not held; 0 when all have arrived
	held    []heldParcel
}

type heldParcel struct {
	p      *parcel
	behind uint64 // released by the datagram of this number
}

// Counts is what paths did. The fields of what a datagram met count it once each.
type Counts struct {
	Lost, Duplicated, Reordered, Corrupted, Marked uint64
}

// NewPath returns the path from src to dst.
func NewPath(seed uint64, src, dst netip.Addr) *Path {
	return &Path{dice: NewDice(seed, src, dst)}
}

// Clear reports whether a network without faults delivers the path's next datagram at
// once: nothing of the path is under way that it would overtake.
func (p *Path) Clear() bool { return p.lastDue == 0 && len(p.held) == 0 }

// Skip numbers datagrams that do not come through Pass.
func (p *Path) Skip(n int) { p.n += uint64(n) }

// Pass takes the path's next datagram, which must be single, and puts into q what f leaves of it.
func (p *Path) Pass(q *Queue, f *Faults, now time.Duration, d *link.Datagram, c *Counts) {
	q.Arrive(now)
	n := p.n
	p.n++
	fate := p.dice.Fate(f, n)
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
	// Lost datagrams count too: the rest of a path must not wait for them.
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

// put adds a copy that arrives at due or, when held, behind the datagram of number n+hold.
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
