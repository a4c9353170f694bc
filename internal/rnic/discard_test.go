package rnic

import (
	"io"
	"testing"
)

// babbler is a socket whose peer has sent much, and goes on.
type babbler struct {
	socket
	read, most int
	closed     int
}

func (b *babbler) readv(bufs [][]byte) (int, error) {
	if b.read >= b.most {
		return 0, io.EOF
	}
	b.read += len(bufs[0])
	return len(bufs[0]), nil
}

func (b *babbler) close() error { b.closed++; return nil }

// Bytes that a peer goes on sending to a QP that has let go are read by turns, as bytes for other QPs are. In between the
// lock is free: the end of lingerTime needs it, and so does Close. At the end of the stream the socket is closed.
func TestDiscardByTurns(t *testing.T) {
	const turn = 1 << 20
	b := &babbler{most: 64 * turn}
	s := &stream{q: &qp{}, sock: b}
	for more := true; more; {
		before := b.read
		more = s.readTurn(turn, false)
		if got := b.read - before; got > turn+readSize {
			t.Fatalf("%d bytes are read in one go, want a turn of %d", got, turn)
		}
	}
	if b.read < b.most || !s.quiet {
		t.Errorf("%d bytes of %d are read, the end of the stream is seen: %v; want all, and the end", b.read, b.most, s.quiet)
	}
	if b.closed != 1 {
		t.Errorf("the socket is closed %d times at the end, want once", b.closed)
	}
}
