package hca

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// tap keeps the datagrams that a link sends.
type tap struct {
	mu      sync.Mutex
	packets [][]byte
	trains  int // datagrams of several packets
}

func (p *tap) middleware(l link.Link) link.Link { return tapped{l, p} }

type tapped struct {
	link.Link
	tap *tap
}

func (l tapped) Send(batch []link.Datagram) error {
	l.tap.mu.Lock()
	for i := range batch {
		n := batch[i].Segments()
		for s := range n {
			l.tap.packets = append(l.tap.packets, bytes.Clone(batch[i].Segment(s)))
		}
		if n > 1 {
			l.tap.trains++
		}
	}
	l.tap.mu.Unlock()
	return l.Link.Send(batch)
}

// security are the counts of packets that packet security has dropped at an end.
func (e *end) security() (forged, replayed, plain, noKey uint64) {
	q := e.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.traffic.forged, q.traffic.replayed, q.traffic.plain, q.traffic.noKey
}

// exercise uses all operations of RC, and checks the data that arrive.
func exercise(t *testing.T, x, y *end, seed uint64) {
	t.Helper()
	const size = 100_003
	src, dst, back := x.mr(size), y.mr(size), x.mr(size)
	fill(src.Bytes(), seed)
	y.recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{dst.SGE(0, size)}})
	x.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}})
	x.done()
	if wc := y.done(); wc.ByteLen != size || !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Fatalf("seed %d: SEND of %d bytes brought others, want the same", seed, size)
	}
	clear(dst.Bytes())
	x.transfer(src, dst)
	x.send(verbs.SendWR{ID: 3, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{back.SGE(0, size)}, Remote: dst.Remote(0)})
	x.done()
	if !bytes.Equal(back.Bytes(), src.Bytes()) {
		t.Fatalf("seed %d: WRITE and READ of %d bytes brought others, want the same", seed, size)
	}
	word := x.mr(8)
	for range 3 {
		x.send(verbs.SendWR{ID: 4, Op: verbs.OpAtomicFetchAdd, Flags: signaled, CompareAdd: 1, SGList: []verbs.SGE{word.SGE(0, 8)}, Remote: dst.Remote(0)})
		x.done()
	}
	if got, want := dst.Load64(0), src.Load64(0)+3; got != want {
		t.Fatalf("seed %d: three FETCH_ADDs made %#x, want %#x", seed, got, want)
	}
}

// TestSecured: with loss, disorder, duplicates and damage all arrives, and no byte of it can be read on the
// way. PSNs wrap meanwhile.
func TestSecured(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		synctest.Test(t, func(t *testing.T) {
			net := sim.New(sim.Config{Seed: seed, Loss: 0.02, Duplicate: 0.1, Reorder: 0.02, Corrupt: 0.01, Delay: time.Microsecond})
			var out tap
			x, y := connect(t, simDevice(t, net, 1, out.middleware), simDevice(t, net, 2, out.middleware), options{secured: true, timeout: 8})
			exercise(t, x, y, seed)
			secret := make([]byte, 64)
			fill(secret, seed)
			for i, p := range out.packets {
				if wire.Opcode(p[0]) != wire.Secured || bytes.Contains(p, secret[8:16]) {
					t.Fatalf("seed %d: packet %d can be read: %x, want it sealed", seed, i, p[:min(len(p), 64)])
				}
			}
			if c := counters(x, y); c.Retransmits == 0 {
				t.Errorf("seed %d: nothing was repeated in %d packets, so nothing is shown, want some repeated", seed, len(out.packets))
			}
			_, rx, _, _ := x.security()
			_, ry, _, _ := y.security()
			if rx+ry == 0 {
				t.Errorf("seed %d: no packet that the network has repeated was dropped, want some dropped", seed)
			}
		})
	}
}

// Trains still form, over UDP too: the packets of a large message have one size.
func TestSecuredTrains(t *testing.T) {
	var out tap
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1, out.middleware), simDevice(t, net, 2), options{secured: true})
	exercise(t, x, y, 1)
	if out.trains == 0 {
		t.Error("no train has left")
	}
	x, y = pair(t, "udp", options{secured: true})
	exercise(t, x, y, 1)
}

