//go:build linux

package uverbs

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTransfers has two programs send, write, read and count in each other's memory.
func TestTransfers(t *testing.T) {
	x, y, xcq, ycq := two(t)
	xp, yp := x.p, y.p
	const at = 4096
	text := []byte("from program to program")

	copy(xp.arena[at:], text)
	y.recv(1, arenaBase+at, 100)
	x.post(send{id: 2, op: verbs.OpSendWithImm, flags: verbs.SendSignaled, addr: arenaBase + at, n: len(text), ex: [4]byte{1, 2, 3, 4}})
	xcq.good(2)
	w := ycq.good(1)
	if w.Opcode != uint32(verbs.WCRecv) || int(w.ByteLen) != len(text) || w.Ex != [4]byte{1, 2, 3, 4} || w.WCFlags != uint32(verbs.WCFlagWithImm) ||
		w.QPNum != y.qpn || w.PortNum != 1 {
		t.Errorf("receive: got %+v", w)
	}
	if got := yp.arena[at : at+len(text)]; !bytes.Equal(got, text) {
		t.Errorf("received %q, want %q", got, text)
	}

	x.post(send{id: 3, op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte("inline"), remote: arenaBase + 9000, rkey: yp.mr.RKey},
		send{id: 4, op: verbs.OpRDMARead, flags: verbs.SendSignaled, addr: arenaBase + 12000, n: 6, remote: arenaBase + 9000, rkey: yp.mr.RKey})
	if w := xcq.good(3); w.Opcode != uint32(verbs.WCRDMAWrite) {
		t.Errorf("WRITE: got opcode %v", verbs.WCOpcode(w.Opcode))
	}
	if w := xcq.good(4); w.Opcode != uint32(verbs.WCRDMARead) || w.ByteLen != 6 {
		t.Errorf("READ: got opcode %v of %d bytes", verbs.WCOpcode(w.Opcode), w.ByteLen)
	}
	if got := xp.arena[12000:12006]; string(got) != "inline" {
		t.Errorf("read %q, want inline", got)
	}

	const word = 16384
	le.PutUint64(yp.arena[word:], 40)
	x.post(send{id: 5, op: verbs.OpAtomicFetchAdd, flags: verbs.SendSignaled, addr: arenaBase + 64, n: 8, remote: arenaBase + word, rkey: yp.mr.RKey, atomic: [2]uint64{2, 0}},
		send{id: 6, op: verbs.OpAtomicCmpSwap, flags: verbs.SendSignaled, addr: arenaBase + 72, n: 8, remote: arenaBase + word, rkey: yp.mr.RKey, atomic: [2]uint64{42, 7}})
	xcq.good(5)
	xcq.good(6)
	if a, b, c := le.Uint64(xp.arena[64:]), le.Uint64(xp.arena[72:]), le.Uint64(yp.arena[word:]); a != 40 || b != 42 || c != 7 {
		t.Errorf("atomics: got %d, %d, and %d in memory, want 40, 42 and 7", a, b, c)
	}
}

// TestPlacement: FLUSH and ATOMIC WRITE, as rdma-core's driver writes them into the ring. The range of a FLUSH is held to the region.
func TestPlacement(t *testing.T) {
	x, y, xcq, _ := two(t)
	key, end := y.p.mr.RKey, arenaBase+uint64(len(y.p.arena))
	x.post(send{id: 1, op: verbs.OpAtomicWrite, flags: verbs.SendSignaled, remote: arenaBase + 64, rkey: key, atomic: [2]uint64{1<<63 | 7}},
		send{id: 2, op: verbs.OpFlush, flags: verbs.SendSignaled, remote: end - 4096, n: 4096, rkey: key},
		send{id: 3, op: verbs.OpFlush, flags: verbs.SendSignaled, level: byte(verbs.FlushMR), rkey: key},
		send{id: 4, op: verbs.OpFlush, flags: verbs.SendSignaled, remote: end - 4095, n: 4096, rkey: key})
	if w := xcq.good(1); w.Opcode != uint32(verbs.WCAtomicWrite) {
		t.Errorf("ATOMIC WRITE: got opcode %v", verbs.WCOpcode(w.Opcode))
	}
	for id := range uint64(2) {
		if w := xcq.good(2 + id); w.Opcode != uint32(verbs.WCFlush) {
			t.Errorf("FLUSH %d: got opcode %v", 2+id, verbs.WCOpcode(w.Opcode))
		}
	}
	if got := le.Uint64(y.p.arena[64:]); got != 1<<63|7 {
		t.Errorf("the word is %#x", got)
	}
	if w := xcq.wait(); w.WRID != 4 || verbs.WCStatus(w.Status) != verbs.WCRemAccessErr {
		t.Errorf("a FLUSH beyond the region: %v of %d, want %v of 4", verbs.WCStatus(w.Status), w.WRID, verbs.WCRemAccessErr)
	}
}

