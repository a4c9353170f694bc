package transport

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestSimUnreliable is TestSim for UC and UD. A message that is received must be one that was sent. It comes whole
// and, as far as the network keeps order, once and in the order of sending. Every work request completes, and no
// receive is lost.
func TestSimUnreliable(t *testing.T) { simulateSeeds(t, simulateUnreliable) }

func simulateUnreliable(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0xdead))
	s := &sim{t: t, rnd: rnd, last: map[*node]time.Duration{}}
	pick := func(vs ...int) int { return vs[rnd.IntN(len(vs))] }
	set := setup{
		typ: []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUC, verbs.QPTypeUD}[rnd.IntN(3)],
		mtu: allMTUs[rnd.IntN(len(allMTUs))], psnA: s.psn(), psnB: s.psn(),
		cap:  verbs.QPCap{MaxSendWR: 1 << (1 + rnd.IntN(6)), MaxSendSGE: 32, MaxInlineData: 256},
		turn: pick(0, 1, 3, 128), signalAll: rnd.IntN(8) == 0,
	}
	s.faults.loss, s.faults.duplicate, s.faults.reorder = s.rate(), s.rate(), s.rate()
	if s.calm = rnd.IntN(5) == 0; s.calm {
		s.faults.loss, s.faults.duplicate, s.faults.reorder = 0, 0, 0
	}
	s.pair = newPair(t, set)
	s.pair.single = rnd.IntN(2) == 0
	s.slow = rnd.Float64() * 0.9
	s.sqd = rnd.IntN(6) == 0
	s.kill = rnd.IntN(12) == 0 && !s.calm
	s.pair.route = s.route
	s.a, s.b = s.program(s.pair.a, set), s.program(s.pair.b, set)
	for _, x := range []*program{s.a, s.b} {
		n := pick(0, 1, 3, 20, 60, 60, 60)
		if s.calm {
			n = min(n, simRecvSlots-1)
		}
		x.generate(s, n)
		if n := len(x.ops); n > 0 && rnd.IntN(3) == 0 && !s.calm {
			o := x.ops[rnd.IntN(n)]
			if o.length > 0 { // the gather fails in one of the packets
				good := o.length * rnd.IntN(2) / 2
				o.wr.SGList = []verbs.SGE{x.mem.sge(0, good), {Addr: 1, Length: uint32(o.length - good), LKey: 1}}
				o.wr.Flags &^= verbs.SendInline
				o.data = x.mem.data[:o.length]
				o.bad = verbs.WCLocProtErr
			}
		}
	}
	s.a.left, s.b.left = s.b.recvsNeeded(), s.a.recvsNeeded()
	if s.calm {
		for _, x := range []*program{s.a, s.b} {
			for x.left > 0 {
				x.postBuffer(s)
			}
		}
	}
	before := [2][]byte{clone(s.a.mem.data), clone(s.b.mem.data)}
	s.run()
	s.checkUnreliable(s.a, s.b, before[0], before[1])
	s.checkUnreliable(s.b, s.a, before[1], before[0])
}

// inOrder reports whether the network delivers each packet at most once, in order.
func (s *sim) inOrder() bool { return s.faults.duplicate == 0 && s.faults.reorder == 0 }

// lookUnreliable finds the message of the peer that a receive of x got.
func (s *sim) lookUnreliable(x, peer *program, got recvDone) {
	buf := x.mem.data[simRecv+int(got.wc.ID%simRecvSlots)*simRecvLen:][:simRecvLen]
	from := 0
	if s.inOrder() {
		from = x.matched
	}
	for _, o := range peer.ops[min(from, peer.posted):peer.posted] {
		if !o.takesRecv() || o.bad != verbs.WCSuccess {
			continue
		}
		want, data := o.received(x, peer, got.wc.ID)
		// Behind the data may be bytes of a dropped message.
		if got.wc != want || got.solicited != (o.wr.Flags&verbs.SendSolicited != 0) || !bytes.Equal(buf[:len(data)], data) {
			continue
		}
		if o.writes() && !s.written(x, peer, o) {
			s.t.Errorf("%s: receive %d tells of WRITE %d, which is not there whole, want all of it", x.name, got.wc.ID, o.wr.ID)
		}
		x.matched = int(o.wr.ID) + 1
		return
	}
	s.t.Errorf("%s: receive %d completes with %+v, want a message that was sent, in the order of sending", x.name, got.wc.ID, got.wc)
}

