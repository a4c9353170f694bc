package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"
)

var (
	flow4Src = netip.MustParseAddrPort("10.98.0.2:49152")
	flow4Dst = netip.MustParseAddrPort("10.98.0.3:4791")
	flow4    = NewFlow(flow4Src, flow4Dst)
	flow6    = NewFlow(netip.MustParseAddrPort("[fd98::2]:49152"), netip.MustParseAddrPort("[fd98::3]:4791"))
)

// slowICRC builds all bytes that the ICRC covers and takes their CRC, without the means that make Flow fast.
func slowICRC(src, dst netip.AddrPort, id, flags uint16, datagram []byte) uint32 {
	be := binary.BigEndian
	n := len(datagram) + udpSize
	b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if src.Addr().Is4() {
		b = append(b, 0x45, 0xff)
		b = be.AppendUint16(b, uint16(n+ipv4Size))
		b = be.AppendUint16(b, id)
		b = be.AppendUint16(b, flags)
		b = append(b, 0xff, 17, 0xff, 0xff)
	} else {
		b = append(b, 0x6f, 0xff, 0xff, 0xff)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, 17, 0xff)
	}
	b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	b = be.AppendUint16(b, src.Port())
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, uint16(n))
	b = append(b, 0xff, 0xff)
	b = append(b, datagram[:len(datagram)-ICRCSize]...)
	b[len(b)-(len(datagram)-ICRCSize)+4] = 0xff
	return crc32.ChecksumIEEE(b)
}

// TestICRCAgainstSlow compares with the plain computation, and solves for identification and flag,
// over random addresses, contents and lengths up to the greatest a UDP packet has.
func TestICRCAgainstSlow(t *testing.T) {
	rnd, seed := newRand(t)
	random := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	lengths := []int{16, 20, 64, 4096 + 16, 4096 + 44, 4*crcLowWords - 20, 4*crcLowWords - 16, 4*crcLowWords - 12, 65504}
	for i := range 600 {
		var src, dst netip.AddrPort
		v4 := rnd.IntN(2) == 0
		if v4 {
			src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(random(make([]byte, 4)))), uint16(rnd.Uint32()))
			dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(random(make([]byte, 4)))), UDPPort)
		} else {
			src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(random(make([]byte, 16)))), uint16(rnd.Uint32()))
			dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(random(make([]byte, 16)))), UDPPort)
		}
		n := 4 * (4 + rnd.IntN(1100))
		if i < 2*len(lengths) {
			n = lengths[i/2]
		}
		datagram := random(make([]byte, n))
		id := uint16(rnd.Uint32())
		if i%8 < 4 {
			id = []uint16{0, 1, 2, 0xffff}[i%8]
		}
		flow := NewFlow(src, dst)

		want := slowICRC(src, dst, id, ipv4DontFragment, datagram)
		if got := flow.ICRC(id, datagram); got != want {
			t.Fatalf("seed %d: %v > %v, %d bytes: ICRC %#08x, want %#08x", seed, src, dst, n, got, want)
		}
		flow.Seal(id, datagram)
		if !flow.Verify(id, datagram) {
			t.Fatalf("seed %d: %v > %v, %d bytes: sealed and does not verify, want it to", seed, src, dst, n)
		}
		if flow.Verify(id+1, datagram) == v4 {
			t.Fatalf("seed %d: %v > %v: identification must matter over IPv4 alone", seed, src, dst)
		}

		wantID, wantDF := id, true
		if !v4 {
			wantID, wantDF = 0, false
		}
		if gotID, df, ok := flow.SolveID(datagram); gotID != wantID || df != wantDF || !ok {
			t.Fatalf("seed %d: %d bytes: SolveID = %#x, %v, %v, want %#x, %v, true", seed, n, gotID, df, ok, wantID, wantDF)
		}
		if !v4 {
			continue
		}
		for _, flags := range []uint16{0, 0x8000, 0x2000, 0x0001, 0xffff} {
			binary.LittleEndian.PutUint32(datagram[n-ICRCSize:], slowICRC(src, dst, id, flags, datagram))
			gotID, df, ok := flow.SolveID(datagram)
			if flags == 0 {
				if gotID != id || df || !ok {
					t.Fatalf("seed %d: %d bytes without DF: SolveID = %#x, %v, %v, want %#x, false, true", seed, n, gotID, df, ok, id)
				}
			} else if ok {
				t.Fatalf("seed %d: %d bytes with flags %#04x: SolveID = %#x, %v, want none", seed, n, flags, gotID, df)
			}
			if flow.Verify(id, datagram) {
				t.Fatalf("seed %d: verifies with flags %#04x, want it refused", seed, flags)
			}
		}
	}
}

// TestICRCBitFlips damages golden packets bit by bit. Each flip must be seen, except in the byte
// that routers may change.
func TestICRCBitFlips(t *testing.T) {
	for _, file := range []string{"pad.pcap", "rc_pingpong_ipv6.pcap", "atomic_cas.pcap", "ud_pingpong.pcap"} {
		g := loadGoldenFile(t, file)[0]
		flow := g.flow()
		for bit := range 8 * len(g.datagram) {
			b := slices.Clone(g.datagram)
			b[bit/8] ^= 1 << (bit % 8)
			if got, want := flow.Verify(g.id, b), bit/8 == 4; got != want {
				t.Errorf("%s: bit %d of byte %d flipped: Verify = %v, want %v", file, bit%8, bit/8, got, want)
			}
		}
	}
}

