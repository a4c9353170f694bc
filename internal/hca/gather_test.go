package hca

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// sendTally counts the calls of Send and the datagrams they were given, on all links of a device.
type sendTally struct{ calls, datagrams atomic.Int32 }

func (s *sendTally) reset() {
	s.calls.Store(0)
	s.datagrams.Store(0)
}

type countedLink struct {
	link.Link
	*sendTally
}

func (s countedLink) Send(b []link.Datagram) error {
	s.calls.Add(1)
	for i := range b {
		s.datagrams.Add(int32(b[i].Segments()))
	}
	return s.Link.Send(b)
}

// gatherers are two connected ends whose sends are counted, and whose programs poll busily.
type gatherers struct {
	t          *testing.T
	x, y       *end
	outX, outY sendTally
	src, dst   *verbs.MR
}

// busyPair makes them. It runs in a bubble.
func busyPair(t *testing.T, timeout uint8) *gatherers {
	t.Helper()
	return busyPairOf(t, verbs.QPTypeRC, 0, timeout)
}

// busyPairOf is busyPair for QPs of a type that take the GIDs of an index: 0 is IPv4, 1 is IPv6.
func busyPairOf(t *testing.T, typ verbs.QPType, gid int, timeout uint8) *gatherers {
	t.Helper()
	g := newGatherers(t, typ, gid, timeout)
	g.busy()
	return g
}

// newGatherers is busyPairOf whose programs do not poll yet.
func newGatherers(t *testing.T, typ verbs.QPType, index int, timeout uint8) *gatherers {
	t.Helper()
	g := &gatherers{t: t}
	net := sim.New(sim.Config{})
	count := func(t *sendTally) link.Middleware {
		return func(l link.Link) link.Link { return countedLink{l, t} }
	}
	o := options{typ: typ, cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}
	g.x, g.y = newEnd(t, simDevice(t, net, 1, count(&g.outX)), o), newEnd(t, simDevice(t, net, 2, count(&g.outY)), o)
	for e, peer := range map[*end]*end{g.x: g.y, g.y: g.x} {
		gid, err := peer.dev.GID(1, index)
		e.must(err)
		if typ == verbs.QPTypeUD {
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: firstPSN}, verbs.MaskState|verbs.MaskSQPSN))
			continue
		}
		e.must(e.qp.RTR(verbs.Peer{QPN: peer.qp.QPN(), PSN: firstPSN, GID: gid.GID}, verbs.Path{SGIDIndex: index}))
		retry := defaultRetry
		retry.Timeout = timeout
		e.must(e.qp.RTS(firstPSN, retry))
	}
	g.src, g.dst = g.x.mr(1024), g.y.mr(64)
	return g
}

// busy makes both programs poll until the goroutines nap.
func (g *gatherers) busy() {
	g.t.Helper()
	for _, e := range []*end{g.x, g.y} {
		synctest.Wait()
		for range busyPolls {
			e.cq.Poll(make([]verbs.WC, 1))
		}
		eng := (*e.hca().engines.Load())[0]
		eng.link.Wake() // as a datagram does
		synctest.Wait()
		if !eng.napping.Load() {
			g.t.Fatal("the goroutine does not nap though a program polls")
		}
	}
	for _, s := range []*sendTally{&g.outX, &g.outY} {
		s.reset()
	}
}

// answering says that y's program has answered the messages before, and expects more than one further.
func (g *gatherers) answering() {
	g.y.recv(verbs.RecvWR{SGList: []verbs.SGE{g.dst.SGE(0, 64)}})
	q := g.y.qp.Provider().(*qp)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gather.answers, q.gather.answeredInRow = true, sureAnswers
}

func (g *gatherers) write() {
	g.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8)}, Remote: g.dst.Remote(0)})
}

