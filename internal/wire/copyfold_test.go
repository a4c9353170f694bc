package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"unsafe"
)

// TestSealFolded: a datagram whose payload a Fold has copied has the same ICRC as any other, whatever its headers
// are. A Fold that refuses to copy changes nothing.
func TestSealFolded(t *testing.T) {
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 0))
	src := make([]byte, 8192+lineOf)
	for i := range src {
		src[i] = byte(rnd.Uint32())
	}
	flows := []Flow{
		NewFlow(netip.MustParseAddrPort("192.0.2.1:49152"), netip.MustParseAddrPort("192.0.2.2:4791")),
		NewFlow(netip.MustParseAddrPort("[2001:db8::1]:49152"), netip.MustParseAddrPort("[2001:db8::2]:4791")),
	}
	folded := 0
	for _, n := range []int{0, 4, 256, 512, 768, 1020, 1024, 1028, 1536, 2048, 3072, 4096, 4100, 8192} {
		for _, headers := range []int{BTHSize, BTHSize + AETHSize, BTHSize + DETHSize, BTHSize + RETHSize, BTHSize + RETHSize + 4} {
			payload := src[rnd.IntN(lineOf):][:n]
			datagram := make([]byte, headers+n+ICRCSize)
			for i := range datagram {
				datagram[i] = byte(rnd.Uint32())
			}
			before := bytes.Clone(datagram)
			var f Fold
			if f.Copy(datagram[headers:headers+n], payload) {
				folded++
			} else {
				if !bytes.Equal(datagram, before) {
					t.Fatalf("%d bytes were not folded, and something was written", n)
				}
				copy(datagram[headers:], payload)
			}
			if !bytes.Equal(datagram[:headers], before[:headers]) || !bytes.Equal(datagram[headers:headers+n], payload) ||
				!bytes.Equal(datagram[headers+n:], before[headers+n:]) {
				t.Fatalf("the copy of %d bytes has other bytes, or lies elsewhere", n)
			}
			for _, flow := range flows {
				id := uint16(rnd.Uint32())
				want := flow.ICRC(id, datagram)
				flow.SealFolded(id, datagram, &f)
				if got := foundICRC(datagram); got != want {
					t.Errorf("seed %d: %d bytes behind headers of %d: ICRC %#08x, want %#08x", seed, n, headers, got, want)
				}
			}
			f.Reset()
			short := datagram[:len(datagram)-4*(n/8)]
			if flows[0].SealFolded(1, short, &f); !flows[0].Verify(1, short) {
				t.Errorf("a packet of %d bytes is sealed as if its payload were the one before", len(short))
			}
		}
	}
	if want := 15; isWhole(1024) && folded != want {
		t.Errorf("%d datagrams were folded, want %d: three lengths behind five kinds of headers", folded, want)
	}
}

const lineOf = 64

// BenchmarkCopyFold: a payload's way into a packet, with the ICRC.
func BenchmarkCopyFold(b *testing.B) {
	flow := NewFlow(netip.MustParseAddrPort("192.0.2.1:49152"), netip.MustParseAddrPort("192.0.2.2:4791"))
	memory := make([]byte, 1<<20+lineOf)
	memory = memory[-uintptr(unsafe.Pointer(unsafe.SliceData(memory)))%lineOf:]
	space := make([]byte, 64<<10)
	for _, n := range []int{1024, 2048, 4096} {
		const headers = BTHSize + RETHSize
		size := headers + n + ICRCSize
		for _, folded := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/folded=%v", n, folded), func(b *testing.B) {
				b.SetBytes(int64(n))
				for i := range b.N {
					src, packet := memory[i*n%(1<<20):][:n], space[i*size%(len(space)-size):][:size]
					var f Fold
					if !folded || !f.Copy(packet[headers:], src) {
						copy(packet[headers:], src)
					}
					flow.SealFolded(0, packet, &f)
				}
			})
		}
	}
}
