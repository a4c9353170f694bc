package iwarp

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

// Golden headers: DDP's of RFC 5041, RDMAP's of RFC 5040 and RFC 7306.
func TestGoldenHeaders(t *testing.T) {
	for _, c := range []struct {
		h    Header
		want string
	}{
		{Header{Tagged: true, Last: true, Op: Write, STag: 0x01020304, TO: 0x1122334455667788}, "c140" + "01020304" + "1122334455667788"},
		{Header{Tagged: true, Op: ReadResponse, STag: 5, TO: 6}, "8142" + "00000005" + "0000000000000006"},
		{Header{Last: true, Op: SendSolicitedInvalidate, STag: 0xaabbccdd, QN: 0, MSN: 7, MO: 0x100}, "4146" + "aabbccdd" + "00000000" + "00000007" + "00000100"},
		{Header{Last: true, Op: AtomicResponse, QN: 3, MSN: 1}, "414b" + "00000000" + "00000003" + "00000001" + "00000000"},
	} {
		got := c.h.AppendTo(nil)
		if hex.EncodeToString(got) != c.want {
			t.Errorf("%v: got %x, want %s", &c.h, got, c.want)
		}
		back, n, err := DecodeHeader(append(got, 9))
		if back != c.h || n != len(got) || err != nil {
			t.Errorf("%v: decoded as %v, %d bytes, %v, want the same", &c.h, &back, n, err)
		}
	}
	r := ReadReq{1, 2, 3, 4, 5}
	if b := r.AppendTo(nil); hex.EncodeToString(b) != "00000001"+"0000000000000002"+"00000003"+"00000004"+"0000000000000005" {
		t.Errorf("READ request: %x, want the fields in order", b)
	} else if back, err := DecodeReadReq(b); back != r || err != nil {
		t.Errorf("READ request: decoded as %+v, %v, want %+v", back, err, r)
	}
	a := AtomicReq{CompareSwap, 1, 2, 3, 4, 5, 6, 7}
	if b := a.AppendTo(nil); len(b) != atomicRequestSize || hex.EncodeToString(b[:20]) != "00000002"+"00000001"+"00000002"+"0000000000000003" {
		t.Errorf("atomic request: %x, want the fields in order", b)
	} else if back, err := DecodeAtomicReq(b); back != a || err != nil {
		t.Errorf("atomic request: decoded as %+v, %v, want %+v", back, err, a)
	}
	p := AtomicResp{1, 2}
	if back, err := DecodeAtomicResp(p.AppendTo(nil)); back != p || err != nil {
		t.Errorf("atomic response: decoded as %+v, %v, want %+v", back, err, p)
	}
}

// TestBadHeaders checks which error a broken header is.
func TestBadHeaders(t *testing.T) {
	good := (&Header{Last: true, Op: Send}).AppendTo(nil)
	tagged := (&Header{Tagged: true, Op: Write}).AppendTo(nil)
	change := func(b []byte, at int, to byte) []byte {
		b = append([]byte(nil), b...)
		b[at] = to
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want Code
	}{
		{"short", good[:17], ddpCatastrophic},
		{"DDP version, untagged", change(good, 0, 0x42), untaggedVersion},
		{"DDP version, tagged", change(tagged, 0, 0x80), taggedVersion},
		{"RDMAP version", change(good, 1, 0x83), rdmapVersion},
		{"opcode", change(good, 1, 0x4c), rdmapOpcode},
		{"tagged SEND", change(tagged, 1, 0x43), rdmapOpcode},
	} {
		_, _, err := DecodeHeader(c.b)
		if f, ok := errors.AsType[*Fault](err); !ok || f.Code != c.want {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// TestTermMsg encodes as RFC 5040 says, and understands siw's messages: layer and type, and the bits for
// the headers, in the order of a little-endian machine's bit fields.
func TestTermMsg(t *testing.T) {
	m := TermMsg{Code: taggedBounds, Segment: 20, Header: &Header{Tagged: true, Last: true, Op: Write, STag: 1, TO: 2}}
	b := m.AppendTo(nil)
	if want := "1101c000" + "0014" + "c140" + "00000001" + "0000000000000002"; hex.EncodeToString(b) != want {
		t.Errorf("got %x, want %s", b, want)
	}
	siw := append([]byte(nil), b...)
	siw[0], siw[2] = 0x11, 0x03
	for name, b := range map[string][]byte{"RFC": b, "siw": siw} {
		if back, err := DecodeTermMsg(b); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: decoded as %+v, %v; want %+v", name, back, err, m)
		}
	}
	asymmetric := []byte{0x10, 0x01, 0x07, 0, 0, 20}
	if back, _ := DecodeTermMsg(append(asymmetric, b[6:]...)); back.Code != rdmapBounds {
		t.Errorf("siw's RDMAP error: got %v, want %v", back.Code, rdmapBounds)
	}
	for i := range 6 {
		if i == 4 {
			continue // nothing says that more was to come
		}
		if _, err := DecodeTermMsg(b[:i]); err == nil {
			t.Errorf("%d bytes of it: no error, want one", i)
		}
	}
}
