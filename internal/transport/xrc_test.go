package transport

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// xrcPair is an initiator and a target with two SRQs.
type xrcPair struct {
	t            *testing.T
	a, b         *QP
	user         *queue.XRCUser
	now          time.Duration
	from         *mem.PD // of the initiator's memory
	src          verbs.ProviderMR
	pds          [2]*mem.PD
	mrs          [2]verbs.ProviderMR
	srqs         [2]*queue.SRQ
	cqs          [2]*queue.CQ
	sent         []wire.Packet // by both ends, without payloads
	drop         func(*wire.Packet) (lost, twice bool)
	sends, recvs []verbs.WC
	causes       []error
}

const xrcMemory = 1 << 16

// srqns are the numbers of the SRQs.
var srqns = [2]verbs.SRQN{0x123456, 0x000777}

func newXRCPair(t *testing.T) *xrcPair {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	keys := mem.NewKeys(100, rnd.Uint32)
	p := &xrcPair{t: t, from: keys.NewPD(), drop: func(*wire.Packet) (bool, bool) { return false, false }}
	register := func(pd *mem.PD) verbs.ProviderMR {
		mr, err := pd.RegMR(verbs.MRAttr{Length: xrcMemory, Access: allAccess})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mr.Close() })
		return mr
	}
	p.src = register(p.from)
	for i := range p.src.Bytes() {
		p.src.Bytes()[i] = byte(i * 7)
	}
	domain := new(queue.XRCDomain)
	for i := range srqns {
		p.pds[i] = keys.NewPD()
		p.mrs[i] = register(p.pds[i])
		p.srqs[i] = queue.NewSRQ(p.pds[i], verbs.SRQAttr{MaxWR: 16, MaxSGE: 1}, func() {})
		p.cqs[i] = queue.NewCQ(64, queue.CQHooks{})
		domain.Add(uint32(srqns[i]), p.srqs[i], p.cqs[i])
	}
	p.user = &queue.XRCUser{Domain: domain}
	cap := verbs.QPCap{MaxSendWR: 64, MaxSendSGE: 1}
	p.a = New(Config{Type: verbs.QPTypeXRCSend, QPN: 0x11, Cap: cap, PD: p.from, Receives: queue.NewRecvQueue(p.from, verbs.QPCap{MaxRecvWR: 1})})
	p.b = New(Config{Type: verbs.QPTypeXRCRecv, QPN: 0x22, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}, XRC: p.user, Receives: p.user})
	for _, q := range []*QP{p.a, p.b} {
		attr := verbs.QPAttr{PathMTU: verbs.MTU1024, SQPSN: 100, RQPSN: 100, DestQPN: 0x33 - q.cfg.QPN, Port: 1, Access: remoteAccess, Timeout: 10, RetryCnt: 7,
			RNRRetry: 7, MinRNRTimer: 1, MaxRDAtomic: 4, MaxDestRDAtomic: 4}
		for _, to := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS} {
			attr.State = to
			if err := q.Modify(0, &attr, verbs.MaskState|xrcMasks[q.cfg.Type][to]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

// xrcMasks are the attributes that each change of state requires.
var xrcMasks = map[verbs.QPType]map[verbs.QPState]verbs.QPAttrMask{
	verbs.QPTypeXRCSend: {
		verbs.QPStateInit: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags,
		verbs.QPStateRTR:  verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN,
		verbs.QPStateRTS:  verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic,
	},
	verbs.QPTypeXRCRecv: {
		verbs.QPStateInit: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags,
		verbs.QPStateRTR:  verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
		verbs.QPStateRTS:  verbs.MaskTimeout | verbs.MaskSQPSN,
	},
}

func (p *xrcPair) post(wrs ...verbs.SendWR) {
	p.t.Helper()
	for i := range wrs {
		if err := p.a.Post(&wrs[i]); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *xrcPair) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: p.src.Addr() + uint64(off), Length: uint32(n), LKey: p.src.LKey()}}
}

