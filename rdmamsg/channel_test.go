package rdmamsg_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPair makes two channels over two devices. No RNR NAK is forgiven, so a SEND that finds no
// receive ends the test.
func newPair(t *testing.T, c *rdmamsg.Config, a, b *verbs.Device) (x, y *rdmamsg.Channel) {
	t.Helper()
	retry := verbs.DefaultRetry
	retry.RNRRetryCount = 0
	p, q := rdmatest.Connect(t, a, b, rdmatest.Options{Cap: c.QPCap(), Retry: retry})
	x, y = start(t, c, p.QP), start(t, c, q.QP)
	return ready(t, x, y)
}

func start(t *testing.T, c *rdmamsg.Config, qp *verbs.QP) *rdmamsg.Channel {
	t.Helper()
	ch, err := rdmamsg.New(qp, c)
	ok(t, err)
	t.Cleanup(func() { ch.Close() })
	return ch
}

func ready(t *testing.T, x, y *rdmamsg.Channel) (_, _ *rdmamsg.Channel) {
	t.Helper()
	started := make(chan error)
	go func() { started <- y.Start(patience(t)) }()
	ok(t, x.Start(patience(t)))
	ok(t, <-started)
	return x, y
}

// message returns the i-th message of a seed: its length and its bytes follow from both.
func message(seed, i uint64, longest int) []byte {
	r := rand.New(rand.NewPCG(seed, i))
	n := r.IntN(6000)
	if r.IntN(4) == 0 {
		n = r.IntN(longest + 1)
	}
	m := make([]byte, n)
	for j := 0; j < n; j += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.Uint64())
		copy(m[j:], word[:])
	}
	return m
}

// exchange sends count messages each way at the same time and checks them.
func exchange(t *testing.T, x, y *rdmamsg.Channel, seed uint64, count, longest int) {
	t.Helper()
	ctx := patience(t)
	var wg sync.WaitGroup
	send := func(ch *rdmamsg.Channel, seed uint64) {
		for i := range count {
			if err := ch.Send(ctx, message(seed, uint64(i), longest)); err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
		}
		if err := ch.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	}
	recv := func(ch *rdmamsg.Channel, seed uint64) {
		for i := range count {
			m, err := ch.Recv(ctx)
			if err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
			if want := message(seed, uint64(i), longest); !bytes.Equal(m.Bytes(), want) {
				t.Errorf("message %d has %d bytes and is not the one of %d bytes that was sent, want that", i, len(m.Bytes()), len(want))
				return
			}
			m.Release()
		}
		if _, err := ch.Recv(ctx); err != io.EOF {
			t.Errorf("after the last message: %v, want EOF", err)
		}
	}
	wg.Go(func() { send(x, seed) })
	wg.Go(func() { send(y, seed+1) })
	wg.Go(func() { recv(x, seed+1) })
	wg.Go(func() { recv(y, seed) })
	wg.Wait()
}

