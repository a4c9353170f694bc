package whole

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// Some ends send from several source ports, and change their number now and then. Between some nodes there are several
// ways, of which switches choose one by the port or for each packet, with queues, marks and lengths of their own. And
// some nodes lose for a while the packets from some of the ports. To the programs nothing is different, so the oracle
// is the oracle of all others. In addition nobody sends from more ports than was asked for.

const (
	firstPort, portCount = 0xc000, 8 // the source ports of a simulated network
	changeTime           = 20 * time.Millisecond
)

// drawPaths decides from how many ports the ends of a connection send, by side.
func (c *conn) drawPaths() {
	r := rand.New(rand.NewPCG(c.w.plan.Seed, uint64(0x5b7a0+c.index)))
	for side := range c.routing {
		if n := drawPortCount(r); c.w.plan.Spray {
			c.routing[side].Paths = n
		}
	}
}

// drawPortCount returns from how many ports an end may send. 0 stands for the default.
func drawPortCount(r *rand.Rand) int {
	return max(0, r.IntN(verbs.MaxRoutingPaths+3)-2)
}

// change has the ends of a life change on the way how they use the network.
func (c *conn) change() {
	r := rand.New(rand.NewPCG(c.w.plan.Seed, uint64(0xc4a60+100*c.index+c.life)))
	for range r.IntN(4) {
		at, side, spray, paths, control := within(r, changeTime), r.IntN(2), r.IntN(2) == 0, drawPortCount(r), c.drawControl(r)
		c.later(at, func() {
			e := c.ends[side]
			if c.phase != running || e.closed || !e.n.awake() {
				return
			}
			if spray && c.w.plan.Spray && c.typ == verbs.QPTypeRC {
				routing := c.routing[side]
				routing.Paths = paths
				e.setRouting(routing)
			} else if !spray && c.w.plan.Pace {
				e.setControl(control)
			}
		})
	}
}

// setRouting has an end use the network in the given way from now on.
func (e *end) setRouting(r verbs.AdaptiveRouting) {
	e.n.w.logf("%v: %+v", e, r)
	e.ports = max(e.ports, r.Paths)
	e.n.w.must(e.qp.SetAdaptiveRouting(r))
}

// leaves takes note that e sends a packet from a port.
func (e *end) leaves(port uint16) {
	if port == e.lastPort {
		return
	}
	e.lastPort = port
	if !slices.Contains(e.sources, port) {
		if e.sources = append(e.sources, port); len(e.sources) > max(1, e.ports) {
			e.n.w.failf("%v sends from the ports %#x, want %d at most", e, e.sources, max(1, e.ports))
		}
	}
	if len(e.sources) > 1 {
		e.n.w.totals.Sprayed++
	}
}

// hole names packets that a node does not get for a while: packets from one of the ports, or many of these packets.
type hole struct {
	port uint16
	loss float64
	rnd  *rand.Rand
}

// dig has nodes lose packets from a port.
func (w *world) dig() {
	r := rand.New(rand.NewPCG(w.plan.Seed, 0x401e))
	if dead := uint16(firstPort + rand.New(rand.NewPCG(w.plan.Seed, 0xdead1)).IntN(portCount)); w.plan.Dead {
		w.dead = dead
		for _, n := range w.nodes {
			n.holes = append(n.holes, &hole{dead, 1, r})
		}
	}
	for range w.plan.Holes {
		n, port, loss := w.nodes[r.IntN(len(w.nodes))], uint16(firstPort+r.IntN(portCount)), 1.0
		if r.IntN(2) == 0 {
			loss = r.Float64() / 2
		}
		h, begin, d := &hole{port, loss, rand.New(rand.NewPCG(r.Uint64(), 1))}, within(r, busyTime), within(r, busyTime)
		w.in(begin, func() {
			w.logf("%v loses %.2f of what comes from port %#x for %v", n, loss, port, d)
			n.holes = append(n.holes, h)
		})
		w.in(begin+d, func() { n.holes = slices.DeleteFunc(n.holes, func(x *hole) bool { return x == h }) })
	}
}

// pass returns the packets that the node's holes leave of a batch.
func (n *node) pass(batch []link.Datagram) int {
	left := 0
	for i := range batch {
		lost := false
		for _, h := range n.holes {
			lost = lost || h.port == batch[i].Src.Port() && h.rnd.Float64() < h.loss
		}
		if lost {
			n.w.totals.Holed++
			continue
		}
		batch[left] = batch[i]
		left++
	}
	return left
}