// message sends y a SEND, for which y posts a receive.
func (g *gatherers) message(flags verbs.SendFlags) {
	g.y.recv(verbs.RecvWR{SGList: []verbs.SGE{g.dst.SGE(0, 64)}})
	g.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: flags, SGList: []verbs.SGE{g.src.SGE(0, 8)}})
}

// take polls y once, for the receive of a message.
func (g *gatherers) take() {
	g.t.Helper()
	if n := g.poll(g.y); n != 1 {
		g.t.Fatalf("%d completions, want the receive's", n)
	}
}

// poll polls e once and returns how many completions there were.
func (g *gatherers) poll(e *end) int {
	g.t.Helper()
	wcs := make([]verbs.WC, 64)
	n, err := e.cq.Poll(wcs)
	e.must(err)
	for i := range wcs[:n] {
		e.must(wcs[i].Err())
	}
	return n
}

// finds polls e until it has had n completions, and the others before that each time. The clock stands still
// meanwhile, so what has not come after so many polls never does.
func (g *gatherers) finds(n int, e *end, others ...*end) {
	g.t.Helper()
	const most = 100_000
	for left, polls := n, 0; left > 0; polls++ {
		if polls == most {
			g.t.Fatalf("%d completions after %d polls, want %d", n-left, most, n)
		}
		for _, o := range others {
			g.poll(o)
		}
		left -= g.poll(e)
	}
}

func (g *gatherers) want(what string, s *sendTally, calls, datagrams int) {
	g.t.Helper()
	if c, d := int(s.calls.Load()), int(s.datagrams.Load()); c != calls || d != datagrams {
		g.t.Errorf("%s: %d datagrams by %d calls, want %d by %d", what, d, c, datagrams, calls)
	}
}

// TestGather: packets that are posted one by one between two polls leave together, but for the first.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		g.write()
		g.want("the first after silence", &g.outX, 1, 1)
		for range 9 {
			g.write()
		}
		g.want("nine more", &g.outX, 1, 1)
		g.poll(g.x)
		g.want("a poll that finds nothing", &g.outX, 2, 10)
		g.write()
		g.want("the first after a poll", &g.outX, 3, 11)
		for range gatherPackets - 1 {
			g.write()
		}
		g.want("as many as may wait", &g.outX, 3, 11)
		g.write()
		g.want("one more", &g.outX, 4, 11+gatherPackets)
		g.finds(11+gatherPackets, g.x, g.y)
	})
}

// TestGatherEnds: a program that posts and polls no more has its work requests sent by the end of the nap, and one
// that is about to block at once.
func TestGatherEnds(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := busyPair(t, 14)
			start := time.Now()
			for range 3 {
				g.write()
			}
			g.want("before", &g.outX, 1, 1)
			limit := napTime
			if blocks {
				g.x.must(g.x.cq.Notify(false))
				limit = 0
			}
			for g.outX.datagrams.Load() < 3 && time.Since(start) <= limit {
				<-time.After(napTime / 10)
				synctest.Wait()
				if blocks {
					break
				}
			}
			if n := g.outX.datagrams.Load(); n != 3 {
				t.Errorf("blocks %v: %d WRITEs were sent after %v, want 3", blocks, n, time.Since(start))
			}
		})
	}
}

// TestGatherPause: a QP whose program does not poll for the delayed packets gathers nothing for a while.
func TestGatherPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		g.write()
		g.write()
		<-time.After(2 * napTime)
		synctest.Wait()
		for range 2 {
			g.poll(g.x)
		}
		g.busy()
		g.write()
		g.write()
		g.write()
		g.want("in the pause", &g.outX, 3, 3)
		<-time.After(gatherPause)
		g.poll(g.x)
		g.busy()
		g.write()
		g.write()
		g.want("after it", &g.outX, 1, 1)
	})
}

