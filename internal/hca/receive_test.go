package hca

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// station is a host of the simulated network whose packets the test makes by hand.
type station struct {
	t    testing.TB
	link link.Link
	flow uint32 // which decides the UDP port that it sends from
	psn  wire.PSN
}

func newStation(t testing.TB, net *sim.Network, i int) *station {
	t.Helper()
	l, err := net.Netdev(fmt.Sprintf("hand%d", i), simAddr(i)).Open(simAddr(i))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &station{t: t, link: l, psn: firstPSN}
}

// write makes a WRITE ONLY of the station's next PSN.
func (s *station) write(to *end, mr *verbs.MR, payload []byte, change func(*wire.Packet)) []byte {
	p := wire.Packet{
		BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, PKey: 0xffff, DestQP: uint32(to.qp.QPN()), AckReq: true, PSN: s.psn,
			PadCount: wire.PadCount(len(payload))},
		RETH: wire.RETH{VA: mr.Addr(), RKey: uint32(mr.RKey()), Length: uint32(len(payload))},
	}
	if change != nil {
		change(&p)
	}
	b := append(p.AppendHeaders(nil), payload...)
	b = append(b, make([]byte, int(p.PadCount)+wire.ICRCSize)...)
	s.seal(to, b)
	return b
}

// seal gives a datagram the ICRC that a sender such as ourselves would.
func (s *station) seal(to *end, b []byte) {
	f := wire.NewFlow(s.link.Source(s.flow), netip.AddrPortFrom(to.addr(), link.Port))
	f.Seal(0, b)
}

func (e *end) addr() netip.Addr {
	g, err := e.dev.GID(1, 0)
	e.must(err)
	return g.GID.Addr()
}

// send sends datagrams and waits until all goroutines of the bubble are done with them.
func (s *station) send(to *end, datagrams ...[]byte) {
	s.t.Helper()
	for _, b := range datagrams {
		if err := s.link.Send([]link.Datagram{{Src: s.link.Source(s.flow), Dst: netip.AddrPortFrom(to.addr(), link.Port), Payload: b}}); err != nil {
			s.t.Fatal(err)
		}
	}
	if st := s.link.Stats(); st.SendErrors > 0 {
		s.t.Fatal(st.LastSendError)
	}
	synctest.Wait()
}

// answers returns the opcodes of the packets that came back.
func (s *station) answers() (ops []wire.Opcode) {
	s.t.Helper()
	in := make([]link.Datagram, 64)
	n, err := s.link.Recv(in)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		var p wire.Packet
		if err := p.Decode(in[i].Payload); err != nil {
			s.t.Fatal(err)
		}
		ops = append(ops, p.Opcode)
	}
	return ops
}

// byHand is a QP whose peer is a station.
func byHand(t testing.TB, mw ...link.Middleware) (*end, *verbs.MR, *station, *sim.Network) {
	net := sim.New(sim.Config{})
	y := newEnd(t, simDevice(t, net, 2, mw...), options{})
	y.must(y.qp.RTR(verbs.Peer{QPN: 0x123456, PSN: firstPSN, GID: verbs.GIDFromAddr(simAddr(1))}, verbs.Path{}))
	return y, y.mr(64), newStation(t, net, 1), net
}

