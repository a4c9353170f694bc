package hca

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

func TestPlausible(t *testing.T) {
	type step struct {
		id   uint16
		df   bool
		want bool
		kind idsKind
	}
	count := func(id int, want bool) step { return step{uint16(id), true, want, idsCount} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"counting up", []step{count(40000, true), count(40001, true), count(40007, true)}},
		{"around 2^16", []step{count(65534, true), count(65535, true), count(0, true), count(1, true), count(300, true)}},
		{"late ones", []step{count(5000, true), count(4990, true), count(5001, true)}},
		{"the window", []step{count(20000, true), count(20000+idWindow/2, false), count(20000-idWindow/2, true),
			count(20000-idWindow/2+idWindow/2-1, true)}},
		{"a jump costs one packet", []step{count(1000, true), count(30000, false), count(30001, true), count(30002, true)}},
		{"one that does not fit", []step{count(1000, true), count(30000, false), count(1001, true), count(30001, false), count(1002, true)}},
		{"DF is part of it", []step{count(1000, true), {1001, false, false, idsCount}, count(1002, true)}},
		{"DF clear", []step{{1000, false, true, idsCount}, {1001, false, true, idsCount}, {1002, true, false, idsCount}}},
		{"always 0 without DF", []step{{0, false, true, idsCount}, {0, false, true, idsCount}}},
		{"ours", []step{{0, true, true, idsOurs}, {63, true, true, idsOurs}, {0, true, true, idsOurs}}},
		{"ours, and a damaged one", []step{{0, true, true, idsOurs}, {50000, true, false, idsOurs}, {0, true, true, idsOurs}, {50001, true, false, idsOurs}}},
		{"a count that began at 0", []step{{0, true, true, idsOurs}, {1, true, true, idsOurs}, {ownIDs - 1, true, true, idsOurs},
			count(ownIDs, true), count(ownIDs+1, true)}},
		{"a count that leaves ours with gaps", []step{{100, true, true, idsOurs}, count(ownIDs+90, true), count(ownIDs+100, true)}},
		{"a count that leaves ours by a jump", []step{{100, true, true, idsOurs}, {100 + ownIDs, true, false, idsOurs}, count(101+ownIDs, true)}},
		{"a count that comes by", []step{count(65530, true), count(0, true), count(1, true), count(64, true), count(200, true), count(0, true)}},
		{"not by losing DF", []step{{ownIDs - 1, true, true, idsOurs}, {ownIDs, false, false, idsOurs}}},
		{"ours after all", []step{count(50000, true), count(7, false), {0, true, true, idsOurs}}},
		{"random", []step{count(1000, true), count(30000, false), count(10000, false), {50000, true, true, idsNoCount},
			{20000, false, true, idsNoCount}, {40000, true, true, idsNoCount}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s ids
			for i, st := range tt.steps {
				if got := s.plausible(ident{st.id, st.df}); got != st.want || s.kind != st.kind {
					t.Fatalf("step %d, identification %d, DF %v: %v, kind %d; want %v, kind %d", i, st.id, st.df, got, s.kind, st.want, st.kind)
				}
			}
		})
	}
}

// TestPlausibleOursAgain: a damaged packet makes an adverb look like a sender that counts. It is
// recognized again. A sender that really counts is never taken for an adverb.
func TestPlausibleOursAgain(t *testing.T) {
	s := ids{kind: idsOurs, accepted: ident{5, true}}
	if !s.plausible(ident{ownIDs + 1, true}) || s.kind != idsCount {
		t.Fatalf("kind %d after the damaged packet, want %d", s.kind, idsCount)
	}
	for i := range 4 * idSteady {
		if !s.plausible(ident{uint16(i % 4), true}) {
			t.Fatalf("packet %d of trains of 4 is refused, want it taken", i)
		}
	}
	if s.kind != idsOurs {
		t.Errorf("kind %d after %d trains, want %d", s.kind, idSteady, idsOurs)
	}
	s = ids{kind: idsCount, accepted: ident{60000, true}}
	for i := range idSteady * 1 << 16 / 100 {
		s.plausible(ident{uint16(60000 + 100*i), true})
	}
	if s.kind != idsCount {
		t.Errorf("kind %d after a count around 2^16 %d times, want %d", s.kind, idSteady, idsCount)
	}
}