// TestByCalls is for memory that the device cannot map.
func TestByCalls(t *testing.T) {
	byCalls = true
	defer func() { byCalls = false }()
	for name, f := range map[string]func(*testing.T){"transfers": TestTransfers, "many": TestManyPosts, "datagrams": TestDatagrams, "windows": TestWindows, "rereg": TestRereg} {
		t.Run(name, f)
	}
}

// TestManyPosts keeps both queues full, so that their rings wrap around.
func TestManyPosts(t *testing.T) {
	x, y, xcq, ycq := two(t)
	const n = 1000
	posted, got, done := 0, 0, 0
	recvs := 0
	for end := time.Now().Add(timeout); got < n || done < n; {
		if time.Now().After(end) {
			t.Fatalf("%d posted, %d of %d received, %d completed", posted, got, n, done)
		}
		for recvs < n && y.rq.push(recvWQE(uint64(recvs), y.p.mr.LKey, arenaBase, 64)) {
			recvs++
		}
		fresh := posted
		for posted < n && posted-done < 16 {
			x.put(send{id: uint64(posted), op: verbs.OpSend, flags: verbs.SendSignaled, addr: arenaBase, n: 1 + posted%64})
			posted++
		}
		if posted > fresh {
			if err := x.p.c.Doorbell(x.handle); err != nil {
				t.Fatal(err)
			}
		}
		if w, ok := xcq.poll(); ok {
			if w.Status != 0 || w.WRID != uint64(done) {
				t.Fatalf("send %d: got %d, %v", done, w.WRID, verbs.WCStatus(w.Status))
			}
			done++
		}
		if w, ok := ycq.poll(); ok {
			if w.Status != 0 || w.WRID != uint64(got) || int(w.ByteLen) != 1+got%64 {
				t.Fatalf("receive %d: got %d, %v, %d bytes", got, w.WRID, verbs.WCStatus(w.Status), w.ByteLen)
			}
			got++
		}
	}
}

// TestReceiveAfterMessage: a receive that is posted while a message waits for it, without a call, is found by the repeat.
func TestReceiveAfterMessage(t *testing.T) {
	x, y, xcq, ycq := two(t)
	x.post(send{id: 1, op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("early")})
	x.p.c.mu.RLock()
	c := x.p.c.qps[x.handle].v
	x.p.c.mu.RUnlock()
	for end := time.Now().Add(timeout); ; {
		counters, err := c.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := counters.Get("rcvd_rnr_err"); n > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no RNR NAK came")
		}
	}
	y.recv(2, arenaBase, 64)
	ycq.good(2)
	xcq.good(1)
}

// TestFlush: in ERR both queues are flushed, also of what is posted later.
func TestFlush(t *testing.T) {
	x, _, xcq, _ := two(t)
	x.recv(1, arenaBase, 64)
	x.recv(2, arenaBase, 64)
	x.put(send{id: 3, op: verbs.OpSend, inline: []byte("x"), flags: verbs.SendInline})
	x.modify(verbs.MaskState, uapi.ModifyQP{QPState: uint8(verbs.QPStateErr)})
	x.post(send{id: 4, op: verbs.OpSend, inline: []byte("x"), flags: verbs.SendInline})
	x.recv(5, arenaBase, 64)
	x.p.do(uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: xcq.handle}, nil, nil, nil)
	seen := map[uint64]bool{}
	for range 5 {
		w := xcq.wait()
		if verbs.WCStatus(w.Status) != verbs.WCFlushErr {
			t.Errorf("work request %d: got %v, want %v", w.WRID, verbs.WCStatus(w.Status), verbs.WCFlushErr)
		}
		seen[w.WRID] = true
	}
	if len(seen) != 5 {
		t.Errorf("flushed: got %v, want 1 to 5", seen)
	}

	x.modify(verbs.MaskState, uapi.ModifyQP{QPState: uint8(verbs.QPStateReset)})
	if n := x.sq.index(uapi.QueueProducer); *n != 0 {
		t.Errorf("after RESET the send queue is at %d, want 0", *n)
	}
	if err := x.p.c.Doorbell(x.handle); !errors.Is(err, unix.EINVAL) {
		t.Errorf("doorbell in RESET: got %v, want EINVAL", err)
	}
}

