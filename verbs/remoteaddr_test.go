package verbs_test

import (
	"bytes"
	"encoding"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

var (
	_ encoding.BinaryAppender    = verbs.RemoteAddr{}
	_ encoding.BinaryMarshaler   = verbs.RemoteAddr{}
	_ encoding.BinaryUnmarshaler = (*verbs.RemoteAddr)(nil)
)

// A remote address goes over the wire in network order, and comes back.
func TestRemoteAddrBinary(t *testing.T) {
	r := verbs.RemoteAddr{VA: 0x0102030405060708, RKey: 0x090a0b0c}
	b, err := r.AppendBinary([]byte("x"))
	if want := "780102030405060708090a0b0c"; err != nil || hex.EncodeToString(b) != want {
		t.Errorf("got %x, %v, want %s", b, err, want)
	}
	m, err := r.MarshalBinary()
	if err != nil || !bytes.Equal(m, b[1:]) || len(m) != verbs.RemoteAddrSize {
		t.Errorf("got %x, %v, want %x", m, err, b[1:])
	}
	var got verbs.RemoteAddr
	if err := got.UnmarshalBinary(m); err != nil || got != r {
		t.Errorf("got %+v, %v, want %+v", got, err, r)
	}
	for _, wrong := range [][]byte{nil, m[:11], append(m, 0)} {
		if err := got.UnmarshalBinary(wrong); !errors.Is(err, verbs.ErrInvalid) || got != r {
			t.Errorf("%d bytes: got %v and %+v, want %v, and nothing changed", len(wrong), err, got, verbs.ErrInvalid)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		var buf [verbs.RemoteAddrSize]byte
		b, _ := r.AppendBinary(buf[:0])
		_ = got.UnmarshalBinary(b)
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