// postRecv posts a receive of n bytes to SRQ i.
func (p *xrcPair) postRecv(i int, id uint64, off, n int) {
	p.t.Helper()
	mr := p.mrs[i]
	if _, err := p.srqs[i].PostRecv([]verbs.RecvWR{{ID: id, SGList: []verbs.SGE{{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}}}}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *xrcPair) remote(i, off int) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: p.mrs[i].Addr() + uint64(off), RKey: p.mrs[i].RKey()}
}

// deliver hands a datagram to a QP.
func (p *xrcPair) deliver(q *QP, datagram []byte) {
	var w wire.Packet
	if err := w.Decode(datagram); err != nil {
		p.t.Fatal(err)
	}
	q.HandlePacket(p.now, &w, 0)
	p.collect()
}

// collect takes the news of both ends.
func (p *xrcPair) collect() {
	for _, c := range p.a.Completions() {
		p.sends = append(p.sends, c.WC)
	}
	for _, c := range p.b.Completions() {
		to := p.user.CQ()
		c.WC.Imm = uint32(slices.Index(p.cqs[:], to)) // the test sends no immediate data
		p.recvs = append(p.recvs, c.WC)
	}
	for _, e := range p.b.Events() {
		p.causes = append(p.causes, e.Cause)
	}
}

// run lets time pass until nothing is under way, or for a while.
func (p *xrcPair) run(most time.Duration) {
	p.t.Helper()
	buf := make([]byte, MaxDatagram)
	for end := p.now + most; p.now < end; {
		busy := false
		for _, q := range []*QP{p.a, p.b} {
			to := p.a
			if q == p.a {
				to = p.b
			}
			for n := q.Transmit(p.now, buf); n > 0; n = q.Transmit(p.now, buf) {
				busy = true
				var w wire.Packet
				if err := w.Decode(buf[:n]); err != nil {
					p.t.Fatal(err)
				}
				lost, twice := p.drop(&w)
				w.Payload = nil
				p.sent = append(p.sent, w)
				if !lost {
					p.deliver(to, slices.Clone(buf[:n]))
				}
				if twice {
					p.deliver(to, slices.Clone(buf[:n]))
				}
			}
			p.collect()
		}
		if busy {
			p.now += time.Microsecond
			continue
		}
		next := min(p.a.NextTimeout(), p.b.NextTimeout())
		if next == Never || next > end {
			return
		}
		p.now = max(p.now+1, next)
		p.a.HandleTimeout(p.now)
		p.b.HandleTimeout(p.now)
		p.collect()
	}
}

func xrcSend(id uint64, n verbs.SRQN, sg []verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: sg, RemoteSRQN: n}
}

// TestXRCPackets: requests have the opcodes of XRC and an XRCETH each, responses have none.
func TestXRCPackets(t *testing.T) {
	p := newXRCPair(t)
	p.postRecv(1, 9, 0, 4096)
	p.post(xrcSend(1, srqns[1], p.sge(0, 2500)),
		verbs.SendWR{ID: 2, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: p.sge(0, 10), Remote: p.remote(0, 8), RemoteSRQN: srqns[0]},
		verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: p.sge(8192, 10), Remote: p.remote(0, 8), RemoteSRQN: srqns[0]},
		verbs.SendWR{ID: 4, Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: p.sge(16384, 8), Remote: p.remote(1, 8), CompareAdd: 1, RemoteSRQN: srqns[1]},
		verbs.SendWR{ID: 5, Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: p.remote(0, 8), RemoteSRQN: srqns[0], Flush: verbs.Flush{Length: 10, Placement: verbs.FlushGlobal}})
	p.run(time.Second)
	var got []wire.Opcode
	for _, w := range p.sent {
		if !w.Opcode.IsRequest() {
			if w.Opcode.Headers()&wire.HeaderXRCETH != 0 || w.Opcode.Service() != wire.ServiceXRC {
				t.Errorf("response %v, want one of XRC without an XRCETH", w.Opcode)
			}
			continue
		}
		want := srqns[1]
		if w.Opcode == wire.XRC|wire.RCRDMAWriteOnly || w.Opcode == wire.XRC|wire.RCRDMAReadRequest || w.Opcode == wire.XRC|wire.RCFlush {
			want = srqns[0]
		}
		if w.XRCETH.SRQN != uint32(want) {
			t.Errorf("%v to SRQ %#x, want %v", w.Opcode, w.XRCETH.SRQN, want)
		}
		got = append(got, w.Opcode-wire.XRC)
	}
	if want := []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCRDMAWriteOnly, wire.RCRDMAReadRequest, wire.RCFetchAdd, wire.RCFlush}; !slices.Equal(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	if len(p.sends) != 5 || p.sends[4].Status != verbs.WCSuccess || p.sends[4].Op != verbs.WCFlush || len(p.recvs) != 1 || p.recvs[0].ByteLen != 2500 || p.recvs[0].Imm != 1 || p.recvs[0].ID != 9 {
		t.Errorf("completions %+v and %+v, want 5, the last one of a FLUSH, and that of receive 9 in the second CQ with 2500 bytes", p.sends, p.recvs)
	}
	if !slices.Equal(p.src.Bytes()[8192:8202], p.src.Bytes()[:10]) {
		t.Error("the READ has other bytes than were written")
	}
}