// TestBadSend: a work request that verbs refuses completes with LOC_QP_OP_ERR, and those behind it are flushed.
func TestBadSend(t *testing.T) {
	for name, bad := range map[string]send{
		"an opcode that does not exist": {op: 77},
		"more inline data than room":    {op: verbs.OpSend, flags: verbs.SendInline, inline: make([]byte, 65)},
		"inline data of 2 GiB":          {op: verbs.OpSend, flags: verbs.SendInline, n: 1<<31 - 1},
		"a window that does not exist":  {op: verbs.OpBindMW, mw: [4]uint32{0, 99 << 8, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			x, y, xcq, _ := two(t)
			y.recv(9, arenaBase, 64)
			bad.id, bad.flags = 2, bad.flags|verbs.SendSignaled
			x.post(send{id: 1, op: verbs.OpRDMAWrite, addr: arenaBase, n: 8, remote: arenaBase, rkey: y.p.mr.RKey, flags: verbs.SendSignaled}, bad,
				send{id: 3, op: verbs.OpRDMAWrite, addr: arenaBase, n: 8, remote: arenaBase, rkey: y.p.mr.RKey, flags: verbs.SendSignaled})
			got := map[uint64]verbs.WCStatus{}
			for range 3 {
				w := xcq.wait()
				got[w.WRID] = verbs.WCStatus(w.Status)
			}
			if got[2] != verbs.WCLocQPOpErr || got[3] != verbs.WCFlushErr || got[1] != verbs.WCSuccess && got[1] != verbs.WCFlushErr {
				t.Errorf("got %v, want LOC_QP_OP_ERR of 2, and 3 flushed", got)
			}
		})
	}
}

// TestDatagrams sends by an address handle, and takes the GRH in front.
func TestDatagrams(t *testing.T) {
	devs := devices(t)
	a, b := newProgram(t, devs[0]), newProgram(t, devs[1])
	acq, bcq := a.cq(10, -1), b.cq(10, -1)
	x, y := a.qp(verbs.QPTypeUD, acq, acq, 0), b.qp(verbs.QPTypeUD, bcq, bcq, 0)
	for _, q := range []*userQP{x, y} {
		q.modify(verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey, uapi.ModifyQP{QPState: uint8(verbs.QPStateInit), PortNum: 1, QKey: 0x11})
		q.modify(verbs.MaskState, uapi.ModifyQP{QPState: uint8(verbs.QPStateRTR)})
		q.modify(verbs.MaskState|verbs.MaskSQPSN, uapi.ModifyQP{QPState: uint8(verbs.QPStateRTS)})
	}
	gid, err := devs[1].GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	var (
		ah     uapi.CreateAHResp
		driver uapi.RxeCreateAHResp
	)
	a.do(uapi.CmdCreateAH, uapi.CreateAH{PDHandle: a.pd, Attr: uapi.AHAttr{GRH: uapi.GlobalRoute{DGID: gid.GID, FlowLabel: ^uint32(0), HopLimit: 1}, IsGlobal: 1, PortNum: 1}}, nil, &ah, &driver) // as UCX asks
	if driver.AHNum == 0 {
		t.Error("the AH has number 0, by which programs tell old kernels")
	}
	y.recv(1, arenaBase, 100)
	x.post(send{id: 2, op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("datagram"), ud: [3]uint32{y.qpn, 0x11, driver.AHNum}})
	acq.good(2)
	w := bcq.good(1)
	if w.SrcQP != x.qpn || w.WCFlags != uint32(verbs.WCFlagGRH) || w.ByteLen != 40+8 || w.SL != 8|2 || string(b.arena[40:48]) != "datagram" {
		t.Errorf("got %+v, %q", w, b.arena[40:48])
	}
	a.do(uapi.CmdDestroyAH, uapi.DestroyAH(ah), nil, nil, nil)
	x.post(send{id: 3, op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("datagram"), ud: [3]uint32{y.qpn, 0x11, driver.AHNum}})
	if w := acq.wait(); verbs.WCStatus(w.Status) != verbs.WCLocQPOpErr {
		t.Errorf("a send by an AH that is destroyed: got %v, want LOC_QP_OP_ERR", verbs.WCStatus(w.Status))
	}
}

