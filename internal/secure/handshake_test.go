package secure

import (
	"bytes"
	"testing"
)

var (
	psk      = []byte("a key of 32 bytes, or just so...")
	aboutREQ = []byte("known to both ends")
	aboutREP = []byte("known to both ends then")
)

// Public keys of the ends.
var callerKey, listenerKey = [PublicSize]byte{1, 31: 1}, [PublicSize]byte{2, 31: 1}

// answered lets two ends agree, after change has changed their messages.
func answered(t *testing.T, change func(req, rep []byte), callerPSK, listenerPSK []byte) (caller, listener *Agreement, err error) {
	t.Helper()
	c := NewCaller(callerPSK, callerKey, aboutREQ, []byte("from caller"))
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
	rep, listener = Answer(listenerPSK, listenerKey, aboutREQ, req, aboutREP, []byte("from listener"))
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
	if caller.Peer != listenerKey || listener.Peer != callerKey {
		t.Errorf("the ends have the public keys %x and %x, want each other's", caller.Peer, listener.Peer)
	}
	if len(caller.Key) != secretSize || !bytes.Equal(caller.Key, listener.Key) || bytes.Equal(caller.Key, psk) {
		t.Errorf("the ends have the keys %x and %x, want one of %d bytes that is made of all that was said", caller.Key, listener.Key, secretSize)
	}
	if !listener.Confirms(caller.Confirmation()) {
		t.Error("the caller's confirmation is not taken")
	}
	if listener.Confirms(nil) || listener.Confirms(make([]byte, 224)) {
		t.Error("no confirmation is taken for one")
	}
}

// The results of one connection's messages hold for no other: neither the key nor the confirmation.
func TestHandshakeAgain(t *testing.T) {
	_, first, err := answered(t, keep, psk, psk)
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]*Agreement{
		"another caller's key":   agreement(psk, aboutREQ, NewCaller(psk, [PublicSize]byte{3}, aboutREQ, []byte("from caller")), aboutREP, listenerKey, []byte("from listener")),
		"another listener's key": agreement(psk, aboutREQ, NewCaller(psk, callerKey, aboutREQ, []byte("from caller")), aboutREP, [PublicSize]byte{3}, []byte("from listener")),
		"another request":        agreement(psk, []byte("another QPN"), NewCaller(psk, callerKey, []byte("another QPN"), []byte("from caller")), aboutREP, listenerKey, []byte("from listener")),
		"another reply":          agreement(psk, aboutREQ, NewCaller(psk, callerKey, aboutREQ, []byte("from caller")), []byte("another PSN"), listenerKey, []byte("from listener")),
		"another program":        agreement(psk, aboutREQ, NewCaller(psk, callerKey, aboutREQ, []byte("from caller")), aboutREP, listenerKey, []byte("from another")),
	} {
		if bytes.Equal(a.Key, first.Key) || first.Confirms(a.Confirmation()) {
			t.Errorf("%s: the key is the same, or the confirmation is taken, want others", name)
		}
	}
}

func agreement(psk, about []byte, c *Caller, aboutReply []byte, public [PublicSize]byte, data []byte) *Agreement {
	_, a := Answer(psk, public, about, c.Request(), aboutReply, data)
	return a
}

// Each bit of the caller's confirmation counts, and its length.
func TestConfirmationEveryBit(t *testing.T) {
	caller, listener, err := answered(t, keep, psk, psk)
	if err != nil {
		t.Fatal(err)
	}
	c := append(caller.Confirmation(), make([]byte, 204)...) // as in an RTU
	for i := range confirmSize {
		for bit := range 8 {
			c[i] ^= 1 << bit
			if listener.Confirms(c) {
				t.Errorf("byte %d, bit %d of the confirmation does not count, want it refused", i, bit)
			}
			c[i] ^= 1 << bit
		}
		if listener.Confirms(c[:i]) {
			t.Errorf("a confirmation of %d bytes is taken, want %d", i, confirmSize)
		}
	}
	if !listener.Confirms(c) {
		t.Error("the genuine confirmation is refused")
	}
}

func TestHandshakeOtherKey(t *testing.T) {
	other := bytes.Clone(psk)
	other[31]++
	if _, _, err := answered(t, keep, psk, other); err != ErrKey {
		t.Errorf("got %v, want %v", err, ErrKey)
	}
}

// Each byte of either message that somebody changes is noticed. See TestScreenEveryBit for the request by itself.
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