// TestDrops: a datagram that is refused is counted once, for the right cause, and has no other effect.
func TestDrops(t *testing.T) {
	payload := []byte("0123456789abcde") // one byte of pad
	plain := func(s *station, y *end, mr *verbs.MR) []byte { return s.write(y, mr, payload, nil) }
	changed := func(f func(*wire.Packet)) func(*station, *end, *verbs.MR) []byte {
		return func(s *station, y *end, mr *verbs.MR) []byte { return s.write(y, mr, payload, f) }
	}
	edited := func(f func(b []byte) []byte) func(*station, *end, *verbs.MR) []byte {
		return func(s *station, y *end, mr *verbs.MR) []byte { return f(plain(s, y, mr)) }
	}
	for _, tt := range []struct {
		name  string
		make  func(*station, *end, *verbs.MR) []byte
		third bool // sent by another station
		want  Drops
		pkeys uint32
	}{
		{name: "empty", make: edited(func(b []byte) []byte { return b[:0] }), want: Drops{Malformed: 1}},
		{name: "one byte", make: edited(func(b []byte) []byte { return b[:1] }), want: Drops{Malformed: 1}},
		{name: "BTH in part", make: edited(func(b []byte) []byte { return b[:wire.BTHSize-1] }), want: Drops{Malformed: 1}},
		{name: "no ICRC", make: edited(func(b []byte) []byte { return b[:wire.BTHSize] }), want: Drops{Malformed: 1}},
		{name: "RETH in part", make: edited(func(b []byte) []byte { return b[:24] }), want: Drops{Malformed: 1}},
		{name: "length", make: edited(func(b []byte) []byte { return b[:len(b)-1] }), want: Drops{Malformed: 1}},
		{name: "a word short", make: edited(func(b []byte) []byte { return b[:len(b)-4] }), want: Drops{ICRC: 1}},
		{name: "a word long", make: edited(func(b []byte) []byte { return append(b, 0, 0, 0, 0) }), want: Drops{ICRC: 1}},
		{name: "version", make: edited(func(b []byte) []byte { b[1] |= 1; return b }), want: Drops{Malformed: 1}},
		{name: "opcode", make: edited(func(b []byte) []byte { b[0] = 0xff; return b }), want: Drops{Malformed: 1}},
		{name: "pad longer than all", make: edited(func(b []byte) []byte { b[1] |= 3 << 4; return append(b[:28], 0, 0, 0, 0) }), want: Drops{Malformed: 1}},
		{name: "QP 0", make: changed(func(p *wire.Packet) { p.DestQP = 0 }), want: Drops{NoQP: 1}},
		{name: "QP 1", make: changed(func(p *wire.Packet) { p.DestQP = 1 }), want: Drops{NoQP: 1}},
		{name: "multicast QP", make: changed(func(p *wire.Packet) { p.DestQP = 0xffffff }), want: Drops{NoQP: 1}},
		{name: "unknown QP", make: changed(func(p *wire.Packet) { p.DestQP ^= 1 << 20 }), want: Drops{NoQP: 1}},
		{name: "third station", make: plain, third: true, want: Drops{Source: 1}},
		{name: "ICRC", make: edited(func(b []byte) []byte { b[len(b)-1] ^= 0x80; return b }), want: Drops{ICRC: 1}},
		{name: "payload", make: edited(func(b []byte) []byte { b[30] ^= 1; return b }), want: Drops{ICRC: 1}},
		{name: "P_Key", make: changed(func(p *wire.Packet) { p.PKey = 0x8001 }), want: Drops{PKey: 1}, pkeys: 1},
		{name: "P_Key, damaged", make: edited(func(b []byte) []byte { b[3] ^= 1; return b }), want: Drops{ICRC: 1}},
		{name: "P_Key of a limited member", make: changed(func(p *wire.Packet) { p.PKey = 0x7fff })},
		{name: "good", make: plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y, mr, s, net := byHand(t)
				from := s
				if tt.third {
					from = newStation(t, net, 3)
				}
				s.send(y, s.write(y, mr, nil, nil)) // so that y knows the sender's identifications
				s.psn = s.psn.Add(1)
				s.answers()
				event(t, y.dev) // COMM_EST
				before := stats(t, y.dev)
				from.psn = s.psn
				from.send(y, tt.make(from, y, mr))
				got := stats(t, y.dev)
				if got.Drops != tt.want || got.Link.Received != before.Link.Received+1 {
					t.Errorf("drops %+v of %d, want %+v of 1", got.Drops, got.Link.Received-before.Link.Received, tt.want)
				}
				if n := impl(y.dev).port.query().BadPKeyCntr; n != tt.pkeys {
					t.Errorf("bad_pkey_cntr %d, want %d", n, tt.pkeys)
				}
				if tt.want == (Drops{}) {
					if !bytes.Equal(mr.Bytes()[:len(payload)], payload) || len(s.answers()) != 1 {
						t.Error("a good packet was not placed and acknowledged")
					}
					return
				}
				if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
					t.Errorf("memory is %q, want zeros", mr.Bytes())
				}
				if a, b := s.answers(), from.answers(); a != nil || b != nil {
					t.Errorf("answers %v, %v; want none", a, b)
				}
				if y.qp.State() != verbs.QPStateRTR || counters(y).OutOfOrder != 0 || counters(y).Duplicates != 0 {
					t.Errorf("the QP is in %v with counters %+v, want RTR and nothing out of order or twice", y.qp.State(), counters(y))
				}
				y.empty()
				noEvent(t, y.dev)
				s.send(y, plain(s, y, mr))
				if !bytes.Equal(mr.Bytes()[:len(payload)], payload) {
					t.Error("the good packet behind it was not placed")
				}
			})
		})
	}
}

