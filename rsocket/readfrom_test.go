package rsocket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/rdmatest"
)

// patches are n bytes that differ from those of another seed, and from those beside them.
func patches(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i%251)*2
	}
	return b
}

// inRing reports whether b is a part of c's send ring.
func inRing(c *Conn, b []byte) bool {
	first, at := uintptr(unsafe.Pointer(&c.outRing[0])), uintptr(unsafe.Pointer(&b[0]))
	return first <= at && at < first+uintptr(len(c.outRing))
}

// fullReads is a source that fills whatever it is given. Before it returns a piece of the ring it waits for release, if
// there is one.
type fullReads struct {
	c       *Conn
	b       []byte
	release chan struct{}
	direct  int            // pieces of the ring
	seen    func(p []byte) // is called with the buffer to fill, or nil
}

func (f *fullReads) Read(p []byte) (int, error) {
	if len(f.b) == 0 {
		return 0, io.EOF
	}
	if f.seen != nil {
		f.seen(p)
	}
	n := copy(p, f.b)
	f.b = f.b[n:]
	clear(p[n:]) // as a source may
	if inRing(f.c, p) {
		if f.direct++; f.release != nil {
			<-f.release
		}
	}
	return n, nil
}

// drain reads all that comes to c.
func drain(c *Conn) chan []byte {
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(c)
		got <- b
	}()
	return got
}

// Long messages begin with a cache line of the send ring, whatever was sent before, and short ones leave no gap.
func TestAligned(t *testing.T) {
	x, y := joinWith(t, Config{Maps: 1})
	if _, err := y.Map(minAligned, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := y.Write([]byte{1}); err != nil { // x knows of the mapping when it has come
		t.Fatal(err)
	}
	if _, err := x.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	got := drain(y)
	aligned := func(b []byte) bool { return uintptr(unsafe.Pointer(&b[0]))%lineSize == 0 }
	if !aligned(x.outRing) {
		t.Fatalf("the ring begins at %p, want a cache line", x.outRing)
	}
	var want []byte
	write := func(n int) {
		t.Helper()
		b := patches(n, byte(n))
		if _, err := x.Write(b); err != nil {
			t.Fatal(err)
		}
		want = append(want, b...)
	}
	before := x.posted
	write(100)
	write(minAligned - 1)
	if sent := x.posted - before; sent != 100+minAligned-1 {
		t.Errorf("short messages take %d bytes of the ring, want %d", sent, 100+minAligned-1)
	}
	write(minAligned)
	if at := x.wpos - minAligned; at%lineSize != 0 {
		t.Errorf("a long message begins at byte %d of the ring, want a multiple of %d", at, lineSize)
	}
	write(100)
	if _, err := x.WriteAt(make([]byte, minAligned), 0); err != nil {
		t.Fatal(err)
	}
	if at := x.wpos - minAligned; at%lineSize != 0 {
		t.Errorf("what goes to a mapping begins at byte %d of the ring, want a multiple of %d", at, lineSize)
	}
	write(100)
	source := &fullReads{c: x, b: patches(3<<20, 7)} // more than the peer has room for at first: a message is cut there
	source.seen = func(p []byte) {
		if !inRing(x, p) {
			write(100) // before the piece that is read now
		} else if !aligned(p) {
			t.Errorf("a source reads to %p, want a cache line", p)
		}
		want = append(want, source.b[:min(len(p), len(source.b))]...)
	}
	if _, err := x.ReadFrom(source); err != nil {
		t.Fatal(err)
	}
	if source.direct == 0 {
		t.Error("no source has read into the ring")
	}
	x.CloseWrite()
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("%d bytes came, want %d, the same", len(b), len(want))
	}
}

// While a source fills its buffers, and there is room, it reads straight into the send ring.
func TestReadIntoRing(t *testing.T) {
	x, y := joinWith(t, Config{})
	want := patches(5<<20+77, 3)
	got := drain(y)
	source := &fullReads{c: x, b: want}
	if n, err := x.ReadFrom(source); n != int64(len(want)) || err != nil {
		t.Fatalf("ReadFrom: %d, %v, want %d", n, err, len(want))
	}
	if err := x.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("%d bytes have come, want the %d that were read", len(b), len(want))
	}
	if source.direct == 0 {
		t.Error("no piece of the ring was read into, want some")
	}
}

// Bytes that are written while a source takes its time with a piece of the ring go before the piece, and both are
// whole, also if the bytes need more room than is left.
func TestWriteBesideLoan(t *testing.T) {
	for name, n := range map[string]int{"little": 10, "more than the ring": 3 << 20} {
		synctest.Test(t, func(t *testing.T) {
			x, y := joinWith(t, Config{})
			got := drain(y)
			first := fewPiece + maxMessage
			from, beside := patches(first+maxMessage+5, 3), patches(n, 100)
			source := &fullReads{c: x, b: from, release: make(chan struct{})}
			ended := make(chan error, 2)
			go func() {
				_, err := x.ReadFrom(source)
				ended <- err
			}()
			synctest.Wait()
			if source.direct != 1 {
				t.Fatalf("%s: the source was asked for %d pieces of the ring, want 1", name, source.direct)
			}
			go func() {
				_, err := x.Write(beside)
				ended <- err
			}()
			synctest.Wait()
			close(source.release)
			if err := errors.Join(<-ended, <-ended, x.CloseWrite()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			want := append(append(bytes.Clone(from[:first]), beside...), from[first:]...)
			if b := <-got; !bytes.Equal(b, want) {
				t.Errorf("%s: %d bytes have come, want %d: what was read, what was written beside it, the rest", name, len(b), len(want))
			}
		})
	}
}

// Bytes that a source has put into the ring wait, as written bytes do, if others have used up the credits meanwhile.
func TestNoMessageForLoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := joinWith(t, Config{})
		want := patches(1<<20, 3)
		got := drain(y)
		source := &fullReads{c: x, b: want, release: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := x.ReadFrom(source)
			ended <- errors.Join(err, x.CloseWrite())
		}()
		synctest.Wait()
		x.mu.Lock()
		limit, sent := x.limit, x.sent
		x.limit = sent
		x.mu.Unlock()
		close(source.release)
		synctest.Wait()
		x.mu.Lock()
		if x.sent != sent {
			t.Errorf("%d messages were sent, where the peer has room for none", x.sent-sent)
		}
		x.limit = limit
		x.progress()
		x.mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if b := <-got; !bytes.Equal(b, want) {
			t.Errorf("%d bytes have come, want the %d that were read", len(b), len(want))
		}
	})
}