// An answer that is cut short is none, though its beginning is genuine.
func TestAnswerCutShort(t *testing.T) {
	c := NewCaller(psk, callerKey, aboutREQ, nil)
	rep, _ := Answer(psk, listenerKey, aboutREQ, c.Request(), aboutREP, nil)
	for n := range rep {
		if _, _, err := c.Finish(aboutREP, rep[:n:n]); err != ErrPlain {
			t.Errorf("%d bytes: got %v, want %v", n, err, ErrPlain)
		}
	}
	if _, _, err := c.Finish(aboutREP, rep); err != nil {
		t.Errorf("the whole answer: %v, want none", err)
	}
}

// Each bit of a request that somebody changes keeps the request from the program: of the MAC, of the public key, and
// of the program's data.
func TestScreenEveryBit(t *testing.T) {
	req := NewCaller(psk, callerKey, aboutREQ, []byte("from caller")).Request()
	for i := range requestSpace {
		for bit := range 8 {
			req[i] ^= 1 << bit
			if _, err := Screen(psk, aboutREQ, req); err == nil {
				t.Errorf("byte %d, bit %d of a request does not count, want it refused", i, bit)
			}
			req[i] ^= 1 << bit
		}
		if _, err := Screen(psk, aboutREQ, req[:i]); err == nil {
			t.Errorf("a request of %d bytes is taken, want %d", i, requestSpace)
		}
	}
	if _, err := Screen(psk, aboutREQ, req); err != nil {
		t.Errorf("the genuine request: %v, want none", err)
	}
}

// The data that the ends know beside the private data count as well.
func TestHandshakeIsBound(t *testing.T) {
	c := NewCaller(psk, callerKey, aboutREQ, nil)
	if _, err := Screen(psk, []byte("another QPN"), c.Request()); err != ErrKey {
		t.Errorf("another request: got %v, want %v", err, ErrKey)
	}
	rep, _ := Answer(psk, listenerKey, aboutREQ, c.Request(), aboutREP, nil)
	if _, _, err := c.Finish([]byte("another PSN"), rep); err != ErrKey {
		t.Errorf("another reply: got %v, want %v", err, ErrKey)
	}
}

// A peer that knows nothing of all this, and those of other versions.
func TestHandshakeStrangers(t *testing.T) {
	c := NewCaller(psk, callerKey, aboutREQ, nil)
	for _, rep := range [][]byte{nil, make([]byte, answerSpace), bytes.Repeat([]byte{0xad}, answerSpace)} {
		if _, _, err := c.Finish(aboutREP, rep); err != ErrPlain {
			t.Errorf("%d bytes: got %v, want %v", len(rep), err, ErrPlain)
		}
	}
	if _, err := Screen(psk, aboutREQ, make([]byte, requestSpace)); err != ErrPlain {
		t.Errorf("got %v, want %v", err, ErrPlain)
	}
	for _, d := range []byte{1, 0xff} { // the next and the last one
		other := bytes.Clone(c.Request())
		other[magicSize-1] += d
		if _, err := Screen(psk, aboutREQ, other); err != ErrVersion {
			t.Errorf("got %v, want %v", err, ErrVersion)
		}
	}
}

// FuzzHandshake: whatever comes as a message, nothing panics, and nothing is agreed on.
func FuzzHandshake(f *testing.F) {
	other := []byte("another key, of 32 bytes too....")
	c := NewCaller(other, callerKey, aboutREQ, nil)
	f.Add(bytes.Clone(c.Request()))
	rep, _ := Answer(other, listenerKey, aboutREQ, c.Request(), aboutREP, nil)
	f.Add(rep)
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, _, err := NewCaller(psk, callerKey, aboutREQ, nil).Finish(aboutREP, b); err == nil {
			t.Fatalf("%x was taken for an answer: %x, want it refused", b, a.Key)
		}
		if _, err := Screen(psk, aboutREQ, b); err == nil {
			t.Fatalf("%x was taken for a request, want it refused", b)
		}
		if len(b) >= requestSpace {
			_, _ = Answer(psk, listenerKey, aboutREQ, b, aboutREP, nil)
		}
		if new(Agreement).Confirms(b) && !bytes.HasPrefix(b, new(Agreement).Confirmation()) {
			t.Fatalf("%x was taken for a confirmation, want it refused", b)
		}
	})
}
