//go:build !adverb_portable

package hca

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/verbs"
)

// meet has both ends send to each other, so that all that follows may take the fast path.
func (p *lanePair) meet() {
	for _, e := range [][2]*end{{p.x, p.y}, {p.y, p.x}} {
		e[1].recv(verbs.RecvWR{})
		e[0].send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
		p.want(e[1])
		p.want(e[0])
	}
}

// TestFastPath: short SENDs arrive whole by the fast path, and so do lent ones.
func TestFastPath(t *testing.T) {
	p := newLanePair(t, options{})
	p.meet()
	const size = 40_000
	mine, theirs := p.x.mr(size), p.y.mr(size)
	for i := range mine.Bytes() {
		mine.Bytes()[i] = byte(i * 7)
	}
	for range 2 { // the receiver hears of a file when it is to be lent the first time
		for _, n := range []int{0, 1, 64, 1023, 1024, 4096, size} {
			clear(theirs.Bytes())
			p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, size)}})
			p.x.send(verbs.SendWR{Op: verbs.OpSendWithImm, Flags: signaled, Imm: 42, SGList: []verbs.SGE{mine.SGE(0, n)}})
			if wc := p.want(p.y); int(wc.ByteLen) != n || wc.Imm != 42 || !bytes.Equal(mine.Bytes()[:n], theirs.Bytes()[:n]) {
				t.Errorf("the SEND of %d bytes has brought %d, immediate data %d, or other bytes, want 42 and the same bytes", n, wc.ByteLen, wc.Imm)
			}
			p.want(p.x)
			p.answer()
		}
	}
	if n := p.x.impl().count("shm_fast_sends"); n < 12 { // at first, what is long is not lent, and so takes none
		t.Errorf("%d SENDs took the fast path, want most of them to", n)
	}
	if n := p.net.Stats().Lost; n != 0 {
		t.Errorf("%d packets went by the network, want none", n)
	}
}

// TestFastACK: the acknowledgement of a message has left when the program sees the message, though it has answered the one
// before, and will answer this one. So its sender learns of it though the program ends now.
func TestFastACK(t *testing.T) {
	p := newLanePair(t, options{driven: true})
	p.meet()
	p.y.impl().out.eng.napping.Store(true)
	defer p.y.impl().out.eng.napping.Store(false)
	sent := func() uint64 {
		q := p.y.impl()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.traffic.sent
	}
	p.y.recv(verbs.RecvWR{}, verbs.RecvWR{})
	p.x.recv(verbs.RecvWR{}, verbs.RecvWR{})
	for range 2 {
		before := sent()
		p.y.impl().gather.answers, p.y.impl().gather.answeredInRow = true, sureAnswers
		p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
		if wc := p.y.next(); wc.Op != verbs.WCRecv {
			t.Errorf("%v completes, want %v", wc.Op, verbs.WCRecv)
		}
		if n := sent() - before; n != 1 {
			t.Errorf("%d packets have left when the message is seen, want the acknowledgement", n)
		}
		if wc := p.x.next(); wc.Op != verbs.WCSend {
			t.Errorf("%v completes, want %v", wc.Op, verbs.WCSend)
		}
		p.y.send(verbs.SendWR{Op: verbs.OpSend})
		if wc := p.x.next(); wc.Op != verbs.WCRecv {
			t.Errorf("%v completes, want %v", wc.Op, verbs.WCRecv)
		}
	}
}

// TestFastEnds: messages that took the fast path by a lane that ends go on by the network.
func TestFastEnds(t *testing.T) {
	p := newLanePair(t, options{timeout: 13})
	p.meet()
	goOn := p.y.standStill()
	p.y.recv(verbs.RecvWR{})
	p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	if n := p.x.impl().count("shm_fast_sends"); n != 2 { // with the one by which they met
		t.Errorf("%d SENDs took the fast path, want 2", n)
	}
	p.net.SetFaults(sim.Faults{})
	for _, in := range p.inboxes[simAddr(2)].Lanes() {
		p.inboxes[simAddr(2)].Drop(in)
	}
	p.outs[simAddr(2)].Hangup()
	goOn()
	p.want(p.y)
	p.want(p.x)
}