// TestExchange sends messages of all sizes over networks with and without faults, and with few
// credits and little memory.
func TestExchange(t *testing.T) {
	lossy := rdmatest.Config{Loss: 0.01, Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.005}
	for _, tt := range []struct {
		name    string
		net     rdmatest.Config
		config  rdmamsg.Config
		pool    int // limit of each pool
		longest int
	}{
		{"clean", rdmatest.Config{}, rdmamsg.Config{}, 1 << 20, 300_000},
		{"faults", lossy, rdmamsg.Config{}, 1 << 20, 100_000},
		{"depth 1", rdmatest.Config{}, rdmamsg.Config{Depth: 1}, 1 << 18, 1 << 18},
		{"depth 3 and faults", lossy, rdmamsg.Config{Depth: 3, EagerSize: 1}, 1 << 18, 30_000},
		{"eager alone", rdmatest.Config{}, rdmamsg.Config{EagerSize: 6000}, 1 << 18, 6000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			net := rdmatest.New(t, tt.net)
			retry := verbs.DefaultRetry
			retry.RNRRetryCount = 0 // so a SEND that finds no receive ends the test
			p, q := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Cap: tt.config.QPCap(), Retry: retry})
			channel := func(e *rdmatest.Endpoint) *rdmamsg.Channel {
				c := tt.config
				c.SendLimit = tt.pool
				var err error
				c.RecvPool, err = rdmapool.New(e.PD, &rdmapool.Config{Limit: tt.pool})
				ok(t, err)
				return start(t, &c, e.QP)
			}
			x, y := channel(p), channel(q)
			ready(t, x, y)
			count := 300
			if testing.Short() {
				count = 60
			}
			exchange(t, x, y, net.Seed(), count, tt.longest)
			for _, ch := range []*rdmamsg.Channel{x, y} {
				if err := ch.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
}

func TestSizes(t *testing.T) {
	net := rdmatest.New(t)
	x, y := newPair(t, nil, net.Device(), net.Device())
	ctx := patience(t)
	for _, n := range []int{0, 1, 4096, rdmamsg.DefaultEagerSize, rdmamsg.DefaultEagerSize + 1, 65536, 1<<20 + 1, 16 << 20} {
		b, err := x.SendPool().Get(ctx, n)
		ok(t, err)
		for i := range b.Bytes() {
			b.Bytes()[i] = byte(i * n)
		}
		want := bytes.Clone(b.Bytes())
		ok(t, x.SendBuffer(ctx, b))
		m, err := y.Recv(ctx)
		ok(t, err)
		if !bytes.Equal(m.Bytes(), want) {
			t.Errorf("%d bytes were sent, and the %d that arrived differ, want the same", n, len(m.Bytes()))
		}
		m.Release()
	}
	if err := x.Send(ctx, make([]byte, rdmapool.DefaultLimit+1)); !errors.Is(err, rdmamsg.ErrTooLong) {
		t.Errorf("a message beyond the peer's limit: %v, want %v", err, rdmamsg.ErrTooLong)
	}
	ok(t, x.Flush(ctx))
	if s := x.SendPool().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes of the sender's pool are still lent out, want none", s.Lent)
	}
}

// TestEagerSizes has two ends of which one takes longer messages by SEND than the other has room to send.
func TestEagerSizes(t *testing.T) {
	net := rdmatest.New(t)
	small := &rdmamsg.Config{EagerSize: 64}
	p, q := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Cap: small.QPCap()})
	x, y := ready(t, start(t, small, p.QP), start(t, nil, q.QP))
	exchange(t, x, y, 1, 50, 5000)
}

// TestBackpressure checks that a sender waits when the peer does not take its messages, that its
// cancelled messages are not sent, and that the sender goes on when the peer does.
func TestBackpressure(t *testing.T) {
	net := rdmatest.New(t)
	x, y := newPair(t, &rdmamsg.Config{Depth: 4}, net.Device(), net.Device())
	ctx := patience(t)
	for i := range 4 {
		ok(t, x.Send(ctx, []byte{byte(i)}))
	}
	ok(t, x.Flush(ctx))
	enough := errors.New("enough")
	short, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	go func() { failed <- x.Send(short, []byte("never")) }()
	cancel(enough)
	if err := <-failed; !errors.Is(err, enough) {
		t.Fatalf("a send without credit that is cancelled: %v, want %v", err, enough)
	}
	short, cancel = context.WithCancelCause(t.Context())
	cancel(enough)
	if _, err := x.Recv(short); !errors.Is(err, enough) {
		t.Fatalf("a cancelled receive: %v, want %v", err, enough)
	}
	for i := range 4 {
		m, err := y.Recv(ctx)
		ok(t, err)
		if len(m.Bytes()) != 1 || m.Bytes()[0] != byte(i) {
			t.Errorf("message %d is %q, want %q", i, m.Bytes(), []byte{byte(i)})
		}
		m.Release()
	}
	ok(t, x.Send(ctx, []byte("at last")))
	m, err := y.Recv(ctx)
	ok(t, err)
	if string(m.Bytes()) != "at last" {
		t.Errorf("got %q, want \"at last\"", m.Bytes())
	}
	m.Release()
}