// TestSRQ takes receives from an SRQ, hears of its limit, and resizes it while receives wait.
func TestSRQ(t *testing.T) {
	devs := devices(t)
	a, b := newProgram(t, devs[0]), newProgram(t, devs[1])
	acq, bcq := a.cq(40, -1), b.cq(40, -1)
	var (
		resp   uapi.CreateSRQResp
		driver uapi.RxeCreateSRQResp
	)
	b.do(uapi.CmdCreateSRQ, uapi.CreateSRQ{UserHandle: 77, PDHandle: b.pd, MaxWR: 8, MaxSGE: 1}, nil, &resp, &driver)
	ring := b.mmap(driver.MI)
	x, y := a.qp(verbs.QPTypeRC, acq, acq, 0), b.qp(verbs.QPTypeRC, bcq, bcq, resp.SRQHandle)
	x.init(0)
	y.init(0)
	x.connect(y)
	y.connect(x)
	for i := range 4 {
		ring.push(recvWQE(uint64(i), b.mr.LKey, arenaBase, 64))
	}
	b.do(uapi.CmdModifySRQ, uapi.ModifySRQ{SRQHandle: resp.SRQHandle, AttrMask: uapi.SRQLimit, SRQLimit: 3}, nil, nil, nil)
	var q uapi.QuerySRQResp
	if b.do(uapi.CmdQuerySRQ, uapi.QuerySRQ{SRQHandle: resp.SRQHandle}, nil, &q, nil); q.SRQLimit != 3 {
		t.Errorf("armed with 4 receives waiting: the limit is %d, want 3", q.SRQLimit)
	}
	x.post(send{id: 1, op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("1")},
		send{id: 2, op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("2")})
	bcq.good(0)
	bcq.good(1)
	acq.good(1)
	acq.good(2)
	if e := b.event(); e.EventType != uint32(verbs.EventSRQLimitReached) || e.Element != 77 {
		t.Errorf("got event %+v, want that of the limit", e)
	}
	b.do(uapi.CmdQuerySRQ, uapi.QuerySRQ{SRQHandle: resp.SRQHandle}, nil, &q, nil)
	if q.MaxWR != 8 || q.SRQLimit != 0 {
		t.Errorf("query: got %+v, want 8 receives, and no limit", q)
	}

	ring.push(recvWQE(4, b.mr.LKey, arenaBase, 64))
	b.used = 512
	b.do(uapi.CmdModifySRQ, uapi.ModifySRQ{SRQHandle: resp.SRQHandle, AttrMask: uapi.SRQMaxWR, MaxWR: 100}, uapi.RxeModifySRQCmd{MMInfoAddr: arenaBase + 256}, nil, nil)
	var mi uapi.MMInfo
	_ = uapi.Decode(b.arena[256:], &mi)
	ring = b.mmap(mi)
	for i := 5; i < 20; i++ {
		if !ring.push(recvWQE(uint64(i), b.mr.LKey, arenaBase, 64)) {
			t.Fatalf("receive %d: the queue of 100 is full", i)
		}
	}
	for i := 2; i < 20; i++ {
		x.post(send{id: uint64(i), op: verbs.OpSend, flags: verbs.SendSignaled | verbs.SendInline, inline: []byte("3")})
		acq.good(uint64(i))
		bcq.good(uint64(i))
	}
	if err := b.try(uapi.CmdDestroySRQ, uapi.DestroySRQ{SRQHandle: resp.SRQHandle}, nil, &uapi.DestroySRQResp{}, nil); !errors.Is(err, verbs.ErrBusy) || Errno(err) != unix.EBUSY {
		t.Errorf("destroying the SRQ of a QP: got %v, want busy", err)
	}
	b.do(uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: y.handle}, nil, &uapi.DestroyQPResp{}, nil)
	var gone uapi.DestroySRQResp
	b.do(uapi.CmdDestroySRQ, uapi.DestroySRQ{SRQHandle: resp.SRQHandle}, nil, &gone, nil)
	if gone.EventsReported != 1 {
		t.Errorf("destroyed: %d events were reported, want 1", gone.EventsReported)
	}
}

// event reads an asynchronous event.
func (p *program) event() (e uapi.AsyncEventDesc) {
	p.t.Helper()
	p.readEvent(p.async, &e)
	return e
}

// readEvent waits for an event on a descriptor.
func (p *program) readEvent(fd int, e any) {
	p.t.Helper()
	f := p.fds[fd]
	_ = f.SetReadDeadline(time.Now().Add(timeout))
	b := make([]byte, len(uapi.Append(nil, e)))
	if _, err := f.Read(b); err != nil {
		p.t.Fatalf("no event: %v", err)
	}
	_ = uapi.Decode(b, e)
}

