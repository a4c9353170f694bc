package rnic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTransfers moves SENDs, WRITEs, READs and atomics both ways, over TCP and over another kind of stream,
// with CRCs and without, after each message by which an initiator can say that it is ready: RFC 6581.
func TestTransfers(t *testing.T) {
	for _, stream := range []string{"tcp", "wrapped"} {
		for _, crc := range []bool{false, true} {
			for _, rtr := range []mpa.RTR{mpa.RTRWrite, mpa.RTRRead, mpa.RTRFPDU} {
				t.Run(fmt.Sprint(stream, " crc=", crc, " rtr=", rtr), func(t *testing.T) {
					x, y := ends(t)
					a, b := tcpPair(t)
					if stream == "wrapped" {
						a, b = wrapped{a}, wrapped{b}
					}
					offer := deep
					offer.CRC = crc
					tx, ty := agree(t, offer, deep, func(f *mpa.Frame) { f.RTR = rtr })
					x.attach(a, tx)
					y.attach(b, ty)
					exchange(t, x, y, 3<<20)
				})
			}
		}
	}
}

// exchange has both ends do everything at the same time, with n bytes each.
func exchange(t *testing.T, x, y *end, n int) {
	t.Helper()
	type side struct {
		e                   *end
		src, dst, got, text *verbs.MR
	}
	sides := [2]side{}
	for i, e := range []*end{x, y} {
		sides[i] = side{e, e.mr(n), e.mr(n), e.mr(n), e.mr(64)}
		fill(sides[i].src.Bytes(), 3+i)
		e.recv(verbs.RecvWR{ID: 9, SGList: []verbs.SGE{sides[i].text.SGE(0, 64)}})
	}
	for i, s := range sides {
		peer := sides[1-i]
		s.e.send(
			verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{s.src.SGE(0, n)}, Remote: peer.dst.Remote(0)},
			verbs.SendWR{ID: 2, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{s.got.SGE(0, n)}, Remote: peer.src.Remote(0)},
			verbs.SendWR{ID: 3, Op: verbs.OpAtomicFetchAdd, Flags: signaled, SGList: []verbs.SGE{s.text.SGE(56, 8)}, Remote: peer.text.Remote(48), CompareAdd: 5},
			verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: signaled | verbs.SendInline, InlineData: []byte("hello")})
	}
	for i, s := range sides {
		var ids []uint64
		for range 5 {
			wc := s.e.done()
			if wc.ID == 9 {
				if wc.ByteLen != 5 {
					t.Errorf("end %d: a message of %d bytes, want 5", i, wc.ByteLen)
				}
				continue
			}
			ids = append(ids, wc.ID)
		}
		if len(ids) != 4 || ids[0] != 1 || ids[1] != 2 || ids[2] != 3 || ids[3] != 4 {
			t.Errorf("end %d: work requests completed in the order %v, want 1 to 4", i, ids)
		}
	}
	for i, s := range sides {
		peer := sides[1-i]
		switch {
		case !bytes.Equal(s.dst.Bytes(), peer.src.Bytes()):
			t.Errorf("end %d was written other bytes than the peer has, want the same", i)
		case !bytes.Equal(s.got.Bytes(), peer.src.Bytes()):
			t.Errorf("end %d has read other bytes than the peer has, want the same", i)
		case string(s.text.Bytes()[:5]) != "hello" || binary.NativeEndian.Uint64(s.text.Bytes()[48:]) != 5:
			t.Errorf("end %d has %q, want the message and the sum", i, s.text.Bytes())
		}
	}
}

// TestTurns reads in turns that end while bytes are there: nobody tells of them again.
func TestTurns(t *testing.T) {
	x, y := ends(t)
	x.prov.turn, y.prov.turn = 1, 1
	x.connect(y)
	src, dst := x.mr(1<<20), y.mr(1<<20)
	fill(src.Bytes(), 7)
	x.write(src, dst)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("other bytes have come than were written")
	}
}