// mustLive reports whether an end, and its peer, have a port that works, all retries, and nothing to suffer from but the
// one that is dead. The first port is the one that works: the peer knows of no other until the peer is told.
func (e *end) mustLive() bool {
	w, p := e.n.w, e.peer()
	others := w.plan
	others.Dead = false
	return w.plan.Dead && !others.mayFail() && e.c.retry.RetryCount == 7 &&
		len(e.sources) > 0 && e.sources[0] != w.dead && len(p.sources) > 0 && p.sources[0] != w.dead
}

// lay leads the packets of some nodes to others over several ways. Some of these are shared.
func (w *world) lay() {
	if w.plan.Ways == 0 {
		return
	}
	r := rand.New(rand.NewPCG(w.plan.Seed, 0x3a75))
	port := func() *sim.Port {
		c := sim.PortConfig{Delay: time.Duration(r.Float64() * r.Float64() * 200_000)}
		if r.IntN(3) > 0 {
			c.Rate = 20_000_000 << r.IntN(8)
		}
		if r.IntN(2) == 0 {
			c.Buffer = (w.plan.MTU + 100) * (2 + r.IntN(64))
		}
		if r.IntN(3) > 0 {
			c.MarkFrom, c.MarkMost = r.IntN(20_000), r.Float64()
			c.MarkTo = c.MarkFrom + 1 + r.IntN(40_000)
		}
		p := w.net.Port(c)
		if r.IntN(3) == 0 {
			p.SetFaults(sim.Faults{Loss: r.Float64() * r.Float64() / 4, Reorder: r.Float64() * r.Float64() / 10})
		}
		w.ports = append(w.ports, p)
		return p
	}
	shared := make([]*sim.Port, w.plan.Ways)
	for i := range shared {
		shared[i] = port()
	}
	how := []sim.Spread{sim.ByPort, sim.ByPort, sim.ByHash, sim.ByPacket}[r.IntN(4)]
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			if r.IntN(4) == 0 {
				continue
			}
			ways := make([][]*sim.Port, w.plan.Ways)
			for i := range ways {
				ways[i] = []*sim.Port{shared[i]}
				if r.IntN(3) == 0 {
					ways[i] = []*sim.Port{port()}
				}
			}
			w.net.SetRoutes(a.addr, b.addr, how, ways...)
		}
	}
}

// countPorts adds the counts of the ways to the totals.
func (t *totals) countPorts(ports []*sim.Port) {
	for _, p := range ports {
		s := p.Stats(false)
		t.Routed += s.Passed
		t.Full += s.Lost
		t.Marked += s.Marked
	}
}

// TestWholeDeadPort makes runs in which nothing comes from one of the ports. Who sends from others too goes on by them.
func TestWholeDeadPort(t *testing.T) {
	sum, runs := changed(t, 5000, func(p *plan) {
		*p = plan{Seed: p.Seed, Nodes: p.Nodes, Conns: p.Conns, Lives: 1, Ops: 200, IPv6: p.IPv6, MTU: p.MTU, SRQ: p.SRQ, Windows: p.Windows,
			Atomics: p.Atomics, Place: p.Place, Gather: p.Gather, Secure: p.Secure, Notify: p.Notify, Rereg: p.Rereg, Route: p.Route, Pace: p.Pace,
			Spray: true, Dead: true}
	})
	if sum.Holed < 10*runs || sum.PathsLeft < runs/2 {
		t.Errorf("in %d runs %d packets were lost, and %d paths were left; want some", runs, sum.Holed, sum.PathsLeft)
	}
}

// TestWholeSprayed makes runs in which ends send from several ports: over several ways, and where nodes lose packets
// from some ports. Also where packets are secured, for security must not depend on the packets' order.
func TestWholeSprayed(t *testing.T) {
	for _, x := range []struct {
		ways, holes int
		secure      bool
	}{{4, 0, false}, {0, 6, false}, {4, 3, true}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			sum, runs := changed(t, 3000, func(p *plan) {
				p.Spray, p.Ways, p.Holes, p.Secure = true, x.ways, x.holes, x.secure
				p.Bare, p.Visible = false, p.Visible && p.IPv6 // so they know each other
				p.Queue, p.Lives, p.Ops = 0, 1, 60
			})
			if sum.Sprayed < 10*runs || sum.PathsLeft == 0 && x.holes > 0 || sum.Holed == 0 && x.holes > 0 || sum.Routed == 0 && x.ways > 0 ||
				sum.SecuredHeld < runs && x.secure {
				t.Errorf("in %d runs: %+v; want that many packets leave from another port than the one before, some are lost by port "+
					"so that paths are left, or take ways, and some secured ones come before others", runs, sum)
			}
		})
	}
}
