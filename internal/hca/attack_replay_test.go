package hca

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/wire"
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
		for range rounds {
			for _, b := range recorded {
				s.send(y, bytes.Clone(b))
				answers += len(s.answers())
			}
		}
		if !bytes.Equal(mr.Bytes(), want) {
			t.Errorf("memory is %q after the replay, want %q as before", mr.Bytes()[:8], want[:8])
		}
		if answers > rounds*len(recorded) {
			t.Errorf("%d answers to %d packets, want no more than those", answers, rounds*len(recorded))
		}
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
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		guess(100)
		before := heap()
		guess(n)
		if after := heap(); after > before+1<<20 {
			t.Errorf("seed %d: the heap grew from %d to %d bytes, want no more than 1 MiB", seed, before, after)
		}
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
