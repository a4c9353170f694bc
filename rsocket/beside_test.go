package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// quiet is a source that has nothing to read until it ends.
type quiet struct{ reads, end chan struct{} }

func (q *quiet) Read([]byte) (int, error) {
	close(q.reads)
	<-q.end
	return 0, io.EOF
}

// While ReadFrom waits for its source, another call may write, and Close gives everything back.
func TestBesideReadFrom(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	source := &quiet{make(chan struct{}), make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := x.ReadFrom(source)
		ended <- err
	}()
	<-source.reads
	written := make(chan error, 1)
	go func() {
		_, err := x.Write([]byte("beside"))
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(rdmatest.Patience / 2):
		t.Fatal("Write waits for the source of ReadFrom, want it to return")
	}
	b := make([]byte, 9)
	if n, err := y.Read(b); string(b[:n]) != "beside" || err != nil {
		t.Errorf("got %q, %v, want what was written beside ReadFrom", b[:n], err)
	}
	qp := x.QP()
	if err := errors.Join(x.SetLinger(int(rdmatest.Patience/time.Second)), x.Close()); err != nil { // Close waits so long for its own end
		t.Error(err)
	}
	if _, _, err := qp.Query(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("after Close, while ReadFrom waits: the QP's error is %v, want %v", err, verbs.ErrClosed)
	}
	close(source.end)
	<-ended
	y.Close()
}

// ReadFrom sends all of what its source gives by pieces of any length, and returns the source's error.
func TestReadFrom(t *testing.T) {
	want := noise(3<<20, 6)
	broken := errors.New("broken")
	for name, limit := range map[string]int{"small pieces": 1000, "large pieces": 1 << 20, "pieces of both lengths": 0} {
		x, y := newPair(t, rsocket.Config{})
		got := make(chan []byte, 1)
		go func() {
			b, err := io.ReadAll(y)
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
		src := &unevenReader{b: want, limit: limit}
		n, err := x.ReadFrom(io.MultiReader(src, iotest.ErrReader(broken)))
		if n != int64(len(want)) || !errors.Is(err, broken) {
			t.Errorf("%s: ReadFrom: %d, %v, want %d, %v", name, n, err, len(want), broken)
		}
		if err := x.CloseWrite(); err != nil {
			t.Error(err)
		}
		if b := <-got; !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes have come, want the %d that were read", name, len(b), len(want))
		}
	}
}

// unevenReader reads up to limit bytes at a time; with a limit of 0 now few and now many.
type unevenReader struct {
	b     []byte
	limit int
	reads int
}

func (r *unevenReader) Read(b []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	limit := r.limit
	if limit == 0 {
		limit = [...]int{10, 1 << 20, 1 << 20, 100_000, 10}[r.reads%5]
	}
	r.reads++
	n := copy(b[:min(len(b), limit)], r.b)
	r.b = r.b[n:]
	return n, nil
}

// CloseWrite after the peer's end is no error, as of a TCP connection. A proxy would take it for one, and end the other
// direction.
func TestCloseWriteAfterPeer(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := x.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("behind the peer's end: %d bytes, %v, want %v", n, err, io.EOF)
	}
	if err := x.CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v, want none", err)
	}
}
