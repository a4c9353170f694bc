package secure

import (
	"bytes"
	"errors"
	"testing"
)

var (
	psk      = []byte("a key of 32 bytes, or just so...")
	aboutREQ = []byte("what both ends know")
	aboutREP = []byte("what both ends know then")
)

// answered lets two ends agree, but for what change does to the messages.
func answered(t *testing.T, change func(req, rep []byte), callerPSK, listenerPSK []byte) (caller, listener *Secrets, err error) {
	t.Helper()
	c, err := NewCaller(callerPSK, aboutREQ, []byte("from caller"))
	if err != nil {
		t.Fatal(err)
	}
	req := bytes.Clone(c.Request())
	rep := make([]byte, answerSpace)
	change(req, rep)
	data, err := Screen(listenerPSK, aboutREQ, req)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(data, []byte("from caller\x00")) {
		t.Errorf("the listener has %q of the caller's program, want \"from caller\\x00\"", data)
	}
	rep, listener, err = Answer(listenerPSK, aboutREQ, req, aboutREP, []byte("from listener"))
	if err != nil {
		return nil, nil, err
	}
	change(make([]byte, requestSpace), rep)
	caller, data, err = c.Finish(aboutREP, rep)
	if err != nil {
		return nil, listener, err
	}
	if !bytes.HasPrefix(data, []byte("from listener\x00")) || len(data) != AnswerData {
		t.Errorf("the caller has %q of the listener's program, want \"from listener\\x00\" and zeroes up to %d bytes", data, AnswerData)
	}
	return caller, listener, nil
}

func keep(req, rep []byte) {}

func TestHandshake(t *testing.T) {
	caller, listener, err := answered(t, keep, psk, psk)
	if err != nil {
		t.Fatal(err)
	}
	if caller.Send != listener.Recv || caller.Recv != listener.Send || caller.Send == caller.Recv {
		t.Error("the ends have not agreed on a secret for each direction")
	}
	if !listener.Confirms(caller.Confirmation()) {
		t.Error("the caller's confirmation is not taken")
	}
	again, _, err := answered(t, keep, psk, psk)
	if err != nil || again.Send == caller.Send {
		t.Errorf("two connections have the same secrets (%v), want different ones", err)
	}
	if listener.Confirms(again.Confirmation()) || listener.Confirms(nil) || listener.Confirms(make([]byte, 224)) {
		t.Error("another connection's confirmation is taken")
	}
}

func TestHandshakeOtherKey(t *testing.T) {
	other := bytes.Clone(psk)
	other[31]++
	if _, _, err := answered(t, keep, psk, other); err != ErrKey {
		t.Errorf("got %v, want %v", err, ErrKey)
	}
}

// Each byte of either message that somebody changes is noticed.
func TestHandshakeEveryByte(t *testing.T) {
	for i := range requestSpace {
		if _, _, err := answered(t, func(req, _ []byte) { req[i] ^= 1 }, psk, psk); err == nil {
			t.Errorf("byte %d of the REQ's private data does not count, want an error when it changes", i)
		}
	}
	for i := range answerSpace {
		if _, _, err := answered(t, func(_, rep []byte) { rep[i] ^= 1 }, psk, psk); err == nil {
			t.Errorf("byte %d of the REP's private data does not count, want an error when it changes", i)
		}
	}
}

// What the ends know beside the private data counts as well.
func TestHandshakeIsBound(t *testing.T) {
	c, err := NewCaller(psk, aboutREQ, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Screen(psk, []byte("another QPN"), c.Request()); err != ErrKey {
		t.Errorf("another request: got %v, want %v", err, ErrKey)
	}
	rep, _, err := Answer(psk, aboutREQ, c.Request(), aboutREP, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Finish([]byte("another PSN"), rep); err != ErrKey {
		t.Errorf("another reply: got %v, want %v", err, ErrKey)
	}
}

// A peer that knows nothing of all this, one of a later version, and keys that nobody makes.
func TestHandshakeStrangers(t *testing.T) {
	c, err := NewCaller(psk, aboutREQ, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, rep := range [][]byte{nil, make([]byte, answerSpace), bytes.Repeat([]byte{0xad}, answerSpace)} {
		if _, _, err := c.Finish(aboutREP, rep); err != ErrPlain {
			t.Errorf("%d bytes: got %v, want %v", len(rep), err, ErrPlain)
		}
	}
	if _, err := Screen(psk, aboutREQ, make([]byte, requestSpace)); err != ErrPlain {
		t.Errorf("got %v, want %v", err, ErrPlain)
	}
	later := bytes.Clone(c.Request())
	later[magicSize-1]++
	if _, err := Screen(psk, aboutREQ, later); err != ErrVersion {
		t.Errorf("got %v, want %v", err, ErrVersion)
	}
	low := bytes.Clone(c.Request())
	clear(low[magicSize:requestMACAt]) // a point of low order
	if _, _, err := Answer(psk, aboutREQ, low, aboutREP, nil); !errors.Is(err, ErrKey) {
		t.Errorf("got %v, want %v", err, ErrKey)
	}
}

// FuzzHandshake: whatever comes as a message, nothing panics, and nothing is agreed on.
func FuzzHandshake(f *testing.F) {
	c, err := NewCaller(psk, aboutREQ, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(c.Request()))
	rep, _, err := Answer(psk, aboutREQ, c.Request(), aboutREP, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(rep)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := NewCaller(psk, aboutREQ, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s, _, err := c.Finish(aboutREP, b); err == nil {
			t.Fatalf("%x was taken for an answer: %x, want it refused", b, s.Send)
		}
		if _, err := Screen([]byte("another key, of 32 bytes too...."), aboutREQ, b); err == nil {
			t.Fatalf("%x was taken for a request, want it refused", b)
		}
		if len(b) >= requestSpace {
			_, _, _ = Answer(psk, aboutREQ, b, aboutREP, nil)
		}
		new(Secrets).Confirms(b)
	})
}