func TestSecuredUC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{secured: true, typ: verbs.QPTypeUC})
		src, dst := x.mr(10_000), y.mr(10_000)
		fill(src.Bytes(), 1)
		y.recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 10_000)}})
		x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 10_000)}})
		if x.done(); y.done().ByteLen != 10_000 || !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Error("other bytes arrived than were sent")
		}
		cx, err := x.qp.Counters()
		x.must(err)
		cy, err := y.qp.Counters()
		y.must(err)
		if sent, rcvd := cx.Value("sent_bytes"), cy.Value("rcvd_bytes"); sent != rcvd || sent < 10_000 {
			t.Errorf("%d bytes are counted as sent and %d as received, want the same, and 10000 at least", sent, rcvd)
		}
	})
}

// inject sends a packet to b as if a had, with an ICRC that is right.
func inject(t *testing.T, a, b *end, packet []byte) {
	t.Helper()
	o := &a.impl().out
	raw := bytes.Clone(packet)
	o.flow.Seal(0, raw)
	if err := o.eng.link.Send([]link.Datagram{{Src: o.src, Dst: o.dst, Payload: raw}}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// TestSecuredReplay: who sends every packet of a connection again changes nothing, and gets no answer.
func TestSecuredReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		var fromX, fromY tap
		x, y := connect(t, simDevice(t, net, 1, fromX.middleware), simDevice(t, net, 2, fromY.middleware), options{secured: true})
		src, dst := x.mr(20_000), y.mr(20_000)
		fill(src.Bytes(), 1)
		x.transfer(src, dst)
		x.send(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Flags: signaled, CompareAdd: 1, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		x.done()
		synctest.Wait()
		clear(dst.Bytes())
		toY, toX := fromX.packets, fromY.packets
		sentX, sentY := stats(t, x.dev).Link.Sent, stats(t, y.dev).Link.Sent
		for _, p := range toY {
			inject(t, x, y, p)
		}
		for _, p := range toX {
			inject(t, y, x, p)
		}
		if !bytes.Equal(dst.Bytes(), make([]byte, 20_000)) {
			t.Error("a packet that was sent again has changed memory")
		}
		if _, n, _, _ := y.security(); n != uint64(len(toY)) {
			t.Errorf("got %d replays counted, want %d", n, len(toY))
		}
		answers := stats(t, x.dev).Link.Sent - sentX - uint64(len(toY)) + stats(t, y.dev).Link.Sent - sentY - uint64(len(toX))
		if answers != 0 {
			t.Errorf("%d packets answered replays, want none", answers)
		}
		fill(src.Bytes(), 2)
		x.transfer(src, dst)
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Error("other bytes arrived than were sent")
		}
	})
}

// TestSecuredForged: any bit that somebody on the path changes, with an ICRC to match, has the packet
// dropped. A packet that is not encrypted is dropped too.
func TestSecuredForged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{secured: true})
		dst := y.mr(64)
		q := x.impl()
		p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, PKey: wire.DefaultPKey, DestQP: uint32(y.qp.QPN()), AckReq: true, PSN: firstPSN},
			RETH: wire.RETH{VA: dst.Addr(), RKey: uint32(dst.RKey()), Length: 8}, Payload: []byte("genuine!")}
		plain := p.AppendTo(nil)
		packet := append(make([]byte, 12), append(plain, make([]byte, 28)...)...)
		packet = packet[:q.security.seal.Seal(packet, len(plain))]
		n := uint64(0)
		for i := range packet[:len(packet)-wire.ICRCSize] {
			for bit := range 8 {
				packet[i] ^= 1 << bit
				if i != 1 && i != 2 && i != 3 && i != 4 && (i < 5 || i > 7) && i != 0 { // else it is another QP's, or another partition's
					n++
				}
				if i != 4 { // which routers may change
					inject(t, x, y, packet)
				}
				packet[i] ^= 1 << bit
			}
		}
		if !bytes.Equal(dst.Bytes(), make([]byte, 64)) {
			t.Fatalf("a packet that was changed was carried out: %q, want memory as it was", dst.Bytes()[:8])
		}
		if forged, _, _, _ := y.security(); forged < n {
			t.Errorf("got %d packets counted as forged, want %d at least", forged, n)
		}
		inject(t, x, y, plain)
		if _, _, n, _ := y.security(); n == 0 || dst.Bytes()[0] != 0 {
			t.Error("a packet that is not encrypted was not counted, or carried out")
		}
		inject(t, x, y, packet)
		if !bytes.HasPrefix(dst.Bytes(), p.Payload) {
			t.Error("the genuine packet was not carried out")
		}
		if y.qp.State() != verbs.QPStateRTS {
			t.Errorf("the QP is in %v, want RTS", y.qp.State())
		}
	})
}

