package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// success fails the test unless the completions of an end are successes with these IDs.
func (e *testEnd) success(ids ...uint64) []verbs.WC {
	e.t.Helper()
	wcs := e.wcs
	e.wcs = nil
	if len(wcs) != len(ids) {
		e.t.Fatalf("%d completions (%+v), want %d; the QP is in %v: %v", len(wcs), wcs, len(ids), e.q.State(), e.q.Failure())
	}
	for i, wc := range wcs {
		if wc.ID != ids[i] || wc.Status != verbs.WCSuccess {
			e.t.Fatalf("completion %d: %+v, want the success of %d", i, wc, ids[i])
		}
	}
	return wcs
}

// TestOperations carries out each operation, with CRCs and without.
func TestOperations(t *testing.T) {
	for _, crc := range []bool{false, true} {
		x := deep
		x.CRC = crc
		a, b := newPair(t, x, deep, mpa.RTRWrite)
		src, dst := a.region(200000, everything), b.region(200000, everything)
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(i * 7)
		}

		b.recv(1, sge(dst, 0, 100), sge(dst, 200, 150000))
		a.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGList: []verbs.SGE{sge(src, 0, 70000), sge(src, 80000, 5)}})
		runAll(a, b)
		a.success(2)
		if wc := b.success(1)[0]; wc.ByteLen != 70005 || wc.Op != verbs.WCRecv {
			t.Errorf("receive: %+v, want 70005 bytes", wc)
		}
		if !bytes.Equal(dst.Bytes()[:100], src.Bytes()[:100]) || !bytes.Equal(dst.Bytes()[200:200+69900], src.Bytes()[100:70000]) ||
			!bytes.Equal(dst.Bytes()[200+69900:][:5], src.Bytes()[80000:80005]) {
			t.Error("the SEND's data differ")
		}

		a.post(verbs.SendWR{ID: 3, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{sge(src, 11, 150000)}, Remote: remote(dst, 1000)},
			verbs.SendWR{ID: 4, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(src, 0, 50), sge(src, 190000, 5000)}, Remote: remote(dst, 2000)})
		runAll(a, b)
		wcs := a.success(3, 4)
		if wcs[1].ByteLen != 5050 {
			t.Errorf("READ: %+v, want 5050 bytes", wcs[1])
		}
		if !bytes.Equal(src.Bytes()[:50], dst.Bytes()[2000:2050]) || !bytes.Equal(src.Bytes()[190000:195000], dst.Bytes()[2050:7050]) {
			t.Error("the READ's data differ")
		}

		word := dst.Bytes()[64:72]
		binary.NativeEndian.PutUint64(word, 40)
		a.post(verbs.SendWR{ID: 5, Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{sge(src, 8, 8)}, Remote: remote(dst, 64), CompareAdd: 2},
			verbs.SendWR{ID: 6, Op: verbs.OpAtomicCmpSwap, SGList: []verbs.SGE{sge(src, 16, 8)}, Remote: remote(dst, 64), CompareAdd: 42, Swap: 7})
		runAll(a, b)
		for _, wc := range a.success(5, 6) {
			if wc.ByteLen != 8 {
				t.Errorf("an atomic has got %d bytes, want 8", wc.ByteLen)
			}
		}
		if x, y, z := binary.NativeEndian.Uint64(src.Bytes()[8:]), binary.NativeEndian.Uint64(src.Bytes()[16:]), binary.NativeEndian.Uint64(word); x != 40 || y != 42 || z != 7 {
			t.Errorf("atomics have found %d and %d, and left %d; want 40, 42 and 7", x, y, z)
		}

		b.recv(7)
		b.recv(8)
		a.post(verbs.SendWR{ID: 9, Op: verbs.OpRDMAWriteWithImm, Imm: 0xabcd, SGList: []verbs.SGE{sge(src, 0, 300)}, Remote: remote(dst, 0)},
			verbs.SendWR{ID: 10, Op: verbs.OpRDMAWriteWithImm, Imm: 5, Flags: verbs.SendSolicited})
		runAll(a, b)
		a.success(9, 10)
		got := b.success(7, 8)
		if got[0].Imm != 0xabcd || got[0].ByteLen != 300 || got[0].Op != verbs.WCRecvRDMAWithImm || got[1].Imm != 5 || got[1].ByteLen != 0 {
			t.Errorf("immediate data: %+v, want 0xabcd with 300 bytes, and 5 with none", got)
		}

		b.recv(11, sge(dst, 0, 64))
		a.post(verbs.SendWR{ID: 12, Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("inline")})
		runAll(a, b)
		a.success(12)
		b.success(11)
		if string(dst.Bytes()[:6]) != "inline" {
			t.Errorf("inline data: got %q, want \"inline\"", dst.Bytes()[:6])
		}
	}
}

