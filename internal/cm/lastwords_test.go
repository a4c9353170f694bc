package cm

import (
	"testing"
	"time"
)

// will collects the last words of a machine.
type will struct {
	said    [][]byte
	revoked int
}

func (w *will) of(n *node) {
	n.cfg.LastWords = func(p Path, mad []byte) func() {
		w.said = append(w.said, mad)
		return func() { w.revoked++ }
	}
}

// Each end of a connection leaves a DREQ to others, which the peer takes as if the end had sent it.
func TestLastWords(t *testing.T) {
	for _, passive := range []bool{false, true} {
		w := newWorld(t)
		var left will
		n, peer := w.a, w.b
		if passive {
			n, peer = w.b, w.a
		}
		left.of(n)
		w.connected()
		if len(left.said) != 1 || left.revoked != 0 || describe(left.said[0]) != "DREQ" {
			t.Fatalf("passive %v: %d last words, %d revoked, want one DREQ", passive, len(left.said), left.revoked)
		}
		peer.Handle(w.now, peer.path(n), left.said[0])
		if e := peer.want(EventDisconnected); e.TimedOut {
			t.Errorf("passive %v: the peer has timed out, want it told", passive)
		}
	}
}

// Last words are revoked once the peer knows of the end, and not before.
func TestLastWordsRevoked(t *testing.T) {
	w := newWorld(t)
	var left will
	left.of(w.a)
	c, _ := w.connected()
	w.lossOf("b DREP")
	w.ok(c.Disconnect(w.now, nil))
	if w.settle(); left.revoked != 0 {
		t.Errorf("the DREQ is not answered: %d revoked, want none", left.revoked)
	}
	w.lose = nil
	w.advance(2 * time.Second)
	w.a.want(EventDisconnected)
	if len(left.said) != 1 || left.revoked != 1 {
		t.Errorf("%d last words, %d revoked, want 1 and 1", len(left.said), left.revoked)
	}
}

// A request that comes to nothing leaves nothing behind.
func TestLastWordsOfAttempts(t *testing.T) {
	w := newWorld(t)
	var left will
	left.of(w.b)
	_, d := w.replied()
	if len(left.said) != 1 || left.revoked != 0 {
		t.Errorf("the REP is sent: %d last words, %d revoked, want 1 and 0, since the peer may be established", len(left.said), left.revoked)
	}
	d.Close(w.now)
	w.advance(maxLinger + 1)
	if left.revoked != 1 {
		t.Errorf("after the end: %d revoked, want 1", left.revoked)
	}
}