// TestCompletionEvents arms a CQ, and destroys it with an event unread.
func TestCompletionEvents(t *testing.T) {
	devs := devices(t)
	a := newProgram(t, devs[0])
	var ch uapi.CreateCompChannelResp
	a.do(uapi.CmdCreateCompChannel, uapi.CreateCompChannel{}, nil, &ch, nil)
	cqs := [2]*userCQ{a.cq(10, int(ch.FD)), a.cq(10, int(ch.FD))}
	var qps [2]*userQP
	for i, cq := range cqs {
		qps[i] = a.qp(verbs.QPTypeRC, cq, cq, 0)
		qps[i].init(0)
	}
	qps[0].connect(qps[1])
	qps[1].connect(qps[0])
	arm := func(q *userCQ, solicited uint32) {
		a.do(uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: q.handle, SolicitedOnly: solicited}, nil, nil, nil)
	}
	id := uint64(0)
	message := func(flags verbs.SendFlags) {
		id++
		qps[1].recv(id, arenaBase, 64)
		qps[0].post(send{id: id, op: verbs.OpSend, flags: verbs.SendInline | verbs.SendSignaled | flags, inline: []byte("x")})
		cqs[0].good(id)
		cqs[1].good(id)
	}
	arm(cqs[1], 1)
	message(0) // is not solicited
	message(verbs.SendSolicited)
	var e uapi.CompEventDesc
	if a.readEvent(int(ch.FD), &e); e.CQHandle != cqs[1].user {
		t.Errorf("got an event of CQ %d, want %d", e.CQHandle, cqs[1].user)
	}
	message(0) // is not armed
	arm(cqs[0], 0)
	arm(cqs[1], 0)
	message(0)
	arm(cqs[0], 0)
	message(0) // events of both CQs are unread, one of the first's is a second
	for _, q := range qps {
		a.do(uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: q.handle}, nil, &uapi.DestroyQPResp{}, nil)
	}
	var resp uapi.DestroyCQResp
	a.do(uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cqs[1].handle}, nil, &resp, nil)
	if resp.CompEventsReported != 1 {
		t.Errorf("%d events were reported of the second CQ, want 1: the other was not read", resp.CompEventsReported)
	}
	for range 2 {
		if a.readEvent(int(ch.FD), &e); e.CQHandle != cqs[0].user {
			t.Errorf("got an event of CQ %d, want %d", e.CQHandle, cqs[0].user)
		}
	}
	a.do(uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cqs[0].handle}, nil, &resp, nil)
	if resp.CompEventsReported != 2 {
		t.Errorf("%d events were reported of the first CQ, want 2", resp.CompEventsReported)
	}
}

// TestLargeCQ makes a CQ of as many completions as the device tells, and no larger one. One completion is enough to find
// the ring at its place.
func TestLargeCQ(t *testing.T) {
	x, y, _, _ := two(t)
	p := x.p
	var d uapi.QueryDeviceResp
	p.do(uapi.CmdQueryDevice, uapi.QueryDevice{}, nil, &d, nil)
	const asked = 100_000 // more than ofi_rxm asks for
	if d.MaxCQE < asked {
		t.Errorf("max_cqe is %d, want %d at least", d.MaxCQE, asked)
	}
	cq := p.cq(int(d.MaxCQE), -1)
	q := p.qp(verbs.QPTypeRC, cq, cq, 0)
	q.init(0)
	q.connect(y)
	q.post(send{id: 1, op: verbs.OpRDMAWrite, flags: verbs.SendSignaled})
	if w := cq.wait(); w.WRID != 1 {
		t.Errorf("got completion %d, want 1", w.WRID)
	}
	more := uapi.CreateCQ{CQE: d.MaxCQE + 1, CompChannel: -1}
	if err := p.try(uapi.CmdCreateCQ, more, nil, &uapi.CreateCQResp{}, &uapi.RxeCreateCQResp{}); Errno(err) != unix.EINVAL {
		t.Errorf("a CQ that is larger: got %v, want EINVAL", err)
	}
}

// TestResizeCQ moves unread completions into another ring. A CQ that is overrun raises its event.
func TestResizeCQ(t *testing.T) {
	x, y, xcq, ycq := two(t)
	fill := func(from, n int) {
		for i := range n {
			x.post(send{id: uint64(from + i), op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte("x"), remote: arenaBase, rkey: y.p.mr.RKey})
		}
	}
	fill(0, 5)
	for end := time.Now().Add(timeout); *xcq.ring.index(uapi.QueueProducer) != 5; {
		if time.Now().After(end) {
			t.Fatal("the WRITEs did not complete")
		}
	}
	xcq.good(0)
	var (
		resp   uapi.ResizeCQResp
		driver uapi.RxeCreateCQResp
	)
	if err := x.p.try(uapi.CmdResizeCQ, uapi.ResizeCQ{CQHandle: xcq.handle, CQE: 2}, nil, &resp, &driver); err == nil {
		t.Error("a CQ with 4 completions was resized to 3")
	}
	x.p.do(uapi.CmdResizeCQ, uapi.ResizeCQ{CQHandle: xcq.handle, CQE: 7}, nil, &resp, &driver)
	if resp.CQE != 7 {
		t.Errorf("resized to %d, want 7", resp.CQE)
	}
	xcq.ring = x.p.mmap(driver.MI)
	fill(5, 1)
	for i := range 5 {
		xcq.good(uint64(1 + i))
	}
	fill(6, 8)
	if e := x.p.event(); e.EventType != uint32(verbs.EventCQErr) || e.Element != xcq.user {
		t.Errorf("got event %+v, want that of an overrun", e)
	}
	_ = ycq
}