// TestRandomTraffic has both ends post random work requests, takes the stream in pieces of any size, and compares the
// memory.
func TestRandomTraffic(t *testing.T) {
	first := linktest.Seed(t)
	for round := range uint64(10) {
		seed := first + round
		r := rand.New(rand.NewPCG(seed, 0))
		x := deep
		y := deep
		x.CRC, x.Markers, y.Markers = r.IntN(2) == 0, r.IntN(3) == 0, r.IntN(3) == 0
		a, b := newPair(t, x, y, []mpa.RTR{0, mpa.RTRWrite, mpa.RTRRead, mpa.RTRFPDU}[r.IntN(4)])
		const size = 1 << 16
		type state struct {
			e        *testEnd
			own, far *mem.MR // far is written by the peer, in order, from its own
			seen     *mem.MR // and this end reads the peer's own to here
			filled   int
			read     int
			ids      []uint64
		}
		ends := [2]*state{{e: a}, {e: b}}
		for _, s := range ends {
			s.own, s.far, s.seen = s.e.region(size, everything), s.e.region(size, everything), s.e.region(size, everything)
			for i := range s.own.Bytes() {
				s.own.Bytes()[i] = byte(r.Uint32())
			}
		}
		for step := range 40 {
			i := r.IntN(2)
			if step == 0 {
				i = 0 // the initiator speaks first
			}
			s, peer := ends[i], ends[1-i]
			if n := len(s.ids) - len(s.e.wcs); n < 4 {
				n := r.IntN(1 << r.IntN(15))
				if s.filled+n > size {
					continue
				}
				id := uint64(step)
				wr := verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{sge(s.own, s.filled, n)}, Remote: remote(peer.far, s.filled)}
				switch r.IntN(4) {
				case 0: // the peer's receive is at the same place
					wr.Op, wr.Remote = verbs.OpSend, verbs.RemoteAddr{}
					peer.e.recv(1000+id, sge(peer.far, s.filled, n))
					peer.ids = append(peer.ids, 1000+id)
				case 1: // reads the peer's memory
					wr.Op, wr.SGList, wr.Remote = verbs.OpRDMARead, []verbs.SGE{sge(s.seen, s.read, n)}, remote(peer.own, s.read)
					if s.read+n > size {
						continue
					}
				}
				s.e.post(wr)
				if wr.Op == verbs.OpRDMARead {
					s.read += n
				} else {
					s.filled += n
				}
				s.ids = append(s.ids, id)
			}
			if r.IntN(3) == 0 {
				run(r, a, b)
			}
		}
		run(r, a, b)
		runAll(a, b)
		for i, s := range ends {
			if s.e.q.State() != verbs.QPStateRTS {
				t.Fatalf("seed %d: end %d is in %v: %v, want RTS", seed, i, s.e.q.State(), s.e.q.Failure())
			}
			if len(s.e.wcs) != len(s.ids) {
				t.Fatalf("seed %d: end %d has %d completions, want %d", seed, i, len(s.e.wcs), len(s.ids))
			}
			for _, wc := range s.e.wcs {
				if wc.Status != verbs.WCSuccess {
					t.Fatalf("seed %d: end %d: %v, want success", seed, i, wc.Err())
				}
			}
			peer := ends[1-i]
			if !bytes.Equal(s.own.Bytes()[:s.filled], peer.far.Bytes()[:s.filled]) || !bytes.Equal(s.seen.Bytes()[:s.read], peer.own.Bytes()[:s.read]) {
				t.Errorf("seed %d: the %d bytes that end %d has sent differ, or the %d that it has read, want the same at both ends", seed, s.filled, i, s.read)
			}
			if s.e.q.Finished() || s.e.q.CRCErrors > 0 {
				t.Errorf("seed %d: end %d is finished, or has seen CRC errors, want neither", seed, i)
			}
		}
	}
}