// TestAttach checks the errors of Attach, and that bytes behind the MPA frame are used.
func TestAttach(t *testing.T) {
	e, peer := half(t)
	a, b := tcpPair(t)
	defer a.Close()
	defer b.Close()
	if err := e.prov.Attach(e.qp.QPN(), b, mpa.Terms{}, nil, nil); !errors.Is(err, verbs.ErrState) {
		t.Errorf("a second connection: %v, want %v", err, verbs.ErrState)
	}
	if err := e.prov.Attach(0xfffff, b, mpa.Terms{}, nil, nil); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("no such QP: %v, want %v", err, verbs.ErrNotFound)
	}
	peer.Close()
	if err := e.ended(); err != nil {
		t.Errorf("the peer has closed: %v, want the end in order", err)
	}

	e = newEnd(t, newDevice(t))
	mr := e.mr(8)
	e.recv(verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 8)}})
	_, terms := agree(t, deep, deep, nil)
	early := fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, []byte("early"))
	e.attach(b, terms, early...)
	if wc := e.done(); wc.ByteLen != 5 || string(mr.Bytes()[:5]) != "early" {
		t.Errorf("%d bytes %q, want early", wc.ByteLen, mr.Bytes())
	}
	cs, err := e.dev.PortCounters(1)
	if got, want := counts(t, cs, err)["port_rcv_data"], uint64(len(early)/dataUnit); got != want {
		t.Errorf("what has come early: port_rcv_data is %d, want %d", got, want)
	}
}

// fpdu makes an FPDU without a CRC.
func fpdu(h *iwarp.Header, body []byte) []byte {
	ulpdu := append(h.AppendTo(nil), body...)
	b := append(mpa.AppendLength(nil, len(ulpdu)), ulpdu...)
	return append(b, make([]byte, mpa.TrailerSize(len(ulpdu)))...)
}

// TestShutdown checks that work requests that were posted before the end are sent, and that both ends are told.
func TestShutdown(t *testing.T) {
	x, y := pair(t)
	src, dst := x.mr(1<<20), y.mr(1<<20)
	fill(src.Bytes(), 5)
	y.recv(verbs.RecvWR{ID: 2})
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 1<<20)}, Remote: dst.Remote(0)}, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: signaled})
	x.prov.Shutdown(x.qp.QPN())
	x.done()
	if wc := y.done(); wc.ID != 2 || !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Errorf("completion %+v, or other bytes than were written; want that of receive 2, and the same bytes", wc)
	}
	if err := y.ended(); err != nil {
		t.Errorf("the peer of who has ended: %v", err)
	}
	y.prov.Shutdown(y.qp.QPN())
	if err := x.ended(); err != nil {
		t.Errorf("who has ended: %v", err)
	}
}

// TestKill resets the connection as the system does for a program that is killed: posted work requests fail
// with the cause, and without any an event has the cause.
func TestKill(t *testing.T) {
	for _, posted := range []bool{true, false} {
		e, peer := half(t)
		mr := e.mr(64)
		e.recv(verbs.RecvWR{ID: 1})
		e.recv(verbs.RecvWR{ID: 2})
		if _, err := peer.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, nil)); err != nil {
			t.Fatal(err)
		}
		e.done()
		if posted {
			e.send(verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 64)}, Remote: verbs.RemoteAddr{VA: 1, RKey: 1}})
			if _, err := io.ReadFull(peer, make([]byte, 52)); err != nil {
				t.Fatal(err)
			}
		}
		e.must(peer.SetLinger(0))
		peer.Close()
		if err := e.ended(); err == nil {
			t.Error("the connection was reset, and has ended in order")
		}
		if posted {
			if wc := e.next(); wc.ID != 3 || wc.Status != verbs.WCRetryExceeded || wc.Cause == nil {
				t.Errorf("the READ under way: %+v, want %v", wc, verbs.WCRetryExceeded)
			}
		} else if ev := e.event(); ev.Type != verbs.EventQPFatal || ev.Cause == nil {
			t.Errorf("event %+v, want %v", ev, verbs.EventQPFatal)
		}
		if wc := e.next(); wc.ID != 2 || wc.Status != verbs.WCFlushErr {
			t.Errorf("the receive: %+v, want it flushed", wc)
		}
		if err := e.qp.Err(); !errors.Is(err, verbs.WCRetryExceeded) || e.qp.State() != verbs.QPStateErr {
			t.Errorf("the QP is in %v for %v, want %v for %v", e.qp.State(), err, verbs.QPStateErr, verbs.WCRetryExceeded)
		}
	}
}