// The peer has keys and this end has none, or others: nothing is carried out, each drop is counted, and
// the connection ends as one to a peer that is silent.
func TestSecuredMismatch(t *testing.T) {
	psk := bytes.Repeat([]byte{1}, 32)
	for _, name := range []string{"none", "another peer's", "another PSK"} {
		synctest.Test(t, func(t *testing.T) {
			net := sim.New(sim.Config{})
			o := options{timeout: 8}
			x, y := newEnd(t, simDevice(t, net, 1), o), newEnd(t, simDevice(t, net, 2), o)
			keyX, keyY := x.securityKey(), y.securityKey()
			x.must(x.qp.SetSecurity(verbs.PacketSecurity{Peer: keyY}))
			switch name {
			case "another peer's":
				y.must(y.qp.SetSecurity(verbs.PacketSecurity{Peer: newEnd(t, x.dev, o).securityKey()}))
			case "another PSK":
				y.must(y.qp.SetSecurity(verbs.PacketSecurity{Peer: keyX, PSK: psk}))
			}
			x.join(y, o)
			y.join(x, o)
			src, dst := x.mr(64), y.mr(64)
			write := func(e *end, from, to *verbs.MR) {
				e.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{from.SGE(0, 64)}, Remote: to.Remote(0)})
				if wc := e.next(); !errors.Is(wc.Err(), verbs.WCRetryExceeded) {
					t.Errorf("%s: got %v, want %v", name, wc.Err(), verbs.WCRetryExceeded)
				}
			}
			write(x, src, dst)
			forged, _, _, noKey := y.security()
			if without := name == "none"; without && noKey == 0 || !without && forged == 0 {
				t.Errorf("%s: got %d packets counted as forged and %d for lack of keys, want forged ones where there are keys, and else ones for lack of keys", name, forged, noKey)
			}
			y.impl().mu.Lock()
			established := y.impl().commEst.seen
			y.impl().mu.Unlock()
			if established {
				t.Errorf("%s: packets that were dropped have raised COMM_EST, want none raised", name)
			}
		})
	}
}

// TestSetSecurity: NewSecurityKey, SetSecurity and RTR refuse wrong calls, and say why.
func TestSetSecurity(t *testing.T) {
	net := sim.New(sim.Config{MTU: 4096 + packetOverhead}) // no room for more
	d := simDevice(t, net, 1)
	e := newEnd(t, d, options{})
	refused := func(what string, err, kind error) {
		t.Helper()
		if !errors.Is(err, kind) {
			t.Errorf("%s: got %v, want %v", what, err, kind)
		}
	}
	drawn := func(qp *verbs.QP) error {
		_, err := qp.NewSecurityKey()
		return err
	}
	good := verbs.PacketSecurity{Peer: newEnd(t, d, options{}).securityKey()}
	ud := newEnd(t, d, options{typ: verbs.QPTypeUD}).qp
	refused("a key of UD", drawn(ud), verbs.ErrUnsupported)
	refused("UD", ud.SetSecurity(good), verbs.ErrUnsupported)
	refused("no key", e.qp.SetSecurity(good), verbs.ErrState)
	own := e.securityKey()
	refused("zero", e.qp.SetSecurity(verbs.PacketSecurity{}), verbs.ErrInvalid)
	refused("its own key", e.qp.SetSecurity(verbs.PacketSecurity{Peer: own}), verbs.ErrInvalid)
	refused("a short PSK", e.qp.SetSecurity(verbs.PacketSecurity{Peer: good.Peer, PSK: make([]byte, 15)}), verbs.ErrInvalid)
	e.must(e.qp.SetSecurity(good))
	to := verbs.Peer{QPN: 0x123456, GID: verbs.GIDFromAddr(simAddr(2))}
	refused("no room", e.qp.RTR(to, verbs.Path{MTU: verbs.MTU4096}), verbs.ErrInvalid)
	if m, err := e.qp.SecuredMTU(); m != verbs.MTU2048 || err != nil {
		t.Errorf("got the secured MTU %v, %v, want %v", m, err, verbs.MTU2048)
	}
	e.must(e.qp.RTR(to, verbs.Path{MTU: verbs.MTU2048}))
	refused("a key in RTR", drawn(e.qp), verbs.ErrState)
	refused("RTR", e.qp.SetSecurity(good), verbs.ErrState)
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	if e.impl().security != nil {
		t.Error("RESET has not forgotten the keys")
	}
	refused("the used key", e.qp.SetSecurity(good), verbs.ErrState)
	e.securityKey()
	e.must(e.qp.SetSecurity(good))
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	refused("a key from before RESET", e.qp.SetSecurity(good), verbs.ErrState)
	e.must(e.qp.Close())
	refused("a key of what is closed", drawn(e.qp), verbs.ErrClosed)
}