// TestTerminates checks which error each mistake of a peer leads to: the codes of RFC 5040 and RFC 5041
// in the Terminate message, and the statuses that the other end makes of them.
func TestTerminates(t *testing.T) {
	for _, c := range []struct {
		name   string
		wr     func(a, b *testEnd, dst *mem.MR) verbs.SendWR
		access verbs.Access // of dst
		code   Code
		status verbs.WCStatus // of the requester's failure
		fails  bool           // the work request itself fails
		event  verbs.EventType
		recv   verbs.WCStatus
	}{
		{name: "no receive", code: untaggedNoBuffer, status: verbs.WCRNRRetryExceeded, event: verbs.EventQPReqErr,
			wr: func(a, b *testEnd, _ *mem.MR) verbs.SendWR { return verbs.SendWR{Op: verbs.OpSend} }},
		{name: "receive too short", code: untaggedTooLong, status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr, access: everything, recv: verbs.WCLocLenErr,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				b.recv(1, sge(dst, 0, 10))
				return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: make([]byte, 11)}
			}},
		{name: "write to an unknown key", code: taggedInvalidSTag, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr,
			wr: func(a, b *testEnd, _ *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{1}, Remote: verbs.RemoteAddr{RKey: 0x1234}}
			}},
		{name: "write beyond the end", code: taggedBounds, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, access: everything,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{1, 2}, Remote: remote(dst, 99)}
			}},
		{name: "write to what may be read", code: rdmapAccess, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, access: verbs.AccessLocalWrite | verbs.AccessRemoteRead,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{1}, Remote: remote(dst, 0)}
			}},
		{name: "write that the QP does not allow", code: rdmapAccess, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, access: everything,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				b.q.attr.Access &^= verbs.AccessRemoteWrite
				return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{1}, Remote: remote(dst, 0)}
			}},
		{name: "read that the QP does not allow", code: rdmapAccess, status: verbs.WCRemAccessErr, fails: true, event: verbs.EventQPAccessErr, access: everything,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				b.q.attr.Access &^= verbs.AccessRemoteRead
				return verbs.SendWR{Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(dst, 0)}
			}},
		{name: "write to memory of another PD", code: taggedNotAssociated, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr,
			wr: func(a, b *testEnd, _ *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{1}, Remote: remote(a.region(8, everything), 0)}
			}},
		{name: "read of an unknown key", code: rdmapInvalidSTag, status: verbs.WCRemAccessErr, fails: true, event: verbs.EventQPAccessErr,
			wr: func(a, b *testEnd, _ *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: verbs.RemoteAddr{RKey: 0x1234}}
			}},
		{name: "read beyond the end", code: rdmapBounds, status: verbs.WCRemAccessErr, fails: true, event: verbs.EventQPAccessErr, access: everything,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(dst, 95)}
			}},
		{name: "atomic without the right", code: rdmapAccess, status: verbs.WCRemAccessErr, fails: true, event: verbs.EventQPAccessErr, access: verbs.AccessLocalWrite | verbs.AccessRemoteRead,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(dst, 0)}
			}},
		{name: "atomic that the QP does not allow", code: rdmapAccess, status: verbs.WCRemAccessErr, fails: true, event: verbs.EventQPAccessErr, access: everything,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				b.q.attr.Access &^= verbs.AccessRemoteAtomic
				return verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(dst, 0)}
			}},
		{name: "invalidation of no window", code: rdmapCannotInvalidate, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, access: everything, recv: verbs.WCRemInvReqErr,
			wr: func(a, b *testEnd, dst *mem.MR) verbs.SendWR {
				b.recv(1)
				return verbs.SendWR{Op: verbs.OpSendWithInv, InvalidateRKey: dst.RKey()}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newPair(t, deep, deep, mpa.RTRWrite)
			var dst *mem.MR
			if c.access != 0 {
				dst = b.region(100, c.access)
			}
			wr := c.wr(a, b, dst)
			wr.ID = 5
			a.post(wr)
			runAll(a, b)
			if b.q.State() != verbs.QPStateErr || a.q.State() != verbs.QPStateErr {
				t.Fatalf("the QPs are in %v and %v, want both in error", a.q.State(), b.q.State())
			}
			if !errors.Is(a.q.Failure(), c.status) || !strings.Contains(a.q.Failure().Error(), c.code.String()) {
				t.Errorf("the requester's failure is %v, want %v with %v", a.q.Failure(), c.status, c.code)
			}
			want := verbs.WCSuccess // iWARP: it was sent
			if c.fails {
				want = c.status
			}
			if len(a.wcs) != 1 || a.wcs[0].Status != want {
				t.Errorf("the requester's completions are %+v, want one with %v", a.wcs, want)
			}
			if ev := b.q.Events(); len(ev) != 1 || ev[0].Type != c.event || ev[0].Cause == nil {
				t.Errorf("the responder's events are %+v, want %v", ev, c.event)
			}
			// The connection manager then takes the QP to the error state, in which it is. That is not the cause.
			a.ok(a.q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
			if !errors.Is(a.q.Failure(), c.status) {
				t.Errorf("the requester's failure is %v once the QP was told to fail, want %v still", a.q.Failure(), c.status)
			}
			if c.recv != 0 && (len(b.wcs) != 1 || b.wcs[0].Status != c.recv) {
				t.Errorf("the responder's completions are %+v, want one with %v", b.wcs, c.recv)
			}
			if !b.q.Finished() || a.q.TerminatesReceived != 1 || b.q.TerminatesSent != 1 {
				t.Errorf("finished %v, Terminates %d received, %d sent; want one", b.q.Finished(), a.q.TerminatesReceived, b.q.TerminatesSent)
			}
		})
	}
}