// TestWindows binds windows of both types and uses them.
func TestWindows(t *testing.T) {
	x, y, xcq, ycq := two(t)
	p := y.p
	var mr uapi.RegMRResp
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: 8192, HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: uint32(verbs.AccessLocalWrite | verbs.AccessMWBind)}, nil, &mr, nil)
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			var mw uapi.AllocMWResp
			p.do(uapi.CmdAllocMW, uapi.AllocMW{PDHandle: p.pd, MWType: uint8(typ)}, nil, &mw, nil)
			key := mw.RKey&^0xff | (mw.RKey+1)&0xff
			y.post(send{id: 1, op: verbs.OpBindMW, flags: verbs.SendSignaled, remote: arenaBase + 100, length: 50, mw: [4]uint32{mr.LKey, mw.RKey, key, uint32(verbs.AccessRemoteWrite | verbs.AccessLocalWrite)}})
			if w := ycq.good(1); w.Opcode != uint32(verbs.WCBindMW) {
				t.Errorf("got opcode %v", verbs.WCOpcode(w.Opcode))
			}
			x.post(send{id: 2, op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte(typ.String()), remote: arenaBase + 110, rkey: key})
			xcq.good(2)
			if got := p.arena[110 : 110+len(typ.String())]; string(got) != typ.String() {
				t.Errorf("written: %q, want %q", got, typ)
			}
			if typ == verbs.MWType2 {
				y.post(send{id: 3, op: verbs.OpLocalInv, flags: verbs.SendSignaled, ex: [4]byte(uapi.Append(nil, key))})
				ycq.good(3)
			}
			p.do(uapi.CmdDeallocMW, uapi.DeallocMW{MWHandle: mw.MWHandle}, nil, nil, nil)
		})
	}
}

// TestQueryQP asks for what MODIFY_QP has set, and for how many work requests fit into the rings, as Linux tells.
func TestQueryQP(t *testing.T) {
	x, y, _, _ := two(t)
	var q uapi.QueryQPResp
	y.p.do(uapi.CmdQueryQP, uapi.QueryQP{QPHandle: y.handle}, nil, &q, nil)
	if verbs.QPState(q.QPState) != verbs.QPStateRTS || q.DestQPNum != x.qpn || q.MaxSendWR != y.sq.mask || q.MaxRecvWR != y.rq.mask || q.Dest.IsGlobal != 1 || q.Timeout != 14 ||
		q.SQPSN != y.qpn&0xffff || q.MaxRdAtomic != 4 || q.PathMTU != uint8(verbs.MTU1024) {
		t.Errorf("got %+v", q)
	}
}

// TestInlineWithoutAsking posts as much inline data as there is room for where SGEs may stand, on a QP that was made without
// inline data. Linux's rxe grants this.
func TestInlineWithoutAsking(t *testing.T) {
	x, _, xcq, _ := two(t)
	p := x.p
	for sge, want := range map[uint32]uint32{0: 0, 1: 16, 2: 32, 30: 480, 32: 480} {
		in := uapi.CreateQP{PDHandle: p.pd, SendCQHandle: xcq.handle, RecvCQHandle: xcq.handle, MaxSendWR: 1, MaxSendSGE: sge, QPType: uint8(verbs.QPTypeRC)}
		var (
			resp   uapi.CreateQPResp
			driver uapi.RxeCreateQPResp
			q      uapi.QueryQPResp
		)
		p.do(uapi.CmdCreateQP, in, nil, &resp, &driver)
		p.do(uapi.CmdQueryQP, uapi.QueryQP{QPHandle: resp.QPHandle}, nil, &q, nil)
		if resp.MaxInlineData != want || q.MaxInlineData != want {
			t.Errorf("%d SGEs: granted %d bytes, and QUERY_QP tells %d, want %d", sge, resp.MaxInlineData, q.MaxInlineData, want)
		}
	}

	in := uapi.CreateQP{PDHandle: p.pd, SendCQHandle: xcq.handle, RecvCQHandle: xcq.handle, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uint8(verbs.QPTypeRC)}
	var (
		resp   uapi.CreateQPResp
		driver uapi.RxeCreateQPResp
	)
	p.do(uapi.CmdCreateQP, in, nil, &resp, &driver)
	q := &userQP{p: p, handle: resp.QPHandle, qpn: resp.QPN, sq: p.mmap(driver.SQMI), rq: p.mmap(driver.RQMI)}
	q.init(0)
	q.connect(q)
	q.recv(1, arenaBase, 16)
	q.post(send{id: 2, op: verbs.OpSend, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte("sixteen bytes ok")})
	for range 2 {
		if w := xcq.wait(); w.Status != 0 {
			t.Errorf("completion %d: got status %v", w.WRID, verbs.WCStatus(w.Status))
		}
	}
	if got := string(p.arena[:16]); got != "sixteen bytes ok" {
		t.Errorf("received %q", got)
	}
}

