package hca

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Who has recorded a connection's packets and sends them again, from the peer's address and port, restores
// nothing that was overwritten, and gets one acknowledgement a packet at most.
func TestReplayedPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		var recorded [][]byte
		for _, text := range []string{"first", "second", "third"} {
			b := s.write(y, mr, []byte(text), nil)
			recorded = append(recorded, bytes.Clone(b))
			s.send(y, b)
			s.psn = s.psn.Add(1)
		}
		s.answers()
		want := bytes.Clone(mr.Bytes())
		const rounds = 100
		answers := 0
		cost := burdened(t, y.dev)
		for range rounds {
			for i, b := range recorded {
				s.send(y, bytes.Clone(b))
				answers += len(s.answers())
				if !bytes.Equal(mr.Bytes(), want) { // after each packet: the last would hide a change by the first
					t.Fatalf("memory is %q after packet %d came again, want %q as before", mr.Bytes()[:8], i, want[:8])
				}
			}
		}
		if answers > rounds*len(recorded) {
			t.Errorf("%d answers to %d packets, want no more than those", answers, rounds*len(recorded))
		}
		cost.check(rounds * len(recorded))
		if c := y.impl().counts(); c.Duplicates != rounds*uint64(len(recorded)) {
			t.Errorf("%d duplicates counted, want %d", c.Duplicates, rounds*len(recorded))
		}
		s.send(y, s.write(y, mr, []byte("fourth"), nil))
		if a := s.answers(); len(a) != 1 || !bytes.HasPrefix(mr.Bytes(), []byte("fourth")) {
			t.Errorf("the genuine packet: got answers %v and %q in memory, want it executed", a, mr.Bytes()[:8])
		}
	})
}

// Whoever tries QPNs without the peer's address finds no QP that takes a packet, learns nothing from
// answers, and makes nothing grow.
func TestGuessedQPNs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, net := byHand(t)
		thief := newStation(t, net, 3)
		const seed, n = 12, 5000
		rnd := rand.New(rand.NewPCG(seed, 0))
		block := uint32(y.qp.QPN()) &^ 0xfff
		guess := func(n int) {
			for i := range n {
				qpn := rnd.Uint32() & 0xffffff
				if i%2 == 0 { // it knows a block
					qpn = block | qpn&0xfff
				}
				if qpn <= 1 || qpn == multicastQPN {
					continue
				}
				thief.send(y, thief.write(y, mr, []byte("forged"), func(p *wire.Packet) { p.DestQP = qpn }))
			}
			thief.send(y, thief.write(y, mr, []byte("forged"), nil)) // and hits
		}
		guess(100)
		b := burdened(t, y.dev)
		guess(n)
		b.check(0)
		if a := thief.answers(); a != nil || !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("seed %d: got answers %v and %q in memory, want none", seed, a, mr.Bytes()[:8])
		}
		if d := stats(t, y.dev).Drops; d.Source < 2 || d.NoQP < n/2 || d.Source+d.NoQP > n+102 {
			t.Errorf("seed %d: got drops %+v, want all counted: for their source if they hit, and for want of a QP", seed, d)
		}
		s.send(y, s.write(y, mr, []byte("genuine"), nil))
		if a := s.answers(); len(a) != 1 || !bytes.HasPrefix(mr.Bytes(), []byte("genuine")) {
			t.Errorf("the genuine packet: got answers %v and %q in memory, want it executed", a, mr.Bytes()[:8])
		}
	})
}