// TestNoPath: QPs without a path take no packet.
func TestNoPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		b := s.write(y, mr, []byte("12345678"), nil)
		y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		s.send(y, b)
		y.must(y.qp.Init(1, everything))
		s.send(y, b)
		y.must(y.qp.Close())
		s.send(y, b)
		if d := stats(t, y.dev).Drops; d != (Drops{NoQP: 3}) {
			t.Errorf("drops %+v, want 3 NoQP", d)
		}
		if s.answers() != nil || mr.Load64(0) != 0 {
			t.Error("a QP without a path took a packet")
		}
	})
}

// TestEveryBit: a packet is refused whichever of its bits flips, except those that routers may set.
func TestEveryBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, _ := byHand(t)
		s.send(y, s.write(y, mr, nil, nil))
		s.psn = s.psn.Add(1)
		s.answers()
		event(t, y.dev)
		good := s.write(y, mr, []byte("01234567"), nil)
		before := stats(t, y.dev).Drops
		for bit := range len(good) * 8 {
			if bit/8 == 4 {
				continue // FECN, BECN and reserved
			}
			b := bytes.Clone(good)
			b[bit/8] ^= 0x80 >> (bit % 8)
			s.send(y, b)
			d := stats(t, y.dev).Drops
			sum := d.Malformed + d.NoQP + d.ICRC - before.Malformed - before.NoQP - before.ICRC
			if sum != 1 || d.PKey != 0 || d.Source != 0 || mr.Load64(0) != 0 || s.answers() != nil {
				t.Fatalf("bit %d: drops %+v after %+v, memory %#x; want one drop more for the ICRC, the QP or as malformed, and nothing else", bit, d, before, mr.Load64(0))
			}
			before = d
		}
		b := bytes.Clone(good)
		b[4] ^= 0xff
		s.send(y, b)
		if mr.Load64(0) == 0 || stats(t, y.dev).Drops != before {
			t.Error("a packet with FECN, BECN and reserved bits set was refused")
		}
		noEvent(t, y.dev)
	})
}

// joining is a link that joins datagrams of one length to trains, as receive offload does.
type joining struct {
	link.Link
	trains int
}

func (j *joining) Recv(batch []link.Datagram) (int, error) {
	in := make([]link.Datagram, len(batch))
	got, err := j.Link.Recv(in)
	n := 0
	for i := range in[:got] {
		d := &in[i]
		if n > 0 {
			last := &batch[n-1]
			if last.Src == d.Src && len(d.Payload) <= last.SegmentSize && len(last.Payload)%last.SegmentSize == 0 {
				last.Payload = append(last.Payload, d.Payload...)
				j.trains++
				continue
			}
		}
		batch[n] = *d
		batch[n].Payload, batch[n].SegmentSize = bytes.Clone(d.Payload), len(d.Payload)
		n++
	}
	return n, err
}

// TestTrains: trains are taken apart.
func TestTrains(t *testing.T) {
	net := sim.New(sim.Config{})
	var js []*joining
	join := func(l link.Link) link.Link {
		j := &joining{Link: l}
		js = append(js, j)
		return j
	}
	x, y := connect(t, simDevice(t, net, 1, join), simDevice(t, net, 2, join), options{mtu: verbs.MTU1024})
	const size = 200_001
	src, dst, back := x.mr(size), y.mr(size), x.mr(size)
	fill(src.Bytes(), 1)
	x.transfer(src, dst)
	x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{back.SGE(0, size)}, Remote: dst.Remote(0)})
	x.done()
	if !bytes.Equal(dst.Bytes(), src.Bytes()) || !bytes.Equal(back.Bytes(), src.Bytes()) {
		t.Error("contents differ")
	}
	for i, e := range []*end{x, y} {
		if d := stats(t, e.dev).Drops; d != (Drops{}) {
			t.Errorf("drops %+v, want none", d)
		}
		x.must(e.qp.Close())
		x.must(impl(e.dev).Close()) // ends the goroutine that counts
		if js[i].trains == 0 {
			t.Error("no train came")
		}
	}
}

// foreign seals all that passes as another implementation would, and damages some of it.
type foreign struct {
	link.Link
	next   func() (id uint16, df bool)
	damage float64
	rng    *rand.Rand
	buf    []byte
}