// TestReceiverWithoutMemory checks that a large message waits while the receiver's pool has no room,
// that a cancelled Recv loses nothing, and that the sender's memory comes back.
func TestReceiverWithoutMemory(t *testing.T) {
	const limit = 1 << 20
	net := rdmatest.New(t)
	x, y := newPair(t, &rdmamsg.Config{SendLimit: limit, RecvLimit: limit}, net.Device(), net.Device())
	ctx := patience(t)
	want := [][]byte{bytes.Repeat([]byte("a"), limit), bytes.Repeat([]byte("b"), limit), []byte("small")}
	ok(t, x.Send(ctx, want[0]))
	ok(t, x.Flush(ctx)) // y has fetched the message, so y's pool is full
	ok(t, x.Send(ctx, want[1]))
	ok(t, x.Send(ctx, want[2]))
	first, err := y.Recv(ctx)
	ok(t, err)
	enough := errors.New("enough")
	short, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	go func() {
		_, err := y.Recv(short)
		failed <- err
	}()
	for y.RecvPool().Stats().Waiting == 0 {
		if ctx.Err() != nil {
			t.Fatal("nobody waits for memory, want the receive to")
		}
		runtime.Gosched()
	}
	cancel(enough)
	if err := <-failed; !errors.Is(err, enough) {
		t.Fatalf("a receive without memory that is cancelled: %v, want %v", err, enough)
	}
	if s := x.SendPool().Stats(); s.Lent != limit {
		t.Errorf("%d bytes of the sender are lent out, want all: the peer has not read them", s.Lent)
	}
	if !bytes.Equal(first.Bytes(), want[0]) {
		t.Error("the first message is wrong")
	}
	first.Release()
	for _, w := range want[1:] {
		m, err := y.Recv(ctx)
		ok(t, err)
		if !bytes.Equal(m.Bytes(), w) {
			t.Errorf("a message of %d bytes is wrong, want what was sent", len(w))
		}
		m.Release()
	}
	ok(t, x.Flush(ctx))
	if s := x.SendPool().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes of the sender are still lent out, want none", s.Lent)
	}
}

// TestMemoryInOrder has large messages wait for the receiver's memory, all of which the third needs. The fourth must not
// take any before it: both would wait then.
func TestMemoryInOrder(t *testing.T) { synctest.Test(t, testMemoryInOrder) }

func testMemoryInOrder(t *testing.T) {
	const limit = 2 << 20
	net := rdmatest.New(t)
	x, y := newPair(t, &rdmamsg.Config{RecvLimit: limit}, net.Device(), net.Device())
	ctx := patience(t)
	sizes := []int{limit, limit / 2, limit, limit / 4}
	for _, n := range sizes {
		ok(t, x.Send(ctx, make([]byte, n)))
	}
	synctest.Wait() // the offers are there
	for i, n := range sizes {
		m, err := y.Recv(ctx)
		if err != nil {
			t.Fatalf("message %d: %v, want its %d bytes", i, err, n)
		}
		if len(m.Bytes()) != n {
			t.Errorf("message %d has %d bytes, want %d", i, len(m.Bytes()), n)
		}
		m.Release()
	}
}

