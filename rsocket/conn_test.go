package rsocket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

func newPair(t testing.TB, cfg rsocket.Config, net ...rdmatest.Config) (x, y *rsocket.Conn) {
	n := rdmatest.New(t, net...)
	x, y = pair(t, n.Device(), n.Device(), cfg)
	patience := time.Now().Add(rdmatest.Patience)
	x.SetDeadline(patience)
	y.SetDeadline(patience)
	return x, y
}

// noise returns n bytes that depend on the seed.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// checkErr checks that an error is a *net.OpError of the connection with a cause.
func checkErr(t *testing.T, what string, err error, op string, cause error) {
	t.Helper()
	var e *net.OpError
	if !errors.Is(err, cause) || !errors.As(err, &e) || e.Op != op || e.Net != "rsocket" {
		t.Errorf("%s: got error %v (%T), want a *net.OpError of %q with %v", what, err, err, op, cause)
	}
}

// Both directions at once, in pieces of all sizes, with rings and queues of which none fits the other
// end's, on a bad network.
func TestStreams(t *testing.T) {
	for _, c := range []struct{ a, b rsocket.Config }{
		{},
		{a: rsocket.Config{SendBuffer: 4096, RecvBuffer: 4096, Depth: 16}, b: rsocket.Config{SendBuffer: 1 << 20, RecvBuffer: 4096}},
		{a: rsocket.Config{RecvBuffer: 8192, Depth: 17}, b: rsocket.Config{SendBuffer: 5000, RecvBuffer: 1 << 20, Depth: 16}},
	} {
		t.Run(fmt.Sprintf("%d,%d,%d,%d", c.a.SendBuffer, c.a.RecvBuffer, c.b.SendBuffer, c.b.RecvBuffer), func(t *testing.T) {
			t.Parallel()
			n := rdmatest.New(t, rdmatest.Config{Loss: 0.003, Duplicate: 0.01, Reorder: 0.01})
			x, y, err := connect(n.Device(), n.Device(), c.a, c.b)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			defer y.Close()
			seed := n.Seed()
			var wg sync.WaitGroup
			for i, ends := range [][2]*rsocket.Conn{{x, y}, {y, x}} {
				want := noise(1<<20, seed+uint64(i))
				wg.Go(func() { send(t, ends[0], want, seed) })
				wg.Go(func() { receive(t, ends[1], want, seed+9) })
			}
			wg.Wait()
		})
	}
}

// TestReach: within a host long Writes go straight to the peer's ring, and arrive in order with bytes that go the
// usual way.
func TestReach(t *testing.T) {
	for _, cfg := range []rsocket.Config{{}, {SendBuffer: 4096, RecvBuffer: 8192, Depth: 16}} {
		t.Run(fmt.Sprint(cfg.RecvBuffer), func(t *testing.T) {
			x, y := pair(t, nil, nil, cfg)
			if c := x.QP().Carrier(); c != verbs.CarrierSHM {
				t.Skipf("the carrier is %q, and not shared memory", c)
			}
			const seed = 5
			want := noise(8<<20, seed)
			var wg sync.WaitGroup
			wg.Go(func() { send(t, x, want, seed) })
			wg.Go(func() { receive(t, y, want, seed) })
			wg.Wait()
			cs, err := x.QP().Counters()
			// With a small buffer something is always under way on one processor, and nothing may overtake that.
			if n := cs.Value("shm_direct_ops"); err != nil || n == 0 && cfg.RecvBuffer == 0 {
				t.Errorf("shm_direct_ops is %d, %v; want some", n, err)
			}
		})
	}
}