// TestXRCLoss: whatever is lost or comes twice, each message arrives once, in the SRQ that it names.
func TestXRCLoss(t *testing.T) {
	for seed := range uint64(30) {
		p := newXRCPair(t)
		rnd := rand.New(rand.NewPCG(seed, 0))
		p.drop = func(*wire.Packet) (bool, bool) { return rnd.IntN(10) == 0, rnd.IntN(10) == 0 }
		for i := range 16 {
			n := rnd.IntN(3000)
			if i%8 == 6 {
				p.post(verbs.SendWR{ID: uint64(i), Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: p.remote(i/8, 0), RemoteSRQN: srqns[i/8],
					Flush: verbs.Flush{Length: 8, Placement: verbs.FlushGlobal}})
				continue
			}
			if i%4 == 3 {
				p.post(verbs.SendWR{ID: uint64(i), Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: p.sge(1<<15, 8), Remote: p.remote(i/4%2, 0), CompareAdd: 1, RemoteSRQN: srqns[i/4%2]})
				continue
			}
			p.postRecv(i%2, uint64(i), 4096*(i+1)%xrcMemory, 3000)
			p.post(xrcSend(uint64(i), srqns[i%2], p.sge(0, n)))
		}
		p.run(time.Minute)
		if len(p.sends) != 16 || len(p.recvs) != 10 || p.b.Work().Flushes != 2 {
			t.Fatalf("seed %d: %d and %d completions, want 16 and 10, and two FLUSHes executed: %+v, %v", seed, len(p.sends), len(p.recvs), p.sends, p.causes)
		}
		for _, wc := range slices.Concat(p.sends, p.recvs) {
			if wc.Status != verbs.WCSuccess {
				t.Errorf("seed %d: work request %d: %v, want success", seed, wc.ID, wc.Err())
			}
		}
		for _, wc := range p.recvs {
			if uint64(wc.Imm) != wc.ID%2 {
				t.Errorf("seed %d: receive %d completes in CQ %d, want that of its SRQ", seed, wc.ID, wc.Imm)
			}
		}
		for i, mr := range p.mrs {
			if got := nativeWord(mr.Bytes()); got != 2 {
				t.Errorf("seed %d: the word behind SRQ %d was increased %d times, want 2", seed, i, got)
			}
		}
	}
}

// TestXRCEmptySRQ: a message to an SRQ without receives waits, though the other SRQ has one.
func TestXRCEmptySRQ(t *testing.T) {
	p := newXRCPair(t)
	p.postRecv(0, 1, 0, 100)
	p.post(xrcSend(1, srqns[1], p.sge(0, 100)))
	p.run(10 * time.Millisecond)
	if len(p.sends) != 0 || len(p.recvs) != 0 || p.a.Counters().RNRNAKs == 0 {
		t.Fatalf("%d and %d completions, %d RNR NAKs; want none, none, and some", len(p.sends), len(p.recvs), p.a.Counters().RNRNAKs)
	}
	p.postRecv(1, 2, 0, 100)
	p.run(time.Second)
	if len(p.sends) != 1 || len(p.recvs) != 1 || p.recvs[0].ID != 2 {
		t.Errorf("completions %+v and %+v, want those of the SEND and of receive 2", p.sends, p.recvs)
	}
}

