package hca

// Attacks of strangers on a connection with forged packets. Strangers know both QPNs, and send from the
// peer's address and port, as who can forge addresses does. They do not know the PSN.
// docs/SECURITY.md lists all attacks with the tests that show the defences.

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// forge sends a packet without payload from a's address and port to b, as if a's QP had sent it.
func forge(t *testing.T, a, b *end, p wire.Packet, extra int) {
	t.Helper()
	q := a.impl()
	p.PKey, p.DestQP = wire.DefaultPKey, uint32(b.qp.QPN())
	raw := append(p.AppendHeaders(nil), make([]byte, extra+wire.ICRCSize)...)
	flow := wire.NewFlow(q.out.src, q.out.dst)
	flow.Seal(0, raw)
	if err := q.out.eng.link.Send([]link.Datagram{{Src: q.out.src, Dst: q.out.dst, Payload: raw}}); err != nil {
		t.Fatal(err)
	}
}

// attacked is a connection that works, with memory on both sides, and its check after an attack.
type attacked struct {
	t        *testing.T
	x, y     *end
	src, dst *verbs.MR
	moved    uint64 // how often works has moved data
}

func underAttack(t *testing.T) *attacked {
	net := sim.New(sim.Config{})
	a := &attacked{t: t}
	a.x, a.y = connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	a.src, a.dst = a.x.mr(1<<16), a.y.mr(1<<16)
	a.works(time.Second)
	return a
}

// works checks that the connection moves data within a time.
func (a *attacked) works(limit time.Duration) {
	a.t.Helper()
	a.moved++
	fill(a.src.Bytes(), a.moved)
	start := time.Now()
	a.x.transfer(a.src, a.dst)
	if !bytes.Equal(a.src.Bytes(), a.dst.Bytes()) {
		a.t.Fatal("other bytes arrived than were sent")
	}
	if d := time.Since(start); d > limit {
		a.t.Errorf("the transfer took %v, want %v at most", d, limit)
	}
}

// Guessing PSNs: WRITEs, READs and atomics with any PSN but the right one change no memory, and are
// answered by no more packets than they are.
func TestGuessedPSNs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := underAttack(t)
		want := bytes.Clone(a.dst.Bytes())
		const seed, n = 11, 5000
		rnd := rand.New(rand.NewPCG(seed, 0))
		epsn := expectedPSN(a.y)
		b := burdened(t, a.y.dev)
		for i := range n {
			p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, AckReq: true, PSN: wire.PSN(rnd.Uint32() & uint32(wire.PSNMask))},
				RETH: wire.RETH{VA: a.dst.Addr() + uint64(rnd.IntN(1<<15)), RKey: uint32(a.dst.RKey()), Length: 64}}
			extra := 64
			switch i % 3 {
			case 1:
				p.Opcode, extra = wire.RCRDMAReadRequest, 0
				p.RETH.Length = 1 << 15
			case 2:
				p.Opcode, extra = wire.RCFetchAdd, 0
				p.AtomicETH = wire.AtomicETH{VA: a.dst.Addr(), RKey: uint32(a.dst.RKey()), SwapAdd: 1}
			}
			if p.PSN == epsn {
				continue
			}
			forge(t, a.x, a.y, p, extra)
			if i%64 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if !bytes.Equal(a.dst.Bytes(), want) {
			t.Errorf("seed %d: forged requests have changed memory, want it as it was", seed)
		}
		if c := counters(a.y); c.Duplicates < n/3 || c.OutOfOrder < n/3 {
			t.Errorf("seed %d: got %+v counted, want a third of %d each in the past and in the future", seed, c, n)
		}
		b.check(n)
		a.works(time.Second)
	})
}

// Guessing keys: a request with the right PSN and a wrong key ends the connection, and changes nothing.
// So each guess costs a connection.
func TestGuessedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		s.send(y, s.write(y, mr, []byte("forged"), func(p *wire.Packet) { p.RETH.RKey ^= 1 }))
		if y.qp.State() != verbs.QPStateErr || !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("got the QP in %v and %q in memory, want QPS_ERR and zeros", y.qp.State(), mr.Bytes()[:6])
		}
		if ops := s.answers(); len(ops) != 1 || ops[0] != wire.RCAcknowledge {
			t.Errorf("got answers %v, want one NAK", ops)
		}
		s.psn = s.psn.Add(1)
		s.send(y, s.write(y, mr, []byte("forged"), nil))
		if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Error("the next guess was carried out")
		}
	})
}

