package mpa

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// TestGoldenMarkers compares with the two FPDUs that RFC 5044 shows in figures 5 and 6: the first of a stream, and
// one behind an FPDU of 492 bytes.
func TestGoldenMarkers(t *testing.T) {
	zeros := "000000000000000000000000000000000000000000000000"
	for _, c := range []struct {
		before int
		fpdu   string
		want   string
	}{
		{0, "002a4143" + "00000000" + "00000000" + "00000001" + "00000000" + zeros,
			"00000000" + "002a4143" + "00000000" + "00000000" + "00000001" + "00000000" + zeros + "52239983"},
		{492 - 4, "002a4143" + "00000000" + "00000000" + "00000002" + "00000000" + zeros,
			"002a4143" + "00000000" + "00000000" + "00000002" + "00000000" + "00000014" + zeros + "84925898"},
	} {
		var at Marks
		if c.before > 0 {
			at.Skip(c.before) // with the first marker, 492
		}
		fpdu, err := hex.DecodeString(c.fpdu + "00000000")
		if err != nil {
			t.Fatal(err)
		}
		place := at
		got := at.Append(nil, fpdu)
		SealMarked(got)
		if hex.EncodeToString(got) != c.want {
			t.Errorf("got %x, want %s", got, c.want)
		}
		if !Verify(got) {
			t.Error("its own CRC is wrong")
		}
		plain, ok := place.Strip(nil, got)
		if !ok || !bytes.Equal(plain[:len(plain)-CRCSize], fpdu[:len(fpdu)-CRCSize]) {
			t.Errorf("stripped to %x, %v; want %x", plain, ok, fpdu)
		}
	}
}

// TestMarkers checks that markers stand every 512 bytes, whatever the FPDUs, and each points to its own.
func TestMarkers(t *testing.T) {
	seed := linktest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var out, in Marks
	var stream []byte
	starts := map[int]int{} // the beginning of the FPDU that each byte is of
	for range 60 {
		size := r.IntN(1 << r.IntN(17))
		size = min(size, MaxMarkedULPDU)
		fpdu := AppendLength(nil, size)
		for range size + TrailerSize(size) {
			fpdu = append(fpdu, byte(r.Uint32()))
		}
		from, lead, want := len(stream), out.Lead(), out.Size(len(fpdu))
		stream = out.Append(stream, fpdu)
		if len(stream)-from != want || want > MaxMarkedFPDU {
			t.Fatalf("seed %d: %d bytes, want %d as Size says, and %d at most", seed, len(stream)-from, want, MaxMarkedFPDU)
		}
		for i := from; i < len(stream); i++ {
			starts[i] = from + lead
		}
		plain, ok := in.Strip(nil, stream[from:])
		if !ok || !bytes.Equal(plain, fpdu) {
			t.Fatalf("seed %d: an FPDU of %d bytes comes back as %d, %v, want the same", seed, len(fpdu), len(plain), ok)
		}
	}
	for i := 0; i < len(stream); i += 512 {
		back := i - starts[i]
		if back < 0 {
			back = 0
		}
		if got := int(stream[i])<<24 | int(stream[i+1])<<16 | int(stream[i+2])<<8 | int(stream[i+3]); got != back {
			t.Fatalf("seed %d: the marker at %d is %#x, want %#x", seed, i, got, back)
		}
	}
	var first, again Marks
	n := first.Size(LengthSize + Length(stream[4:]) + TrailerSize(Length(stream[4:])))
	if n > 516 {
		broken := bytes.Clone(stream[:n])
		broken[512+3] ^= 4
		if _, ok := again.Strip(nil, broken); ok {
			t.Error("a marker that points elsewhere passes")
		}
		again = Marks{}
		broken[512+3] ^= 4 | 3 // the lowest two bits are ignored
		if _, ok := again.Strip(nil, broken); !ok {
			t.Error("the lowest bits of a marker count")
		}
	}
}

// TestStrip: an FPDU is whole if each of its markers points to its beginning, but for the lowest two bits, and it does
// not end within a marker or behind one. The place behind it does not depend on the buffer to which it is appended.
func TestStrip(t *testing.T) {
	fpdu := bytes.Repeat([]byte{0xa5}, 1200)
	for before := 0; before < markerInterval; before += 4 {
		var place Marks
		if before > 0 {
			place.Skip(before - place.Lead())
		}
		in := place
		marked := in.Append(nil, fpdu)
		var markers []int // where they stand
		for at := place.gap(); at < len(marked); at += markerInterval {
			markers = append(markers, at)
		}
		strip := func(b []byte) ([]byte, bool) {
			m := place
			plain, ok := m.Strip([]byte("before"), b)
			if ok && len(b) == len(marked) && m != in {
				t.Fatalf("behind %d bytes: the place behind the FPDU is %v, want %v", before, m, in)
			}
			return plain[len("before"):], ok
		}
		if plain, ok := strip(marked); !ok || !bytes.Equal(plain, fpdu) {
			t.Fatalf("behind %d bytes: the FPDU comes back as %d bytes, %v, want the %d that it has", before, len(plain), ok, len(fpdu))
		}
		for _, at := range markers {
			for bit := range 16 {
				broken := bytes.Clone(marked)
				broken[at+3-bit/8] ^= 1 << (bit % 8)
				if _, ok := strip(broken); ok != (bit < 2) {
					t.Errorf("behind %d bytes: with bit %d of the marker at %d wrong the FPDU is whole: %v, want that for bits 0 and 1 alone", before, bit, at, ok)
				}
			}
			for size := at + 1; size <= at+markerSize; size++ {
				if _, ok := strip(marked[:size]); ok {
					t.Errorf("behind %d bytes: an FPDU of %d bytes that ends with the marker at %d is whole, want more to come", before, size, at)
				}
			}
		}
	}
}

// FuzzMarkers strips any bytes as an FPDU at any place. An FPDU with right markers comes out the same when markers are
// made again.
func FuzzMarkers(f *testing.F) {
	var m Marks
	fpdu := append(AppendLength(nil, 600), make([]byte, 600+TrailerSize(600))...)
	f.Add(uint16(0), m.Append(nil, fpdu))
	f.Add(uint16(488), []byte{0, 1, 2, 3, 0, 0, 0, 0})
	f.Add(uint16(0), m.Append(nil, fpdu)[:markerInterval+1]) // ends within a marker
	f.Add(uint16(507), []byte{0, 0, 0, 0, 0, 0, 0, 4})       // and behind one
	f.Fuzz(func(t *testing.T, place uint16, b []byte) {
		if len(b) == 0 {
			return
		}
		var in, out Marks
		in.Skip(int(place) * 4)
		if len(b) <= in.Lead() {
			return
		}
		out = in
		plain, ok := in.Strip(nil, b)
		if !ok {
			return
		}
		again := out.Append(nil, plain)
		if len(again) != len(b) || in != out {
			t.Fatalf("%d bytes become %d, and %d with markers; places %v and %v, want as many again, at the same place", len(b), len(plain), len(again), in, out)
		}
	})
}