// TestSecuredNeverRepeats: a program gives the peer's key, the PSK, the PSNs and the peer's QPN again, to a QP after
// RESET, to another QP, and in another process, and sends the same. By one key and one nonce two packets would look
// alike. None does.
func TestSecuredNeverRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stranger, err := secure.NewExchange()
		if err != nil {
			t.Fatal(err)
		}
		again := verbs.PacketSecurity{Peer: stranger.Public(), PSK: bytes.Repeat([]byte{1}, 32)}
		sealed := map[string]bool{}
		for process := range 2 {
			var out tap
			d := simDevice(t, sim.New(sim.Config{}), 1, out.middleware)
			for qp := range 2 {
				e := newEnd(t, d, options{})
				mr := e.mr(64)
				for life := range 4 {
					out.packets = nil
					if life > 0 {
						e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
						e.must(e.qp.Init(1, everything))
					}
					e.securityKey()
					e.must(e.qp.SetSecurity(again))
					e.must(e.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(2))}, verbs.Path{MTU: verbs.MTU1024}))
					e.must(e.qp.RTS(firstPSN, verbs.Retry{}))
					e.send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{mr.SGE(0, 64)}})
					synctest.Wait()
					if len(out.packets) != 1 {
						t.Fatalf("%d packets have left, want 1", len(out.packets))
					}
					p := out.packets[0]
					block := string(p[wire.BTHSize+wire.SETHSize:][:16])
					if sealed[block] {
						t.Fatalf("process %d, QP %d, life %d: the packet looks like an earlier one, %x, want another", process, qp, life, block)
					}
					sealed[block] = true
				}
			}
		}
	})
}

// A peer whose packets are genuine may send from any port at any time.
func TestSecuredPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{secured: true})
		src, dst := x.mr(64), y.mr(64)
		for port := range uint16(3) {
			q := x.impl()
			q.mu.Lock()
			q.out.src = netip.AddrPortFrom(q.out.src.Addr(), 0xc000+port)
			q.out.flow = wire.NewFlow(q.out.src, q.out.dst)
			q.mu.Unlock()
			x.transfer(src, dst)
		}
		if c := counters(x); c.Retransmits != 0 {
			t.Errorf("a peer that moves repeated %d packets, want 0", c.Retransmits)
		}
	})
}

// BenchmarkSecured shows the cost of packet security: the bandwidth of WRITEs, with and without it in turn.
func BenchmarkSecured(b *testing.B) {
	for _, kind := range []string{"udp", "sim"} {
		for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			for _, secured := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/secured=%v", kind, size, secured), func(b *testing.B) {
					x, y := pair(b, kind, options{secured: secured})
					src, dst := x.mr(size), y.mr(size)
					wrs := []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}}
					wcs := make([]verbs.WC, 16)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					posted, done := 0, 0
					poll := func() {
						n, err := x.cq.Poll(wcs)
						if err != nil || n > 0 && wcs[0].Err() != nil {
							b.Fatal(err, wcs[0].Err())
						}
						done += n
					}
					for b.Loop() {
						for posted-done == 16 {
							poll()
						}
						if _, err := x.qp.PostSend(wrs); err != nil {
							b.Fatal(err)
						}
						posted++
					}
					for done < posted {
						poll()
					}
				})
			}
		}
	}
}
