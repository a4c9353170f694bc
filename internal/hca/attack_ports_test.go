package hca

// Another user of the peer's host can send from the peer's address, but not from the ports that the peer
// has bound.

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// elsewhere returns the station at the n-th other port.
func (s *station) elsewhere(n int) *station {
	other := *s
	used := map[uint16]bool{s.link.Source(s.flow).Port(): true}
	for ; n > 0; n-- {
		for used[other.link.Source(other.flow).Port()] {
			other.flow++
		}
		used[other.link.Source(other.flow).Port()] = true
	}
	return &other
}

// handshake has y take a packet of s.
func (s *station) handshake(y *end, mr *verbs.MR) {
	s.t.Helper()
	s.send(y, s.write(y, mr, nil, nil))
	s.psn = s.psn.Add(1)
	if a := s.answers(); len(a) != 1 {
		s.t.Fatalf("answers %v, want an acknowledgement", a)
	}
}

// genuine fails the test unless y executes a packet of s.
func (s *station) genuine(y *end, mr *verbs.MR) {
	s.t.Helper()
	s.send(y, s.write(y, mr, []byte("genuine"), nil))
	if a := s.answers(); len(a) != 1 || !bytes.HasPrefix(mr.Bytes(), []byte("genuine")) {
		s.t.Errorf("the genuine packet: got answers %v and %q in memory, want it executed", a, mr.Bytes()[:8])
	}
}

// Whoever tries PSNs from another port of the peer's host changes nothing, even when the PSN that is
// waited for is among them, again and again. Before that, each such packet was executed.
func TestForgedFromAnotherPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		s.handshake(y, mr)
		thief := s.elsewhere(1)
		cost := burdened(t, y.dev)
		for range 3 {
			for i := range 100 {
				thief.psn = s.psn.Add(100 * (i - 99)) // reaches the PSNs of repeats, and last the next PSN
				thief.send(y, thief.write(y, mr, []byte("forged"), nil))
				thief.psn = s.psn.Add(1<<22 + i)
				thief.send(y, thief.write(y, mr, []byte("forged"), nil))
			}
		}
		ack := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PKey: 0xffff, DestQP: uint32(y.qp.QPN()), PSN: 77}}
		b := append(ack.AppendHeaders(nil), make([]byte, wire.ICRCSize)...)
		thief.seal(y, b)
		thief.send(y, b)
		if a := s.answers(); a != nil || !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("the forged packets: got answers %v and %q in memory, want none", a, mr.Bytes()[:8])
		}
		if d := stats(t, y.dev).Drops; d.Source != 600 {
			t.Errorf("got %d packets dropped for their source, want 600", d.Source)
		}
		cost.check(0)
		s.genuine(y, mr)
	})
}

// Who sends each PSN twice, as a peer that moves does, tells by the first wrong one that it guesses. Of 1,024
// PSNs that are spread over all there are, one is near enough to the right one to open the way. So a wrong
// one closes it, and the right one comes in vain.
func TestGuessedFromAnotherPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		s.handshake(y, mr)
		thief := s.elsewhere(1)
		twice := func(psn wire.PSN, data string) {
			thief.psn = psn
			for range 2 {
				thief.send(y, thief.write(y, mr, []byte(data), nil))
			}
		}
		const guesses, apart = 1024, 16000
		cost := burdened(t, y.dev)
		for i := range guesses { // none of them within the PSNs that a peer may repeat, or send ahead
			twice(s.psn.Add(1<<14+i*apart), "wrong")
		}
		twice(s.psn, "forged")
		if a := s.answers(); a != nil || !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("the forged packets: got answers %v and %q in memory, want none", a, mr.Bytes()[:8])
		}
		if d := stats(t, y.dev).Drops; d.Source != 2*guesses+2 {
			t.Errorf("got %d packets dropped for their source, want %d", d.Source, 2*guesses+2)
		}
		cost.check(0)
		s.genuine(y, mr)
	})
}

// A peer that moves to another port repeats one packet. That costs a repeat each time, and after some
// times nothing.
func TestPeerMovesToAnotherPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		s.handshake(y, mr)
		for n := range 2 * peer.MaxMoves {
			s = s.elsewhere(1 + n%3)
			want := 1
			if n > peer.MaxMoves {
				want = 0
			}
			for range want {
				s.send(y, s.write(y, mr, []byte{byte(1 + n)}, nil))
				if a := s.answers(); a != nil || mr.Bytes()[0] != byte(n) {
					t.Fatalf("move %d: the first packet is executed, want it dropped", n)
				}
			}
			s.send(y, s.write(y, mr, []byte{byte(1 + n)}, nil))
			if a := s.answers(); len(a) != 1 || mr.Bytes()[0] != byte(1+n) {
				t.Fatalf("move %d: the packet is not executed after %d repeats, want one answer and its byte in memory", n, want)
			}
			s.psn = s.psn.Add(1)
		}
		if d := stats(t, y.dev).Drops; d.Source != peer.MaxMoves+1 {
			t.Errorf("got %d packets dropped for their source, want %d", d.Source, peer.MaxMoves+1)
		}
	})
}

