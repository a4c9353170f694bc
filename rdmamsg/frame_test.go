package rdmamsg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

var goldenHeader = header{
	typ: frameOffer, version: version, credits: 0x01020304, length: 0x05060708090a0b0c,
	remote: verbs.RemoteAddr{VA: 0x1112131415161718, RKey: 0x191a1b1c}, id: 0x1d1e1f20,
}

const goldenBytes = "0301000001020304" + "05060708090a0b0c" + "1112131415161718" + "191a1b1c1d1e1f20"

func TestHeader(t *testing.T) {
	var b [headerSize]byte
	goldenHeader.put(b[:])
	if got := hex.EncodeToString(b[:]); got != goldenBytes {
		t.Errorf("got  %s\nwant %s", got, goldenBytes)
	}
	if h, err := parse(b[:]); err != nil || h != goldenHeader {
		t.Errorf("parsed %+v, %v, want %+v", h, err, goldenHeader)
	}
	for what, change := range map[string]func(b []byte) []byte{
		"cut short":            func(b []byte) []byte { return b[:headerSize-1] },
		"an unknown type":      func(b []byte) []byte { b[0] = 7; return b },
		"type 0":               func(b []byte) []byte { b[0] = 0; return b },
		"another version":      func(b []byte) []byte { b[1]++; return b },
		"bytes after an offer": func(b []byte) []byte { return append(b, 0) },
		"data of other length": func(b []byte) []byte { b[0] = byte(frameData); return append(b, 0) },
	} {
		if _, err := parse(change(bytes.Clone(b[:]))); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v, want %v", what, err, ErrProtocol)
		}
	}
}

// FuzzParse checks that a parsed header is written as the header was, reserved bytes aside.
func FuzzParse(f *testing.F) {
	golden, err := hex.DecodeString(goldenBytes)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(append(golden, 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parse(b)
		if err != nil {
			return
		}
		var out [headerSize]byte
		h.put(out[:])
		b = bytes.Clone(b[:headerSize])
		b[2], b[3] = 0, 0
		if !bytes.Equal(out[:], b) {
			t.Errorf("%x became %x, want the same", b, out)
		}
	})
}
