package hca

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// sends is a link that counts the calls of Send and the datagrams they were given.
type sends struct {
	link.Link
	calls, datagrams atomic.Int32
}

func (s *sends) Send(b []link.Datagram) error {
	s.calls.Add(1)
	for i := range b {
		s.datagrams.Add(int32(max(1, len(b[i].Payload)/max(1, b[i].SegmentSize))))
	}
	return s.Link.Send(b)
}

// gatherers are two connected ends whose sends are counted, and whose programs poll busily.
type gatherers struct {
	t          *testing.T
	x, y       *end
	outX, outY *sends
	src, dst   *verbs.MR
}

// busyPair makes them. It runs in a bubble.
func busyPair(t *testing.T, timeout uint8) *gatherers {
	t.Helper()
	g := &gatherers{t: t}
	net := sim.New(sim.Config{})
	count := func(s **sends) link.Middleware {
		return func(l link.Link) link.Link { *s = &sends{Link: l}; return *s }
	}
	o := options{cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}
	g.x, g.y = newEnd(t, simDevice(t, net, 1, count(&g.outX)), o), newEnd(t, simDevice(t, net, 2, count(&g.outY)), o)
	for e, peer := range map[*end]*end{g.x: g.y, g.y: g.x} {
		gid, err := peer.dev.GID(1, 0)
		e.must(err)
		e.must(e.qp.RTR(verbs.Peer{QPN: peer.qp.QPN(), PSN: firstPSN, GID: gid.GID}, verbs.Path{}))
		retry := defaultRetry
		retry.Timeout = timeout
		e.must(e.qp.RTS(firstPSN, retry))
	}
	g.src, g.dst = g.x.mr(64), g.y.mr(64)
	g.busy()
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
	for _, s := range []*sends{g.outX, g.outY} {
		s.calls.Store(0)
		s.datagrams.Store(0)
	}
}

func (g *gatherers) write() {
	g.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{g.src.SGE(0, 8)}, Remote: g.dst.Remote(0)})
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

func (g *gatherers) want(what string, s *sends, calls, datagrams int) {
	g.t.Helper()
	if c, d := int(s.calls.Load()), int(s.datagrams.Load()); c != calls || d != datagrams {
		g.t.Errorf("%s: %d datagrams by %d calls, want %d by %d", what, d, c, datagrams, calls)
	}
}

// TestGather: what is posted one by one between two polls leaves together, but for the first.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := busyPair(t, 14)
		g.write()
		g.want("the first after silence", g.outX, 1, 1)
		for range 9 {
			g.write()
		}
		g.want("nine more", g.outX, 1, 1)
		g.poll(g.x)
		g.want("a poll that finds nothing", g.outX, 2, 10)
		g.write()
		g.want("the first after a poll", g.outX, 3, 11)
		for range gatherPackets - 1 {
			g.write()
		}
		g.want("as many as may wait", g.outX, 3, 11)
		g.write()
		g.want("one more", g.outX, 4, 11+gatherPackets)
		for done := 0; done < 11+gatherPackets; {
			g.poll(g.y)
			done += g.poll(g.x)
		}
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
			g.want("before", g.outX, 1, 1)
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

// TestGatherPause: a QP whose program does not poll for what waits gathers nothing for a while.
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
		g.want("in the pause", g.outX, 3, 3)
		<-time.After(gatherPause)
		g.poll(g.x)
		g.busy()
		g.write()
		g.write()
		g.want("after it", g.outX, 1, 1)
	})
}

// TestGatherClose: what waits leaves before the QP is closed or goes to the error state.
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
			g.want("at the end", g.outX, 2, 3)
		})
	}
}