// TestQueries asks for the attributes, and for as many as an older program knows.
func TestQueries(t *testing.T) {
	a := newProgram(t, devices(t)[0])
	want, err := a.c.Device().Query()
	if err != nil {
		t.Fatal(err)
	}
	var d uapi.QueryDeviceResp
	a.do(uapi.CmdQueryDevice, uapi.QueryDevice{}, nil, &d, nil)
	if d.NodeGUID != want.NodeGUID || int(d.MaxQPWR) != want.MaxQPWR || int(d.MaxSGE) != want.MaxSGE || d.PhysPortCnt != 1 {
		t.Errorf("device: got %+v", d)
	}
	var ex uapi.ExQueryDeviceResp
	a.do(uapi.CmdExQueryDevice, uapi.ExQueryDevice{}, nil, &ex, nil)
	if ex.Base != d || ex.ResponseLength != uint32(len(uapi.Append(nil, ex))) {
		t.Errorf("device: got length %d, and %+v", ex.ResponseLength, ex.Base)
	}
	var port uapi.QueryPortResp
	a.do(uapi.CmdQueryPort, uapi.QueryPort{PortNum: 1}, nil, &port, nil)
	if port.State != uint8(verbs.PortActive) || port.LinkLayer != uint8(verbs.LinkLayerEthernet) || port.GIDTblLen == 0 {
		t.Errorf("port: got %+v", port)
	}
	if err := a.try(uapi.CmdQueryPort, uapi.QueryPort{PortNum: 2}, nil, &port, nil); Errno(err) != unix.EINVAL {
		t.Errorf("port 2: got %v, want EINVAL", err)
	}
}