// TestTerminateSent has a peer write to memory that is not there: it is told which segment was wrong, before the
// end of the stream, and the program has an event.
func TestTerminateSent(t *testing.T) {
	e, peer := half(t)
	wrong := iwarp.Header{Tagged: true, Last: true, Op: iwarp.Write, STag: 0x123400, TO: 64}
	if _, err := peer.Write(fpdu(&wrong, []byte("data"))); err != nil {
		t.Fatal(err)
	}
	b := rest(t, peer)
	h, n, err := iwarp.DecodeHeader(b[mpa.LengthSize:])
	if err != nil || h.Op != iwarp.Terminate || h.QN != 2 || h.MSN != 1 {
		t.Fatalf("the peer gets %+v, %v; want a Terminate", h, err)
	}
	m, err := iwarp.DecodeTermMsg(b[mpa.LengthSize+n:][:mpa.Length(b)-n])
	if err != nil || m.Code != 0x1100 || m.Header == nil || *m.Header != wrong {
		t.Errorf("it says %+v, %v; want an invalid STag, about %+v", m, err, wrong)
	}
	if ev := e.event(); ev.Type != verbs.EventQPAccessErr || ev.QP != e.qp || !strings.Contains(ev.Cause.Error(), "0x001234") {
		t.Errorf("event %v, %v; want %v", ev.Type, ev.Cause, verbs.EventQPAccessErr)
	}
	peer.Close()
	if err := e.ended(); err != nil {
		t.Errorf("the end of the connection: %v", err)
	}
}

// TestTerminateReceived has a peer terminate the connection: the READ that it is about fails with the status of
// the code.
func TestTerminateReceived(t *testing.T) {
	e, peer := half(t)
	e.recv(verbs.RecvWR{ID: 1})
	if _, err := peer.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, nil)); err != nil {
		t.Fatal(err)
	}
	e.done()
	mr := e.mr(64)
	e.send(verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 64)}, Remote: verbs.RemoteAddr{VA: 1, RKey: 1}})
	b := make([]byte, 52)
	if _, err := io.ReadFull(peer, b); err != nil {
		t.Fatal(err)
	}
	h, n, err := iwarp.DecodeHeader(b[mpa.LengthSize:])
	e.must(err)
	read, err := iwarp.DecodeReadReq(b[mpa.LengthSize+n:][:28])
	e.must(err)
	m := iwarp.TermMsg{Code: 0x0101, Header: &h, Segment: uint16(mpa.Length(b)), Read: &read}
	if _, err := peer.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Terminate, QN: 2, MSN: 1}, m.AppendTo(nil))); err != nil {
		t.Fatal(err)
	}
	if wc := e.next(); wc.ID != 3 || wc.Status != verbs.WCRemAccessErr || !strings.Contains(wc.Err().Error(), "bounds") {
		t.Errorf("the READ: %+v, want %v and the peer's reason", wc, verbs.WCRemAccessErr)
	}
	if got := rest(t, peer); len(got) > 0 {
		t.Errorf("after a Terminate %d bytes have come, want none", len(got))
	}
}

// TestBackpressure posts more than a stream takes while the peer does not read, closes nothing, and goes on.
func TestBackpressure(t *testing.T) {
	for _, stream := range []string{"tcp", "wrapped"} {
		e := newEnd(t, newDevice(t))
		a, b := tcpPair(t)
		terms, _ := agree(t, deep, deep, func(f *mpa.Frame) { f.PeerToPeer, f.RTR = false, 0 })
		if stream == "wrapped" {
			e.attach(wrapped{a}, terms)
		} else {
			e.attach(a, terms)
		}
		const n = 16 << 20
		mr := e.mr(n)
		fill(mr.Bytes(), 9)
		e.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, n)}})
		var got []byte
		e.must(b.SetReadDeadline(time.Now().Add(patience)))
		for len(got) < n {
			head := make([]byte, mpa.LengthSize)
			if _, err := io.ReadFull(b, head); err != nil {
				t.Fatal(err)
			}
			size := mpa.Length(head)
			body := make([]byte, size+mpa.TrailerSize(size))
			if _, err := io.ReadFull(b, body); err != nil {
				t.Fatal(err)
			}
			got = append(got, body[18:size]...)
		}
		e.done()
		if !bytes.Equal(got, mr.Bytes()) {
			t.Errorf("%s: other bytes have come than were sent, want the same", stream)
		}
		b.Close()
	}
}