// A source that panics leaves the ring to others.
func TestSourcePanics(t *testing.T) {
	x, y := joinWith(t, Config{})
	got := drain(y)
	func() {
		defer func() { recover() }()
		x.ReadFrom(&wrongCount{x})
	}()
	if x.lent || len(x.lending) > 0 {
		t.Fatal("after a panic of its source a piece of the ring is still lent")
	}
	first := fewPiece + maxMessage
	if _, err := x.Write(make([]byte, 5<<20)); err != nil {
		t.Error(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Error(err)
	}
	if b := <-got; len(b) != first+5<<20 {
		t.Errorf("%d bytes have come, want the %d that were sent", len(b), first+5<<20)
	}
}

// wrongCount is a source that fills its buffers, but returns a longer length for a piece of the ring.
type wrongCount struct{ c *Conn }

func (w *wrongCount) Read(p []byte) (int, error) {
	if inRing(w.c, p) {
		return len(p) + 1, nil
	}
	return len(p), nil
}

// Close does not take a piece of the ring from a source that fills it. When the source is done all is given back.
func TestCloseBesideLoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := joinWith(t, Config{})
		drain(y)
		source := &fullReads{c: x, b: patches(1<<20, 3), release: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := x.ReadFrom(source)
			ended <- err
		}()
		synctest.Wait()
		x.Close()
		select {
		case <-x.finished:
			t.Error("the memory was given back, want it kept for the source")
		default:
		}
		close(source.release)
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ReadFrom: %v, want %v", err, net.ErrClosed)
		}
		<-x.finished
	})
}

// A source that ends when the peer has no room for more, or has gone, is read to its end: nothing is to be sent.
func TestSourceEndsWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := joinWith(t, Config{})
		if err := x.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		ring := len(y.inRing)
		if n, err := x.ReadFrom(&fullReads{c: x, b: patches(ring, 3)}); n != int64(ring) || err != nil {
			t.Errorf("ReadFrom what fills the peer's ring: %d, %v, want %d", n, err, ring)
		}
	})
}

// A call that reads while another writes much leaves the completions to the call that writes, which wakes it for bytes
// that come. When the call that writes is done, the call that reads takes the completions itself.
func TestReadBesideBulk(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			x, y := joinWith(t, Config{})
			words := make(chan string)
			read := func() {
				b := make([]byte, 10)
				n, err := x.Read(b)
				if err != nil {
					t.Error(err)
				}
				words <- string(b[:n])
			}
			say := func(s string) {
				t.Helper()
				if _, err := y.Write([]byte(s)); err != nil {
					t.Fatal(err)
				}
				if got := <-words; got != s {
					t.Errorf("early %v: read %q, want %q", early, got, s)
				}
			}
			leaves := func() bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.readLeaves
			}
			if early {
				go read()
				synctest.Wait()
			}
			written := make(chan error, 1)
			go func() {
				_, err := x.Write(make([]byte, 8<<20))
				written <- err
			}()
			synctest.Wait() // nobody reads at the peer
			if !early {
				go read()
				synctest.Wait()
			}
			if !leaves() {
				t.Errorf("early %v: while another call writes much, the one that reads takes completions, want it to leave them", early)
			}
			say("meanwhile")
			if err := x.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := x.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("early %v: Read until its deadline: %v, want %v", early, err, os.ErrDeadlineExceeded)
			}
			if err := x.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			go read()
			synctest.Wait()
			if _, err := io.CopyN(io.Discard, y, 8<<20); err != nil {
				t.Error(err)
			}
			if err := <-written; err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if leaves() {
				t.Fatalf("early %v: when nobody writes any more, the call that reads still leaves the completions to others", early)
			}
			say("afterwards")
		})
	}
}

// Who waits for the end of sending takes completions also beside a call that writes much: that may wait for its lock.
func TestLastWordBesideBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c, err := rawDial(t, rdmatest.New(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		c.bulk = true
		before := c.limit
		c.mu.Unlock()
		come := false
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if err := c.await(&c.f, func(c *Conn) (bool, error) { return c.limit != before, c.err }); err != nil {
				t.Error(err)
			}
			come = true
		}()
		synctest.Wait()
		p.say(t, word(kindSGL, uint32(before+1)))
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !come {
			t.Error("the peer's word has come, and the call that waits for it sleeps")
			c.fail(net.ErrClosed)
			c.progress()
		}
		c.bulk = false
	})
}
