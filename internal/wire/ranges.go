package wire

import (
	"encoding/binary"
	"math/bits"
)

// The messages of two adverbs beyond the specification: that both acknowledge selectively, and which packets have
// come.

// Hello is the payload of an RCHello: a mark by which it is recognized, a version and, if there are several, the UDP
// ports that the sender's packets come from.
type Hello struct {
	Version uint8
	Ports   [MaxHelloPorts]uint16 // up to the first 0
}

// MaxHelloPorts is how many ports a Hello names at most.
const MaxHelloPorts = 8

const helloMark = "adverb\x00"

// HelloSize is the length of a Hello without ports in bytes.
const HelloSize = len(helloMark) + 1

// AppendTo appends the payload to b.
func (h Hello) AppendTo(b []byte) []byte {
	b = append(append(b, helloMark...), h.Version)
	for i, port := range h.Ports {
		if port == 0 && i%2 == 0 { // else a 0 fills up: a payload has whole words of 4 bytes
			break
		}
		b = binary.BigEndian.AppendUint16(b, port)
	}
	return b
}

// DecodeHello reads the payload of an RCHello. It returns false for somebody else's.
func DecodeHello(b []byte) (h Hello, ok bool) {
	if len(b) < HelloSize || string(b[:len(helloMark)]) != helloMark {
		return h, false
	}
	h.Version = b[len(helloMark)]
	b = b[HelloSize:]
	for i := 0; i < MaxHelloPorts && len(b) >= 2; i++ {
		if h.Ports[i] = binary.BigEndian.Uint16(b); h.Ports[i] == 0 {
			break
		}
		b = b[2:]
	}
	return h, true
}

// Ranges is the payload of an RCAckRanges. The packet's PSN is the first that is missing, its AETH that of an
// acknowledgement of all before. Bit i of Bits, which begins with the lowest bit of its first byte, says
// whether the PSN i behind the missing one has come.
type Ranges struct {
	Latest PSN  // of the packet that made the receiver answer
	Again  bool // the packet had come before
	Bits   []byte
}

// MaxRanges is how many PSNs Bits covers at most.
const MaxRanges = 1024

// MaxRangesSize is the longest payload of an RCAckRanges in bytes.
const MaxRangesSize = 4 + MaxRanges/8

// AppendTo appends the payload to b. Bits has whole words of 4 bytes.
func (r *Ranges) AppendTo(b []byte) []byte {
	head := uint32(r.Latest & PSNMask)
	if r.Again {
		head |= 1 << 31
	}
	return append(binary.BigEndian.AppendUint32(b, head), r.Bits...)
}

// DecodeRanges reads the payload of an RCAckRanges. Bits aliases b. It returns false for a length that AppendTo never
// makes.
func DecodeRanges(b []byte) (r Ranges, ok bool) {
	if len(b) < 4 || len(b) > MaxRangesSize || len(b)%4 != 0 {
		return r, false
	}
	head := binary.BigEndian.Uint32(b)
	return Ranges{Latest: PSN(head) & PSNMask, Again: head>>31 != 0, Bits: b[4:]}, true
}

// Next returns the first run of PSNs from i on that have come: [from, to). If from is to, there is none.
func (r *Ranges) Next(i int) (from, to int) {
	from = r.find(i, 0)
	return from, r.find(from, 0xff)
}

// find returns the first bit from i on that differs from those of skip, or the number of bits.
func (r *Ranges) find(i int, skip byte) int {
	for i < 8*len(r.Bits) {
		if rest := (r.Bits[i/8] ^ skip) >> (i % 8); rest != 0 {
			return i + bits.TrailingZeros8(rest)
		}
		i += 8 - i%8
	}
	return i
}