// TestPeerVanishes cuts the network: by the keep-alive both ends hear of the cut, though both only wait.
func TestPeerVanishes(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	c := &rdmamsg.Config{KeepAlive: 10 * time.Millisecond}
	p, q := rdmatest.Connect(t, a, b, rdmatest.Options{Cap: c.QPCap(), Retry: verbs.Retry{Timeout: 14, RetryCount: 3, RNRRetryCount: 7, MaxRDAtomic: 4}})
	x, y := ready(t, start(t, c, p.QP), start(t, c, q.QP))
	ctx := patience(t)
	ok(t, x.Send(ctx, []byte("one")))
	ok(t, x.Flush(ctx))
	net.Partition(a, b)
	ok(t, x.Send(ctx, []byte("two")))
	_, err := x.Recv(ctx)
	var e *rdmamsg.Error
	if !errors.As(err, &e) || !errors.Is(err, rdmamsg.ErrEnded) || !errors.Is(err, verbs.WCRetryExceeded) || e.Delivered != 1 || e.InFlight != 1 {
		t.Errorf("the sender got %v (%+v), want one message delivered, one in flight, and WC_RETRY_EXC_ERR", err, e)
	}
	m, err := y.Recv(ctx)
	ok(t, err)
	if string(m.Bytes()) != "one" {
		t.Errorf("got %q, want \"one\"", m.Bytes())
	}
	if _, err := y.Recv(ctx); !errors.Is(err, verbs.WCRetryExceeded) {
		t.Errorf("the receiver got %v, want %v", err, verbs.WCRetryExceeded)
	}
	ok(t, y.Close())
	if string(m.Bytes()) != "one" {
		t.Errorf("after Close the message is %q, want \"one\" still", m.Bytes())
	}
	m.Release()
	if err := x.Close(); !errors.As(err, &e) || e.InFlight != 1 {
		t.Errorf("close with a message in flight: %v, want an error with one in flight", err)
	}
	if err := x.Send(ctx, nil); !errors.As(err, &e) {
		t.Errorf("send after the end: %v, want a %T", err, e)
	}
}

// TestClose closes a channel while its program waits in every call.
func TestClose(t *testing.T) {
	net := rdmatest.New(t)
	x, y := newPair(t, &rdmamsg.Config{Depth: 1}, net.Device(), net.Device())
	ctx := patience(t)
	ok(t, x.Send(ctx, []byte("taken")))
	ok(t, y.Send(ctx, []byte("taken")))
	var wg sync.WaitGroup
	received := make(chan struct{})
	wg.Go(func() {
		if m, err := x.Recv(ctx); err != nil {
			t.Error(err)
		} else {
			m.Release()
		}
		close(received)
		if _, err := x.Recv(ctx); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("receive while the channel is closed: %v, want %v", err, verbs.ErrClosed)
		}
	})
	wg.Go(func() {
		if err := x.Send(ctx, []byte("no credit")); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("send while the channel is closed: %v, want %v", err, verbs.ErrClosed)
		}
	})
	for x.Flush(ctx) != nil {
	}
	<-received
	x.Close() // the error depends on how far the two have come
	wg.Wait()
	if m, err := y.Recv(ctx); err != nil || string(m.Bytes()) != "taken" {
		t.Errorf("the peer's first message: %v, want \"taken\"", err)
	} else {
		m.Release()
	}
	ok(t, y.Close())
}

// TestLoopback exchanges messages by UDP, over connections of package rdmacm.
func TestLoopback(t *testing.T) {
	x, y := dial(t, nil)
	count := 100
	if testing.Short() {
		count = 30
	}
	exchange(t, x, y, 1, count, 1<<20)
	ok(t, x.Close())
	ok(t, y.Close())
}

// loopAddr returns an address that another test process is not likely to use.
func loopAddr() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 33, byte(pid >> 8), byte(pid)})
}

// loopDevice returns the name of the loopback interface's device.
func loopDevice() string {
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			return "soft_" + i.Name
		}
	}
	return "soft_lo"
}