// TestSpeaksFirst checks RFC 5044: a responder sends nothing before the initiator has; and RFC 6581: the
// initiator's empty message comes without a work request. An initiator that has not agreed to send one is ready after a while.
func TestSpeaksFirst(t *testing.T) {
	for _, rtr := range []mpa.RTR{0, mpa.RTRWrite, mpa.RTRRead, mpa.RTRFPDU} {
		a, b := newPair(t, deep, deep, rtr)
		mr := a.region(10, everything)
		a.recv(1, sge(mr, 0, 10))
		b.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("first")})
		if b.transmit(1 << 20) {
			t.Fatalf("RTR %d: the responder has spoken first, want the initiator first", rtr)
		}
		if rtr == 0 {
			runAll(a, b)
			if len(b.wcs) > 0 {
				t.Error("without RTR: the responder has sent, and the initiator has not")
			}
			b.recv(3)
			a.post(verbs.SendWR{ID: 4, Op: verbs.OpSend})
			runAll(a, b)
			a.success(4, 1)
			b.success(3, 2)
			speaks(t)
			continue
		}
		runAll(a, b)
		a.success(1)
		b.success(2)
		if string(mr.Bytes()[:5]) != "first" {
			t.Errorf("RTR %d: got %q, want first", rtr, mr.Bytes()[:5])
		}
		// The numbers of messages go on as if nothing had been before.
		b.recv(5)
		a.post(verbs.SendWR{ID: 6, Op: verbs.OpSend}, verbs.SendWR{ID: 7, Op: verbs.OpRDMARead})
		runAll(a, b)
		a.success(6, 7)
		b.success(5)
	}
}

// speaks checks that a responder may speak first when told, and not to an initiator that is to say when it is ready.
func speaks(t *testing.T) {
	for _, rtr := range []mpa.RTR{0, mpa.RTRWrite} {
		a, b := newPair(t, deep, deep, rtr)
		a.recv(1)
		b.post(verbs.SendWR{ID: 2, Op: verbs.OpSend})
		b.q.Speak()
		if spoke := b.transmit(1 << 20); spoke != (rtr == 0) {
			t.Errorf("RTR %d: the responder has spoken first: %v", rtr, spoke)
		}
	}
}

