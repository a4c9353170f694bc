package rdmacm_test

// What strangers on the network can do to a program that listens. The tests of internal/cm show the same
// and more for its protocol alone.

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// flood sends n REQs of different connections to a listener. It does not look at the answers.
func (h *byHand) flood(from, to netip.AddrPort, n int) {
	h.t.Helper()
	var wcs [2 * byHandRecvs]verbs.WC
	for i := range n {
		head := wire.NewCMHeader(wire.CMREQ, h.tid)
		_, err := h.qp.PostSend([]verbs.SendWR{{
			Op: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: h.req(from, to, uint32(1+i)).AppendTo(head.AppendTo(nil)),
			AH: h.ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey,
		}})
		h.ok(err)
		if i%(byHandRecvs/2) == 0 {
			synctest.Wait()
			_, err := h.cq.Poll(wcs[:])
			h.ok(err)
		}
	}
	synctest.Wait()
}

// A host that floods a server with REQs, and never confirms a connection, gets no more QPs of the server
// than its share. Another host connects meanwhile, and some minutes later no QP is left. One such host
// exhausted a server's memory in seconds.
func TestFloodOfAcceptedREQs(t *testing.T) {
	const share, n = 1024, 1400
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		l := p.listen(t, addr(t, p.b, false, 0))
		var qps, most atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		var server sync.WaitGroup
		server.Go(func() {
			for {
				r, err := l.Accept(ctx)
				if err != nil {
					return
				}
				server.Go(func() {
					config := &rdmacm.Config{QP: smallQP, Setup: func(*rdmacm.Conn) error {
						most.Store(max(most.Load(), qps.Add(1)))
						return nil
					}}
					c, err := r.Accept(ctx, config)
					if err == nil {
						<-c.Disconnected()
						c.Close()
					}
					qps.Add(-1)
				})
			}
		})
		h := newByHand(t, p.a, l.Addr().Addr())
		h.flood(addr(t, p.a, false, 999), l.Addr(), n)
		if got := most.Load(); got != share {
			t.Errorf("the server made %d QPs for one host, want %d", got, share)
		}
		c, err := (&rdmacm.Dialer{Device: p.net.Device()}).Dial(patience(t), l.Addr(), nil)
		if err != nil {
			t.Fatalf("another host does not connect: %v", err)
		}
		c.Close()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := qps.Load(); got != 0 {
			t.Errorf("minutes later the server has %d QPs, want none", got)
		}
		cancel()
		server.Wait()
	})
}

// Requests that a program does not fetch neither pile up nor keep other hosts out, and those that have
// ended are never seen.
func TestFloodOfUnseenREQs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		b := newScript(t, p.b)
		l := b.id(rdmacm.PortSpaceTCP)
		b.ok(l.BindAddr(addr(t, p.b, false, 0)))
		b.ok(l.Listen(8))
		h := newByHand(t, p.a, l.LocalAddr().Addr())
		h.flood(addr(t, p.a, false, 999), l.LocalAddr(), 100)
		c := newScript(t, p.net.Device())
		x := connecting(c, l.LocalAddr())
		synctest.Wait()
		var last *rdmacm.ID
		for range 8 {
			last = b.next(rdmacm.EventConnectRequest).ID
		}
		b.quiet()
		if last.RemoteAddr() != x.LocalAddr() {
			t.Errorf("the last request is from %v, want %v", last.RemoteAddr(), x.LocalAddr())
		}
		b.ok(last.CreateQP(nil, smallQP))
		b.ok(last.Accept(nil))
		b.next(rdmacm.EventEstablished)
		time.Sleep(10 * time.Minute) // the others do not repeat their REQs
		for range 7 {
			b.next(rdmacm.EventUnreachable)
		}
		b.quiet()
		h.flood(addr(t, p.a, false, 999), l.LocalAddr(), 8)
		time.Sleep(10 * time.Minute)
		b.quiet()
	})
}
