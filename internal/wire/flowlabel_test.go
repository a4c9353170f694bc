package wire

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestFlowLabel: adverbs of all versions compute the same labels.
func TestFlowLabel(t *testing.T) {
	for _, tt := range []struct {
		src, dst string
		want     uint32
	}{
		{"[::1]:49152", "::1", 0x93e62},
		{"[::1]:49153", "::1", 0x5d424},
		{"[fd00::1]:49152", "fd00::2", 0x5a5cb},
		{"[fd00::2]:49152", "fd00::1", 0xef0f9},
		{"[fe80::1%eth0]:65535", "fe80::2%3", 0xbe362},
		{"[fe80::1]:65535", "fe80::2", 0xbe362},
		{"[fd00::e001]:62393", "fd00::2", 1}, // else 0
		{"10.0.0.1:49152", "10.0.0.2", 0},
		{"[::ffff:10.0.0.1]:49152", "::ffff:10.0.0.2", 0},
		{"[fd00::1]:49152", "10.0.0.2", 0},
	} {
		f := NewFlow(netip.MustParseAddrPort(tt.src), netip.AddrPortFrom(netip.MustParseAddr(tt.dst), 4791))
		if got := f.Label(); got != tt.want {
			t.Errorf("the label from %s to %s is %#05x, want %#05x", tt.src, tt.dst, got, tt.want)
		}
	}
}

// TestFlowLabelSpread: labels are spread evenly over the 20 bits but for 0, whichever part of a flow changes.
func TestFlowLabelSpread(t *testing.T) {
	const seed, n, buckets = 5, 1 << 18, 32
	r := rand.New(rand.NewPCG(seed, 0))
	for name, next := range map[string]func(i int) (src, dst [16]byte, port uint16){
		"random": func(int) (src, dst [16]byte, port uint16) {
			return randomIPv6(r), randomIPv6(r), uint16(r.Uint32())
		},
		"ports and hosts that count": func(i int) (src, dst [16]byte, port uint16) {
			return [16]byte{0: 0xfd, 15: byte(i >> 14)}, [16]byte{0: 0xfd, 14: 1}, 0xc000 | uint16(i)
		},
	} {
		var low, high [buckets]int
		for i := range n {
			l := flowLabel(next(i))
			if l == 0 || l >= 1<<20 {
				t.Fatalf("%s, seed %d: label %#x, want 20 bits and not 0", name, seed, l)
			}
			low[l%buckets]++
			high[l>>15]++
		}
		for i := range buckets {
			const want, off = n / buckets, 550 // six standard deviations
			if low[i] < want-off || low[i] > want+off || high[i] < want-off || high[i] > want+off {
				t.Errorf("%s, seed %d: %d labels end in %d and %d begin with it, want %d ± %d", name, seed, low[i], i, high[i], want, off)
			}
		}
	}
}

func randomIPv6(r *rand.Rand) (a [16]byte) {
	for i := range a {
		a[i] = byte(r.Uint32())
	}
	a[0] = 0xfd
	return a
}