// READ requests that are repeated are answered again, as the standard wants it: that is the one attack by which
// a packet makes for many. Those that come faster than they can be answered are answered once for all of a batch.
func TestReplayedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		d, err := Open(net.Netdev("sim2", simAddr(2)), Config{Driven: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		y := newEnd(t, verbs.NewDevice(d), options{})
		y.must(y.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{MTU: verbs.MTU256}))
		const size, copies, batches = 100, 10 * receiveBatch, 10 // packets of the answer, requests
		mr, s := y.mr(256*size), newStation(t, net, 1)
		read := s.write(y, mr, nil, func(p *wire.Packet) { p.Opcode, p.RETH.Length = wire.RCRDMAReadRequest, 256*size })
		sent := func() (n int) {
			for quiet := 0; quiet < 2; quiet++ {
				d.Drive(false)
				for ops := s.answers(); len(ops) > 0; ops = s.answers() {
					n += len(ops)
					quiet = 0
				}
			}
			return n
		}
		s.send(y, read)
		if n := sent(); n != size {
			t.Fatalf("the READ is answered by %d packets, want %d", n, size)
		}
		flood := func() {
			for range copies {
				s.send(y, read)
			}
			if n := sent(); n < size || n > batches*size {
				t.Errorf("%d packets answer %d repeats in %d batches, want %d to %d", n, copies, batches, size, batches*size)
			}
		}
		flood() // which the network in memory makes room for
		b := burdened(t, y.dev)
		flood()
		b.check(batches * size)
		for i := range receiveBatch { // each asks for a part, and so for another packet
			part := *s
			part.psn = s.psn.Add(i)
			s.send(y, part.write(y, mr, nil, func(p *wire.Packet) {
				p.Opcode, p.RETH.VA, p.RETH.Length = wire.RCRDMAReadRequest, mr.Addr()+uint64(256*i), 256
			}))
		}
		if n := sent(); n < 1 || n > maxReplays {
			t.Errorf("%d packets answer %d repeats of parts, want %d at most, which may wait at a time", n, receiveBatch, maxReplays)
		}
	})
}

// maxReplays is how many repeated READs the transport keeps to be answered.
const maxReplays = 16

// A peer like us that leaves a packet out, and sends those behind it, has maxHeld of them kept, for each QP. They
// go once the gap is filled.
func TestPacketsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, _, s, _ := byHand(t)
		attr, _, err := y.qp.Query()
		y.must(err)
		size := attr.PathMTU.Bytes()
		mr := y.mr(size)
		hello := func(p *wire.Packet) { p.Opcode, p.AckReq, p.PadCount = wire.RCHello, false, 0 }
		s.send(y, s.write(y, mr, wire.Hello{Version: 1}.AppendTo(nil), hello))
		s.handshake(y, mr)
		gap := s.psn
		data := make([]byte, size)
		fill(data, 1)
		flood := func() {
			for i := range 2000 { // more than may be under way, too
				s.psn = gap.Add(1 + i)
				s.send(y, s.write(y, mr, data, nil))
				s.answers()
			}
		}
		responder := func() (held uint64) { return y.impl().counts().Held }
		heap := func() uint64 { b := burdened(t, y.dev); return b.heap }
		before := heap()
		flood()
		if n := responder(); n != maxHeldPackets {
			t.Errorf("%d packets are held, want %d", n, maxHeldPackets)
		}
		if after := heap(); after > before+maxHeldPackets*uint64(size)*3/2 {
			t.Errorf("the heap grew from %d to %d bytes, want no more than half as much again as %d packets of %d", before, after, maxHeldPackets, size)
		}
		cost := burdened(t, y.dev)
		flood()
		cost.check(2000)
		s.psn = gap
		s.send(y, s.write(y, mr, []byte("first"), nil))
		if a := s.answers(); len(a) != 1 || !bytes.Equal(mr.Bytes(), data) {
			t.Errorf("what fills the gap: got answers %v and %q in memory, want one, and what was held executed", a, mr.Bytes()[:8])
		}
		if after := heap(); after > before+maxGrowth {
			t.Errorf("the heap has grown from %d to %d bytes when nothing is held any more, want no more than %d", before, after, maxGrowth)
		}
	})
}

// maxHeldPackets is the number of packets that the transport keeps for a QP.
const maxHeldPackets = 512