// TestDepth checks that no more READs are outstanding than was agreed on, and that a fence waits.
func TestDepth(t *testing.T) {
	a, b := newPair(t, mpa.Offer{IRD: 2, ORD: 2}, mpa.Offer{IRD: 2, ORD: 2}, mpa.RTRWrite)
	mr, far := a.region(64, everything), b.region(64, everything)
	read := func(id uint64) verbs.SendWR {
		return verbs.SendWR{ID: id, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(mr, 0, 8)}, Remote: remote(far, 0)}
	}
	b.recv(1)
	a.post(read(1), read(2), read(3), verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.SendFence})
	for a.transmit(1 << 20) {
	}
	if a.q.sq.reading != 2 {
		t.Errorf("%d READs are outstanding, want 2", a.q.sq.reading)
	}
	runAll(a, b)
	a.success(1, 2, 3, 4)
	b.success(1)

	a, b = newPair(t, mpa.Offer{IRD: 2, ORD: 2}, mpa.Offer{}, mpa.RTRWrite)
	mr, far = a.region(64, everything), b.region(64, everything)
	a.post(read(9))
	runAll(a, b)
	if len(a.wcs) != 1 || a.wcs[0].Status != verbs.WCLocQPOpErr {
		t.Errorf("a READ at depth 0: %+v, want %v", a.wcs, verbs.WCLocQPOpErr)
	}
}

// TestLocalInOrder checks that a local operation takes effect once all that was posted before it is done.
func TestLocalInOrder(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(b.region(8, everything), 0)},
		verbs.SendWR{ID: 2, Op: verbs.OpLocalInv, InvalidateRKey: 0x77}) // no key of a window
	for a.transmit(1 << 20) {
	}
	if a.q.State() != verbs.QPStateRTS || len(a.wcs) > 0 {
		t.Errorf("the READ has no answer yet: the QP is in %v with completions %+v, want RTS and none", a.q.State(), a.wcs)
	}
	runAll(a, b)
	if len(a.wcs) != 2 || a.wcs[0].Status != verbs.WCSuccess || a.wcs[1].Status != verbs.WCMWBindErr {
		t.Errorf("got %+v, want the READ's success, and then %v", a.wcs, verbs.WCMWBindErr)
	}
}

// TestBadSGE checks that a local mistake is the work request's, after those before it are done.
func TestBadSGE(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	b.recv(1)
	b.recv(2)
	a.post(verbs.SendWR{ID: 3, Op: verbs.OpSend},
		verbs.SendWR{ID: 4, Op: verbs.OpSend, SGList: []verbs.SGE{{Addr: 1, Length: 1, LKey: 0x77}}},
		verbs.SendWR{ID: 5, Op: verbs.OpSend})
	runAll(a, b)
	var got []verbs.WCStatus
	for _, wc := range a.wcs {
		got = append(got, wc.Status)
	}
	if len(got) != 3 || got[0] != verbs.WCSuccess || got[1] != verbs.WCLocProtErr || got[2] != verbs.WCFlushErr {
		t.Errorf("got %v, want success, WC_LOC_PROT_ERR, WC_WR_FLUSH_ERR", got)
	}
	if b.q.State() != verbs.QPStateErr || b.q.TerminatesReceived != 1 {
		t.Errorf("the peer is in %v and has %d Terminates, want ERR and 1", b.q.State(), b.q.TerminatesReceived)
	}
}

// TestSignalAll checks that a QP which signals all makes a completion for a work request that does not ask for one.
func TestSignalAll(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	a.q.cfg.SignalAll = true
	a.ok(a.q.Post(&verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite}))
	runAll(a, b)
	a.success(1)
}

// TestSolicited checks that the peer's wish for an event comes with its message, and with no other.
func TestSolicited(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	for i, flags := range []verbs.SendFlags{0, verbs.SendSolicited} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
			b.recv(uint64(i))
			a.post(verbs.SendWR{Op: op, Flags: flags})
			for a.transmit(1 << 20) {
			}
			b.q.Receive(a.out)
			a.out = nil
			if cs := b.q.Completions(); len(cs) != 1 || cs[0].Solicited != (flags != 0) {
				t.Errorf("%v with flags %v: got completions %+v, want one that is solicited: %v", op, flags, cs, flags != 0)
			}
		}
	}
}