// TestXRCReads: READs under way at the same time read the memory of the SRQ that each names.
func TestXRCReads(t *testing.T) {
	p := newXRCPair(t)
	for i, mr := range p.mrs {
		mr.Bytes()[0] = byte(10 + i)
		p.post(verbs.SendWR{ID: uint64(i), Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: p.sge(i, 1), Remote: p.remote(i, 0), RemoteSRQN: srqns[i]})
	}
	p.run(time.Second)
	if len(p.sends) != 2 || p.sends[0].Status != verbs.WCSuccess || p.sends[1].Status != verbs.WCSuccess || p.src.Bytes()[0] != 10 || p.src.Bytes()[1] != 11 {
		t.Errorf("completions %+v, bytes %v; want two successes, and 10 and 11", p.sends, p.src.Bytes()[:2])
	}
}

// TestXRCReceives: a receive belongs to its SRQ, whatever is named meanwhile, and its place is free when it completes.
func TestXRCReceives(t *testing.T) {
	p := newXRCPair(t)
	for i := range 40 { // more than the SRQ has places
		p.postRecv(0, uint64(i), 0, 100)
		p.post(xrcSend(1, srqns[0], p.sge(0, 100)))
		p.run(time.Second)
		for range p.sends {
			p.a.sq.freed.Store(p.a.sq.head)
		}
	}
	if len(p.recvs) != 40 {
		t.Fatalf("%d receives are complete, want 40", len(p.recvs))
	}
	p = newXRCPair(t)
	p.postRecv(0, 1, 0, 4096)
	p.postRecv(1, 2, 0, 4096)
	only, first := xrcRequest(wire.RCSendOnly, 100, srqns[1], 8), xrcRequest(wire.RCSendFirst, 101, srqns[0], 1024)
	for _, w := range []*wire.Packet{only, first, only} {
		p.deliver(p.b, w.AppendTo(nil))
	}
	if err := p.b.Modify(p.now, &verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	p.collect()
	if len(p.recvs) != 2 || p.recvs[1].Status != verbs.WCFlushErr || p.recvs[1].ID != 1 || p.recvs[1].Imm != 0 {
		t.Errorf("completions %+v, want the second one flushed, receive 1 in the first CQ", p.recvs)
	}
}

// xrcRequest is a request to the target.
func xrcRequest(op wire.Opcode, psn wire.PSN, n verbs.SRQN, payload int) *wire.Packet {
	return &wire.Packet{BTH: wire.BTH{Opcode: wire.XRC | op, PSN: psn, DestQP: 0x22, AckReq: true, PKey: wire.DefaultPKey}, XRCETH: wire.XRCETH{SRQN: uint32(n)}, Payload: make([]byte, payload)}
}

// TestXRCRefused: what a target refuses, with the NAK.
func TestXRCRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		packets []*wire.Packet
		nak     wire.NAKCode
		cause   error
	}{
		"unknown SRQ":             {[]*wire.Packet{xrcRequest(wire.RCSendOnly, 100, 1, 8)}, wire.NAKInvalidRequest, verbs.ErrNotFound},
		"WRITE to an unknown SRQ": {[]*wire.Packet{xrcRequest(wire.RCRDMAWriteOnly, 100, 1, 0)}, wire.NAKInvalidRequest, verbs.ErrNotFound},
		"a message to two SRQs":   {[]*wire.Packet{xrcRequest(wire.RCSendFirst, 100, srqns[0], 1024), xrcRequest(wire.RCSendLast, 101, srqns[1], 8)}, wire.NAKInvalidRequest, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newXRCPair(t)
			p.postRecv(0, 1, 0, 4096)
			p.postRecv(1, 2, 0, 4096)
			for _, w := range tt.packets {
				p.deliver(p.b, w.AppendTo(nil))
			}
			buf := make([]byte, MaxDatagram)
			n := p.b.Transmit(p.now, buf)
			var w wire.Packet
			if err := w.Decode(buf[:n]); err != nil || w.Opcode != wire.XRC|wire.RCAcknowledge || w.AETH.Syndrome != wire.SyndromeNAK(tt.nak) {
				t.Fatalf("answer %v, %v; want a NAK %v", &w, err, tt.nak)
			}
			if p.b.State() != verbs.QPStateErr {
				t.Errorf("state %v, want ERR", p.b.State())
			}
			if tt.cause != nil && (len(p.causes) == 0 || !errors.Is(p.causes[0], tt.cause)) {
				t.Errorf("causes %v, want one that is %v", p.causes, tt.cause)
			}
			if tt.cause != nil && (len(p.causes) != 1 || !strings.HasPrefix(p.causes[0].Error(), tt.packets[len(tt.packets)-1].Opcode.String()+" to SRQ ")) {
				t.Errorf("causes %v, want one that names %v and its SRQ", p.causes, tt.packets[len(tt.packets)-1].Opcode)
			}
		})
	}
	// The initiator's error names the SRQ, since the NAK does not say what is wrong.
	p := newXRCPair(t)
	p.post(xrcSend(1, 1, p.sge(0, 100)))
	p.run(time.Second)
	if len(p.sends) != 1 || p.sends[0].Status != verbs.WCRemInvReqErr || !strings.Contains(p.sends[0].Cause.Error(), "has no SRQ 0x000001") {
		t.Errorf("completions %+v, want one of an invalid request that names the SRQ", p.sends)
	}
	// Packets that are no business of the end are counted and change nothing.
	p = newXRCPair(t)
	p.postRecv(0, 1, 0, 4096)
	rc := xrcRequest(wire.RCSendOnly, 100, srqns[0], 8)
	rc.Opcode = wire.RCSendOnly
	for q, w := range map[*QP]*wire.Packet{p.a: xrcRequest(wire.RCSendOnly, 100, srqns[0], 8), p.b: rc} {
		p.deliver(q, w.AppendTo(nil))
		if got := q.Counters().Unexpected; got != 1 || len(p.recvs) != 0 {
			t.Errorf("%v to QP %v: %d unexpected packets, %d receives; want 1 and none", w.Opcode, q.cfg.QPN, got, len(p.recvs))
		}
	}
}