// written reports whether each byte of the peer's WRITE o is in x's memory, or that of another.
func (s *sim) written(x, peer *program, o *simOp) bool {
	for k, b := range x.mem.data[o.off:][:o.length] {
		if b != o.data[k] && !writtenBy(peer, o.off+k, b) {
			return false
		}
	}
	return true
}

func writtenBy(x *program, at int, b byte) bool {
	for _, w := range x.ops[:x.posted] {
		if k := at - w.off; w.writes() && k >= 0 && k < w.length && w.data[k] == b {
			return true
		}
	}
	return false
}

// checkUnreliable checks the work of x, and its effects on y.
func (s *sim) checkUnreliable(x, y *program, beforeX, beforeY []byte) {
	t := s.t
	if x.posted != len(x.ops) && !x.killed {
		t.Errorf("%s: %d work requests are posted, want %d: it is stuck", x.name, x.posted, len(x.ops))
	}
	failed, spoiled := x.posted, false
	for i, o := range x.ops[:x.posted] {
		switch {
		case !o.done:
			if o.wr.Flags&verbs.SendSignaled != 0 || x.qp.cfg.SignalAll || o.bad != verbs.WCSuccess {
				t.Errorf("%s: work request %d is not done, want a completion: %+v", x.name, i, o.wr)
			}
			continue
		case o.status == verbs.WCSuccess:
			if o.wr.Flags&verbs.SendSignaled == 0 && !x.qp.cfg.SignalAll {
				t.Errorf("%s: work request %d makes a completion, want none: it is not signaled", x.name, i)
			}
			if o.bad == verbs.WCSuccess {
				continue
			}
		}
		if spoiled && o.wr.Op == verbs.OpLocalInv && o.status == verbs.WCMWBindErr {
			continue // the bind was flushed
		}
		if failed = min(failed, i); o.status != o.bad && (o.status != verbs.WCFlushErr || !x.killed && !spoiled) {
			t.Errorf("%s: work request %d: %v, want %v, or WR_FLUSH_ERR where something failed before: %v", x.name, i, o.err, o.bad, x.killed || spoiled)
		}
		spoiled = spoiled || o.bad != verbs.WCSuccess
	}
	if !spoiled {
		s.checkWindows(x, y, failed)
	}
	if state := x.qp.State(); (state == verbs.QPStateErr) != x.killed || x.qp.Pending() {
		t.Errorf("%s: ends in %v, pending %v; want ERR: %v, and not pending", x.name, state, x.qp.Pending(), x.killed)
	}
	held := bit(x.qp.heldRecv() != nil)
	if int(x.recvID) != len(x.recvd)+x.waiting()+held || x.receives.taken != held {
		t.Errorf("%s: %d receives are completed, %d left, %d held and %d taken; want %d in all, and as many taken as held", x.name, len(x.recvd), x.waiting(), held, x.receives.taken, x.recvID)
	}

	area, img := y.mem.data[simWrite:][:simWriteLen], clone(beforeY[simWrite:][:simWriteLen])
	if s.calm {
		for _, o := range x.ops {
			if o.writes() {
				copy(img[o.off-simWrite:], o.data)
			}
		}
		if len(y.recvd) != x.recvsNeeded() || !bytes.Equal(area, img) || x.qp.Counters() != (Counters{}) {
			t.Errorf("%s: without faults %s received %d messages, counters %+v; want %d, zeros, and the WRITEs' bytes in the write area", x.name, y.name, len(y.recvd), x.qp.Counters(), x.recvsNeeded())
		}
	}
	for k, b := range area {
		if b != img[k] && !writtenBy(x, simWrite+k, b) {
			t.Errorf("%s: byte %d of the write area is %#x, want the byte from before or a WRITE's", y.name, k, b)
			break
		}
	}
	s.checkUntouched(x, beforeX)
}