// TestPostInError checks that the queue of a QP in error is as long as ever: a posted work request is flushed, and
// takes its place until somebody polls.
func TestPostInError(t *testing.T) {
	a, _ := newPair(t, deep, deep, mpa.RTRWrite)
	a.ok(a.q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	for range testWRs {
		a.post(verbs.SendWR{Op: verbs.OpSend})
	}
	if err := a.q.Post(&verbs.SendWR{Op: verbs.OpSend}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("post to a queue of flushed work requests: got error %v, want %v", err, verbs.ErrQueueFull)
	}
	a.take()
	a.post(verbs.SendWR{Op: verbs.OpSend})
	if a.take(); len(a.wcs) != testWRs+1 || a.wcs[testWRs].Status != verbs.WCFlushErr {
		t.Errorf("got %d completions, the last %+v, want %d, all flushed", len(a.wcs), a.wcs[len(a.wcs)-1], testWRs+1)
	}
}

// TestInlineRefused checks that inline data which cannot be read are refused at once, and that nothing of them is left
// in the queue.
func TestInlineRefused(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	mr := b.region(8, everything)
	b.recv(1, sge(mr, 0, 8))
	b.recv(2, sge(mr, 0, 8))
	wrong := verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, SGList: []verbs.SGE{{Addr: 1, Length: 1, LKey: 0x77}}}
	if err := a.q.Post(&wrong); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("inline data of an unknown key: got error %v, want %v", err, verbs.ErrInvalid)
	}
	a.post(verbs.SendWR{ID: 4, Op: verbs.OpSend})
	runAll(a, b)
	a.success(4)
	b.success(1)
}

// TestDraining checks that a QP in SQD drains until the posted work requests are done, and no longer.
func TestDraining(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	b.recv(1)
	a.post(verbs.SendWR{ID: 2, Op: verbs.OpSend})
	a.ok(a.q.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
	if !a.q.Attr().SQDraining {
		t.Error("SQDraining: got false before the SEND is done, want true")
	}
	runAll(a, b)
	a.success(2)
	if a.q.Attr().SQDraining {
		t.Error("SQDraining: got true once the SEND is done, want false")
	}

	// The connection ends once the QP is finished, so the answer to a READ has to be there.
	a, b = newPair(t, deep, deep, mpa.RTRWrite)
	a.post(verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(a.region(8, everything), 0, 8)}, Remote: remote(b.region(8, everything), 0)})
	a.ok(a.q.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
	for a.transmit(1 << 20) {
	}
	if a.q.Finished() || !a.q.Attr().SQDraining {
		t.Errorf("a READ without its answer: got finished %v, draining %v, want false and true", a.q.Finished(), a.q.Attr().SQDraining)
	}
	runAll(a, b)
	a.success(3)
}

// TestCRC checks that a changed byte ends the connection, and is placed nowhere.
func TestCRC(t *testing.T) {
	x := deep
	x.CRC = true
	a, b := newPair(t, x, deep, mpa.RTRWrite)
	dst := b.region(8, everything)
	runAll(a, b)
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte("changed"), Remote: remote(dst, 0)})
	a.transmit(1 << 20)
	a.out[len(a.out)-7] ^= 4
	runAll(a, b)
	if b.q.CRCErrors != 1 || !errors.Is(a.q.Failure(), mpaCRC.status()) || !bytes.Equal(dst.Bytes(), make([]byte, 8)) {
		t.Errorf("CRC errors %d, the peer's failure %v, memory %q; want 1, %v and none", b.q.CRCErrors, a.q.Failure(), dst.Bytes(), mpaCRC.status())
	}
}

// TestLost checks the end of a stream: in order between messages, an error inside of one.
func TestLost(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	runAll(a, b)
	if !a.q.Lost(io.EOF) || a.q.State() != verbs.QPStateRTS {
		t.Errorf("an end between messages: the QP is in %v, want RTS", a.q.State())
	}
	b.recv(1, sge(b.region(100, everything), 0, 100))
	a.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: make([]byte, 50)})
	a.transmit(60)
	b.receive(a, 60, false)
	if b.q.Lost(io.EOF) || b.q.State() != verbs.QPStateErr {
		t.Errorf("an end inside a message: the QP is in %v, want ERR", b.q.State())
	}
	b.take()
	if len(b.wcs) != 1 || b.wcs[0].Status != verbs.WCFlushErr {
		t.Errorf("the receive of the message: %+v, want it flushed", b.wcs)
	}
}