// TestRefusals: commands that are wrong get the error of Linux, and leave nothing.
func TestRefusals(t *testing.T) {
	a := newProgram(t, devices(t)[0])
	cq := a.cq(10, -1)
	create := uapi.CreateQP{PDHandle: a.pd, SendCQHandle: cq.handle, RecvCQHandle: cq.handle, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uint8(verbs.QPTypeRC)}
	with := func(f func(*uapi.CreateQP)) uapi.CreateQP { c := create; f(&c); return c }
	for name, c := range map[string]struct {
		n           uapi.CommandNumber
		in          any
		out, driver any
		want        unix.Errno
	}{
		"a command that does not exist":     {n: 40, in: uint32(0), want: unix.EOPNOTSUPP},
		"XRC":                               {n: uapi.CmdOpenXRCD, in: uint64(0), want: unix.EOPNOTSUPP},
		"a second GET_CONTEXT":              {n: uapi.CmdGetContext, in: uapi.GetContext{}, out: &uapi.GetContextResp{}, want: unix.EINVAL},
		"half a command":                    {n: uapi.CmdRegMR, in: uint64(0), out: &uapi.RegMRResp{}, want: unix.EINVAL},
		"no room for the response":          {n: uapi.CmdAllocPD, in: uapi.AllocPD{}, want: unix.ENOSPC},
		"a PD that does not exist":          {n: uapi.CmdDeallocPD, in: uapi.DeallocPD{PDHandle: 999}, want: unix.EINVAL},
		"a PD that is in use":               {n: uapi.CmdDeallocPD, in: uapi.DeallocPD{PDHandle: a.pd}, want: unix.EBUSY},
		"memory that does not exist":        {n: uapi.CmdRegMR, in: uapi.RegMR{Start: 0x1000, HCAVA: 0x1000, Length: 4096, PDHandle: a.pd, AccessFlags: 1}, out: &uapi.RegMRResp{}, want: unix.EFAULT},
		"another place in the page":         {n: uapi.CmdRegMR, in: uapi.RegMR{Start: arenaBase + 8, HCAVA: 0x1000, Length: 4096, PDHandle: a.pd, AccessFlags: 1}, out: &uapi.RegMRResp{}, want: unix.EINVAL},
		"remote write without local write":  {n: uapi.CmdRegMR, in: uapi.RegMR{Start: arenaBase, HCAVA: arenaBase, Length: 4096, PDHandle: a.pd, AccessFlags: 2}, out: &uapi.RegMRResp{}, want: unix.EINVAL},
		"all memory on demand":              {n: uapi.CmdRegMR, in: uapi.RegMR{Length: 1<<64 - 1, PDHandle: a.pd, AccessFlags: 1 << 6}, out: &uapi.RegMRResp{}, want: unix.EINVAL},
		"a CQ of none":                      {n: uapi.CmdCreateCQ, in: uapi.CreateCQ{CompChannel: -1}, out: &uapi.CreateCQResp{}, driver: &uapi.RxeCreateCQResp{}, want: unix.EINVAL},
		"a CQ of too many":                  {n: uapi.CmdCreateCQ, in: uapi.CreateCQ{CQE: 1 << 20, CompChannel: -1}, out: &uapi.CreateCQResp{}, driver: &uapi.RxeCreateCQResp{}, want: unix.EINVAL},
		"a channel that does not exist":     {n: uapi.CmdCreateCQ, in: uapi.CreateCQ{CQE: 1, CompChannel: 999}, out: &uapi.CreateCQResp{}, driver: &uapi.RxeCreateCQResp{}, want: unix.EBADF},
		"a raw QP":                          {n: uapi.CmdCreateQP, in: with(func(c *uapi.CreateQP) { c.QPType = 8 }), out: &uapi.CreateQPResp{}, driver: &uapi.RxeCreateQPResp{}, want: unix.EOPNOTSUPP},
		"a QP with too long a queue":        {n: uapi.CmdCreateQP, in: with(func(c *uapi.CreateQP) { c.MaxSendWR = 1 << 30 }), out: &uapi.CreateQPResp{}, driver: &uapi.RxeCreateQPResp{}, want: unix.EINVAL},
		"a QP of too many SGEs":             {n: uapi.CmdCreateQP, in: with(func(c *uapi.CreateQP) { c.MaxRecvSGE = 1 << 30 }), out: &uapi.CreateQPResp{}, driver: &uapi.RxeCreateQPResp{}, want: unix.EINVAL},
		"a QP with too much inline data":    {n: uapi.CmdCreateQP, in: with(func(c *uapi.CreateQP) { c.MaxInlineData = 1 << 20 }), out: &uapi.CreateQPResp{}, driver: &uapi.RxeCreateQPResp{}, want: unix.EINVAL},
		"a QP without a CQ":                 {n: uapi.CmdCreateQP, in: with(func(c *uapi.CreateQP) { c.SendCQHandle = 999 }), out: &uapi.CreateQPResp{}, driver: &uapi.RxeCreateQPResp{}, want: unix.EINVAL},
		"a QP with a driver's part missing": {n: uapi.CmdCreateQP, in: create, out: &uapi.CreateQPResp{}, want: unix.ENOSPC},
		"an SRQ of none":                    {n: uapi.CmdCreateSRQ, in: uapi.CreateSRQ{PDHandle: a.pd}, out: &uapi.CreateSRQResp{}, driver: &uapi.RxeCreateSRQResp{}, want: unix.EINVAL},
		"an SRQ of XRC":                     {n: uapi.CmdCreateXSRQ, in: uapi.CreateXSRQ{SRQType: 1, PDHandle: a.pd, MaxWR: 1}, out: &uapi.CreateSRQResp{}, driver: &uapi.RxeCreateSRQResp{}, want: unix.EOPNOTSUPP},
		"a doorbell of no QP":               {n: uapi.CmdPostSend, in: uapi.PostSend{QPHandle: 999}, want: unix.EINVAL},
	} {
		if err := a.try(c.n, c.in, nil, c.out, c.driver); err == nil || Errno(err) != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if r, err := a.c.Device().Resources(); err != nil || len(r.QP) != 0 || len(r.CQ) != 1 || len(r.MR) != 1 {
		t.Errorf("left: %d QPs, %d CQs, %d MRs, %v, want 0, 1 and 1", len(r.QP), len(r.CQ), len(r.MR), err)
	}
}

// TestClose: a program that ends leaves nothing, whatever it had.
func TestClose(t *testing.T) {
	x, _, xcq, _ := two(t)
	p := x.p
	var (
		srq uapi.CreateSRQResp
		mw  uapi.AllocMWResp
	)
	p.do(uapi.CmdCreateSRQ, uapi.CreateSRQ{PDHandle: p.pd, MaxWR: 8, MaxSGE: 1}, nil, &srq, &uapi.RxeCreateSRQResp{})
	p.qp(verbs.QPTypeRC, xcq, xcq, srq.SRQHandle)
	p.do(uapi.CmdAllocMW, uapi.AllocMW{PDHandle: p.pd, MWType: uint8(verbs.MWType1)}, nil, &mw, nil)
	if err := p.c.Close(); err != nil {
		t.Errorf("close: got %v, want all objects closed, and the device", err)
	}
	if err := p.try(uapi.CmdAllocPD, uapi.AllocPD{}, nil, &uapi.AllocPDResp{}, nil); Errno(err) != unix.EIO {
		t.Errorf("a command after that: got %v, want EIO", err)
	}
	if err := p.c.Close(); err != nil {
		t.Errorf("close again: got %v", err)
	}
}
