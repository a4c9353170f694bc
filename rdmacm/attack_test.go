package rdmacm_test

// Attacks by strangers on the network on a program that listens. The tests of internal/cm show the same
// and more for its protocol alone.

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
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
		var mu sync.Mutex // guards the two numbers
		qps, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			qps += n
			most = max(most, qps)
		}
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
						count(1)
						return nil
					}}
					c, err := r.Accept(ctx, config)
					if err == nil {
						<-c.Disconnected()
						c.Close()
					}
					count(-1)
				})
			}
		})
		h := newByHand(t, p.a, l.Addr().Addr())
		h.flood(addr(t, p.a, false, 999), l.Addr(), n)
		if most != share { // nobody counts after synctest.Wait
			t.Errorf("the server made %d QPs for one host, want %d", most, share)
		}
		c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.net.Device()}}).Dial(patience(t), l.Addr(), nil)
		if err != nil {
			t.Fatalf("another host does not connect: %v", err)
		}
		c.Close()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if qps != 0 {
			t.Errorf("minutes later the server has %d QPs, want none", qps)
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

// askingNetdev counts the neighbors that it is asked for. Each question takes up to a second where nobody
// has the address.
type askingNetdev struct {
	*sim.Netdev
	asked atomic.Int32
}

func (n *askingNetdev) ResolveNeighbor(_, _ netip.Addr) { n.asked.Add(1) }

// Whoever accepts a UC connection waits for no neighbor: it would hold the ID's lock, and so the connection
// manager up, for whatever address a stranger has put into a REQ. Who asks for the connection waits.
func TestAcceptWaitsForNoNeighbor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		var netdevs [2]*askingNetdev
		var devs [2]*verbs.Device
		for i := range devs {
			netdevs[i] = &askingNetdev{Netdev: net.Netdev("sim", netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}))}
			d, err := hca.Open(netdevs[i], hca.Config{})
			if err != nil {
				t.Fatal(err)
			}
			devs[i] = verbs.NewDevice(d)
			t.Cleanup(func() { devs[i].Close() })
		}
		p := pair{a: devs[0], b: devs[1]}
		uc := smallQP
		uc.Type = verbs.QPTypeUC
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}, UC: true}).Listen(addr(t, p.b, false, 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		var server sync.WaitGroup
		server.Go(func() {
			r, err := l.Accept(patience(t))
			if err != nil {
				t.Error(err)
				return
			}
			c, err := r.Accept(patience(t), &rdmacm.Config{QP: uc})
			if err != nil {
				t.Error(err)
				return
			}
			<-c.Disconnected()
			c.Close()
		})
		c, err := p.dial(t, l.Addr(), &rdmacm.Config{QP: uc})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		server.Wait()
		if asking, asked := netdevs[0].asked.Load(), netdevs[1].asked.Load(); asking != 1 || asked != 0 {
			t.Errorf("%d questions for a neighbor at the end that asks for the connection, %d at the other; want 1 and 0", asking, asked)
		}
	})
}