// TestGatherClose: delayed packets leave before the QP is closed or goes to the error state.
func TestGatherClose(t *testing.T) {
	for _, closes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g := busyPair(t, 14)
			for range 3 {
				g.write()
			}
			if closes {
				g.x.must(g.x.qp.Close())
			} else {
				g.x.must(g.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
			}
			g.want("at the end", &g.outX, 2, 3)
		})
	}
}

// TestGatherUnreliable: UC and UD gather too. Nothing is acknowledged, so delayed packets wait for no acknowledgement.
func TestGatherUnreliable(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := busyPairOf(t, typ, 0, 14)
				wr := verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8)}}
				if typ == verbs.QPTypeUD {
					gid, err := g.y.dev.GID(1, 0)
					g.x.must(err)
					ah, err := g.x.pd.CreateAH(verbs.AHAttr{Port: 1, DGID: gid.GID})
					g.x.must(err)
					wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, g.y.qp.QPN(), 0
				}
				for range 10 {
					g.x.send(wr)
				}
				g.want("ten posts", &g.outX, 1, 1)
				if n := g.poll(g.x); n != 1 {
					t.Errorf("%d completions before the next poll, want that of the first", n)
				}
				for done := 1; done < 10; {
					n := g.poll(g.x)
					if done += n; n == 0 {
						t.Fatalf("%d completions, want 10", done)
					}
				}
				g.want("two polls", &g.outX, 2, 10)
				long := wr
				long.SGList = []verbs.SGE{g.src.SGE(0, 1024)}
				for range 3 {
					g.x.send(long)
				}
				g.want("three long ones", &g.outX, 5, 13)
			})
		})
	}
}

// TestUnseenPolls: a program of UC finds a completion by each poll, and so looks at nothing else. Its engine's
// goroutine naps all the same, and packets that are posted one by one leave together.
func TestUnseenPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGatherers(t, verbs.QPTypeUC, 0, 14)
		synctest.Wait()
		eng := (*g.x.hca().engines.Load())[0]
		wr := verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8)}}
		for range 1 + busyUnseen { // the first post follows no poll
			if eng.napping.Load() {
				t.Fatal("the goroutine naps though the program has hardly polled")
			}
			g.x.send(wr)
			if n := g.poll(g.x); n != 1 {
				t.Fatalf("%d completions of a post, want 1", n)
			}
		}
		synctest.Wait()
		if !eng.napping.Load() {
			t.Fatalf("the goroutine does not nap after %d polls that found something, want it to", busyUnseen)
		}
		g.outX.reset()
		for range 10 {
			g.x.send(wr)
		}
		g.want("ten posts", &g.outX, 1, 1)
		time.Sleep(2 * napMost) // the program polls no more
		synctest.Wait()
		g.want("the end of the nap", &g.outX, 2, 10)
	})
}

// TestDeferredACK: the acknowledgement of a SEND ends the train of the program's answer, a SEND or a WRITE with
// immediate data, or leaves by a poll that finds nothing.
func TestDeferredACK(t *testing.T) {
	for gid := range 2 {
		for _, answer := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm, noAnswer} {
			testDeferredACK(t, gid, answer)
		}
	}
}

const noAnswer = verbs.OpRDMAWrite

func testDeferredACK(t *testing.T, gid int, answer verbs.Opcode) {
	answers := answer != noAnswer
	synctest.Test(t, func(t *testing.T) {
		g := busyPairOf(t, verbs.QPTypeRC, gid, 14)
		g.answering()
		g.x.recv(verbs.RecvWR{SGList: []verbs.SGE{g.src.SGE(0, 64)}})
		g.message(signaled)
		g.take()
		g.want("when the receive is complete", &g.outY, 0, 0)
		done := 1 // of x
		if answers {
			done = 2
			g.y.send(verbs.SendWR{Op: answer, Flags: signaled, SGList: []verbs.SGE{g.dst.SGE(0, 8)}, Remote: g.src.Remote(0)})
			g.want("with the answer", &g.outY, 1, 2)
		} else {
			g.poll(g.y)
			g.want("by the next poll", &g.outY, 1, 1)
		}
		g.finds(done, g.x, g.y)
	})
}

