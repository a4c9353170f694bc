package hca

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// linuxIDs are the IPv4 identifications that Linux gives to the packets of one host to another: one count
// for all QPs and programs. After a pause it goes further by a random number below the jiffies that
// have passed.
type linuxIDs struct {
	hz int // jiffies in a second

	mu   sync.Mutex
	rng  *rand.Rand
	id   uint16
	last time.Time
}

func newLinuxIDs(seed uint64, hz int) *linuxIDs {
	rng := rand.New(rand.NewPCG(seed, uint64(hz)))
	return &linuxIDs{hz: hz, rng: rng, id: uint16(rng.Uint32()), last: time.Now()}
}

func (l *linuxIDs) next() (id uint16, df bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if jiffies := int(now.Sub(l.last) * time.Duration(l.hz) / time.Second); jiffies > 0 {
		l.id += uint16(l.rng.IntN(jiffies))
		l.last = now
	}
	l.id++
	return l.id, true
}

// others is traffic of other programs of the two hosts.
func (l *linuxIDs) others(packets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id += uint16(packets)
}

// asLinux makes a device's packets look like those of a Linux kernel.
func asLinux(l *linuxIDs) link.Middleware {
	return func(inner link.Link) link.Link {
		return &foreign{Link: inner, next: l.next, rng: l.rng}
	}
}

// linuxPeers are two devices whose packets look like a Linux kernel's to each other.
func linuxPeers(t *testing.T, seed uint64, hz int) (a, b *verbs.Device, ids [2]*linuxIDs) {
	net := sim.New(sim.Config{QueueLen: 1 << 16})
	ids = [2]*linuxIDs{newLinuxIDs(seed, hz), newLinuxIDs(seed+1, hz)}
	return simDevice(t, net, 1, asLinux(ids[0])), simDevice(t, net, 2, asLinux(ids[1])), ids
}

// untroubled fails the test unless every packet was taken the first time that it came.
func untroubled(t *testing.T, ends ...*end) {
	t.Helper()
	if c := counters(ends...); c != (transport.Counters{}) {
		t.Errorf("counters %+v, want none", c)
	}
	seen := map[*verbs.Device]bool{}
	for _, e := range ends {
		if seen[e.dev] {
			continue
		}
		seen[e.dev] = true
		if d := stats(t, e.dev).Drops; d != (Drops{}) {
			t.Errorf("drops %+v, want none", d)
		}
	}
}

// message SENDs n bytes from x to y, which posts a receive for it.
func message(x, y *end, src, dst *verbs.MR, n int) {
	x.t.Helper()
	y.recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, n)}})
	x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, n)}})
	x.done()
	y.done()
}

var connectedTypes = []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC}

// After any pause and any traffic of others, a Linux kernel's first packet is taken.
func TestLinuxPeerIdle(t *testing.T) {
	for _, typ := range connectedTypes {
		for _, hz := range []int{100, 250, 1000} {
			t.Run(fmt.Sprintf("%v/%d jiffies a second", typ, hz), func(t *testing.T) {
				for seed := range uint64(10) {
					synctest.Test(t, func(t *testing.T) {
						a, b, ids := linuxPeers(t, seed, hz)
						x, y := connect(t, a, b, options{typ: typ, mtu: verbs.MTU1024})
						const size = 5000
						mx, my := x.mr(size), y.mr(size)
						for _, pause := range []time.Duration{0, time.Second, 8 * time.Second, 20 * time.Second, time.Minute, time.Second / 2} {
							time.Sleep(pause)
							for _, l := range ids {
								if pause > 0 {
									l.others(rand.New(rand.NewPCG(seed, uint64(pause))).IntN(1 << 16))
								}
							}
							message(x, y, mx, my, size)
							message(y, x, my, mx, size)
						}
						untroubled(t, x, y)
					})
				}
			})
		}
	}
}

// Many QPs of one Linux kernel send at the same time, and each hears of the count in leaps.
func TestLinuxPeerManyQPs(t *testing.T) {
	for _, typ := range connectedTypes {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const qps, rounds, size = 100, 5, 40_000
				a, b, _ := linuxPeers(t, 3, 250)
				var xs, ys []*end
				var mx, my []*verbs.MR
				for range qps {
					x, y := connect(t, a, b, options{typ: typ, mtu: verbs.MTU1024})
					xs, ys, mx, my = append(xs, x), append(ys, y), append(mx, x.mr(size)), append(my, y.mr(size))
				}
				for range rounds { // the count goes on by 4,000 from one message of a QP to its next
					for i := range qps {
						message(xs[i], ys[i], mx[i], my[i], size)
						message(ys[i], xs[i], my[i], mx[i], size)
					}
				}
				untroubled(t, append(xs, ys...)...)
			})
		})
	}
}

// A QP that sends little is not harmed by one that moves the count of their host quickly.
func TestLinuxPeerBulkBesideSparse(t *testing.T) {
	for _, typ := range connectedTypes {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _ := linuxPeers(t, 5, 250)
				const size = 6 << 20 // 6,144 packets
				bx, by := connect(t, a, b, options{typ: typ, mtu: verbs.MTU1024})
				sx, sy := connect(t, a, b, options{typ: typ, mtu: verbs.MTU1024})
				mbx, mby, msx, msy := bx.mr(size), by.mr(size), sx.mr(64), sy.mr(64)
				for range 10 {
					message(sx, sy, msx, msy, 64)
					message(sy, sx, msy, msx, 64)
					message(bx, by, mbx, mby, size)
				}
				untroubled(t, bx, by, sx, sy)
			})
		})
	}
}