// TestFastSolicited: what the transport takes as a packet, as it does the first message of a connection, asks for the event
// that its sender asked for.
func TestFastSolicited(t *testing.T) {
	p := newLanePair(t, options{untimed: true})
	p.y.recv(verbs.RecvWR{})
	p.y.must(p.y.cq.Notify(true))
	var b [fastSize]byte
	b[0], b[1] = fastMark, fastMessage|fastSolicited
	binary.NativeEndian.PutUint32(b[4:], uint32(p.y.qp.QPN()))
	binary.NativeEndian.PutUint32(b[8:], firstPSN)
	o := p.outs[simAddr(2)]
	o.Lock()
	o.Commit(copy(o.Reserve(fastSize), b[:]), 1)
	o.Publish()
	o.Unlock()
	p.drain(p.y)
	select {
	case <-p.y.cq.Events():
	default:
		t.Errorf("no event for a message that asks for one; completion %+v", p.want(p.y))
	}
}

// TestFastForged: a record of the fast path counts only if all is right in it, and does no harm if it is not.
func TestFastForged(t *testing.T) {
	p := newLanePair(t, options{untimed: true})
	p.meet()
	p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{p.y.mr(8).SGE(0, 8)}})
	record := func(change func(b []byte)) []byte {
		b := make([]byte, fastSize+8)
		b[0], b[1] = fastMark, fastMessage
		binary.NativeEndian.PutUint32(b[4:], uint32(p.y.qp.QPN()))
		binary.NativeEndian.PutUint32(b[8:], firstPSN+1)
		change(b)
		return b
	}
	add := func(o *shm.Out, b []byte, packets int) {
		o.Lock()
		o.Commit(copy(o.Reserve(len(b)), b), packets)
		o.Publish()
		o.Unlock()
	}
	put := func(b []byte, packets int) {
		add(p.outs[simAddr(2)], b, packets)
		p.drain(p.y)
	}
	for name, b := range map[string][]byte{
		"short":      record(func([]byte) {})[:fastSize-1],
		"other QPN":  record(func(b []byte) { b[4] ^= 1 }),
		"PSN before": record(func(b []byte) { binary.NativeEndian.PutUint32(b[8:], firstPSN) }),
		"PSN beyond": record(func(b []byte) { binary.NativeEndian.PutUint32(b[8:], firstPSN+2) }),
		"an ACK of what was not sent": record(func(b []byte) {
			b[1] = 0
			binary.NativeEndian.PutUint32(b[8:], firstPSN+7)
		}),
		"an ACK of no kind": record(func(b []byte) {
			b[1] = 0
			binary.NativeEndian.PutUint32(b[12:], 0x40<<24)
		}),
	} {
		for _, packets := range []int{0, 1, 2, 1000} {
			put(b, packets)
		}
		if p.y.empty(); p.y.impl().State() != verbs.QPStateRTS {
			t.Fatalf("%s: the QP is in %v, want it to go on", name, p.y.impl().State())
		}
	}
	o := p.outs[simAddr(2)]
	another := p.lane(t, simAddr(9), simAddr(2))
	put(record(func([]byte) {}), 1)
	p.y.empty()
	p.outs[simAddr(2)] = o
	p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{p.y.mr(8).SGE(0, 8)}})
	for range 2 {
		add(another, record(func(b []byte) { binary.NativeEndian.PutUint32(b[8:], firstPSN+2) }), 1)
	}
	put(record(func([]byte) {}), 1) // with the others behind it
	if wc := p.want(p.y); wc.ByteLen != 8 || wc.Op != verbs.WCRecv {
		t.Errorf("%+v, want the message that is right", wc)
	}
	p.y.empty()
}