// TestClose closes a QP while the peer sends to it, and a device behind it.
func TestClose(t *testing.T) {
	x, y := pair(t)
	src, dst := x.mr(1<<20), y.mr(1<<20)
	for range 8 {
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 1<<20)}, Remote: dst.Remote(0)})
	}
	y.must(y.qp.Close())
	x.ended() // in order or by a reset, as it comes
	x.must(x.qp.Close())
	if err := y.ended(); err != nil {
		t.Errorf("the end that has closed: %v", err)
	}
}

// TestReset takes a QP to RESET and connects it again.
func TestReset(t *testing.T) {
	x, y := pair(t)
	for range 2 {
		src, dst := x.mr(64), y.mr(64)
		x.write(src, dst)
		for _, e := range []*end{x, y} {
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
			e.must(e.qp.Init(1, everything))
		}
		x.ended()
		y.ended()
		x.connect(y)
	}
}

// TestResetWithSRQ takes a QP with an SRQ to the error state in each of two lives. The program is told each time that
// the QP takes no more receives.
func TestResetWithSRQ(t *testing.T) {
	e := newEnd(t, newDevice(t))
	srq, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
	e.must(err)
	qp, err := e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, SRQ: srq})
	e.must(err)
	defer qp.Close()
	now, cancel := context.WithCancel(t.Context()) // Modify raises the event before it returns
	cancel()
	for life := range 2 {
		e.must(qp.Init(1, everything))
		e.must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		ev, err := e.dev.NextEvent(now)
		if err != nil {
			t.Fatalf("life %d: got no event (%v), want %v", life, err, verbs.EventQPLastWQEReached)
		}
		if ev.Type != verbs.EventQPLastWQEReached || ev.QP != qp {
			t.Errorf("life %d: got event %v of QP %p, want %v of %p", life, ev.Type, ev.QP, verbs.EventQPLastWQEReached, qp)
		}
		e.must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	}
}

// TestNotifyErrorLate asks for word of an error that is there already.
func TestNotifyErrorLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, newDevice(t))
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		var told error
		e.must(e.qp.NotifyError(func(cause error) { told = cause }))
		synctest.Wait()
		if told == nil {
			t.Error("a QP that is in error: got no call, want one with the cause")
		}
	})
}

// TestNotifyCommEstLate asks after the peer's first message has come.
func TestNotifyCommEstLate(t *testing.T) {
	x, y := pair(t)
	x.write(x.mr(8), y.mr(8))
	told := make(chan bool, 1)
	y.must(y.qp.NotifyCommEst(func() { told <- true }))
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Error("a QP that has heard its peer: got no call, want one")
	}
}

// TestPostRecvInError: receives that are posted to a QP in error are flushed at once.
func TestPostRecvInError(t *testing.T) {
	e := newEnd(t, newDevice(t))
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	e.recv(verbs.RecvWR{ID: 7})
	var wcs [2]verbs.WC
	if n, err := e.cq.Poll(wcs[:]); err != nil || n != 1 || wcs[0].ID != 7 || wcs[0].Status != verbs.WCFlushErr {
		t.Errorf("got %d completions, the first %+v, %v, want one: receive 7, flushed", n, wcs[0], err)
	}
}

// openEnded is a connection that can say that nothing follows, and says nothing.
type openEnded struct{ net.Conn }

func (openEnded) CloseWrite() error { return nil }