// TestXRCFlush: a FLUSH is of the memory of the SRQ that it names, and its errors speak of XRC. ATOMIC WRITE is no operation of XRC.
func TestXRCFlush(t *testing.T) {
	flush := func(srq verbs.SRQN, to verbs.RemoteAddr, placement verbs.FlushPlacement) verbs.SendWR {
		return verbs.SendWR{ID: 1, Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: to, RemoteSRQN: srq, Flush: verbs.Flush{Length: 8, Placement: placement}}
	}
	for i, n := range srqns {
		p := newXRCPair(t)
		p.post(flush(n, p.remote(1, 0), verbs.FlushGlobal))
		p.run(time.Second)
		if want := [...]verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCSuccess}[i]; len(p.sends) != 1 || p.sends[0].Status != want {
			t.Errorf("a FLUSH of the second SRQ's memory that names SRQ %v: %+v, want %v", n, p.sends, want)
		}
	}
	p := newXRCPair(t)
	p.b.attr.Access &^= verbs.AccessFlushGlobal
	p.post(flush(srqns[0], p.remote(0, 0), verbs.FlushGlobal))
	p.run(time.Second)
	if len(p.causes) != 1 || !errors.Is(p.causes[0], verbs.ErrQPAccess) || !strings.HasPrefix(p.causes[0].Error(), "XRC FLUSH") {
		t.Errorf("causes %v, want one that begins with XRC FLUSH, of a right that the QP lacks", p.causes)
	}
	if op := wire.XRC | wire.RCAtomicWrite; op.Valid() {
		t.Errorf("%v is valid, want no opcode", op)
	}
}
