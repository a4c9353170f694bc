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

// heard is a sender whose packets all make progress.
type heard struct{ ids }

// plausible judges an identification, and remembers one that fits.
func (h *heard) plausible(i ident) bool {
	next, ok := h.judge(i)
	if ok {
		h.ids = next
	}
	return ok
}

func TestPlausible(t *testing.T) {
	type step struct {
		id   uint16
		df   bool
		want bool
		kind idsKind
	}
	other := func(id int, want bool) step { return step{uint16(id), true, want, idsForeign} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"counting up", []step{other(40000, true), other(40001, true), other(40007, true)}},
		{"around 2^16", []step{other(65534, true), other(65535, true), other(0, true), other(1, true), other(300, true)}},
		{"late ones", []step{other(5000, true), other(4990, true), other(5001, true)}},
		{"jumps", []step{other(1000, true), other(31000, true), other(31001, true), other(61001, true), other(25465, true)}},
		{"a count that several flows share", []step{other(1000, true), other(30000, true), other(1001, true), other(30001, true)}},
		{"DF is part of it", []step{other(1000, true), {1001, false, false, idsForeign}, other(1002, true)}},
		{"DF clear", []step{{1000, false, true, idsForeign}, {1001, false, true, idsForeign}, {1002, true, false, idsForeign}}},
		{"always 0 without DF", []step{{0, false, true, idsForeign}, {0, false, true, idsForeign}}},
		{"ours", []step{{0, true, true, idsOurs}, {63, true, true, idsOurs}, {0, true, true, idsOurs}}},
		{"ours, and a damaged one", []step{{0, true, true, idsOurs}, {0, true, true, idsOurs}, {50000, true, false, idsOurs},
			{0, true, true, idsOurs}, {50001, true, false, idsOurs}}},
		{"a count that began at 0", []step{{0, true, true, idsOurs}, {1, true, true, idsOurs}, {ownIDs - 1, true, true, idsOurs},
			other(ownIDs, true), other(ownIDs+1, true)}},
		{"a count that leaves ours with gaps", []step{{100, true, true, idsOurs}, other(ownIDs+90, true), other(ownIDs+100, true)}},
		{"a count that leaves ours by a jump", []step{{100, true, true, idsOurs}, other(30000, true), other(30001, true)}},
		{"ours that began again leave by a jump only", []step{{100, true, true, idsOurs}, {100, true, true, idsOurs},
			{100 + ownIDs, true, false, idsOurs}, {30000, true, false, idsOurs}, other(30001, true), other(60001, true)}},
		{"ours that began again, and lost DF", []step{{100, true, true, idsOurs}, {100, true, true, idsOurs},
			{100, false, false, idsOurs}, {100, false, false, idsOurs}, {100, false, true, idsForeign}, {30000, false, true, idsForeign}}},
		{"a count that comes by", []step{other(65530, true), other(0, true), other(1, true), other(64, true), other(200, true), other(0, true)}},
		{"not by losing DF", []step{{ownIDs - 1, true, true, idsOurs}, {ownIDs, false, false, idsOurs}}},
		{"DF at random", []step{other(1000, true), {30000, false, false, idsForeign}, {10000, false, false, idsForeign}, {50000, false, true, idsMixed},
			{20000, true, true, idsMixed}, {40000, false, true, idsMixed}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s heard
			for i, st := range tt.steps {
				if got := s.plausible(ident{st.id, st.df}); got != st.want || s.kind != st.kind {
					t.Fatalf("step %d, identification %d, DF %v: %v, kind %d; want %v, kind %d", i, st.id, st.df, got, s.kind, st.want, st.kind)
				}
			}
		})
	}
}

// TestPlausibleOursAgain: a damaged packet makes an adverb look like another sender. It is
// recognized again. A sender that counts is never taken for an adverb.
func TestPlausibleOursAgain(t *testing.T) {
	s := heard{ids{kind: idsOurs, accepted: ident{5, true}}}
	if !s.plausible(ident{ownIDs + 1, true}) || s.kind != idsForeign {
		t.Fatalf("kind %d after the damaged packet, want %d", s.kind, idsForeign)
	}
	for i := range 4 * idSteady {
		if !s.plausible(ident{uint16(i % 4), true}) {
			t.Fatalf("packet %d of trains of 4 is refused, want it taken", i)
		}
	}
	if s.kind != idsOurs {
		t.Errorf("kind %d after %d trains, want %d", s.kind, idSteady, idsOurs)
	}
	s = heard{ids{kind: idsForeign, accepted: ident{60000, true}}}
	for i := range idSteady * 1 << 16 / 100 {
		s.plausible(ident{uint16(60000 + 100*i), true})
	}
	if s.kind != idsForeign {
		t.Errorf("kind %d after a count around 2^16 %d times, want %d", s.kind, idSteady, idsForeign)
	}
}

// What makes no progress changes nothing for the packets that do.
func TestPlausibleForged(t *testing.T) {
	for _, kind := range []idsKind{idsForeign, idsOurs} {
		s := ids{kind: kind, accepted: ident{0, true}, restarts: sureRestarts}
		for i := range 100 {
			for _, forged := range []ident{{uint16(30000 + i), true}, {uint16(50000 - 3000*i), false}} {
				s.judge(forged)
			}
			next, ok := s.judge(ident{uint16(1 + i%50), true})
			if !ok || next.kind != kind {
				t.Fatalf("genuine packet %d behind forged ones: plausible is %v, kind %d, want true and kind %d", i, ok, next.kind, kind)
			}
		}
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

// Of damaged packets as many are taken as ids says, and no more. 2^-24 cannot be measured in a test, so its limit
// is what chance hardly exceeds.
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
		flips bool // one to three bits instead of random bytes
		limit int  // expected, and 6 standard deviations
	}{
		{name: "DF changes, random bytes", kind: idsMixed, limit: 21}, // 200,000 × 2^-15 is 6.1
		{name: "DF changes, bits", kind: idsMixed, flips: true, limit: 21},
		{name: "first packet, random bytes", kind: idsUnknown, limit: 21},
		{name: "first packet, bits", kind: idsUnknown, flips: true, limit: 21},
		{name: "one DF, random bytes", kind: idsForeign, limit: 14}, // × 2^-16 is 3.1
		{name: "one DF, bits", kind: idsForeign, flips: true, limit: 14},
		{name: "ours, random bytes", kind: idsOurs}, // × 2^-24 is 0.01
		{name: "ours, bits", kind: idsOurs, flips: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seed = 20
			rng := rand.New(rand.NewPCG(seed, 1))
			var in inbound
			accepted := 0
			for i := range packets {
				if i%1000 == 0 {
					fill(datagram, rng.Uint64())
				}
				id := uint16(rng.Uint32()) // it jumps
				if tt.kind == idsOurs {
					id = 0
				}
				in.ids = ids{kind: tt.kind, accepted: ident{id, true}}
				if tt.kind == idsOurs {
					in.ids.restarts = 1
				}
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