// TestPeerStays: a peer that does not end its side of a connection is waited for, and not for ever. Then the connection
// is closed.
func TestPeerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, newDevice(t))
		ours, theirs := net.Pipe()
		defer theirs.Close()
		terms, _ := agree(t, deep, deep, func(f *mpa.Frame) { f.PeerToPeer, f.RTR = false, 0 })
		e.attach(openEnded{ours}, terms)
		began := time.Now()
		e.prov.Shutdown(e.qp.QPN())
		select {
		case err := <-e.over:
			if took := time.Since(began); err != nil || took != lingerTime {
				t.Errorf("the end: got %v after %v, want none after %v", err, took, lingerTime)
			}
		case <-time.After(2 * lingerTime):
			t.Errorf("got no end within %v, want one after %v", 2*lingerTime, lingerTime)
		}
		// Our end says goodbye to a peer that reads nothing, and is closed by a goroutine after the end was told: the last
		// bytes may still come.
		_ = theirs.SetReadDeadline(time.Now().Add(lingerTime)) // which fails if our end is closed, as it should be
		if b, err := io.ReadAll(theirs); err != nil {
			t.Errorf("the peer reads %d bytes and %v after the end, want the connection's end", len(b), err)
		}
	})
}

// TestEventsOfClosed: no event names an object that is closed.
func TestEventsOfClosed(t *testing.T) {
	e := newEnd(t, newDevice(t))
	srq, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1})
	e.must(err)
	for _, ev := range []verbs.AsyncEvent{{Type: verbs.EventQPFatal, QP: e.qp}, {Type: verbs.EventCQErr, CQ: e.cq}, {Type: verbs.EventSRQLimitReached, SRQ: srq}} {
		e.prov.Raise(ev)
	}
	e.must(e.qp.Close())
	e.must(e.cq.Close())
	e.must(srq.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		ev, err := e.dev.NextEvent(ctx)
		if err != nil {
			break
		}
		t.Errorf("got event %v of an object that is closed, want none", ev.Type)
	}
}

// TestCQOverrun: the event of lost completions is raised and logged, and the QPs of the CQ fail.
func TestCQOverrun(t *testing.T) {
	e := newEnd(t, newDevice(t))
	got := lines(e)
	c := e.cq.Provider().(*cq)
	c.Push(make([]queue.CQE, c.Cap()+1))
	if ev := e.event(); ev.Type != verbs.EventCQErr || ev.CQ != e.cq || !errors.Is(ev.Cause, verbs.ErrCQOverrun) {
		t.Errorf("got event %v of CQ %p, caused by %v; want CQ_ERR of %p", ev.Type, ev.CQ, ev.Cause, e.cq)
	}
	logged(t, got, "level=WARN", "event="+verbs.EventCQErr.String(), "completions were lost")
	if ev := e.event(); ev.Type != verbs.EventQPFatal || ev.QP != e.qp {
		t.Errorf("got event %v, want QP_FATAL", ev.Type)
	}
	if s := e.qp.State(); s != verbs.QPStateErr {
		t.Errorf("the QP is in %v, want ERR", s)
	}
}

// failing is a capture that cannot be completed.
type failing struct{ err error }

func (f failing) Close() error { return f.err }

// TestCloserFails: Close of a device returns the error of a Closer.
func TestCloserFails(t *testing.T) {
	n := sim.New(sim.Config{}).Netdev("sim", netip.AddrFrom4([4]byte{10, 0, 0, 1}))
	full := errors.New("no space left")
	d, err := Open(n, Config{Closers: []io.Closer{failing{full}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, full) {
		t.Errorf("Close: got error %v, want %v", err, full)
	}
}

// TestObjectCounts: a PD and an SRQ that are closed make room for others.
func TestObjectCounts(t *testing.T) {
	e := newEnd(t, newDevice(t))
	pds, srqs := e.prov.PDs.Load(), e.prov.SRQs.Load()
	pd, err := e.dev.AllocPD()
	e.must(err)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1})
	e.must(err)
	e.must(srq.Close())
	e.must(pd.Close())
	if m, n := e.prov.PDs.Load(), e.prov.SRQs.Load(); m != pds || n != srqs {
		t.Errorf("after a PD and an SRQ were made and closed: got %d PDs and %d SRQs counted, want %d and %d", m, n, pds, srqs)
	}
}

