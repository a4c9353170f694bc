package iwarp

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestImmediateOfNothing: immediate data of a WRITE of no bytes say so, whatever WRITEs went before.
func TestImmediateOfNothing(t *testing.T) {
	a, b := newPair(t, deep, deep, 0)
	src, dst := a.region(300, everything), b.region(300, everything)
	write := func(id uint64, op verbs.Opcode, n int) verbs.SendWR {
		return verbs.SendWR{ID: id, Op: op, SGList: []verbs.SGE{sge(src, 0, n)}, Remote: remote(dst, 0)}
	}
	for id := range uint64(4) {
		b.recv(id)
	}
	a.post(write(0, verbs.OpRDMAWrite, 300), write(1, verbs.OpRDMAWriteWithImm, 0), write(2, verbs.OpRDMAWriteWithImm, 0),
		write(3, verbs.OpRDMAWriteWithImm, 7), write(4, verbs.OpRDMAWrite, 5), write(5, verbs.OpRDMAWriteWithImm, 9))
	runAll(a, b)
	a.success(0, 1, 2, 3, 4, 5)
	for i, wc := range b.success(0, 1, 2, 3) {
		if want := []uint32{0, 0, 7, 9}[i]; wc.ByteLen != want {
			t.Errorf("immediate data %d: %d bytes, want %d", i, wc.ByteLen, want)
		}
	}
}

// TestFailureBesideAnswer: where a local operation fails while a READ of the peer waits for its answer, the connection ends,
// and nothing is sent that the peer has not asked for.
func TestFailureBesideAnswer(t *testing.T) {
	a, b := newPair(t, deep, deep, 0)
	src, dst := a.region(64, everything), b.region(64, everything)
	read := func(id uint64) verbs.SendWR {
		return verbs.SendWR{ID: id, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(dst, 0, 64)}, Remote: remote(src, 0)}
	}
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite}) // the initiator speaks first
	b.post(read(2))
	runAll(a, b)
	a.success(1)
	b.success(2) // so this end's own work is next
	b.post(read(3))
	b.transmit(1 << 20)
	a.receive(b, 1<<20, false)
	a.post(verbs.SendWR{ID: 4, Op: verbs.OpLocalInv, InvalidateRKey: 0x77}) // no key of a window
	if a.transmit(1 << 20) {
		t.Errorf("%d bytes follow the failure: % x", len(a.out), a.out)
	}
	if len(a.wcs) != 1 || a.wcs[0].Status != verbs.WCMWBindErr || !a.q.Finished() {
		t.Errorf("finished %v, completions %+v, want %v", a.q.Finished(), a.wcs, verbs.WCMWBindErr)
	}
}

// TestRefusedLate: the word of an atomic goes before the turn of the atomic comes. The SEND before it arrives whole and
// completes, though the stream takes it in parts, and then the peer is told.
func TestRefusedLate(t *testing.T) {
	a, b := newPair(t, deep, deep, 0)
	src, word, gone, dst := a.region(64, everything), a.region(8, everything), a.region(8, everything), b.region(64, everything)
	add := func(id uint64, to *mem.MR) verbs.SendWR {
		return verbs.SendWR{ID: id, Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{sge(dst, 0, 8)}, Remote: remote(to, 0)}
	}
	b.recv(1, sge(dst, 0, 64))
	a.post(verbs.SendWR{ID: 2, Op: verbs.OpRDMAWrite}) // the initiator speaks first
	b.post(add(3, word))
	runAll(a, b)
	a.success(2)
	b.success(3) // so this end's own work is next
	b.post(add(4, gone))
	b.transmit(1 << 20)
	a.receive(b, 1<<20, false)
	a.ok(gone.Close())
	a.post(verbs.SendWR{ID: 5, Op: verbs.OpSend, SGList: []verbs.SGE{sge(src, 0, 64)}})
	for a.transmit(10) {
	}
	a.success(5)
	b.receive(a, 1<<20, false)
	if b.q.TerminatesReceived != 1 || len(b.wcs) != 2 || b.wcs[0].Status != verbs.WCSuccess || b.wcs[1].Status != verbs.WCRemAccessErr {
		t.Errorf("%d Terminates, completions %+v, want a success and %v", b.q.TerminatesReceived, b.wcs, verbs.WCRemAccessErr)
	}
}

// TestDepthBehindSend: a READ that the connection does not allow fails once the work requests before it have gone.
func TestDepthBehindSend(t *testing.T) {
	a, b := newPair(t, mpa.Offer{}, mpa.Offer{}, mpa.RTRWrite)
	b.recv(1)
	a.post(verbs.SendWR{ID: 2, Op: verbs.OpSend},
		verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(b.region(8, everything), 0)})
	runAll(a, b)
	if len(a.wcs) != 2 || a.wcs[0].Status != verbs.WCSuccess || a.wcs[1].Status != verbs.WCLocQPOpErr {
		t.Errorf("got %+v, want the SEND's success, and then %v", a.wcs, verbs.WCLocQPOpErr)
	}
	b.success(1)
}
