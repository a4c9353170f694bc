package secure

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

var testSecret = bytes.Repeat([]byte{7}, secretSize)

// stream is one direction of a connection.
type stream struct {
	t    testing.TB
	seal *Sealer
	open *Opener
	dst  [Space]byte
}

func newStream(t testing.TB) *stream {
	return &stream{t: t, seal: newSealer(testSecret), open: newOpener(testSecret)}
}

// plain is a packet whose payload has n bytes.
func plain(psn wire.PSN, n int) []byte {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, Solicited: true, PKey: wire.DefaultPKey, DestQP: 0x22, AckReq: true, PSN: psn},
		RETH: wire.RETH{VA: 1 << 40, RKey: 5, Length: uint32(n)}, Payload: bytes.Repeat([]byte{0xa5}, n)}
	return p.AppendTo(nil)
}

// sealed returns a packet sealed.
func (s *stream) sealed(packet []byte) []byte {
	s.t.Helper()
	buf := make([]byte, len(packet)+Overhead)
	copy(buf[Lead:], packet)
	if n := s.seal.Seal(buf, len(packet)); n != len(buf) {
		s.t.Fatalf("sealed %d bytes to %d, want %d", len(packet), n, len(buf))
	}
	return buf
}

func (s *stream) expect(packet []byte, want Verdict) []byte {
	s.t.Helper()
	got, v := s.open.Open(s.dst[:], packet)
	if v != want {
		s.t.Fatalf("packet %d: got verdict %d, want %d", binary.BigEndian.Uint64(packet[wire.BTHSize:]), v, want)
	}
	return got
}

func TestSealAndOpen(t *testing.T) {
	s := newStream(t)
	for _, n := range []int{0, 1, 3, 64, 1024, 4096} {
		packet := plain(wire.PSNMask, n)
		secured := s.sealed(packet)
		var outer wire.Packet
		if err := outer.Decode(secured); err != nil {
			t.Fatal(err)
		}
		if outer.Opcode != wire.Secured || outer.DestQP != 0x22 || outer.PSN != wire.PSNMask || !outer.AckReq || outer.Solicited ||
			outer.PKey != wire.DefaultPKey || outer.PadCount != 0 {
			t.Errorf("%d bytes: got the BTH %+v in front, want a secured packet's for QP 0x22", n, outer.BTH)
		}
		if n >= 64 && bytes.Contains(secured, packet[len(packet)-40:len(packet)-8]) {
			t.Errorf("%d bytes: the payload can be read, want it hidden", n)
		}
		got := s.expect(secured, Genuine)
		end := len(packet) - wire.ICRCSize
		if len(got) != len(packet) || !bytes.Equal(got[:end], packet[:end]) {
			t.Errorf("%d bytes: opened to\n%x, want\n%x", n, got, packet)
		}
	}
}

// No two packets are under one nonce: equal packets do not look alike, and each bit of a packet's number counts.
func TestNonceNeverRepeats(t *testing.T) {
	s := newStream(t)
	nonces := map[[nonceSize]byte]int{}
	for bit := range 65 {
		var f frame
		f.of(s.seal.keys, uint64(1)<<bit, make([]byte, wire.BTHSize)) // the last one is 0
		if other, ok := nonces[f.nonce]; ok {
			t.Fatalf("the numbers with bit %d and bit %d have one nonce", bit, other)
		}
		nonces[f.nonce] = bit
	}
	packet := plain(9, 64)
	seen := map[string]bool{}
	for range 1000 {
		secured := s.sealed(packet)
		end := len(secured) - wire.ICRCSize
		block := string(secured[sealedAt : sealedAt+16])
		if seen[block] {
			t.Fatal("two packets begin with the same encrypted block")
		}
		seen[block] = true
		if k := string(secured[wire.BTHSize:sealedAt]) + string(secured[end-tagSize:end]); seen[k] {
			t.Fatal("two packets have the same number and tag")
		}
	}
}

// Every bit counts but those of the byte that routers may change, and the ICRC, which is checked before.
func TestEveryBitIsChecked(t *testing.T) {
	s := newStream(t)
	secured := s.sealed(plain(9, 20))
	for i := range secured[:len(secured)-wire.ICRCSize] {
		if i == 4 {
			continue
		}
		for bit := range 8 {
			secured[i] ^= 1 << bit
			if _, v := s.open.Open(s.dst[:], secured); v == Genuine {
				t.Fatalf("byte %d, bit %d: the packet was taken, want it refused", i, bit)
			}
			secured[i] ^= 1 << bit
		}
	}
	secured[4] ^= 0xff
	s.expect(secured, Genuine)
}

// A packet is cut short or made longer.
func TestLengthIsChecked(t *testing.T) {
	s := newStream(t)
	secured := s.sealed(plain(9, 20))
	for n := range secured {
		s.expect(append(secured[:n:n], make([]byte, 0)...), Forged)
	}
	s.expect(append(bytes.Clone(secured), 0, 0, 0, 0), Forged)
	s.expect(make([]byte, 1<<16-1), Forged)
	s.expect(secured, Genuine)
}

// model checks a window against a set of all numbers that have come.
func model(t *testing.T, numbers []uint64) {
	t.Helper()
	var w window
	came := map[uint64]bool{}
	var end uint64
	for i, n := range numbers {
		want := n >= end || !came[n] && end-n <= Window
		if got := w.fresh(n); got != want {
			t.Fatalf("number %d, %d-th, the end is %d: fresh = %v, want %v", n, i, end, got, want)
		}
		if want {
			w.add(n)
			came[n], end = true, max(end, n+1)
		}
	}
}