// TestCQCount: a CQ that is closed makes room for another.
func TestCQCount(t *testing.T) {
	e := newEnd(t, newDevice(t))
	before := e.prov.CQs.Load()
	cq, err := e.dev.CreateCQ(1)
	e.must(err)
	e.must(cq.Close())
	if after := e.prov.CQs.Load(); after != before {
		t.Errorf("after a CQ was made and closed: got %d CQs counted, want %d", after, before)
	}
}

// TestAllocations holds the hot path to no allocation.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool forget")
	}
	x, y := pair(t)
	src, dst := x.mr(8192), y.mr(8192)
	wrs := []verbs.SendWR{
		{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 8192)}, Remote: dst.Remote(0)},
		{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)},
	}
	var wc [1]verbs.WC
	once := func() {
		_, err := x.qp.PostSend(wrs)
		x.must(err)
		for deadline := time.Now().Add(patience); ; {
			n, err := x.cq.Poll(wc[:])
			x.must(err)
			if n > 0 {
				x.must(wc[0].Err())
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no completion after %v, want the READ's", patience)
			}
		}
	}
	once()
	if n := testing.AllocsPerRun(200, once); n >= 1 {
		t.Errorf("a WRITE and a READ allocate %v times, want never", n)
	}
}

// TestPipe runs over a connection that is no socket at all, and has no end of one direction alone.
func TestPipe(t *testing.T) {
	x, y := ends(t)
	a, b := net.Pipe()
	tx, ty := agree(t, deep, deep, nil)
	x.attach(a, tx)
	y.attach(b, ty)
	exchange(t, x, y, 3<<20)
	x.prov.Shutdown(x.qp.QPN())
	if err := y.ended(); err != nil {
		t.Errorf("the peer of who has ended: %v", err)
	}
}

// TestGID: an iWARP port has its interface's MAC address for a GID or, where there is none, a local one that is made of
// an IP address.
func TestGID(t *testing.T) {
	mac, addr := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}, netip.MustParseAddr("10.1.2.3")
	for _, tt := range []struct {
		state link.NetdevState
		gid   verbs.GID
		guid  verbs.GUID
	}{
		{link.NetdevState{HardwareAddr: mac, Addrs: []netip.Addr{addr}}, verbs.GID{0x52, 0x54, 0, 1, 2, 3}, verbs.GUID{0x50, 0x54, 0, 0xff, 0xfe, 1, 2, 3}},
		{link.NetdevState{HardwareAddr: make(net.HardwareAddr, 6), Addrs: []netip.Addr{addr}}, verbs.GID{2, 0xff, 10, 1, 2, 3}, verbs.GUID{0, 0xff, 10, 0xff, 0xfe, 1, 2, 3}},
		{link.NetdevState{HardwareAddr: make(net.HardwareAddr, 8), Addrs: []netip.Addr{addr}}, verbs.GID{2, 0xff, 10, 1, 2, 3}, verbs.GUID{0, 0xff, 10, 0xff, 0xfe, 1, 2, 3}},
		{link.NetdevState{}, verbs.GID{}, verbs.GUID{2, 0, 0, 0xff, 0xfe}},
	} {
		if gid, guid := gidOf(tt.state), guidOf(tt.state); gid != tt.gid || guid != tt.guid {
			t.Errorf("%+v: GID %v and GUID %v, want %v and %v", tt.state, gid, guid, tt.gid, tt.guid)
		}
	}
}

// TestPortMTU: the port's active MTU is the interface's, rounded down to one that the verbs have.
func TestPortMTU(t *testing.T) {
	for mtu, want := range map[int]verbs.MTU{100: verbs.MTU256, 1023: verbs.MTU512, 1500: verbs.MTU1024, 2048: verbs.MTU2048, 4096: verbs.MTU4096, 65536: verbs.MTU4096} {
		if a, err := newDeviceOf(t, sim.Config{MTU: mtu}).QueryPort(1); err != nil || a.ActiveMTU != want || a.MaxMTU != verbs.MTU4096 {
			t.Errorf("MTU %d: active MTU %v, at most %v, error %v; want %v, %v and none", mtu, a.ActiveMTU, a.MaxMTU, err, want, verbs.MTU4096)
		}
	}
}