// dial connects two channels over loopback.
func dial(t testing.TB, c *rdmamsg.Config) (x, y *rdmamsg.Channel) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	addr := loopAddr()
	dev, err := verbs.Open(loopDevice() + "@" + addr.String())
	if err != nil {
		t.Skipf("no loopback device: %v", err)
	}
	t.Cleanup(func() { dev.Close() })
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		ch  *rdmamsg.Channel
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			accepted <- result{nil, err}
			return
		}
		ch, err := rdmamsg.Accept(ctx, r, c)
		accepted <- result{ch, err}
	}()
	var dc rdmamsg.Config
	if c != nil {
		dc = *c
	}
	dc.Dialer = &rdmacm.Dialer{Devices: []*verbs.Device{dev}}
	x, err = rdmamsg.Dial(ctx, l.Addr(), &dc)
	if err != nil {
		t.Fatal(err)
	}
	r := <-accepted
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { x.Close(); r.ch.Close() })
	return x, r.ch
}

// TestPeerCloses checks that messages from before the peer's Close are received, and then EOF.
func TestPeerCloses(t *testing.T) {
	x, y := dial(t, nil)
	ctx := patience(t)
	for i := range 20 {
		ok(t, x.Send(ctx, fmt.Append(nil, i)))
	}
	ok(t, x.Close())
	for i := range 20 {
		m, err := y.Recv(ctx)
		ok(t, err)
		if string(m.Bytes()) != fmt.Sprint(i) {
			t.Errorf("message %d is %q, want \"%[1]d\"", i, m.Bytes())
		}
		m.Release()
	}
	if _, err := y.Recv(ctx); err != io.EOF {
		t.Errorf("after the last message: %v, want %v", err, io.EOF)
	}
	select {
	case <-y.Done():
	case <-ctx.Done():
		t.Fatal("the peer has closed, and the channel does not end")
	}
	if err := y.Send(ctx, nil); !errors.Is(err, rdmamsg.ErrEnded) {
		t.Errorf("send to a peer that has closed: %v, want %v", err, rdmamsg.ErrEnded)
	}
}

// frame returns a frame without a message.
func frame(typ byte, length, va uint64, id uint32) string {
	b := make([]byte, 32)
	b[0], b[1] = typ, 1
	binary.BigEndian.PutUint64(b[8:], length)
	binary.BigEndian.PutUint64(b[16:], va)
	binary.BigEndian.PutUint32(b[28:], id)
	return string(b)
}

// credit returns a frame that grants n messages more.
func credit(n uint32) string {
	b := []byte(frame(5, 0, 0, 0))
	binary.BigEndian.PutUint32(b[4:], n)
	return string(b)
}

// hello grants 4 messages of 100 bytes, and takes offers of up to 1 MiB.
var hello = frame(1, 1<<20, 4<<32|100, 0)

// foreign connects a channel with a peer that sends any frames. in has room for two frames that the channel sends, of
// 64 bytes each.
func foreign(t *testing.T) (x *rdmamsg.Channel, send func(frame string), q *rdmatest.Endpoint, in *verbs.MR) {
	t.Helper()
	net := rdmatest.New(t)
	var c *rdmamsg.Config
	p, q := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Cap: c.QPCap()})
	in = q.MR(128)
	for i := range 2 {
		q.Recv(verbs.RecvWR{SGList: []verbs.SGE{in.SGE(64*i, 64)}})
	}
	return start(t, c, p.QP), func(frame string) {
		out := q.MR(64) // of its own, since the frame before may be under way
		q.Send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{out.SGE(0, copy(out.Bytes(), frame))}})
	}, q, in
}

// TestForeignPeer has a peer that does not speak the protocol, or breaks it. In a bubble, where nobody waits long for a
// channel that goes on.
func TestForeignPeer(t *testing.T) { synctest.Test(t, testForeignPeer) }