// send writes all in pieces of random sizes, in one of the ways that there are, and closes the direction.
func send(t *testing.T, c *rsocket.Conn, data []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for len(data) > 0 {
		n := min(len(data), 1+r.IntN(1<<r.IntN(18)))
		var m int64
		var err error
		switch r.IntN(3) {
		case 0:
			var k int
			k, err = c.Write(data[:n])
			m = int64(k)
		case 1:
			m, err = c.ReadFrom(bytes.NewReader(data[:n]))
		case 2:
			m, err = c.WriteBuffers(&net.Buffers{data[:n/3], nil, data[n/3 : n]})
		}
		if err != nil || m != int64(n) {
			t.Errorf("%d bytes: %d, %v, want all", n, m, err)
			return
		}
		data = data[n:]
	}
	if err := c.CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v", err)
	}
}

// receive reads to the end, and compares.
func receive(t *testing.T, c *rsocket.Conn, want []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	var got bytes.Buffer
	for got.Len() < len(want)/2 {
		b := make([]byte, 1+r.IntN(1<<r.IntN(18)))
		n, err := c.Read(b)
		if err != nil {
			t.Errorf("read after %d bytes: %v", got.Len(), err)
			return
		}
		got.Write(b[:n])
	}
	if _, err := c.WriteTo(&got); err != nil {
		t.Errorf("WriteTo: %v", err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes came, which differ from the %d that were sent, want the same", got.Len(), len(want))
	}
}

func TestCloseWrite(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	if _, err := x.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_, err := x.Write([]byte("more"))
	checkErr(t, "write after CloseWrite", err, "write", syscall.EPIPE)
	if b, err := io.ReadAll(y); string(b) != "question" || err != nil {
		t.Errorf("got %q, %v, want \"question\"", b, err)
	}
	answer := noise(1<<20, 1) // more than fits into the rings
	go func() {
		y.Write(answer)
		y.Close()
	}()
	if b, err := io.ReadAll(x); !bytes.Equal(b, answer) || err != nil {
		t.Errorf("%d bytes came of %d, %v, want all, as they were sent", len(b), len(answer), err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Errorf("a second CloseWrite: %v", err)
	}
}

// Bytes that were written before Close arrive, and then the peer learns of the end.
func TestCloseDelivers(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		x, y := newPair(t, rsocket.Config{}, rdmatest.Config{Loss: loss})
		want := noise(200_000, 2)
		if _, err := x.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(y); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came of %d, %v, want all, as they were sent", len(got), len(want), err)
		}
		_, err := y.Write([]byte("more"))
		checkErr(t, "write to a closed peer", err, "write", syscall.EPIPE)
		checkErr(t, "second Close", x.Close(), "close", net.ErrClosed)
		_, err = x.Read(make([]byte, 1))
		checkErr(t, "read after Close", err, "read", net.ErrClosed)
		_, err = x.Write([]byte("x"))
		checkErr(t, "write after Close", err, "write", net.ErrClosed)
		checkErr(t, "SetDeadline after Close", x.SetDeadline(time.Time{}), "set", net.ErrClosed)
	}
}

// Close wakes whoever waits: a reader, a writer, and a ReadFrom that waits for its source. The peer learns of it.
func TestCloseWakes(t *testing.T) {
	x, y := newPair(t, rsocket.Config{SendBuffer: 4096, RecvBuffer: 4096})
	source, feed := io.Pipe()
	reader, copier, writer := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := x.Read(make([]byte, 1))
		reader <- err
	}()
	go func() {
		_, err := x.ReadFrom(source)
		copier <- err
	}()
	if _, err := feed.Write([]byte("x")); err != nil { // so ReadFrom waits for its source
		t.Fatal(err)
	}
	if _, err := io.ReadFull(y, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p, q := newPair(t, rsocket.Config{SendBuffer: 4096, RecvBuffer: 4096}) // where nobody reads more than a byte
	go func() {
		_, err := q.Write(make([]byte, 1<<20))
		writer <- err
	}()
	if _, err := io.ReadFull(p, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	x.Close()
	p.Close()
	checkErr(t, "the reader", <-reader, "read", net.ErrClosed)
	checkErr(t, "the peer's writer", <-writer, "write", syscall.ECONNRESET)
	if _, err := y.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer's read: %v, want %v", err, io.EOF)
	}
	feed.Close()
	if err := <-copier; err != nil {
		t.Errorf("ReadFrom of an empty rest: %v", err)
	}
}