// Packets that a moving peer repeats may have been executed already, and its window may come with them.
func TestPeerMovesWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
		src, dst := x.mr(1<<20), y.mr(1<<20)
		fill(src.Bytes(), 1)
		x.transfer(src, dst)
		back := y.mr(64)
		y.transfer(back, x.mr(64))
		for i, e := range []*end{x, y} { // y's acknowledgements move too
			q := e.impl()
			q.mu.Lock()
			for flow := uint32(0); q.out.src == q.out.eng.link.Source(q.num); flow++ {
				q.out.src = q.out.eng.link.Source(flow)
			}
			q.out.flow = wire.NewFlow(q.out.src, q.out.dst)
			q.mu.Unlock()
			fill(src.Bytes(), uint64(2+i))
			start := time.Now()
			x.transfer(src, dst)
			if !bytes.Equal(src.Bytes(), dst.Bytes()) {
				t.Fatalf("move %d: other bytes arrived than were sent, want the same", i)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("move %d: it took %v, want the time of a repeat", i, d)
			}
			if n := counters(x).Timeouts; n > uint64(i+1) {
				t.Errorf("move %d: got %d timeouts so far, want %d at most", i, n, i+1)
			}
		}
		if d := stats(t, y.dev).Drops; d.Source == 0 {
			t.Error("nothing was dropped: the peer has not moved")
		}
	})
}

// A UC peer repeats nothing. It has moved when a second packet follows. Others are dropped.
func TestUCPeerMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		y := newEnd(t, simDevice(t, net, 2), options{typ: verbs.QPTypeUC})
		y.must(y.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{}))
		mr, err := y.pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		y.must(err)
		s := newStation(t, net, 1)
		write := func(s *station, b byte) {
			s.send(y, s.write(y, mr, []byte{b}, func(p *wire.Packet) { p.Opcode, p.AckReq = wire.UCRDMAWriteOnly, false }))
			s.psn = s.psn.Add(1)
		}
		want := func(b byte) {
			t.Helper()
			if got := mr.Bytes()[0]; got != b {
				t.Fatalf("got %d in memory, want %d", got, b)
			}
		}
		write(s, 1)
		want(1)
		thief := s.elsewhere(1)
		for i := range 1000 {
			thief.psn = wire.PSN(i * 16411 % (1 << 24))
			write(thief, 66)
		}
		for range 3 { // it has found the PSN
			thief.psn = s.psn
			write(thief, 66)
		}
		want(1)
		write(s, 2)
		want(2)
		time.Sleep(peer.MoveBan)
		s = s.elsewhere(2)
		write(s, 3)
		want(2)
		write(s, 4)
		want(4)
		write(s, 5)
		want(5)
	})
}

// A UC peer that moves and loses many packets by that is heard again when its old port has been silent
// for peer.UCMoveTime. It was deaf to that peer for ever. Who sends from another port while the peer sends too
// gets nowhere.
func TestUCPeerMovesWithLoss(t *testing.T) {
	for name, lost := range map[string]int{"some packets": ucWindow + 1, "far behind the window": 1 << 16, "almost half of all PSNs": 1<<23 - 100} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := sim.New(sim.Config{})
				y := newEnd(t, simDevice(t, net, 2), options{typ: verbs.QPTypeUC})
				y.must(y.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{}))
				mr := y.mr(64)
				s := newStation(t, net, 1)
				write := func(s *station, b byte) (taken bool) {
					s.send(y, s.write(y, mr, []byte{b}, func(p *wire.Packet) { p.Opcode, p.AckReq = wire.UCRDMAWriteOnly, false }))
					s.psn = s.psn.Add(1)
					return mr.Bytes()[0] == b
				}
				const step = peer.UCMoveTime / 10
				thief := s.elsewhere(1)
				thief.psn = s.psn.Add(lost)
				for range 30 { // while the peer sends, nobody else is taken for it
					if !write(s, 1) || write(thief, 66) {
						t.Fatal("somebody else was taken for the peer, want its own packets only")
					}
					time.Sleep(step)
				}
				s = s.elsewhere(2)
				s.psn = s.psn.Add(lost)
				start := time.Now()
				for !write(s, 2) {
					if time.Since(start) > peer.UCMoveTime {
						t.Fatalf("after %v the peer is not heard at its new port, want it within %v", time.Since(start), peer.UCMoveTime)
					}
					time.Sleep(step)
				}
				if d := time.Since(start); d < peer.UCMoveTime {
					t.Errorf("the peer has moved after %v, want after %v of silence at its old port", d, peer.UCMoveTime)
				}
				if !write(s, 3) {
					t.Error("its next packet is not taken")
				}
			})
		})
	}
}

// ucWindow is how many packets of a UC peer may be lost while it moves at once.
const ucWindow = 16

