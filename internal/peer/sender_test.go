package peer

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// heard is a sender whose packets all make progress.
type heard struct{ sender }

// plausible judges an identification, and remembers one that fits.
func (h *heard) plausible(i ident) bool {
	next, ok := h.judge(i)
	if ok {
		h.sender = next
	}
	return ok
}

func TestPlausible(t *testing.T) {
	type step struct {
		id   uint16
		df   bool
		want bool
		kind Kind
	}
	other := func(id int, want bool) step { return step{uint16(id), true, want, Foreign} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"counting up", []step{other(40000, true), other(40001, true), other(40007, true)}},
		{"around 2^16", []step{other(65534, true), other(65535, true), other(0, true), other(1, true), other(300, true)}},
		{"late ones", []step{other(5000, true), other(4990, true), other(5001, true)}},
		{"jumps", []step{other(1000, true), other(31000, true), other(31001, true), other(61001, true), other(25465, true)}},
		{"a count that several flows share", []step{other(1000, true), other(30000, true), other(1001, true), other(30001, true)}},
		{"DF is part of it", []step{other(1000, true), {1001, false, false, Foreign}, other(1002, true)}},
		{"DF clear", []step{{1000, false, true, Foreign}, {1001, false, true, Foreign}, {1002, true, false, Foreign}}},
		{"always 0 without DF", []step{{0, false, true, Foreign}, {0, false, true, Foreign}}},
		{"ours", []step{{0, true, true, Adverb}, {63, true, true, Adverb}, {0, true, true, Adverb}}},
		{"ours, and a damaged one", []step{{0, true, true, Adverb}, {0, true, true, Adverb}, {50000, true, false, Adverb},
			{0, true, true, Adverb}, {50001, true, false, Adverb}}},
		{"a count that began at 0", []step{{0, true, true, Adverb}, {1, true, true, Adverb}, {maxTrain - 1, true, true, Adverb},
			other(maxTrain, true), other(maxTrain+1, true)}},
		{"a count that leaves ours with gaps", []step{{100, true, true, Adverb}, other(maxTrain+90, true), other(maxTrain+100, true)}},
		{"a count that leaves ours by a jump", []step{{100, true, true, Adverb}, other(30000, true), other(30001, true)}},
		{"ours that began again leave by a jump only", []step{{100, true, true, Adverb}, {100, true, true, Adverb},
			{100 + maxTrain, true, false, Adverb}, {30000, true, false, Adverb}, other(30001, true), other(60001, true)}},
		{"ours that began again, and lost DF", []step{{100, true, true, Adverb}, {100, true, true, Adverb},
			{100, false, false, Adverb}, {100, false, false, Adverb}, {100, false, true, Foreign}, {30000, false, true, Foreign}}},
		{"a count that comes by", []step{other(65530, true), other(0, true), other(1, true), other(64, true), other(200, true), other(0, true)}},
		{"not by losing DF", []step{{maxTrain - 1, true, true, Adverb}, {maxTrain, false, false, Adverb}}},
		{"DF at random", []step{other(1000, true), {30000, false, false, Foreign}, {10000, false, false, Foreign}, {50000, false, true, ForeignDFs},
			{20000, true, true, ForeignDFs}, {40000, false, true, ForeignDFs}}},
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
	s := heard{sender{kind: Adverb, accepted: ident{5, true}}}
	if !s.plausible(ident{maxTrain + 1, true}) || s.kind != Foreign {
		t.Fatalf("kind %d after the damaged packet, want %d", s.kind, Foreign)
	}
	for i := range 4 * steadyRestarts {
		if !s.plausible(ident{uint16(i % 4), true}) {
			t.Fatalf("packet %d of trains of 4 is refused, want it taken", i)
		}
	}
	if s.kind != Adverb {
		t.Errorf("kind %d after %d trains, want %d", s.kind, steadyRestarts, Adverb)
	}
	s = heard{sender{kind: Foreign, accepted: ident{60000, true}}}
	for i := range steadyRestarts * 1 << 16 / 100 {
		s.plausible(ident{uint16(60000 + 100*i), true})
	}
	if s.kind != Foreign {
		t.Errorf("kind %d after a count around 2^16 %d times, want %d", s.kind, steadyRestarts, Foreign)
	}
}

// Packets that make no progress change nothing for the packets that do.
func TestPlausibleForged(t *testing.T) {
	for _, kind := range []Kind{Foreign, Adverb} {
		s := sender{kind: kind, accepted: ident{0, true}, restarts: SureRestarts}
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

// Of damaged packets as many are taken as sender says, and no more. 2^-24 cannot be measured in a test, so its limit
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
		kind  Kind
		flips bool // one to three bits instead of random bytes
		limit int  // expected, and 6 standard deviations
	}{
		{name: "DF changes, random bytes", kind: ForeignDFs, limit: 21}, // 200,000 × 2^-15 is 6.1
		{name: "DF changes, bits", kind: ForeignDFs, flips: true, limit: 21},
		{name: "first packet, random bytes", kind: Unknown, limit: 21},
		{name: "first packet, bits", kind: Unknown, flips: true, limit: 21},
		{name: "one DF, random bytes", kind: Foreign, limit: 14}, // × 2^-16 is 3.1
		{name: "one DF, bits", kind: Foreign, flips: true, limit: 14},
		{name: "ours, random bytes", kind: Adverb}, // × 2^-24 is 0.01
		{name: "ours, bits", kind: Adverb, flips: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seed = 20
			rng := rand.New(rand.NewPCG(seed, 1))
			var in Peer
			accepted := 0
			for i := range packets {
				if i%1000 == 0 {
					for j := 0; j < len(datagram); j += 8 {
						binary.LittleEndian.PutUint64(datagram[j:], rng.Uint64())
					}
				}
				id := uint16(rng.Uint32()) // it jumps
				if tt.kind == Adverb {
					id = 0
				}
				in.sender = sender{kind: tt.kind, accepted: ident{id, true}}
				if tt.kind == Adverb {
					in.sender.restarts = 1
				}
				linktest.SealForeign(src, dst, id, true, datagram)
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
				if in.Verify(dst.Addr(), &link.Datagram{Src: src}, 0, datagram) {
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