func TestCloseRead(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	done := make(chan error, 1)
	go func() {
		_, err := x.Read(make([]byte, 1))
		done <- err
	}()
	if err := x.CloseRead(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != io.EOF {
		t.Errorf("read: %v, want %v", err, io.EOF)
	}
	if _, err := y.Write([]byte("nobody reads")); err != nil {
		t.Errorf("the peer's write: %v", err)
	}
	if _, err := x.Write([]byte("still open")); err != nil {
		t.Error(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(y); string(b) != "still open" || err != nil {
		t.Errorf("got %q, %v, want \"still open\"", b, err)
	}
	if _, err := y.Write([]byte("for nobody")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the peer's write once both directions are closed: error %v, want %v", err, syscall.EPIPE)
	}
}

// threeBytes is a Writer that takes three bytes.
type threeBytes struct{ got []byte }

func (w *threeBytes) Write(b []byte) (int, error) {
	n := min(3-len(w.got), len(b))
	w.got = append(w.got, b[:n]...)
	return n, nil
}

// Bytes that a Writer did not take are still there to read.
func TestShortWrite(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	if _, err := x.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	var w threeBytes
	if n, err := y.WriteTo(&w); n != 3 || err != io.ErrShortWrite || string(w.got) != "abc" {
		t.Errorf("WriteTo: %d, error %v, and %q; want 3, %v, and abc", n, err, w.got, io.ErrShortWrite)
	}
	b := make([]byte, 9)
	if n, err := y.Read(b); string(b[:n]) != "def" || err != nil {
		t.Errorf("the rest is %q, error %v; want def", b[:n], err)
	}
}

// A Reader that fails is no Reader that has ended: the bytes that it gave before are sent, and its error is ReadFrom's.
func TestReaderFails(t *testing.T) {
	x, y := newPair(t, rsocket.Config{})
	cause := errors.New("the disk is gone")
	if n, err := x.ReadFrom(io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(cause))); n != 3 || err != cause {
		t.Errorf("ReadFrom: %d, error %v; want 3, %v", n, err, cause)
	}
	b := make([]byte, 9)
	if n, err := y.Read(b); string(b[:n]) != "abc" || err != nil {
		t.Errorf("got %q, error %v; want abc", b[:n], err)
	}
}

// A deadline may be moved while a call waits, and a call fails by the latest deadline.
func TestDeadlines(t *testing.T) {
	x, y := newPair(t, rsocket.Config{SendBuffer: 4096, RecvBuffer: 4096})
	for _, c := range []struct {
		op   string
		call func() error
		set  func(time.Time) error
	}{
		{"read", func() error { _, err := x.Read(make([]byte, 1)); return err }, x.SetReadDeadline},
		{"write", func() error { _, err := x.Write(make([]byte, 1<<20)); return err }, x.SetWriteDeadline},
	} {
		c.set(time.Now().Add(time.Hour))
		done := make(chan error, 1)
		go func() { done <- c.call() }()
		c.set(time.Now().Add(time.Hour))
		c.set(time.Now().Add(time.Millisecond))
		err := <-done
		checkErr(t, c.op, err, c.op, os.ErrDeadlineExceeded)
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%s: %v is no timeout, want one", c.op, err)
		}
		checkErr(t, c.op+" again", c.call(), c.op, os.ErrDeadlineExceeded)
		c.set(time.Time{})
	}
	if _, err := y.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := x.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("after the deadline was taken away: %d, %v, want 1", n, err)
	}
}

