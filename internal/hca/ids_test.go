package hca

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// heard is a sender whose packets all make progress, at one moment.
type heard struct {
	ids
	from sender
}

// plausible judges an identification, and remembers one that fits.
func (h *heard) plausible(i ident) bool {
	next, ok := h.judge(i, &h.from, 0, false)
	if ok {
		h.ids = next
		h.from = sender{latest: i, known: true}
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
		{"a count that leaves ours by a jump", []step{{100, true, true, idsOurs}, {100 + idWindow, true, false, idsOurs}, count(101+idWindow, true)}},
		{"a count that leaves ours by less", []step{{100, true, true, idsOurs}, count(100+ownIDs, true), count(101+ownIDs, true)}},
		{"ours that began again leave by a jump only", []step{{100, true, true, idsOurs}, {100, true, true, idsOurs},
			{100 + ownIDs, true, false, idsOurs}, count(101+ownIDs, true)}},
		{"a count that comes by", []step{count(65530, true), count(0, true), count(1, true), count(64, true), count(200, true), count(0, true)}},
		{"not by losing DF", []step{{ownIDs - 1, true, true, idsOurs}, {ownIDs, false, false, idsOurs}}},
		{"ours after all", []step{count(50000, true), count(7, false), {0, true, true, idsOurs}}},
		{"random", []step{count(1000, true), count(30000, false), count(10000, false), {50000, true, true, idsNoCount},
			{20000, false, true, idsNoCount}, {40000, true, true, idsNoCount}}},
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

// TestPlausibleOursAgain: a damaged packet makes an adverb look like a sender that counts. It is
// recognized again. A sender that really counts is never taken for an adverb.
func TestPlausibleOursAgain(t *testing.T) {
	s := heard{ids: ids{kind: idsOurs, accepted: ident{5, true}}}
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
	s = heard{ids: ids{kind: idsCount, accepted: ident{60000, true}}}
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
	s := heard{ids: ids{kind: idsNoCount}}
	for i := range uint16(idSteady + 1) {
		if !s.plausible(ident{9000 + i, true}) {
			t.Fatalf("packet %d of a sender without a count is refused, want it taken", i)
		}
	}
	if s.kind != idsCount || s.plausible(ident{50000, true}) {
		t.Errorf("kind %d after %d packets that count up, want %d", s.kind, idSteady, idsCount)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	s = heard{ids: ids{kind: idsNoCount}}
	for range 10_000 {
		s.plausible(ident{uint16(rng.Uint32()), true})
	}
	if s.kind != idsNoCount {
		t.Errorf("kind %d after random identifications, want %d", s.kind, idsNoCount)
	}
}

// A count may have gone on with the time and with what other QPs heard, and on UC anywhere.
func TestPlausibleLater(t *testing.T) {
	count := func(id uint16) ids { return ids{kind: idsCount, accepted: ident{id, true}} }
	for _, tt := range []struct {
		name       string
		s          ids
		from       sender
		now        time.Duration
		unreliable bool
		i          ident
		want       bool
	}{
		{"at once", count(0), sender{ident{0, true}, 0, true}, 0, false, ident{idWindow/2 - 1, true}, true},
		{"too far", count(0), sender{ident{0, true}, 0, true}, 0, false, ident{idWindow / 2, true}, false},
		{"what others heard", count(0), sender{ident{30000, true}, 0, true}, 0, false, ident{30001, true}, true},
		{"its own count, beside what others heard", count(500), sender{ident{30000, true}, 0, true}, 0, false, ident{501, true}, true},
		{"neither", count(500), sender{ident{30000, true}, 0, true}, 0, false, ident{20000, true}, false},
		{"after half of the silence", count(0), sender{ident{0, true}, 0, true}, idSilence / 2, false, ident{1<<15 - 1, true}, true},
		{"too far after half of the silence", count(0), sender{ident{0, true}, 0, true}, idSilence / 2, false, ident{1<<15 + idWindow/2, true}, false},
		{"back after half of the silence", count(5000), sender{ident{5000, true}, 0, true}, idSilence / 2, false, ident{2000, true}, false},
		{"after the silence", count(0), sender{ident{0, true}, 0, true}, idSilence, false, ident{50000, true}, true},
		{"DF after the silence", count(0), sender{ident{0, true}, 0, true}, idSilence, false, ident{1, false}, false},
		{"long after", count(0), sender{ident{0, true}, 0, true}, 1000 * time.Hour, false, ident{50000, true}, true},
		{"others' silence is shorter", count(0), sender{ident{0, true}, idSilence - 1, true}, idSilence, false, ident{50000, true}, false},
		{"UC", count(0), sender{ident{0, true}, 0, true}, 0, true, ident{50000, true}, true},
		{"DF on UC", count(0), sender{ident{0, true}, 0, true}, 0, true, ident{1, false}, false},
		{"a count that passed ours only just", ids{kind: idsOurs, accepted: ident{100, true}}, sender{ident{100, true}, 0, true},
			idSilence, false, ident{50000, true}, true},
		{"ours that began again, after the silence", ids{kind: idsOurs, accepted: ident{0, true}, restarts: 1}, sender{ident{0, true}, 0, true},
			idSilence, false, ident{50000, true}, false},
		{"ours that began again, on UC", ids{kind: idsOurs, accepted: ident{0, true}, restarts: 1}, sender{ident{0, true}, 0, true},
			0, true, ident{50000, true}, false},
	} {
		if _, got := tt.s.judge(tt.i, &tt.from, tt.now, tt.unreliable); got != tt.want {
			t.Errorf("%s: plausible is %v, want %v", tt.name, got, tt.want)
		}
	}
}

// What makes no progress changes nothing for the packets that do.
func TestPlausibleForged(t *testing.T) {
	s := ids{kind: idsCount, accepted: ident{1000, true}}
	from := sender{latest: ident{1000, true}, known: true}
	for i := range 100 {
		for _, forged := range []ident{{uint16(30000 + i), true}, {uint16(50000 - 3000*i), false}} {
			s.judge(forged, &from, 0, false)
		}
		next, ok := s.judge(ident{uint16(1001 + i%50), true}, &from, 0, false)
		if !ok || next.kind != idsCount {
			t.Fatalf("genuine packet %d behind forged ones: plausible is %v, kind %d, want true and kind %d", i, ok, next.kind, idsCount)
		}
	}
}

// An engine remembers so many senders, and no more.
func TestSendersBound(t *testing.T) {
	var all senders
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	for i := range maxSenders + 100 {
		s := all.of(addr(i))
		if s == nil || all.of(addr(i)) != s {
			t.Fatalf("sender %d is not the same the second time, want the same one", i)
		}
	}
	if len(all) != maxSenders {
		t.Errorf("%d senders, want %d", len(all), maxSenders)
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

// Of damaged packets as many are taken as ids says, and no more. 2^-19 and less cannot be measured in
// a test, so their limits are what chance hardly exceeds.
func TestDamageAccepted(t *testing.T) {
	packets := 200_000
	if testing.Short() {
		packets /= 10
	}
	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791")
	datagram := make([]byte, wire.BTHSize+64+wire.ICRCSize)
	for _, tt := range []struct {
		name       string
		kind       idsKind
		flips      bool          // one to three bits instead of random bytes
		silence    time.Duration // of the sender
		others     uint16        // how far the sender's other QPs are
		unreliable bool
		limit      int // expected, and 6 standard deviations
	}{
		{name: "no count, random bytes", kind: idsNoCount, limit: 21},      // 200,000 × 2^-15 is 6.1
		{name: "no count, bits", kind: idsNoCount, flips: true, limit: 21}, // the same
		{name: "first packet, bits", kind: idsUnknown, flips: true, limit: 100},
		{name: "count, random bytes", kind: idsCount, limit: 3},                                 // × 2^-20 is 0.2
		{name: "count, bits", kind: idsCount, flips: true, limit: 3},                            // the same
		{name: "count of several QPs, random bytes", kind: idsCount, others: 1 << 15, limit: 4}, // × 2^-19 is 0.4
		{name: "count of several QPs, bits", kind: idsCount, others: 1 << 15, flips: true, limit: 4},
		{name: "count after half the silence, random bytes", kind: idsCount, silence: idSilence / 2, limit: 9}, // × 2^-17 × 9/8 is 1.7
		{name: "count after the silence, random bytes", kind: idsCount, silence: idSilence, limit: 14},         // × 2^-16 is 3.1
		{name: "count after the silence, bits", kind: idsCount, silence: time.Hour, flips: true, limit: 14},
		{name: "count on UC, random bytes", kind: idsCount, unreliable: true, limit: 14},
		{name: "count on UC, bits", kind: idsCount, unreliable: true, flips: true, limit: 14},
		{name: "ours, random bytes", kind: idsOurs}, // × 2^-24 is 0.01
		{name: "ours, bits", kind: idsOurs, flips: true},
		{name: "ours after the silence, random bytes", kind: idsOurs, silence: time.Hour},
		{name: "ours on UC, random bytes", kind: idsOurs, unreliable: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seed = 20
			rng := rand.New(rand.NewPCG(seed, 1))
			in := inbound{sender: new(sender)}
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
				if tt.kind == idsOurs {
					in.ids.restarts = 1
				}
				*in.sender = sender{latest: ident{id + tt.others, true}, known: tt.kind != idsUnknown}
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
				if in.verify(tt.silence, dst.Addr(), &link.Datagram{Src: src}, 0, datagram, tt.unreliable) {
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