// Forged ACKs, NAKs of every kind, RNR NAKs, READ and atomic responses: without the PSN of a request
// that is outstanding they complete, fail and delay nothing.
func TestForgedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := underAttack(t)
		want := bytes.Clone(a.src.Bytes())
		syndromes := []wire.Syndrome{wire.SyndromeACK(0), wire.SyndromeRNR(0), wire.SyndromeRNR(31)}
		for code := range wire.NAKCode(5) {
			syndromes = append(syndromes, wire.SyndromeNAK(code))
		}
		b := burdened(t, a.x.dev)
		for i := range 4000 {
			p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: wire.PSN(i * 4194 & int(wire.PSNMask))},
				AETH: wire.AETH{Syndrome: syndromes[i%len(syndromes)], MSN: uint32(i)}}
			extra := 0
			switch i % 10 {
			case 8:
				p.Opcode, extra = wire.RCRDMAReadResponseOnly, 64
			case 9:
				p.Opcode = wire.RCAtomicAcknowledge
			}
			forge(t, a.y, a.x, p, extra)
			if i%64 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if a.x.qp.State() != verbs.QPStateRTS || !bytes.Equal(a.src.Bytes(), want) {
			t.Errorf("got the QP in %v, want RTS and its memory as before", a.x.qp.State())
		}
		// READ responses behind the outstanding PSNs look like responses that come twice.
		if c := counters(a.x); c.Unexpected+c.RepeatedResponses != 4000 || c.RepeatedResponses == 0 || c.RepeatedResponses > 400 {
			t.Errorf("got %d packets counted as unexpected, and %d as responses that came twice; want 4000 in all, of the second some of 400",
				c.Unexpected, c.RepeatedResponses)
		}
		b.check(0)
		a.x.empty()
		a.works(time.Second)
	})
}

// CNPs have no PSN, so anybody who knows the QPN can forge them. To a QP whose packets allow no marks they
// mean nothing. Another is slowed down to a bound, and recovers.
func TestForgedCNPs(t *testing.T) {
	for _, control := range []verbs.CongestionControl{verbs.CongestionWindow, verbs.CongestionDCQCN} {
		t.Run(control.String(), func(t *testing.T) { testForgedCNPs(t, control) })
	}
}

func testForgedCNPs(t *testing.T, control verbs.CongestionControl) {
	synctest.Test(t, func(t *testing.T) {
		a := underAttack(t)
		a.x.must(a.x.qp.SetCongestionControl(control))
		cnp := wire.NewCNP(0, wire.DefaultPKey)
		b := burdened(t, a.x.dev)
		for range 1000 { // as fast as a peer sends them, and faster
			for range 2 {
				forge(t, a.y, a.x, cnp, 16)
			}
			time.Sleep(50 * time.Microsecond)
			synctest.Wait()
		}
		c := counters(a.x)
		if control == verbs.CongestionWindow && c.IgnoredNotifications != 2000 || control == verbs.CongestionDCQCN && c.CongestionNotifications != 2000 {
			t.Errorf("%d CNPs counted as handled and %d as ignored, want 2000", c.CongestionNotifications, c.IgnoredNotifications)
		}
		const floor = 10e6 / 8
		if rate := counterOf(t, a.x.qp, "rate_limit_bytes"); control == verbs.CongestionWindow && rate != 0 || control == verbs.CongestionDCQCN && rate != floor {
			t.Errorf("the rate is %d, want none or the floor", rate)
		}
		b.check(0)
		a.works(time.Second)
		time.Sleep(time.Second)
		a.works(50 * time.Millisecond)
	})
}

// Messages that begin and never end hold one receive of one QP.
func TestUnfinishedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		y := newEnd(t, simDevice(t, net, 2), options{typ: verbs.QPTypeUC})
		y.must(y.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{MTU: verbs.MTU256}))
		mr, err := y.pd.AllocMR(1024, verbs.AccessLocalWrite)
		y.must(err)
		y.recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{mr.SGE(0, 512)}}, verbs.RecvWR{ID: 2, SGList: []verbs.SGE{mr.SGE(512, 512)}})
		s := newStation(t, net, 1)
		send := func(op wire.Opcode, n int) {
			p := wire.Packet{BTH: wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: uint32(y.qp.QPN()), PSN: s.psn}}
			b := append(p.AppendHeaders(nil), make([]byte, n+wire.ICRCSize)...)
			s.seal(y, b)
			s.send(y, b)
			s.psn = s.psn.Add(1)
		}
		send(wire.UCSendFirst, 256)
		b := burdened(t, y.dev)
		for range 3000 {
			send(wire.UCSendFirst, 256)
		}
		b.check(0)
		y.empty()
		send(wire.UCSendOnly, 8)
		send(wire.UCSendOnly, 8)
		for id := uint64(1); id <= 2; id++ {
			if wc := y.done(); wc.ID != id || wc.ByteLen != 8 {
				t.Errorf("got %d bytes in receive %d, want 8 in receive %d", wc.ByteLen, wc.ID, id)
			}
		}
	})
}

// expectedPSN is the PSN that an end waits for.
func expectedPSN(e *end) wire.PSN {
	q := e.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	_, base := q.t.Expect(&wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly}})
	return base
}