func testForeignPeer(t *testing.T) {
	for _, frames := range [][]string{
		{""}, {"hello, world: this is not a frame"}, {string(make([]byte, 32))},
		{hello, hello},
		{frame(1, 1<<20, 100, 0)},                              // a hello that grants no message
		{frame(1, 1<<20, 4<<32, 0)},                            // or messages of no bytes
		{frame(1, 1<<20, (1<<20+1)<<32|100, 0)},                // and one of more than anybody has
		{hello, frame(6, 0, 0, 0), frame(6, 0, 0, 0)},          // a second bye
		{hello, frame(6, 0, 0, 0), frame(3, 100_000, 4096, 0)}, // an offer behind the bye
		{hello, frame(3, 0, 4096, 0)},                          // an offer of nothing
		{hello, frame(3, 1<<63, 4096, 0)},                      // and one that no pool can hold
		{hello, frame(4, 0, 0, 0)},                             // an answer to no offer
		{hello, credit(1)}, {hello, credit(1 << 31)},           // more messages than the hello has receives for
	} {
		x, send, _, _ := foreign(t)
		for _, f := range frames {
			send(f)
		}
		if err := x.Start(patience(t)); err != nil && !errors.Is(err, rdmamsg.ErrProtocol) {
			t.Errorf("frames %q: start: %v, want %v", frames, err, rdmamsg.ErrProtocol)
		}
		select {
		case <-x.Done():
		case <-patience(t).Done():
		}
		if err := x.Err(); !errors.Is(err, rdmamsg.ErrProtocol) {
			t.Errorf("frames %q: the channel has ended by %v, want %v", frames, err, rdmamsg.ErrProtocol)
		}
		if _, err := x.Recv(patience(t)); err != io.EOF && !errors.Is(err, rdmamsg.ErrProtocol) { // EOF behind a bye
			t.Errorf("frames %q: receive: %v, want %v", frames, err, rdmamsg.ErrProtocol)
		}
		var e *rdmamsg.Error
		if err := x.Close(); err != nil && !errors.As(err, &e) {
			t.Error(err)
		}
	}
}

// TestStaleAnswer has a peer that answers an earlier offer than the one that stands in its place. The buffer must not go to
// others while the peer may read it.
func TestStaleAnswer(t *testing.T) {
	x, send, q, in := foreign(t)
	ctx := patience(t)
	send(hello)
	ok(t, x.Start(ctx))
	ok(t, x.Send(ctx, make([]byte, 100_000)))
	q.Done() // x's hello
	q.Done() // and its offer
	id := binary.BigEndian.Uint32(in.Bytes()[64+28:])
	send(frame(4, 0, 0, id^1<<8)) // the generation lies above the 8 bits of the place
	if err := x.Flush(ctx); !errors.Is(err, rdmamsg.ErrProtocol) {
		t.Errorf("an answer to offer %#x, where %#x is the one: %v, want %v", id^1<<8, id, err, rdmamsg.ErrProtocol)
	}
}

// TestSteadyStateAllocs checks that messages of both kinds cost no allocation at either end.
func TestSteadyStateAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector, sync.Pool throws things away at random")
	}
	net := rdmatest.New(t)
	x, y := newPair(t, &rdmamsg.Config{KeepAlive: -1}, net.Device(), net.Device())
	ctx := patience(t)
	for _, n := range []int{100, 100_000} {
		p := make([]byte, n)
		f := func() {
			if err := x.Send(ctx, p); err != nil {
				t.Fatal(err)
			}
			m, err := y.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
		for range 200 {
			f()
		}
		// The network in memory allocates a little for itself now and then.
		if got := testing.AllocsPerRun(500, f); got >= 1 {
			t.Errorf("a message of %d bytes: %v allocations, want none", n, got)
		}
	}
}

func BenchmarkChannel(b *testing.B) {
	for _, n := range []int{64, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y := dial(b, nil)
			ctx := b.Context()
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			done := make(chan error, 1)
			go func() {
				for range b.N {
					m, err := y.Recv(ctx)
					if err != nil {
						done <- err
						return
					}
					m.Release()
				}
				done <- nil
			}()
			b.ResetTimer()
			for range b.N {
				if err := x.Send(ctx, p); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