// TestPlausibleSteady: a sender that was taken for one without a count is believed again when it has
// counted for long.
func TestPlausibleSteady(t *testing.T) {
	s := ids{kind: idsNoCount}
	for i := range uint16(idSteady + 1) {
		if !s.plausible(ident{9000 + i, true}) {
			t.Fatalf("packet %d of a sender without a count is refused, want it taken", i)
		}
	}
	if s.kind != idsCount || s.plausible(ident{50000, true}) {
		t.Errorf("kind %d after %d packets that count up, want %d", s.kind, idSteady, idsCount)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	s = ids{kind: idsNoCount}
	for range 10_000 {
		s.plausible(ident{uint16(rng.Uint32()), true})
	}
	if s.kind != idsNoCount {
		t.Errorf("kind %d after random identifications, want %d", s.kind, idsNoCount)
	}
}

// foreignICRC is the ICRC of a datagram over IPv4, as a sender computes it that has identifications and
// a DF flag of its own. It is computed byte by byte, as the standard says.
func foreignICRC(src, dst netip.AddrPort, id uint16, df bool, datagram []byte) uint32 {
	ones := func(n int) (b []byte) {
		for range n {
			b = append(b, 0xff)
		}
		return b
	}
	n := len(datagram)
	b := ones(8)
	b = append(b, 0x45, 0xff)
	b = binary.BigEndian.AppendUint16(b, uint16(20+8+n))
	b = binary.BigEndian.AppendUint16(b, id)
	flags := uint16(0)
	if df {
		flags = 0x4000
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = append(b, 0xff, 17, 0xff, 0xff)
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+n))
	b = append(b, 0xff, 0xff)
	b = append(b, datagram[:4]...)
	b = append(b, 0xff)
	b = append(b, datagram[5:n-4]...)
	return crc32.ChecksumIEEE(b)
}

func sealForeign(src, dst netip.AddrPort, id uint16, df bool, datagram []byte) {
	binary.LittleEndian.PutUint32(datagram[len(datagram)-4:], foreignICRC(src, dst, id, df, datagram))
}

// TestDamageAccepted: no more damaged packets are taken than ids says. The 2^-20 of a sender that counts
// cannot be measured in a test.
func TestDamageAccepted(t *testing.T) {
	packets := 200_000
	if testing.Short() {
		packets /= 10
	}
	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791")
	datagram := make([]byte, wire.BTHSize+64+wire.ICRCSize)
	for _, tt := range []struct {
		name  string
		kind  idsKind
		flips bool
		limit int // expected, and 6 standard deviations
	}{
		{"no count, random bytes", idsNoCount, false, 21},         // 200,000 × 2^-15 is 6.1
		{"no count, one to three bits", idsNoCount, true, 21},     // the same
		{"count, random bytes", idsCount, false, 3},               // 0.2
		{"count, one to three bits", idsCount, true, 3},           // 0.2
		{"ours, random bytes", idsOurs, false, 0},                 // 0.006
		{"ours, one to three bits", idsOurs, true, 0},             // 0.006
		{"ours by the first packet, bits", idsUnknown, true, 100}, // as no count
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seed = 20
			rng := rand.New(rand.NewPCG(seed, 1))
			var in inbound
			accepted := 0
			id := uint16(rng.Uint32())
			for i := range packets {
				if i%1000 == 0 {
					fill(datagram, rng.Uint64())
				}
				id++
				if tt.kind == idsOurs {
					id = 0
				}
				in.ids = ids{kind: tt.kind, accepted: ident{id, true}}
				sealForeign(src, dst, id, true, datagram)
				if tt.flips {
					for range 1 + rng.IntN(3) {
						bit := rng.IntN(len(datagram) * 8)
						datagram[bit/8] ^= 1 << (bit % 8)
					}
				} else {
					off := rng.IntN(len(datagram) - 8)
					binary.LittleEndian.PutUint64(datagram[off:], rng.Uint64())
				}
				if foundGood(src, dst, id, datagram) {
					continue // damage where the ICRC does not cover, or bits that flipped back
				}
				if in.verify(dst.Addr(), &link.Datagram{Src: src}, 0, datagram) {
					accepted++
				}
			}
			if accepted > tt.limit {
				t.Errorf("seed %d: %d of %d damaged packets taken, want %d at most", seed, accepted, packets, tt.limit)
			}
			t.Logf("%d of %d damaged packets taken", accepted, packets)
		})
	}
}

// foundGood reports whether the ICRC is right after all.
func foundGood(src, dst netip.AddrPort, id uint16, datagram []byte) bool {
	f := wire.NewFlow(src, dst)
	return f.Verify(id, datagram)
}
