package iwarp

import (
	"io"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestWakeBetweenMessages: the empty WRITE that wakes a peer goes between two messages. The peer counts the bytes of
// a WRITE for the immediate data behind it.
func TestWakeBetweenMessages(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	const n = 200 << 10 // more than one FPDU
	src, dst := a.region(n, everything), b.region(n, everything)
	b.recv(1)
	b.recv(2)
	for range 2 {
		a.post(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Imm: 9, SGList: []verbs.SGE{sge(src, 0, n)}, Remote: remote(dst, 0)})
	}
	for a.q.sq.head != a.q.sq.tail { // the peer has said nothing
		a.transmit(40 << 10)
		a.q.Wake()
	}
	a.transmit(1 << 20)
	empty := a.q.FPDUsSent
	for b.receive(a, 1<<20, false) {
	}
	for _, wc := range b.success(1, 2) {
		if wc.ByteLen != n {
			t.Errorf("the WRITE of %d bytes came as one of %d", n, wc.ByteLen)
		}
	}
	// The FPDUs of the two WRITEs, their immediate data, the one that says this end is ready, and some that wake.
	if least := uint64(2*(n/segmentData+1) + 2 + 1); empty <= least {
		t.Errorf("%d FPDUs went, want more than %d: nothing woke the peer", empty, least)
	}
}

// TestWakeOnlySilent: neither a peer that has spoken is woken, nor by an end that waits to be spoken to, nor by one that
// has said nothing.
func TestWakeOnlySilent(t *testing.T) {
	a, b := newPair(t, deep, deep, 0)
	a.q.Wake() // has said nothing: there is nothing to overlook
	b.q.Wake()
	if a.transmit(1<<20) || b.transmit(1<<20) {
		t.Error("an end that has said nothing wakes its peer")
	}
	b.recv(1)
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpSend})
	runAll(a, b)
	a.q.Wake()
	if !a.transmit(1 << 20) {
		t.Error("a peer that has said nothing is not woken")
	}
	a.recv(2)
	b.post(verbs.SendWR{ID: 2, Op: verbs.OpSend})
	runAll(a, b)
	a.q.Wake()
	if a.transmit(1 << 20) {
		t.Error("a peer that has spoken is woken")
	}
}

// TestAsksBeforeEnd: the stream ends once the peer has answered a last READ of no bytes, or has ended it itself. One that
// answers no READs is not asked.
func TestAsksBeforeEnd(t *testing.T) {
	sqd := func(e *testEnd) { e.ok(e.q.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState)) }
	for _, crc := range []bool{false, true} {
		offer := mpa.Offer{IRD: 4, ORD: 4, CRC: crc}
		a, b := newPair(t, offer, offer, mpa.RTRWrite)
		runAll(a, b)
		b.recv(1)
		a.post(verbs.SendWR{ID: 1, Op: verbs.OpSend})
		sqd(a)
		for a.transmit(1 << 20) {
		}
		if a.q.Finished() || !a.q.Asks() {
			t.Errorf("CRC %v: before the answer: finished %v, asks %v; want it to ask", crc, a.q.Finished(), a.q.Asks())
		}
		sqd(b) // both end
		runAll(a, b)
		for _, e := range []*testEnd{a, b} {
			if !e.q.Finished() || e.q.Asks() || e.q.HasOutput() {
				t.Errorf("CRC %v: after the answer: finished %v, asks %v; want the end", crc, e.q.Finished(), e.q.Asks())
			}
		}
		b.success(1)
	}

	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	runAll(a, b)
	sqd(a)
	for a.transmit(1 << 20) {
	}
	if !a.q.Lost(io.EOF) || !a.q.Finished() {
		t.Error("a peer that has ended the stream is waited for")
	}
	for _, ird := range []int{0, 1} { // and a program that wants no READs
		a, b := newPair(t, mpa.Offer{IRD: 4}, mpa.Offer{IRD: ird, ORD: 4}, mpa.RTRWrite)
		runAll(a, b)
		sqd(a)
		if asks := a.transmit(1 << 20); asks != (ird > 0) || a.q.Finished() == asks {
			t.Errorf("a peer that answers %d READs is asked: %v", ird, asks)
		}
	}
}
