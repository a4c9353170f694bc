package whole

import (
	"math/rand/v2"
	"slices"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Some connections have packet security. To the programs nothing is different, so the oracle is that of all
// others. In addition every packet between the QPs is encrypted, and a hostile station may send any PSN, and
// packets that have been sent before.

const maxHeard = 16 // secured datagrams that the hostile station remembers of a node

// drawSecurity decides whether a connection is secured.
func (c *conn) drawSecurity() {
	r := rand.New(rand.NewPCG(c.w.plan.Seed, uint64(0x5ec0+c.index)))
	c.secured = r.IntN(2) == 0 && c.w.plan.Secure
}

// secure draws a new end's key. The path MTU of the life is one that leaves room for security.
func (e *end) secure() {
	if !e.c.secured {
		return
	}
	w := e.n.w
	most, err := e.qp.SecuredMTU()
	w.must(err)
	e.c.mtu = min(e.c.mtu, most)
	e.key, err = e.qp.NewSecurityKey()
	w.must(err)
	w.totals.Secured++
}

// agree has both ends of a life agree on keys.
func (c *conn) agree() {
	if !c.secured {
		return
	}
	for _, e := range c.ends {
		// Since the end asked. A CQ that overruns takes its QPs with it, whatever their state.
		if e.closed || e.crashed || c.w.plan.Full && e.qp.State() == verbs.QPStateErr {
			continue
		}
		c.w.must(e.qp.SetSecurity(verbs.PacketSecurity{Peer: e.peer().key}))
	}
}

// packets returns an iterator over the packets of a datagram or a train.
func packets(d *link.Datagram) func(yield func([]byte) bool) {
	if d.SegmentSize == 0 {
		return slices.Values([][]byte{d.Payload})
	}
	return slices.Chunk(d.Payload, d.SegmentSize)
}

// Send implements link.Link. Nothing that goes to a secured QP is plain, and nothing else is encrypted.
func (i *injector) Send(batch []link.Datagram) error {
	w := i.n.w
	for k := range batch {
		d := &batch[k]
		j := slices.IndexFunc(w.nodes, func(n *node) bool { return n.addr == d.Dst.Addr().Unmap() })
		if j < 0 { // multicast
			continue
		}
		for b := range packets(d) {
			bth, err := wire.DecodeBTH(b)
			if err != nil {
				w.failf("%v sends what is no packet: %x", i.n, b)
			}
			e := w.nodes[j].byQPN[verbs.QPN(bth.DestQP)]
			if e == nil || e.closed || e.peer() == nil || e.peer().n != i.n {
				continue
			}
			e.forged.hears(d.Src.Port())
			e.peer().leaves(d.Src.Port())
			if secured := bth.Opcode == wire.Secured; secured != e.c.secured {
				w.failf("%v sends %v to %v, which is secured: %v", i.n, bth.Opcode, e, e.c.secured)
			}
		}
	}
	return i.Link.Send(batch)
}

// hear has the hostile station remember secured datagrams.
func (n *node) hear(batch []link.Datagram) {
	for k := range batch {
		d := batch[k]
		if len(d.Payload) == 0 || wire.Opcode(d.Payload[0]) != wire.Secured {
			continue
		}
		for b := range packets(&d) {
			one := d
			one.Payload, one.SegmentSize = slices.Clone(b), 0
			if len(n.heard) == maxHeard {
				n.heard = n.heard[:copy(n.heard, n.heard[1:])]
			}
			n.heard = append(n.heard, one)
			break // the first of a train: the others have other identifications
		}
	}
}

// replayed returns something that was sent to the node before, perhaps with a bit changed; or nil.
func (n *node) replayed(r *rand.Rand) (d link.Datagram, ok bool) {
	if len(n.heard) == 0 {
		return d, false
	}
	d = n.heard[r.IntN(len(n.heard))]
	d.Payload = slices.Clone(d.Payload)
	if r.IntN(2) == 0 {
		body := d.Payload[:len(d.Payload)-wire.ICRCSize]
		body[wire.BTHSize+r.IntN(len(body)-wire.BTHSize)] ^= 1 << r.IntN(8)
		f := wire.NewFlow(d.Src, d.Dst)
		f.Seal(d.ID, d.Payload)
	}
	return d, true
}