// jumpyIDs are the identifications of a sender whose flows share one count that jumps: it goes on by 1 for most,
// and by 30,000 more for every fifth.
func jumpyIDs(seed uint64) link.Middleware {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 5))
	id := uint16(rng.Uint32())
	next := func() (uint16, bool) {
		mu.Lock()
		defer mu.Unlock()
		if id++; rng.IntN(5) == 0 {
			id += 30_000
		}
		return id, true
	}
	return func(inner link.Link) link.Link { return &foreign{Link: inner, next: next, rng: rng} }
}

// A sender whose identifications jump repeats nothing: each packet is taken the first time that it comes, whichever of
// its QPs sends.
func TestJumpyPeer(t *testing.T) {
	for _, typ := range connectedTypes {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%v, seed %d", typ, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const qps, messages, size = 4, 25, 5000
					net := sim.New(sim.Config{QueueLen: 1 << 16})
					a, b := simDevice(t, net, 1, jumpyIDs(seed)), simDevice(t, net, 2, jumpyIDs(seed+100))
					var xs, ys []*end
					var mx, my []*verbs.MR
					for range qps {
						x, y := connect(t, a, b, options{typ: typ, mtu: verbs.MTU1024})
						xs, ys, mx, my = append(xs, x), append(ys, y), append(mx, x.mr(size)), append(my, y.mr(size))
					}
					for range messages {
						for i := range qps {
							message(xs[i], ys[i], mx[i], my[i], size)
							message(ys[i], xs[i], my[i], mx[i], size)
							if typ == verbs.QPTypeRC {
								xs[i].send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{mx[i].SGE(0, size)}, Remote: my[i].Remote(0)})
								xs[i].done()
							}
						}
					}
					untroubled(t, append(xs, ys...)...)
				})
			})
		}
	}
}

// Datagrams are taken whatever the count is.
func TestLinuxPeerDatagrams(t *testing.T) {
	f := wire.NewFlow(netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791"))
	datagram := make([]byte, wire.BTHSize+wire.DETHSize+64+wire.ICRCSize)
	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791")
	for id := 0; id < 1<<16; id += 997 {
		linktest.SealForeign(src, dst, uint16(id), true, datagram)
		if !peer.VerifyAny(&f, &link.Datagram{Src: src}, 0, datagram) {
			t.Errorf("identification %d is refused, want it taken", id)
		}
	}
}

// forge sends WRITEs to y that pretend to be of its peer, with identifications and PSNs at a distance, with DF and
// without.
func (s *station) forge(y *end, mr *verbs.MR, id uint16, df bool, psns ...wire.PSN) {
	for i, psn := range psns {
		b := s.write(y, mr, []byte("forged!!"), func(p *wire.Packet) { p.PSN = psn })
		linktest.SealForeign(s.link.Source(0), netip.AddrPortFrom(y.addr(), link.Port), id+uint16(i), df, b)
		s.send(y, b)
	}
}

// Forged packets with distant identifications cost the genuine ones nothing, since their PSNs are wrong.
func TestForgedIdentifications(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first uint16 // identification of the genuine packets
		step  uint16
	}{
		{"a peer that counts", 1000, 1},
		{"a peer such as ourselves", 0, 0},
		{"a peer that has sent nothing yet", 40000, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y, mr, s, _ := byHand(t)
				id := tt.first
				genuine := func(n int) {
					for range n {
						b := s.write(y, mr, []byte("genuine!"), nil)
						linktest.SealForeign(s.link.Source(0), netip.AddrPortFrom(y.addr(), link.Port), id, true, b)
						s.send(y, b)
						s.psn = s.psn.Add(1)
						id += tt.step
					}
				}
				if tt.name != "a peer that has sent nothing yet" {
					genuine(3)
				}
				for round := range uint16(50) {
					before := stats(t, y.dev).Drops
					s.forge(y, mr, 20000+1000*round, round%2 == 1, s.psn.Add(-1000), s.psn.Add(-1000), s.psn.Add(5000), s.psn.Add(1<<22), s.psn.Add(-7))
					s.answers()
					forged := stats(t, y.dev).Drops
					genuine(4)
					if got := stats(t, y.dev).Drops; got != forged {
						t.Fatalf("round %d: drops %+v of the genuine packets, which were %+v before, want no more", round, got, forged)
					}
					if string(mr.Bytes()[:8]) != "genuine!" {
						t.Fatalf("round %d: memory is %q, want what the genuine packets wrote", round, mr.Bytes()[:8])
					}
					if len(s.answers()) == 0 {
						t.Fatalf("round %d: no acknowledgement, drops %+v before, want one", round, before)
					}
				}
				if q := y.impl(); q.peer.IsSurelyAdverb() != (tt.step == 0) {
					t.Errorf("the peer is surely an adverb: %v, want what its genuine packets say", q.peer.IsSurelyAdverb())
				}
			})
		})
	}
}