func TestRefused(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{b}} // so that somebody can say no
	l, err := lc.Listen(context.Background(), "rsocket", "10.0.0.2:7472")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := rsocket.Dialer{Devices: []*verbs.Device{a}}
	_, err = d.Dial("rsocket", "10.0.0.2:7471")
	checkErr(t, "nobody listens", err, "dial", syscall.ECONNREFUSED)
	for network, address := range map[string]string{
		"udp": "10.0.0.2:1", "rsocket": "10.0.0.2", "rsocket6": "10.0.0.2:1", "tcp": "10.0.0.2:no-such-port",
	} {
		c, err := d.Dial(network, address)
		var e *net.OpError
		if c != nil || !errors.As(err, &e) {
			t.Errorf("%s %s: got %v, %v, want a *net.OpError", network, address, c, err)
		}
	}
	d.SendBuffer = 1
	_, err = d.Dial("rsocket", "10.0.0.2:1")
	checkErr(t, "a ring of one byte", err, "dial", verbs.ErrInvalid)
	d.SendBuffer, d.Timeout = 0, time.Millisecond
	n.Partition(a, b)
	_, err = d.Dial("rsocket", "10.0.0.2:1")
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("no answer: %v, want a timeout", err)
	}
}

func TestListener(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{b}, Backlog: 2}
	nl, err := lc.Listen(context.Background(), "rsocket", "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	l := nl.(*rsocket.Listener)
	_, err = lc.Listen(context.Background(), "rsocket", l.Addr().String())
	checkErr(t, "the same address again", err, "listen", syscall.EADDRINUSE)
	l.SetDeadline(time.Now().Add(-1))
	_, err = l.Accept()
	checkErr(t, "after the deadline", err, "accept", os.ErrDeadlineExceeded)
	l.SetDeadline(time.Time{})

	// As many connections as the backlog has are made before anybody accepts them, and data comes in.
	d := rsocket.Dialer{Devices: []*verbs.Device{a}}
	var conns []net.Conn
	for i := range 2 {
		c, err := d.Dial("rsocket", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, i)
		conns = append(conns, c)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(c, first); err != nil {
		t.Fatal(err)
	}
	if got, want := c.RemoteAddr().String(), conns[first[0]-'0'].LocalAddr().String(); got != want {
		t.Errorf("the peer is %s, want %s", got, want)
	}
	if _, ok := c.LocalAddr().(*net.TCPAddr); !ok || c.LocalAddr().String() != l.Addr().String() {
		t.Errorf("local address %v (%T), want the listener's, %v, as *net.TCPAddr", c.LocalAddr(), c.LocalAddr(), l.Addr())
	}
	// Close ends the connection that nobody has accepted, and leaves the other.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = l.Accept()
	checkErr(t, "Accept after Close", err, "accept", net.ErrClosed)
	checkErr(t, "second Close", l.Close(), "close", net.ErrClosed)
	other := conns['1'-first[0]]
	if b, err := io.ReadAll(other); len(b) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection that nobody accepted: %q, %v, want its end", b, err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}

// A connection has no goroutine, and while it is idle it sends nothing.
func TestIdle(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{b}, Config: rsocket.Config{KeepAlive: -1}}
	l, err := lc.Listen(context.Background(), "rsocket", "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := rsocket.Dialer{Devices: []*verbs.Device{a}, Config: rsocket.Config{KeepAlive: -1}}
	open := func() {
		c, err := d.Dial("rsocket", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		other, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close() })
	}
	open()
	before := runtime.NumGoroutine()
	const conns = 50
	for range conns {
		open()
	}
	if got := runtime.NumGoroutine(); got >= before+conns/2 { // those that made the connections may be on their way out
		t.Errorf("%d goroutines with %d more connections, %d before, want fewer than %d more", got, conns, before, conns/2)
	}
}

// Messages to and fro allocate nothing.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	x, y := newPair(t, rsocket.Config{})
	go io.Copy(y, struct{ io.Reader }{y})
	b := make([]byte, 100)
	turn := func() {
		if _, err := x.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(x, b); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		turn()
	}
	if n := testing.AllocsPerRun(1000, turn); n > 0.5 {
		t.Errorf("%v allocations for a message to and fro, want none", n)
	}
}

