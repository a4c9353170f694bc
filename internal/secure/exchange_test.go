package secure

import (
	"bytes"
	"errors"
	"testing"
)

func newExchange(t testing.TB) *Exchange {
	t.Helper()
	e, err := NewExchange()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// agreed returns the Exchanges of two ends that have agreed by the pre-shared keys.
func agreed(t testing.TB, pskX, pskY []byte) (x, y *Exchange) {
	t.Helper()
	x, y = newExchange(t), newExchange(t)
	for _, err := range []error{x.Agree(y.Public(), pskX), y.Agree(x.Public(), pskY)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return x, y
}

// Two ends that have agreed understand each other, in both directions.
func TestExchange(t *testing.T) {
	for _, key := range [][]byte{nil, psk} {
		x, y := agreed(t, key, key)
		sealX, openX := x.Begin(0x11, 0x22)
		sealY, openY := y.Begin(0x22, 0x11)
		for _, s := range []stream{{t: t, seal: sealX, open: openY}, {t: t, seal: sealY, open: openX}} {
			s.expect(s.sealed(plain(9, 20)), Genuine)
		}
	}
}

// TestOtherKeys: a packet counts for nothing to an end that is not its receiver.
func TestOtherKeys(t *testing.T) {
	x, y := agreed(t, nil, nil)
	other := newExchange(t)
	if err := other.Agree(x.Public(), nil); err != nil {
		t.Fatal(err)
	}
	again := *y
	again.agreed = bytes.Clone(y.agreed)
	sealX, openX := x.Begin(0x11, 0x22)
	_, openY := y.Begin(0x22, 0x11)
	_, openOther := other.Begin(0x22, 0x11)
	_, openQP := again.Begin(0x23, 0x11)
	pskX, pskY := agreed(t, psk, nil)
	sealPSK, _ := pskX.Begin(0x11, 0x22)
	_, openPSK := pskY.Begin(0x22, 0x11)
	for name, s := range map[string]stream{
		"another connection":  {t: t, seal: sealX, open: openOther},
		"the other direction": {t: t, seal: sealX, open: openX},
		"another QP":          {t: t, seal: sealX, open: openQP},
		"another PSK":         {t: t, seal: sealPSK, open: openPSK},
	} {
		if _, v := s.open.Open(s.dst[:], s.sealed(plain(9, 20))); v != Forged {
			t.Errorf("%s: got verdict %d, want %d", name, v, Forged)
		}
	}
	s := stream{t: t, seal: sealX, open: openY}
	s.expect(s.sealed(plain(9, 20)), Genuine)
}

// TestKeysNeverRepeat: an end gives its peer's key, the pre-shared key and the numbers of both QPs again, to
// one QP or to several: the first packets of two connections have nothing in common.
func TestKeysNeverRepeat(t *testing.T) {
	peer := newExchange(t).Public()
	seen := map[string]int{}
	for i := range 50 {
		e := newExchange(t)
		for range 2 { // the latest counts
			if err := e.Agree(peer, psk); err != nil {
				t.Fatal(err)
			}
		}
		seal, _ := e.Begin(0x11, 0x22)
		s := stream{t: t, seal: seal}
		secured := s.sealed(plain(9, 64))
		for what, part := range map[string][]byte{"public key": e.public[:], "encrypted block": secured[sealedAt : sealedAt+16], "nonce": seal.frame.nonce[:]} {
			if seen[what+string(part)]++; seen[what+string(part)] > 1 {
				t.Fatalf("connection %d has the %s %x of an earlier one, want another", i, what, part)
			}
		}
	}
}

// An Exchange begins one connection, and none before it has agreed.
func TestExchangeBeginsOnce(t *testing.T) {
	x, _ := agreed(t, nil, nil)
	x.Begin(0x11, 0x22)
	for name, e := range map[string]*Exchange{"one that has begun": x, "one that has not agreed": newExchange(t), "none": nil} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s begins a connection, want a panic", name)
				}
			}()
			e.Begin(0x11, 0x22)
		}()
	}
	if x.private != nil {
		t.Error("the private key is there when the connection has begun, want it gone")
	}
}

// Keys that nobody has are refused, and change nothing.
func TestExchangeStrangers(t *testing.T) {
	x, y := agreed(t, nil, nil)
	for name, refused := range map[string]struct {
		peer [PublicSize]byte
		want error
	}{
		"its own":                {x.Public(), ErrOwnPublic},
		"none":                   {[PublicSize]byte{}, ErrBadPublic},
		"a point of order 1":     {[PublicSize]byte{1}, ErrBadPublic},
		"the field's prime less": {[PublicSize]byte(bytes.Join([][]byte{{0xec}, bytes.Repeat([]byte{0xff}, 30), {0x7f}}, nil)), ErrBadPublic},
	} {
		if err := x.Agree(refused.peer, nil); !errors.Is(err, refused.want) {
			t.Errorf("%s: got %v, want %v", name, err, refused.want)
		}
	}
	seal, _ := x.Begin(1, 2)
	_, open := y.Begin(2, 1)
	s := stream{t: t, seal: seal, open: open}
	s.expect(s.sealed(plain(9, 20)), Genuine)
}