func TestWindow(t *testing.T) {
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var numbers []uint64
		at := uint64(rnd.IntN(3)) << rnd.IntN(40)
		for range 2000 {
			switch rnd.IntN(8) {
			case 0:
				at += rnd.Uint64N(3 * Window)
			case 1:
				at += rnd.Uint64N(130)
			}
			numbers = append(numbers, at-min(at, rnd.Uint64N(2<<rnd.IntN(13))))
		}
		t.Logf("seed %d", seed)
		model(t, numbers)
	}
	// All have come, and then one comes that is so far ahead that nothing is known of those in the window.
	for _, ahead := range []uint64{Window - 1, Window, Window + 1, Window + wordBits} {
		var numbers []uint64
		for n := range uint64(2 * Window) {
			numbers = append(numbers, n)
		}
		numbers = append(numbers, 2*Window+ahead)
		for n := range uint64(Window) {
			numbers = append(numbers, Window+ahead+n)
		}
		model(t, numbers)
	}
}

// Packets come in disorder and twice: each is taken once.
func TestReplays(t *testing.T) {
	s := newStream(t)
	var all [][]byte
	for i := range 300 {
		all = append(all, s.sealed(plain(wire.PSN(i), 8)))
	}
	const seed = 5
	for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(all)) {
		s.expect(all[i], Genuine)
		s.expect(all[i], Replayed)
	}
	for _, p := range all {
		s.expect(p, Replayed)
	}
	for range Window {
		s.seal.number++
	}
	s.expect(s.sealed(plain(0, 8)), Genuine)
	s.expect(all[0], Replayed) // too old to tell
}

// Keys change with the generation, while packets come in disorder around the change. Forged packets of
// other generations change nothing.
func TestGenerations(t *testing.T) {
	s := newStream(t)
	s.seal.bits, s.open.bits = 6, 6
	first := s.seal.keys
	const seed = 6
	rnd := rand.New(rand.NewPCG(seed, 0))
	var held [][]byte
	for i := range 64 * 5 {
		secured := s.sealed(plain(wire.PSN(i), 8))
		if rnd.IntN(3) == 0 {
			held = append(held, secured)
			continue
		}
		s.expect(secured, Genuine)
		forged := bytes.Clone(secured)
		binary.BigEndian.PutUint64(forged[wire.BTHSize:], uint64(i)+64*rnd.Uint64N(3))
		if _, v := s.open.Open(s.dst[:], forged); v == Genuine {
			t.Fatalf("seed %d: a forged packet was taken, want it refused", seed)
		}
		for len(held) > 0 && binary.BigEndian.Uint64(held[0][wire.BTHSize:])+40 < uint64(i) {
			s.expect(held[0], Genuine)
			held = held[1:]
		}
	}
	if s.open.generation != 4 || s.seal.keys == first || s.seal.keys.iv == first.iv {
		t.Errorf("got generation %d, want 4, with keys of its own", s.open.generation)
	}
	s.seal.number += 64 * 2
	s.expect(s.sealed(plain(0, 8)), Forged) // more was lost than a whole generation
}

func TestNoAllocations(t *testing.T) {
	s := newStream(t)
	packet := plain(9, 1024)
	buf := make([]byte, len(packet)+Overhead)
	if n := testing.AllocsPerRun(100, func() {
		copy(buf[Lead:], packet)
		s.seal.Seal(buf, len(packet))
		s.expect(buf, Genuine)
		s.expect(buf, Replayed)
		s.seal.number++
		buf[30]++
		if _, v := s.open.Open(s.dst[:], buf); v == Genuine {
			t.Error("a packet was taken that was changed")
		}
	}); n != 0 {
		t.Errorf("got %v allocations for a packet, want 0", n)
	}
}

// FuzzOpen: whatever comes, nothing panics, and nothing is taken that was not sealed.
func FuzzOpen(f *testing.F) {
	s := newStream(f)
	s.seal = newSealer(bytes.Repeat([]byte{8}, secretSize)) // by the key below they would be genuine
	f.Add(s.sealed(plain(9, 20)), uint8(0))
	f.Add(s.sealed(plain(9, 0)), uint8(1))
	f.Add(make([]byte, minSize), uint8(2))
	f.Add(make([]byte, minSize-1), uint8(3))
	f.Add([]byte{byte(wire.Secured)}, uint8(4))
	f.Fuzz(func(t *testing.T, packet []byte, later uint8) {
		s := newStream(t)
		s.open.bits, s.seal.bits = 2, 2
		genuine := [][]byte{}
		for range int(later)%16 + 1 {
			genuine = append(genuine, s.sealed(plain(9, 20)))
			s.expect(genuine[len(genuine)-1], Genuine)
		}
		if _, v := s.open.Open(s.dst[:], packet); v == Genuine {
			t.Fatalf("%x was taken, want it refused", packet)
		}
		for _, g := range genuine {
			if _, v := s.open.Open(s.dst[:], g); v == Genuine {
				t.Fatal("a packet was taken twice")
			}
		}
		s.expect(s.sealed(plain(9, 20)), Genuine)
	})
}

// BenchmarkSeal and BenchmarkOpen measure the cost of a packet.
func BenchmarkSeal(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(sizeName(n), func(b *testing.B) {
			s := newStream(b)
			packet := plain(9, n)
			buf := make([]byte, len(packet)+Overhead)
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(buf[Lead:], packet[:wire.BTHSize])
				s.seal.Seal(buf, len(packet))
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(sizeName(n), func(b *testing.B) {
			s := newStream(b)
			secured := s.sealed(plain(9, n))
			b.SetBytes(int64(n))
			for b.Loop() {
				s.open.window = window{}
				s.expect(secured, Genuine)
			}
		})
	}
}

func sizeName(n int) string { return map[int]string{64: "64", 1024: "1024", 4096: "4096"}[n] }