// TestACKOfSleeper: the acknowledgement of a SEND for which a program sleeps ends the train of its answer, or
// leaves at once if there is none.
func TestACKOfSleeper(t *testing.T) {
	// On one processor the program runs before the engine's goroutine goes on, unless the kernel or the runtime take the
	// processor away in between. On more it mostly does.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 10
	together := 0
	for range rounds {
		calls, datagrams := ackOfSleeper(t, true)
		if calls == 1 {
			together++
		}
		if datagrams != 2 {
			t.Errorf("with an answer: %d datagrams, want 2", datagrams)
		}
	}
	if together <= rounds/2 {
		t.Errorf("the acknowledgement left with the answer %d times of %d, want it mostly", together, rounds)
	}
	if calls, datagrams := ackOfSleeper(t, false); calls != 1 || datagrams != 1 {
		t.Errorf("without an answer: %d datagrams by %d calls, want 1 by 1", datagrams, calls)
	}
}

// ackOfSleeper returns the packets that leave for a message which wakes a program. The program answers the message or not.
func ackOfSleeper(t *testing.T, answers bool) (calls, datagrams int) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		g.answering()
		buf := g.y.mr(64)
		g.y.recv(verbs.RecvWR{SGList: []verbs.SGE{buf.SGE(0, 64)}})
		g.x.recv(verbs.RecvWR{SGList: []verbs.SGE{g.src.SGE(0, 64)}})
		woken := make(chan error, 1)
		go func() {
			_, err := g.y.cq.Wait(t.Context(), make([]verbs.WC, 1))
			if answers && err == nil {
				err = g.y.qp.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}, buf.SGE(0, 8))
			}
			woken <- err
		}()
		synctest.Wait()
		start := time.Now()
		g.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8)}})
		g.y.must(<-woken)
		synctest.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("the acknowledgement took %v, want it at once", d)
		}
		calls, datagrams = int(g.outY.calls.Load()), int(g.outY.datagrams.Load())
	})
	return calls, datagrams
}

// TestDeferredACKOnce: a second message does not defer the acknowledgement of the first any further.
func TestDeferredACKOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		for i := range 2 {
			g.answering()
			g.message(signaled)
			g.poll(g.x) // the second leaves at once too
			g.take()
			g.want("after the poll for the receive", &g.outY, i, i)
		}
		for done := 0; done < 2; {
			n := g.poll(g.x)
			if done += n; n == 0 {
				t.Fatalf("%d completions, want both", done)
			}
		}
	})
}

// TestDeferredACKAgain: the next message's acknowledgement waits as the one before did, which left with the answer.
func TestDeferredACKAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		g.answering()
		for i := range 2 {
			g.x.recv(verbs.RecvWR{SGList: []verbs.SGE{g.src.SGE(0, 64)}})
			g.message(0)
			g.take()
			g.want("before the answer", &g.outY, i, 2*i)
			g.y.send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{g.dst.SGE(0, 8)}})
			g.want("with the answer", &g.outY, i+1, 2*(i+1))
			g.finds(1, g.x)
		}
	})
}

// TestACKAtOnce: the acknowledgement does not wait for a program that may end: it has answered few messages in a row, or
// has no receive for a further one.
func TestACKAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		buf := g.y.mr(64)
		posted := 0
		// message sends y one, which it answers or not. It has so many receives, and acknowledges the message before that by
		// so many system calls.
		message := func(receives int, answers bool, acks int) {
			t.Helper()
			for ; posted < receives; posted++ {
				g.y.recv(verbs.RecvWR{SGList: []verbs.SGE{buf.SGE(0, 64)}})
			}
			g.x.recv(verbs.RecvWR{SGList: []verbs.SGE{g.src.SGE(0, 64)}})
			g.busy()
			g.x.send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{g.src.SGE(0, 8)}})
			g.poll(g.x) // it may wait for that
			posted -= g.poll(g.y)
			if got := int(g.outY.calls.Load()); got != acks {
				t.Errorf("with %d receives: %d system calls when the receive is complete, want %d", receives, got, acks)
			}
			if answers {
				g.y.send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{buf.SGE(0, 8)}})
				g.finds(1, g.x)
			}
		}
		for range sureAnswers {
			message(2, true, 1)
		}
		message(2, true, 0)
		message(1, true, 1)
		message(2, false, 0)
		message(2, true, 1) // the one before was not answered
		message(2, true, 1)
	})
}

