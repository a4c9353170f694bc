package hca

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// sentWays is a link that remembers how its datagrams left.
type sentWays struct {
	link.Link
	mu   sync.Mutex
	ways map[way]int
}

type way struct {
	src   netip.Addr
	dst   netip.AddrPort
	class uint8
}

func (s *sentWays) Send(batch []link.Datagram) error {
	s.mu.Lock()
	for i := range batch {
		d := &batch[i]
		s.ways[way{d.Src.Addr(), d.Dst, d.TrafficClass}]++
	}
	s.mu.Unlock()
	return s.Link.Send(batch)
}

// wantOne checks that everything since the last call left by one way.
func (s *sentWays) wantOne(t *testing.T, what string, want way) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ways) != 1 || s.ways[want] == 0 {
		t.Errorf("%s left by %v, want %v alone", what, s.ways, want)
	}
	clear(s.ways)
}

// TestAddressVector: requests, answers and datagrams have the addresses and the traffic class that address
// vectors name, over both versions of IP.
func TestAddressVector(t *testing.T) {
	const there, back, third = 26<<2 | link.ECT1, 46 << 2, 0xff // traffic classes
	for gid, addr := range []func(int) netip.Addr{simAddr, simAddr6} {
		synctest.Test(t, func(t *testing.T) {
			net := sim.New(sim.Config{})
			var sent []*sentWays
			record := func(l link.Link) link.Link {
				s := &sentWays{Link: l, ways: map[way]int{}}
				sent = append(sent, s)
				return s
			}
			x, y := newEnd(t, simDevice(t, net, 1, record), options{}), newEnd(t, simDevice(t, net, 2, record), options{})
			for _, e := range []struct {
				of, peer *end
				addr     netip.Addr
				class    uint8
			}{{x, y, addr(2), there}, {y, x, addr(1), back}} {
				e.of.must(e.of.qp.RTR(verbs.Peer{QPN: e.peer.qp.QPN(), PSN: firstPSN, GID: verbs.GIDFromAddr(e.addr)}, verbs.Path{SGIDIndex: gid, TrafficClass: e.class}))
				e.of.must(e.of.qp.RTS(firstPSN, defaultRetry))
			}
			src, dst := x.mr(5000), y.mr(5000)
			x.transfer(src, dst)
			synctest.Wait()
			sent[0].wantOne(t, "a WRITE", way{addr(1), netip.AddrPortFrom(addr(2), link.Port), there})
			sent[1].wantOne(t, "its acknowledgements", way{addr(2), netip.AddrPortFrom(addr(1), link.Port), back})

			// DCQCN works by marks, so packets are ECN-capable. An ECT that the program has set already stays.
			for _, e := range []*end{x, y} {
				e.must(e.qp.SetCongestionControl(verbs.CongestionDCQCN))
			}
			x.transfer(src, dst)
			synctest.Wait()
			sent[0].wantOne(t, "a WRITE with DCQCN", way{addr(1), netip.AddrPortFrom(addr(2), link.Port), there})
			sent[1].wantOne(t, "its acknowledgements with DCQCN", way{addr(2), netip.AddrPortFrom(addr(1), link.Port), back | link.ECT0})

			ud := newEnd(t, x.dev, options{typ: verbs.QPTypeUD})
			ud.must(ud.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
			ud.must(ud.qp.RTS(0, verbs.Retry{}))
			ah, err := ud.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(addr(3)), SGIDIndex: gid, TrafficClass: third})
			ud.must(err)
			ud.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, AH: ah, RemoteQPN: 5})
			ud.done()
			sent[0].wantOne(t, "a datagram", way{addr(1), netip.AddrPortFrom(addr(3), link.Port), third})
		})
	}
}

// TestOtherAddress: a QP takes no packet that was sent to another address of its device, though it comes from
// the QP's peer, has the right PSN, and has the ICRC of either address.
func TestOtherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		own, other := simAddr(2), simAddr(22)
		d := openDevice(t, net.Netdev("two", own, other))
		y, z := newEnd(t, d, options{}), newEnd(t, d, options{})
		for gid, e := range []*end{y, z} { // so that both addresses are in use
			e.must(e.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{SGIDIndex: gid}))
		}
		mr, s := y.mr(64), newStation(t, net, 1)
		for _, sealedFor := range []netip.Addr{own, other} {
			b := s.write(y, mr, []byte("12345678"), nil)
			f := wire.NewFlow(s.link.Source(0), netip.AddrPortFrom(sealedFor, link.Port))
			f.Seal(0, b)
			if err := s.link.Send([]link.Datagram{{Src: s.link.Source(0), Dst: netip.AddrPortFrom(other, link.Port), Payload: b}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		var drops uint64
		for _, st := range impl(d).Stats() {
			drops += st.Drops.NoQP
		}
		if drops != 2 || mr.Load64(0) != 0 || s.answers() != nil {
			t.Errorf("%d packets dropped for want of a QP, memory %#x; want 2, memory as it was, and no answer", drops, mr.Load64(0))
		}
		s.send(y, s.write(y, mr, []byte("12345678"), nil))
		if mr.Load64(0) == 0 || len(s.answers()) != 1 {
			t.Error("the same packet to the QP's own address was not taken")
		}
	})
}