// TestICRCCoversAddresses checks that a datagram for another address or port does not verify.
func TestICRCCoversAddresses(t *testing.T) {
	g := loadGoldenFile(t, "rc_pingpong.pcap")[0]
	other := netip.MustParseAddr("10.98.0.9")
	for name, flow := range map[string]Flow{
		"source address":      NewFlow(netip.AddrPortFrom(other, g.src.Port()), g.dst),
		"destination address": NewFlow(g.src, netip.AddrPortFrom(other, UDPPort)),
		"source port":         NewFlow(netip.AddrPortFrom(g.src.Addr(), g.src.Port()+1), g.dst),
		"destination port":    NewFlow(g.src, netip.AddrPortFrom(g.dst.Addr(), UDPPort+1)),
		"direction":           NewFlow(g.dst, g.src),
	} {
		if flow.Verify(g.id, g.datagram) {
			t.Errorf("verifies with another %s, want it refused", name)
		}
	}
}

func TestNewFlowForms(t *testing.T) {
	mapped := func(ap netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(ap.Addr().As16()), ap.Port())
	}
	g4, g6 := loadGoldenFile(t, "rc_pingpong.pcap")[0], loadGoldenFile(t, "rc_pingpong_ipv6.pcap")[0]
	if got, want := NewFlow(mapped(g4.src), mapped(g4.dst)), g4.flow(); got != want {
		t.Errorf("IPv4 in IPv6 form gives another flow: %+v, want %+v", got, want)
	}
	if got, want := NewFlow(mapped(g4.src), g4.dst), g4.flow(); got != want {
		t.Errorf("source in IPv6 form gives another flow: %+v, want %+v", got, want)
	}
	zoned := netip.AddrPortFrom(g6.src.Addr().WithZone("eth0"), g6.src.Port())
	if got, want := NewFlow(zoned, g6.dst), g6.flow(); got != want {
		t.Errorf("a zone gives another flow: %+v, want %+v", got, want)
	}
	if flow := g4.flow(); !flow.Valid() {
		t.Error("a flow over IPv4 must be valid")
	}
	for name, flow := range map[string]Flow{
		"mixed families": NewFlow(g4.src, g6.dst),
		"no source":      NewFlow(netip.AddrPort{}, g6.dst),
		"no destination": NewFlow(g4.src, netip.AddrPort{}),
		"zero value":     {},
	} {
		_, _, solved := flow.SolveID(g4.datagram)
		if flow.Valid() || flow.Verify(g4.id, g4.datagram) || solved {
			t.Errorf("%s: a flow that cannot be verifies, want it refused", name)
		}
	}
}

func TestICRCOddSizes(t *testing.T) {
	for name, datagram := range map[string][]byte{
		"empty":            nil,
		"short by one":     make([]byte, MinDatagramLen-1),
		"too long for UDP": make([]byte, 1<<17),
	} {
		_, _, ok := flow4.SolveID(datagram)
		if ok || flow4.Verify(0, datagram) || flow6.Verify(0, datagram) {
			t.Errorf("%s: verifies, want it refused", name)
		}
	}
	odd := make([]byte, 99)
	flow4.Seal(7, odd)
	if !flow4.Verify(7, odd) {
		t.Error("99 bytes, sealed, do not verify")
	}
	if _, _, ok := flow4.SolveID(odd); ok {
		t.Error("SolveID must refuse a length that is not a multiple of 4")
	}
}

// TestSolveIDFalsePositives counts damaged datagrams that pass, of which 1 in 2^15 may. The damage
// is fixed, and so is the count.
func TestSolveIDFalsePositives(t *testing.T) {
	datagram := make([]byte, 256)
	flow4.Seal(99, datagram)
	const tries = 1 << 17
	passed := 0
	for i := range uint32(tries) {
		binary.BigEndian.PutUint32(datagram[100:], i*2654435761+1)
		if _, _, ok := flow4.SolveID(datagram); ok {
			passed++
		}
	}
	if passed > 3*tries>>15 {
		t.Errorf("%d of %d damaged datagrams pass, want about %d", passed, tries, tries>>15)
	}
}

func TestICRCAllocs(t *testing.T) {
	packets := loadGolden(t)
	failed := 0
	allocs := testing.AllocsPerRun(10, func() {
		for i := range packets {
			g := &packets[i]
			flow := NewFlow(g.src, g.dst)
			flow.Seal(g.id, g.datagram)
			if _, _, ok := flow.SolveID(g.datagram); !ok || !flow.Verify(g.id, g.datagram) {
				failed++
			}
		}
	})
	if allocs != 0 || failed != 0 {
		t.Errorf("%v allocations, %d failures, want none", allocs, failed)
	}
}

var benchSizes = []int{64, 1024, 4096}

func BenchmarkNewFlow(b *testing.B) {
	for b.Loop() {
		_ = NewFlow(flow4Src, flow4Dst)
	}
}

func BenchmarkSeal(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			datagram := make([]byte, BTHSize+size+ICRCSize)
			b.SetBytes(int64(size))
			for b.Loop() {
				flow4.Seal(7, datagram)
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			datagram := make([]byte, BTHSize+size+ICRCSize)
			flow4.Seal(7, datagram)
			b.SetBytes(int64(size))
			for b.Loop() {
				if !flow4.Verify(7, datagram) {
					b.Fatal("does not verify")
				}
			}
		})
	}
}

func BenchmarkSolveID(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			datagram := make([]byte, BTHSize+size+ICRCSize)
			flow4.Seal(0x1234, datagram)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, _, ok := flow4.SolveID(datagram); !ok {
					b.Fatal("does not verify")
				}
			}
		})
	}
}