// TestAllocations holds the hot path to no allocation.
func TestAllocations(t *testing.T) {
	a, b := newPair(t, deep, deep, mpa.RTRWrite)
	src, dst := a.region(4096, everything), b.region(4096, everything)
	wr := verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{sge(src, 0, 4096)}, Remote: remote(dst, 0)}
	buf := make([]byte, 0, 1<<16)
	once := func() {
		if err := a.q.Post(&wr); err != nil {
			t.Fatal(err)
		}
		a.q.Fill(&a.v, 1<<16)
		buf = buf[:0]
		for _, p := range a.v.Bufs {
			buf = append(buf, p...)
		}
		a.q.Wrote(&a.v, len(buf))
		for _, c := range a.q.Completions() {
			c.Slots.Store(c.Freed)
		}
		if b.q.Receive(buf) != len(buf) {
			t.Fatal("not all is used")
		}
	}
	once()
	if n := testing.AllocsPerRun(100, once); n > 0 {
		t.Errorf("a WRITE of 4096 bytes allocates %v times, want never", n)
	}
}

// TestMarkers writes FPDUs with many markers, has a marker changed, and terminates a marked stream in the midst of
// posted work requests: RFC 5044 has the end of the stream decode too.
func TestMarkers(t *testing.T) {
	for _, crc := range []bool{false, true} {
		x, y := deep, deep
		x.CRC, x.Markers, y.Markers = crc, true, true
		a, b := newPair(t, x, y, mpa.RTRWrite)
		src, dst := a.region(1<<18, everything), b.region(1<<18, everything)
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(i * 7)
		}
		write := verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{sge(src, 0, 1<<18)}, Remote: remote(dst, 0)}
		a.post(write)
		runAll(a, b)
		a.success(1)
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Errorf("CRC %v: other bytes have come than were written, want the same", crc)
		}
		for i := 0; i < len(a.sent); i += 512 {
			if a.sent[i] != 0 || a.sent[i+1] != 0 || a.sent[i+3]&3 != 0 {
				t.Fatalf("CRC %v: no marker at byte %d: %x, want one", crc, i, a.sent[i:i+4])
			}
		}
		// b finds an error while a has more to send: its Terminate stands where the next FPDU was to.
		wrong := write
		wrong.Remote.RKey ^= 0xff00
		b.post(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{sge(dst, 0, 1<<18)}, Remote: remote(src, 0)})
		b.q.Fill(&b.v, 1<<20) // cut, and not written yet
		b.q.Wrote(&b.v, 0)
		a.post(wrong)
		runAll(a, b)
		if !errors.Is(a.q.Failure(), verbs.WCRemAccessErr) || a.q.TerminatesReceived != 1 {
			t.Errorf("CRC %v: after the peer's Terminate the failure is %v, want %v", crc, a.q.Failure(), verbs.WCRemAccessErr)
		}
	}
	y := deep
	y.Markers = true
	a, b := newPair(t, deep, y, mpa.RTRWrite)
	runAll(a, b)
	dst := b.region(1024, everything)
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{sge(a.region(1024, everything), 0, 1024)}, Remote: remote(dst, 0)})
	a.transmit(1 << 20)
	a.out[512-len(a.sent)+len(a.out)+3] ^= 8
	runAll(a, b)
	if !errors.Is(a.q.Failure(), mpaFrame.status()) || !strings.Contains(a.q.Failure().Error(), mpaFrame.String()) {
		t.Errorf("a marker was changed: the failure is %v, want %v", a.q.Failure(), mpaFrame)
	}
}

func FuzzDecodeTermMsg(f *testing.F) {
	f.Add((&TermMsg{Code: taggedBounds, Segment: 9, Header: &Header{Tagged: true, Op: Write}}).AppendTo(nil))
	f.Add((&TermMsg{Code: rdmapBounds, Header: &Header{QN: 1, MSN: 3, Op: ReadRequest}, Read: &ReadReq{Size: 4}}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeTermMsg(b)
		if err != nil {
			return
		}
		again, err := DecodeTermMsg(m.AppendTo(nil))
		if err != nil || again.Code != m.Code || (again.Header == nil) != (m.Header == nil) || (again.Read == nil) != (m.Read == nil) {
			t.Errorf("%+v is encoded as %+v, %v, want the same", m, again, err)
		}
	})
}