// TestOneGoroutine: a program that polls at one end only gets the acknowledgement that waits for a poll at the other. No
// further one waits there for a time.
func TestOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		for i := range 2 {
			g.answering()
			g.message(signaled)
			g.take()
			if delayed := g.y.impl().gather.ackDelayed; delayed != (i == 0) {
				t.Errorf("message %d: the acknowledgement is delayed: %v, want the first one to be", i, delayed)
			}
			polls := 0
			for n := 0; n == 0; polls++ {
				if polls > vainPolls+1 {
					t.Fatalf("%d polls bring no completion of SEND %d, want it after %d", polls, i, vainPolls+1)
				}
				n = g.poll(g.x)
			}
		}
	})
}

// TestDeferredACKEnds: the acknowledgement for a program that polls no more leaves by the end of the nap,
// when it is about to block, and before its QP ends.
func TestDeferredACKEnds(t *testing.T) {
	for _, how := range []string{"polls no more", "blocks", "error", "close"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := busyPair(t, 14)
				g.answering()
				g.message(signaled)
				g.take()
				g.want("before", &g.outY, 0, 0)
				switch how {
				case "polls no more":
					<-time.After(2 * napTime)
				case "blocks":
					g.y.must(g.y.cq.Notify(false))
				case "error":
					g.y.must(g.y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
				case "close":
					g.y.must(g.y.qp.Close())
				}
				synctest.Wait()
				g.want("at the end", &g.outY, 1, 1)
			})
		})
	}
}

// TestDeferredACKAskedFor: where the peer sends again before the nap has ended, its acknowledgement had waited for too
// long as well. The QP pauses.
func TestDeferredACKAskedFor(t *testing.T) {
	for _, wait := range []time.Duration{gatherLong / 2, gatherLong} {
		synctest.Test(t, func(t *testing.T) {
			g := busyPair(t, 14)
			g.answering()
			g.message(signaled)
			g.take()
			g.want("before", &g.outY, 0, 0)
			q := g.y.qp.Provider().(*qp)
			q.mu.Lock()
			q.gather.since -= wait
			q.mu.Unlock()
			g.message(signaled)
			g.poll(g.x) // it has waited for that
			g.poll(g.y)
			g.want("after the next message", &g.outY, 1, 1)
			if paused := q.gather.after > 0; paused != (wait == gatherLong) {
				t.Errorf("after a wait of %v the QP pauses: %v, want it to after %v alone", wait, paused, gatherLong)
			}
		})
	}
}

// TestGatherPauses: pauses that follow one another closely are longer each time.
func TestGatherPauses(t *testing.T) {
	var g gather
	now := 10 * time.Second
	late := func(want time.Duration) {
		t.Helper()
		g.since = now - gatherLong
		g.late(now)
		if got := g.after - now; got != want {
			t.Errorf("at %v: a pause of %v, want %v", now, got, want)
		}
	}
	const most = gatherPause << gatherLonger
	for pause := time.Duration(gatherPause); pause < most; pause *= 2 {
		late(pause)
		now = g.after + pause - 1
	}
	late(most)
	now = g.after
	late(most)
	now = g.after + most
	late(gatherPause)
	g.since = now - gatherLong + 1
	before := g.after
	if g.late(now); g.after != before {
		t.Error("a short wait begins a pause")
	}
}