// A long READ has more PSNs than a window has packets. A peer that moves may repeat it, and what went
// before it. A READ of something else at its PSN is not a repeat.
func TestPeerMovesWithALongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const packets = 9000
		y, mr, s, _ := byHand(t)
		attr, _, err := y.qp.Query()
		y.must(err)
		size := packets * attr.PathMTU.Bytes()
		long := y.mr(size)
		read := func(s *station, off int) []byte {
			return s.write(y, long, nil, func(p *wire.Packet) {
				p.Opcode = wire.RCRDMAReadRequest
				p.RETH.VA, p.RETH.Length = long.Addr()+uint64(off), uint32(size-off)
			})
		}
		drain := func() (n int) {
			for a := s.answers(); len(a) > 0; a = s.answers() {
				n += len(a)
			}
			return n
		}
		s.handshake(y, mr)
		before := *s
		s.send(y, s.write(y, mr, []byte("before"), nil))
		s.psn = s.psn.Add(1)
		at := s.psn
		s.send(y, read(s, 0))
		if drain() == 0 {
			t.Fatal("the READ is not answered")
		}
		thief := s.elsewhere(1)
		for range 3 {
			thief.send(y, read(thief, 64))
		}
		if n := drain(); n != 0 {
			t.Errorf("a READ of something else is answered by %d packets, want none", n)
		}
		s.psn = at.Add(packets)
		s.send(y, s.write(y, mr, []byte("genuine"), nil))
		if n := drain(); n != 1 || !bytes.HasPrefix(mr.Bytes(), []byte("genuine")) {
			t.Errorf("the peer's next packet: got %d answers and %q in memory, want it executed", n, mr.Bytes()[:7])
		}
		time.Sleep(peer.MoveBan)
		moved := s.elsewhere(2)
		for i := range 2 {
			moved.psn = before.psn
			moved.send(y, moved.write(y, mr, []byte("before"), nil))
			if n := drain(); n != 0 {
				t.Fatalf("round %d: what was before the READ is answered by %d packets, want none", i, n)
			}
			moved.psn = at
			moved.send(y, read(moved, 0))
			if n := drain(); (n > 0) != (i == 1) {
				t.Fatalf("round %d: the READ is answered by %d packets, want an answer in the second round", i, n)
			}
		}
		moved.psn = at.Add(packets + 1)
		moved.send(y, moved.write(y, mr, []byte("after"), nil))
		if n := drain(); n != 1 || !bytes.HasPrefix(mr.Bytes(), []byte("after")) {
			t.Errorf("what follows the READ: got %d answers and %q in memory, want it executed", n, mr.Bytes()[:6])
		}
	})
}

// CNPs come from any port, but not those of an adverb.
func TestCNPFromAnotherPort(t *testing.T) {
	for _, ours := range []bool{false, true} {
		for gid := range 2 {
			testCNPFromAnotherPort(t, ours, gid)
		}
	}
}

func testCNPFromAnotherPort(t *testing.T, ours bool, gid int) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{IDVisible: !ours, NoLabels: !ours}) // visible identifications are not judged
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{gid: gid})
		y.must(y.qp.SetCongestionControl(verbs.CongestionDCQCN))
		y.transfer(y.mr(1<<20), x.mr(1<<20))
		x.transfer(x.mr(1<<20), y.mr(1<<20))
		p := wire.NewCNP(uint32(y.qp.QPN()), wire.DefaultPKey)
		b := append(p.AppendHeaders(nil), make([]byte, 16+wire.ICRCSize)...)
		e := x.impl().out.eng
		want := uint64(0)
		for flow := range uint32(64) {
			src := e.link.Source(flow)
			if !ours || src == x.impl().out.src {
				want++
			}
			f := wire.NewFlow(src, x.impl().out.dst)
			f.Seal(0, b)
			if err := e.link.Send([]link.Datagram{{Src: src, Dst: x.impl().out.dst, Payload: b}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if want == 0 || ours && want == 64 {
			t.Fatalf("ours %v: %d of 64 flows have the port of the QP, want some", ours, want)
		}
		if n := counters(y).CongestionNotifications; n != want {
			t.Errorf("ours %v: got %d CNPs counted, want %d", ours, n, want)
		}
	})
}

// A card whose identification is always 0 looks like an adverb that sends no trains, and yet its CNPs come from any port.
func TestCNPOfCardWithoutCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		y.must(y.qp.RTS(firstPSN, verbs.DefaultRetry))
		y.must(y.qp.SetCongestionControl(verbs.CongestionDCQCN))
		for range 2 * peer.SureRestarts {
			s.send(y, s.write(y, mr, nil, nil))
			s.psn = s.psn.Add(1)
			s.answers()
		}
		if q := y.impl(); !q.peer.IsSurelyAdverb() {
			t.Fatal("the station's packets do not look like an adverb's")
		}
		other := s.elsewhere(1)
		p := wire.NewCNP(uint32(y.qp.QPN()), wire.DefaultPKey)
		b := append(p.AppendHeaders(nil), make([]byte, 16+wire.ICRCSize)...)
		other.seal(y, b)
		other.send(y, b)
		if n := counters(y).CongestionNotifications; n != 1 {
			t.Errorf("%d CNPs counted, want 1", n)
		}
	})
}