func TestWriteAt(t *testing.T) {
	x, y := newPair(t, rsocket.Config{Maps: 2})
	if _, err := y.Map(0, 0); err == nil { // it takes no place
		t.Error("no bytes are mapped, want an error")
	}
	m, err := y.Map(100_000, 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	small, err := y.Map(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := y.Map(10, 200_000); !errors.Is(err, rsocket.ErrNotMapped) {
		t.Errorf("a third mapping: %v, want %v", err, rsocket.ErrNotMapped)
	}
	if _, err := y.Write([]byte{1}); err != nil { // the peer knows when it has this
		t.Fatal(err)
	}
	if _, err := io.ReadFull(x, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	want := noise(100_000, 3)
	var w io.WriterAt = x
	for at := 0; at < len(want); at += 33_333 {
		if _, err := w.WriteAt(want[at:min(at+33_333, len(want))], 5000+int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := w.WriteAt(make([]byte, 12), 1); n != 10 || !errors.Is(err, rsocket.ErrNotMapped) {
		t.Errorf("12 bytes where 10 are mapped: %d, %v, want 10, %v", n, err, rsocket.ErrNotMapped)
	}
	if _, err := x.Write([]byte{2}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(y, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("the memory is not what was written")
	}
	if err := small.Close(); err != nil {
		t.Error(err)
	}
	if _, err := y.Map(10, 1); err != nil {
		t.Errorf("a mapping in place of a closed one: %v", err)
	}
	small.Close()
	if _, err := y.Map(10, 200_000); !errors.Is(err, rsocket.ErrNotMapped) {
		t.Errorf("to close a mapping twice frees another's place: error %v, want %v", err, rsocket.ErrNotMapped)
	}
}

// WriteAt with no bytes looks after the connection of a program that watches its memory.
func TestWriteAtNothing(t *testing.T) {
	x, y := newPair(t, rsocket.Config{Maps: 1})
	if n, err := x.WriteAt(nil, 0); n != 0 || err != nil { // though nothing is mapped
		t.Errorf("no bytes: %d, %v, want no error", n, err)
	}
	if err := x.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt(nil, 0); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if err := x.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	for limit := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(limit); {
		_, err = x.WriteAt(nil, 0)
	}
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after the peer has closed: %v, want %v", err, syscall.EPIPE)
	}
}

// The stream leaves alone where the mappings stand. Memory that is mapped no more can be written no more.
func TestMapsBesideStream(t *testing.T) {
	x, y := newPair(t, rsocket.Config{Maps: 3, SendBuffer: 4096, RecvBuffer: 4096})
	var maps [3]*rsocket.Mapping
	for i := range maps {
		var err error
		if maps[i], err = y.Map(100, int64(1000*i)); err != nil {
			t.Fatal(err)
		}
	}
	stream := noise(50_000, 4)
	for _, way := range [][2]*rsocket.Conn{{y, x}, {x, y}} {
		sent := make(chan error, 1)
		go func() {
			_, err := way[0].Write(stream)
			sent <- err
		}()
		got := make([]byte, len(stream))
		if _, err := io.ReadFull(way[1], got); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil || !bytes.Equal(got, stream) {
			t.Fatalf("the stream is another, or error %v, want the same", err)
		}
	}
	for i := range maps {
		if _, err := x.WriteAt(stream[:100], int64(1000*i)); err != nil {
			t.Errorf("mapping %d: %v", i, err)
		}
	}
	if _, err := x.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(y, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for i, m := range maps {
		if !bytes.Equal(m.Bytes(), stream[:100]) {
			t.Errorf("mapping %d is not what was written, want the same", i)
		}
	}
	if err := maps[1].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt(stream[:100], 1000); err != nil { // it is in the send ring
		t.Fatal(err)
	}
	if _, err := x.Read(make([]byte, 1)); !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("after a write to what is mapped no more: error %v, want %v", err, verbs.WCRemAccessErr)
	}
}
