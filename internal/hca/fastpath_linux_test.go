//go:build !adverb_portable

package hca

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
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

// TestFastPath: short SENDs bring what they should by the fast path, and so do those that are lent.
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
				t.Errorf("the SEND of %d bytes has brought %d, immediate data %d, or other bytes", n, wc.ByteLen, wc.Imm)
			}
			p.want(p.x)
			p.answer()
		}
	}
	if n := p.x.impl().count("shm_fast_sends"); n < 12 { // at first, what is long is not lent, and so takes none
		t.Errorf("%d SENDs took the fast path, want most of them to", n)
	}
	if n := p.net.Stats().Lost; n != 0 {
		t.Errorf("%d packets went by the network", n)
	}
}

// TestFastAnswer: the answer to a message acknowledges it. Where there is none, the next poll that finds nothing does.
func TestFastAnswer(t *testing.T) {
	p := newLanePair(t, options{driven: true})
	p.meet()
	for _, e := range []*end{p.x, p.y} {
		e.impl().out.eng.napping.Store(true)
		defer e.impl().out.eng.napping.Store(false)
	}
	sent := func() uint64 {
		q := p.y.impl()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.traffic.sent
	}
	before := sent()
	p.y.recv(verbs.RecvWR{}, verbs.RecvWR{})
	p.x.recv(verbs.RecvWR{})
	p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	p.y.next()
	if n := sent() - before; n != 0 {
		t.Errorf("%d packets left before the answer, want none", n)
	}
	p.y.send(verbs.SendWR{Op: verbs.OpSend})
	if n := sent() - before; n != 1 {
		t.Errorf("the answer and its acknowledgement are %d packets, want 1", n)
	}
	for _, want := range []verbs.WCOpcode{verbs.WCSend, verbs.WCRecv} {
		if wc := p.x.next(); wc.Op != want {
			t.Errorf("%v completes, want %v", wc.Op, want)
		}
	}
	p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	p.y.next()
	if n := sent() - before; n != 1 {
		t.Errorf("%d packets have left, want the acknowledgement to wait", n)
	}
	p.y.empty()
	if n := sent() - before; n != 2 {
		t.Errorf("%d packets have left after a poll that found nothing, want 2", n)
	}
	if wc := p.x.next(); wc.Op != verbs.WCSend {
		t.Errorf("%v completes, want %v", wc.Op, verbs.WCSend)
	}
}

// TestFastRecalled: an acknowledgement counts though the message that it came with lies in memory that its sender has
// taken back meanwhile.
func TestFastRecalled(t *testing.T) {
	p := newLanePair(t, options{driven: true, untimed: true})
	p.meet()
	const size = 40_000
	mine, theirs := p.x.mr(size), p.y.mr(size)
	message := func(from *verbs.MR) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{from.SGE(0, size)}}
	}
	p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, size)}})
	p.x.send(message(mine)) // so that y knows of the memory
	p.want(p.y)
	p.want(p.x)
	p.answer()
	p.x.impl().out.eng.napping.Store(true)
	defer p.x.impl().out.eng.napping.Store(false)
	p.x.recv(verbs.RecvWR{})
	p.x.impl().gather.answers = true
	p.y.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	p.want(p.x)
	goOn := p.y.standStill()
	p.x.send(message(mine))
	if p.x.impl().gather.owes || p.x.lent() != 1 {
		t.Errorf("the acknowledgement waits: %v, and %d messages are lent; want it to go with one that is", p.x.impl().gather.owes, p.x.lent())
	}
	p.x.must(mine.Close())
	goOn()
	if wc := p.want(p.y); wc.Op != verbs.WCSend {
		t.Errorf("%v completes, want %v", wc.Op, verbs.WCSend)
	}
}

// TestOneGoroutine: a program that polls at one end only gets the acknowledgement that waits for a poll at the other. No
// further one waits there for a time.
func TestOneGoroutine(t *testing.T) {
	p := newLanePair(t, options{driven: true})
	p.meet()
	q := p.y.impl()
	q.out.eng.napping.Store(true)
	defer q.out.eng.napping.Store(false)
	p.y.recv(verbs.RecvWR{}, verbs.RecvWR{})
	for i := range 2 {
		q.gather.answers = true
		p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
		p.y.next()
		if owes := q.gather.owes; owes != (i == 0) {
			t.Errorf("message %d: the acknowledgement waits: %v, want the first one to", i, owes)
		}
		n := 0
		for limit := time.Now().Add(patience); n == 0 && time.Now().Before(limit); {
			var err error
			n, err = p.x.cq.Poll(p.wc[:])
			p.x.must(err)
		}
		if n == 0 || p.wc[0].Op != verbs.WCSend {
			t.Fatalf("%d completions, %v; want that of the SEND", n, p.wc[0].Op)
		}
	}
}

// TestFastEnds: what took the fast path by a lane that ends goes on by the network.
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
	put := func(b []byte, packets int) {
		o := p.outs[simAddr(2)]
		o.Lock()
		o.Commit(copy(o.Reserve(len(b)), b), packets)
		o.Publish()
		o.Unlock()
		p.drain(p.y)
	}
	for name, b := range map[string][]byte{
		"short":      record(func([]byte) {})[:fastSize-1],
		"other QPN":  record(func(b []byte) { b[4] ^= 1 }),
		"PSN before": record(func(b []byte) { binary.NativeEndian.PutUint32(b[8:], firstPSN) }),
		"PSN beyond": record(func(b []byte) { binary.NativeEndian.PutUint32(b[8:], firstPSN+2) }),
		"no message": record(func(b []byte) { b[1] = 0 }),
		"an ACK of what was not sent": record(func(b []byte) {
			b[1] = fastACK
			binary.NativeEndian.PutUint32(b[12:], firstPSN+7)
		}),
		"an ACK of no kind": record(func(b []byte) {
			b[1] = fastACK
			binary.NativeEndian.PutUint32(b[16:], 0x40<<24)
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
	p.outs[simAddr(2)] = p.lane(t, simAddr(9), simAddr(2)) // of another
	put(record(func([]byte) {}), 1)
	p.y.empty()
	p.outs[simAddr(2)] = o
	put(record(func([]byte) {}), 1)
	if wc := p.want(p.y); wc.ByteLen != 8 || wc.Op != verbs.WCRecv {
		t.Errorf("%+v, want the message that is right", wc)
	}
}