func (f *foreign) MaxTrain() int { return 1 }

func (f *foreign) Send(batch []link.Datagram) error {
	for _, d := range batch { // one at a time: the device sends from several goroutines, but under one QP's lock
		f.buf = append(f.buf[:0], d.Payload...)
		id, df := f.next()
		linktest.SealForeign(d.Src, d.Dst, id, df, f.buf)
		if f.rng.Float64() < f.damage {
			// One damage in 2^15 is that of an identification, which the receiver may well take: see package peer.
			flow := wire.NewFlow(d.Src, d.Dst)
			for solved := true; solved; _, _, solved = flow.SolveID(f.buf) {
				off := f.rng.IntN(len(f.buf) - 7)
				binary.LittleEndian.PutUint64(f.buf[off:], f.rng.Uint64())
			}
		}
		d.Payload = f.buf
		if err := f.Link.Send([]link.Datagram{d}); err != nil {
			return err
		}
	}
	return nil
}

// TestForeignPeer: we understand peers with identifications of their own, and damage does not get
// through.
func TestForeignPeer(t *testing.T) {
	counting := func(rng *rand.Rand, df bool, step int) func() (uint16, bool) {
		id := uint16(rng.Uint32())
		return func() (uint16, bool) {
			id += uint16(1 + rng.IntN(step)) // others get packets from the sender as well
			return id, df
		}
	}
	for _, tt := range []struct {
		name   string
		ids    func(rng *rand.Rand) func() (uint16, bool)
		damage float64
		kind   peer.Kind
	}{
		{"counting", func(r *rand.Rand) func() (uint16, bool) { return counting(r, true, 1) }, 0, peer.Foreign},
		{"counting with gaps", func(r *rand.Rand) func() (uint16, bool) { return counting(r, true, 40) }, 0, peer.Foreign},
		{"counting, DF clear", func(r *rand.Rand) func() (uint16, bool) { return counting(r, false, 1) }, 0, peer.Foreign},
		{"random", func(r *rand.Rand) func() (uint16, bool) {
			return func() (uint16, bool) { return uint16(r.Uint32()), true }
		}, 0, peer.Foreign},
		{"random, DF too", func(r *rand.Rand) func() (uint16, bool) {
			return func() (uint16, bool) { return uint16(r.Uint32()), r.IntN(2) == 0 }
		}, 0, peer.ForeignDFs},
		{"jumping", func(r *rand.Rand) func() (uint16, bool) {
			id := uint16(0)
			return func() (uint16, bool) {
				if id++; r.IntN(200) == 0 {
					id += 20000
				}
				return id, true
			}
		}, 0, peer.Foreign},
		{"counting, with damage", func(r *rand.Rand) func() (uint16, bool) { return counting(r, true, 1) }, 0.02, peer.Foreign},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const seed, size = 9, 1<<20 + 3
				mw := func(i uint64) link.Middleware {
					return func(l link.Link) link.Link {
						rng := rand.New(rand.NewPCG(seed, i))
						return &foreign{Link: l, next: tt.ids(rng), damage: tt.damage, rng: rng}
					}
				}
				net := sim.New(sim.Config{})
				x, y := connect(t, simDevice(t, net, 1, mw(1)), simDevice(t, net, 2, mw(2)), options{mtu: verbs.MTU1024})
				src, dst, back := x.mr(size), y.mr(size), x.mr(size)
				fill(src.Bytes(), seed)
				x.transfer(src, dst)
				x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{back.SGE(0, size)}, Remote: dst.Remote(0)})
				x.done()
				if !bytes.Equal(dst.Bytes(), src.Bytes()) || !bytes.Equal(back.Bytes(), src.Bytes()) {
					t.Errorf("seed %d: the WRITE or the READ gave other contents, want those of the source", seed)
				}
				a, b := stats(t, x.dev).Drops, stats(t, y.dev).Drops
				if drops := a.ICRC + b.ICRC; tt.kind == peer.Foreign && (drops == 0) != (tt.damage == 0) {
					t.Errorf("seed %d: %d packets dropped for their ICRC; want some: %v", seed, drops, tt.damage != 0)
				}
				q := y.impl()
				q.mu.Lock()
				defer q.mu.Unlock()
				if q.peer.Kind() != tt.kind {
					t.Errorf("seed %d: the sender is taken for kind %d, want %d", seed, q.peer.Kind(), tt.kind)
				}
			})
		})
	}
}