// TestGatherByChance: a nap that ends while something has waited for a moment shows nothing about the program.
// The QP goes on gathering.
func TestGatherByChance(t *testing.T) {
	for _, wait := range []time.Duration{gatherLong / 2, gatherLong} {
		synctest.Test(t, func(t *testing.T) {
			g := busyPair(t, 14)
			<-time.After(napTime - wait) // of x's nap; y's began a moment later
			g.write()
			g.write()
			<-time.After(wait)
			synctest.Wait()
			g.want("when the nap has ended", &g.outX, 2, 2)
			q := g.x.qp.Provider().(*qp)
			if paused := q.gather.after > 0; paused != (wait == gatherLong) {
				t.Errorf("after a wait of %v the QP pauses: %v, want it to after %v alone", wait, paused, gatherLong)
			}
		})
	}
}

// TestACKNotDeferred: a peer whose timer is short gets its acknowledgement at once. So does one whose
// SENDs are a stream, one that WRITEs, and one whose message before was not answered.
func TestACKNotDeferred(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout uint8
		op      verbs.Opcode
		n       int
		silent  bool // the program has not answered the message before
	}{
		{"short timer", 8, verbs.OpSend, 1, false},
		{"stream", 14, verbs.OpSend, shortRun + 1, false},
		{"WRITE", 14, verbs.OpRDMAWrite, 1, false},
		{"no answer before", 14, verbs.OpSend, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := busyPair(t, tt.timeout)
				if !tt.silent {
					g.answering()
				}
				buf := g.y.mr(64)
				for range tt.n {
					g.y.recv(verbs.RecvWR{SGList: []verbs.SGE{buf.SGE(0, 64)}})
				}
				for i := range tt.n {
					g.x.send(verbs.SendWR{Op: tt.op, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8+i)}, Remote: g.dst.Remote(0)})
					g.poll(g.x) // so that they leave one by one
				}
				g.poll(g.y)
				g.want("when they have come", &g.outY, 1, 1)
			})
		})
	}
}

// TestACKBeforeAnswer: over UDP too, a program learns that its SEND has arrived before it sees the answer to
// it, though the acknowledgement ends the answer's train.
func TestACKBeforeAnswer(t *testing.T) {
	x, y := connect(t, udpDevice(t, loopAddr(61)), udpDevice(t, loopAddr(62)), options{})
	if (*x.hca().engines.Load())[0].link.MaxTrain() == 1 {
		t.Skip("this system sends no trains")
	}
	src, dst := x.mr(64), y.mr(64)
	send := func(e *end, mr *verbs.MR) {
		e.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 64)}})
	}
	wcs := make([]verbs.WC, 2)
	for i := range 2000 {
		x.recv(verbs.RecvWR{SGList: []verbs.SGE{src.SGE(0, 64)}})
		y.recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 64)}})
		send(x, src)
		for received, deadline := false, time.Now().Add(patience); !received; {
			if time.Now().After(deadline) {
				t.Fatalf("exchange %d: no receive is complete after %v, want one", i, patience)
			}
			n, err := y.cq.Poll(wcs)
			y.must(err)
			received = slices.ContainsFunc(wcs[:n], func(wc verbs.WC) bool { return wc.Op == verbs.WCRecv })
		}
		send(y, dst)
		for done, deadline := 0, time.Now().Add(patience); done < 2; {
			if time.Now().After(deadline) {
				t.Fatalf("exchange %d: %d completions after %v, want 2", i, done, patience)
			}
			n, err := x.cq.Poll(wcs)
			x.must(err)
			for _, wc := range wcs[:n] {
				x.must(wc.Err())
				if done++; done == 1 && wc.Op != verbs.WCSend {
					t.Fatalf("exchange %d: the first completion is a %v, want that of the SEND", i, wc.Op)
				}
			}
		}
	}
}
