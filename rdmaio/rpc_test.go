package rdmaio

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
	"github.com/adverb-rdma/adverb/verbs"
)

// place is a server on a network of rdmatest.
type place struct {
	*Server
	net      *rdmatest.Network
	from, at *verbs.Device
	addr     netip.AddrPort
	stop     func() // ends the server, and waits until the server has ended
}

func newServer(t testing.TB, faults rdmatest.Config, s *Server) *place {
	t.Helper()
	net := rdmatest.New(t, faults)
	p := &place{Server: s, net: net, from: net.Device(), at: net.Device()}
	gid, err := p.at.GID(1, 0)
	ok(t, err)
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.at}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	ok(t, err)
	p.addr = l.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.Close()
	})
	t.Cleanup(p.stop)
	return p
}

func (p *place) dial(t testing.TB, c Config) *Client {
	t.Helper()
	c.Dialer = &rdmacm.Dialer{Devices: []*verbs.Device{p.from}}
	cl, err := Dial(patience(t), p.addr, &c)
	ok(t, err)
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
		if s := cl.Bulk().Stats(); s != (rdmapool.Stats{}) {
			t.Errorf("after Close the pool has %+v, want nothing", s)
		}
	})
	return cl
}

// methods are a server's for tests.
func methods() *Server {
	s := new(Server)
	s.Handle("upper", func(_ context.Context, c *Call) ([]byte, error) { return bytes.ToUpper(c.Arg), nil })
	s.Handle("fail", func(_ context.Context, c *Call) ([]byte, error) { return nil, errors.New(string(c.Arg)) })
	s.Handle("long", func(_ context.Context, c *Call) ([]byte, error) {
		return make([]byte, DefaultMessage-headSize+1), nil // one more than a message has room for
	})
	s.Handle("fail long", func(_ context.Context, c *Call) ([]byte, error) { return nil, errors.New(strings.Repeat("x", 5000)) })
	s.Handle("sum", func(_ context.Context, c *Call) ([]byte, error) {
		h := sha256.New()
		_, err := io.Copy(h, io.NewSectionReader(c.In, 0, c.In.Size()))
		return h.Sum(nil), err
	})
	s.Handle("invert", func(_ context.Context, c *Call) ([]byte, error) {
		b := make([]byte, c.In.Size())
		if _, err := c.In.ReadAt(b, 0); err != nil {
			return nil, err
		}
		for i := range b {
			b[i] = ^b[i]
		}
		_, err := c.Out.WriteAt(b, 0)
		return nil, err
	})
	return s
}

// Calls of many goroutines, with bulk data both ways, on a bad network.
func TestCalls(t *testing.T) {
	s := methods()
	contexts := make(chan context.Context, 1)
	s.Handle("context", func(ctx context.Context, c *Call) ([]byte, error) { contexts <- ctx; return nil, nil })
	p := newServer(t, lossy, s)
	c := p.dial(t, Config{Calls: 4})
	ctx := patience(t)
	var work sync.WaitGroup
	for i := range 10 {
		work.Go(func() {
			for j := range 10 {
				s := fmt.Sprint("call ", i, j)
				if a, err := c.Call(ctx, "upper", []byte(s), Bulk{}); err != nil || string(a) != strings.ToUpper(s) {
					t.Errorf("%q: %q, %v, want %q", s, a, err, strings.ToUpper(s))
					return
				}
			}
		})
		work.Go(func() {
			want := noise(uint64(i), 400_000)
			in, err := c.Bulk().Get(ctx, len(want))
			ok(t, err)
			copy(in.Bytes(), want)
			if a, err := c.Call(ctx, "sum", nil, Bulk{In: in}); err != nil || [32]byte(a) != sha256.Sum256(want) {
				t.Errorf("sum: %x, %v, want %x", a, err, sha256.Sum256(want))
				return
			}
			out, err := c.Bulk().Get(ctx, len(want))
			ok(t, err)
			if _, err := c.Call(ctx, "invert", nil, Bulk{In: in, Out: out}); err != nil {
				t.Error(err)
				return
			}
			for k, b := range out.Bytes() {
				if b != ^want[k] {
					t.Errorf("byte %d is %#x, want %#x", k, b, ^want[k])
					break
				}
			}
			in.Release()
			out.Release()
		})
	}
	work.Wait()
	if s := c.Bulk().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes are lent, want none", s.Lent)
	}
	// A handler's context ends with its call. Those of a connection would pile up otherwise.
	_, err := c.Call(ctx, "context", nil, Bulk{})
	ok(t, err)
	if err := context.Cause(<-contexts); err != errAnswered {
		t.Errorf("the context of a call that is answered has ended by %v, want %v", err, errAnswered)
	}
}

func TestCallErrors(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods())
	const bulk = 1 << 20
	c := p.dial(t, Config{Bulk: bulk})
	if n := c.Bulk().Limit(); n != bulk {
		t.Errorf("got memory of %d bytes to lend, want %d", n, bulk)
	}
	ctx := patience(t)
	lend := func(n int) *rdmapool.Buffer {
		b, err := c.Bulk().Get(ctx, n)
		ok(t, err)
		return b
	}
	both := lend(10)
	for _, tt := range []struct {
		method string
		arg    []byte
		lent   Bulk
		want   string
		remote bool
	}{
		{"fail", []byte("as it was told"), Bulk{In: lend(10)}, "as it was told", true},
		{"fail", []byte("with one buffer"), Bulk{In: both, Out: both}, "with one buffer", true}, // which is released once
		{"nothing", nil, Bulk{}, `there is no method "nothing"`, true},
		{"long", nil, Bulk{}, "the answer has 4085 bytes: 4084 at most", true},
		{"invert", nil, Bulk{In: lend(20), Out: lend(10)}, "20 bytes at 0, where the region has 10 bytes", true},
		{"invert", nil, Bulk{In: lend(20)}, "where the region has 0 bytes", true},
		{"upper", make([]byte, 5000), Bulk{Out: lend(10)}, "an argument of 5000", false},
		{strings.Repeat("x", 256), nil, Bulk{}, "a name of 256 bytes", false},
	} {
		_, err := c.Call(ctx, tt.method, tt.arg, tt.lent)
		var remote *RemoteError
		if err == nil || !strings.Contains(err.Error(), tt.want) || errors.As(err, &remote) != tt.remote {
			t.Errorf("%s: %v, want %q, of the server: %v", tt.method, err, tt.want, tt.remote)
		}
		if remote != nil && remote.Method != tt.method {
			t.Errorf("%s: the error is of method %q, want that one", tt.method, remote.Method)
		}
	}
	cause := errors.New("enough")
	over, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	if _, err := c.Call(over, "upper", nil, Bulk{In: lend(10)}); !errors.Is(err, cause) {
		t.Errorf("a call that begins too late: %v, want %v", err, cause)
	}
	// The text of an error is cut off where a message ends.
	_, err := c.Call(ctx, "fail long", nil, Bulk{})
	if remote, ok := errors.AsType[*RemoteError](err); !ok || len(remote.Text) != DefaultMessage-headSize {
		t.Errorf("a method's error of 5000 bytes: %.100v, want a %T of %d bytes", err, remote, DefaultMessage-headSize)
	}
	if s := c.Bulk().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes are lent, want none", s.Lent)
	}
}

// A call that is given up: the server is told, and the memory is the client's again when the server has
// answered, and not before.
func TestCallGivenUp(t *testing.T) {
	s := methods()
	begun, told, goOn := make(chan struct{}), make(chan error), make(chan struct{})
	s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) {
		begun <- struct{}{}
		<-ctx.Done()
		told <- context.Cause(ctx)
		<-goOn
		return nil, nil
	})
	p := newServer(t, rdmatest.Config{}, s)
	c := p.dial(t, Config{Calls: 2})
	cause := errors.New("enough")
	for range 5 {
		ctx, cancel := context.WithCancelCause(patience(t))
		b, err := c.Bulk().Get(ctx, 100)
		ok(t, err)
		failed := make(chan error)
		go func() {
			_, err := c.Call(ctx, "wait", nil, Bulk{Out: b})
			failed <- err
		}()
		<-begun
		cancel(cause)
		if err := <-failed; !errors.Is(err, cause) {
			t.Errorf("a call that is given up: %v, want %v", err, cause)
		}
		if err := <-told; err != errGivenUp {
			t.Errorf("the handler was told: %v, want %v", err, errGivenUp)
		}
		if c.Bulk().Stats().Lent == 0 {
			t.Error("the memory is free, and the server may write to it")
		}
		goOn <- struct{}{}
		// When both slots can be had the answer has come.
		x, err := c.place(patience(t))
		ok(t, err)
		y, err := c.place(patience(t))
		ok(t, err)
		if s := c.Bulk().Stats(); s.Lent != 0 {
			t.Errorf("%d bytes have not come back, want none", s.Lent)
		}
		c.unsent(x)
		c.unsent(y)
	}
}

// A cancel that comes late does not end the next call of its slot.
func TestLateCancel(t *testing.T) {
	s := methods()
	contexts, goOn := make(chan context.Context, 1), make(chan struct{})
	s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) {
		contexts <- ctx
		<-goOn
		return nil, nil
	})
	p := newServer(t, rdmatest.Config{}, s)
	conn, mr := p.stranger(t)
	defer close(goOn)
	ok(t, conn.QP().PostOneRecv(0, mr.SGE(2048, 2048)))
	send(t, conn, mr, appendMessage(nil, &message{kind: kindCall, slot: 1, number: 7, method: "wait"}))
	send(t, conn, mr, appendMessage(nil, &message{kind: kindCancel, slot: 1, number: 6}))
	send(t, conn, mr, appendMessage(nil, &message{kind: kindCall, slot: 2, method: "upper"}))
	// When this call is answered the server has taken the cancel before it.
	_, err := conn.RecvCQ().Wait(patience(t), make([]verbs.WC, 1))
	ok(t, err)
	if err := context.Cause(<-contexts); err != nil {
		t.Errorf("call 7 has ended by %v, want it to go on: call 6 was given up", err)
	}
}

// A server that ends fails the calls that wait, and their memory comes back; so does a client that ends.
func TestEnds(t *testing.T) {
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			s := methods()
			begun, told := make(chan struct{}, 10), make(chan error, 10)
			s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) {
				begun <- struct{}{}
				<-ctx.Done()
				_, err := c.Out.WriteAt([]byte("late"), 0)
				told <- err
				return nil, err
			})
			p := newServer(t, rdmatest.Config{}, s)
			c := p.dial(t, Config{})
			failed := make(chan error)
			for range 10 {
				b, err := c.Bulk().Get(patience(t), 100)
				ok(t, err)
				go func() {
					_, err := c.Call(patience(t), "wait", nil, Bulk{Out: b})
					failed <- err
				}()
			}
			for range 10 {
				<-begun
			}
			if who == "server" {
				p.stop()
			} else {
				c.Close()
			}
			for range 10 {
				if err := <-failed; err == nil {
					t.Error("a call that was not answered has gone well")
				}
				if err := <-told; err == nil {
					t.Error("written to memory of a call that is over")
				}
			}
			if s := c.Bulk().Stats(); s.Lent != 0 {
				t.Errorf("%d bytes have not come back, want none", s.Lent)
			}
			if _, err := c.Call(patience(t), "upper", nil, Bulk{}); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call after the end: %v, want an error at once", err)
			}
		})
	}
}

// The less of both ends' Calls and Message holds: a client that may more keeps to what the server may.
func TestServerMayLess(t *testing.T) {
	s := methods()
	s.Config = &Config{Calls: 2, Message: 512}
	c := newServer(t, rdmatest.Config{}, s).dial(t, Config{Calls: 8, Message: 4096})
	if _, err := c.Call(patience(t), "upper", make([]byte, 1000), Bulk{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a call of 1000 bytes, where the server takes 512: %v, want %v", err, verbs.ErrInvalid)
	}
	for i := range 8 { // so many that each slot comes up
		if a, err := c.Call(patience(t), "upper", []byte("x"), Bulk{}); err != nil || string(a) != "X" {
			t.Fatalf("call %d, where the server takes 2 at a time: %q, %v, want \"X\"", i, a, err)
		}
	}
}

// The hellos tell the QPs that both repeat selectively, before a call needs it. A QP that was told sends a packet.
func TestSelective(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods())
	cs, err := p.dial(t, Config{}).Conn().QP().Counters()
	ok(t, err)
	if n, _ := cs.Get("sent_pkts"); n != 1 {
		t.Errorf("the client's QP has sent %d packets before a call, want 1", n)
	}
	none := appendHello(nil, hello{slots: 32, longest: 4096})
	if h, err := parseHello(none); h.selective || err != nil {
		t.Errorf("%x is taken as %+v, %v, want an end that does not repeat selectively", none, h, err)
	}
}

// stranger dials with a hello of 32 calls, and is a client that may send anything. The region is for its messages.
func (p *place) stranger(t testing.TB) (*rdmacm.Conn, *verbs.MR) {
	t.Helper()
	d := rdmacm.Dialer{Devices: []*verbs.Device{p.from}}
	conn, err := d.Dial(patience(t), p.addr, &rdmacm.Config{PrivateData: appendHello(nil, hello{slots: 32, longest: 4096})})
	ok(t, err)
	t.Cleanup(func() { conn.Close() })
	mr, err := conn.AllocMR(4096, verbs.AccessLocalWrite)
	ok(t, err)
	return conn, mr
}

// send sends a message from the beginning of a region, and waits until the peer has it.
func send(t testing.TB, conn *rdmacm.Conn, mr *verbs.MR, m []byte) {
	t.Helper()
	ok(t, conn.QP().PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}, mr.SGE(0, copy(mr.Bytes(), m))))
	_, err := conn.SendCQ().Wait(patience(t), make([]verbs.WC, 1))
	ok(t, err)
}

// Who is no client of ours is refused, and who breaks the protocol is cut off. In a bubble, where nobody waits long for
// a server that goes on.
func TestStrangers(t *testing.T) { synctest.Test(t, testStrangers) }

func testStrangers(t *testing.T) {
	s := methods()
	s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) { <-ctx.Done(); return nil, nil })
	p := newServer(t, rdmatest.Config{}, s)
	d := rdmacm.Dialer{Devices: []*verbs.Device{p.from}}
	var refused *rdmacm.RejectError
	for _, hello := range [][]byte{nil, []byte("GET /"), appendHello(nil, hello{slots: 0, longest: 4096}), appendHello(nil, hello{slots: 1, longest: 1 << 30})} {
		if _, err := d.Dial(patience(t), p.addr, &rdmacm.Config{PrivateData: hello}); !errors.As(err, &refused) {
			t.Errorf("%q: %v, want it refused", hello, err)
		}
	}
	call := func(slot int, method string) []byte {
		return appendMessage(nil, &message{kind: kindCall, slot: slot, method: method})
	}
	negative := call(0, "upper") // slot 2^31, of which an int of 32 bits makes a negative one
	negative[4] = 0x80
	for _, bad := range [][][]byte{
		{{}}, {{kindCall}}, {{9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, {call(32, "upper")}, {call(maxSlots, "upper")}, {negative},
		{call(0, "upper")[:callSize]}, {appendMessage(nil, &message{kind: kindAnswer})},
		{call(1, "wait"), call(1, "wait")}, // the first is not answered; any number of handlers could wait so
	} {
		conn, mr := p.stranger(t)
		for _, m := range bad {
			send(t, conn, mr, m)
		}
		select {
		case <-conn.Disconnected():
		case <-patience(t).Done():
			t.Errorf("%x: the server goes on, want it to end the connection", bad)
		}
		conn.Close()
	}
	if a, err := p.dial(t, Config{}).Call(patience(t), "upper", []byte("x"), Bulk{}); err != nil || string(a) != "X" {
		t.Errorf("after that: %q, %v, want \"X\"", a, err)
	}
}

// Serve waits for the handlers, which may use memory that Serve's caller frees after Serve.
func TestServeWaits(t *testing.T) { synctest.Test(t, testServeWaits) }

func testServeWaits(t *testing.T) {
	s := methods()
	begun, end := make(chan struct{}), make(chan struct{})
	s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) { close(begun); <-end; return nil, nil })
	p := newServer(t, rdmatest.Config{}, s)
	c := p.dial(t, Config{})
	go c.Call(patience(t), "wait", nil, Bulk{})
	<-begun
	stopped := make(chan struct{})
	go func() { p.stop(); close(stopped) }()
	synctest.Wait()
	select {
	case <-stopped:
		t.Error("Serve has returned, and a handler runs, want it to wait")
	default:
	}
	close(end)
	<-stopped
}

// A client with Security makes no connection without Security.
func TestSecurityDemanded(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods()) // its listener has none
	c := Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{p.from}}, Security: &rdmacm.Security{PSK: make([]byte, 32)}}
	if cl, err := Dial(patience(t), p.addr, &c); err == nil {
		cl.Close()
		t.Error("got a connection to a server without Security, want an error")
	}
}

// A server that answers a call that nobody has made, or not the call that waits, is cut off too.
func TestStrangeAnswer(t *testing.T) {
	net := rdmatest.New(t)
	cfg, err := (*Config)(nil).orDefault()
	ok(t, err)
	cl := &Client{done: make(chan struct{})}
	x, y := cmtest.Dial(t, net.Device(), net.Device(), &rdmacm.Config{Setup: func(c *rdmacm.Conn) error { return cl.setup(c, &cfg, 1) }}, nil)
	ok(t, cl.start(&cfg, hello{slots: 4, longest: 4096}))
	cl.all = make([]slot, cl.slots)
	mr, err := y.AllocMR(100, verbs.AccessLocalWrite)
	ok(t, err)
	for _, there := range []slot{{}, {i: 3, number: 2, busy: true, answer: make(chan answer, 1)}} {
		cl.all[3] = there
		send(t, y, mr, appendMessage(nil, &message{kind: kindAnswer, slot: 3, number: 1}))
		err := cl.receive(func(m *message) error { return cmp.Or(cl.take(m), errors.New("it is taken")) })
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("an answer to call 1 of slot 3, which waits for call %d (0: for none): %v, want %v", there.number, err, ErrProtocol)
		}
	}
	_ = x
	ok(t, cl.end.close())
}

// A message names no slot that no connection has.
func TestMessageSlot(t *testing.T) {
	for slot, good := range map[uint32]bool{0: true, maxSlots - 1: true, maxSlots: false, 1 << 31: false, 1<<32 - 1: false} {
		b := appendMessage(nil, &message{kind: kindCancel})
		binary.BigEndian.PutUint32(b[4:], slot)
		if m, err := parseMessage(b); good != (err == nil) || good && m.slot != int(slot) || !good && !errors.Is(err, ErrProtocol) {
			t.Errorf("slot %d is taken as %d, %v, want it taken: %v", slot, m.slot, err, good)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(appendMessage(nil, &message{kind: kindCall, slot: 1, number: 2, in: Span{verbs.RemoteAddr{VA: 1, RKey: 2}, 3}, method: "m", body: []byte("b")}))
	f.Add(appendMessage(nil, &message{kind: kindError, body: []byte("text")}))
	f.Add(appendMessage(nil, &message{kind: kindCancel})[:headSize-1])
	negative := appendMessage(nil, &message{kind: kindCancel})
	negative[4] = 0x80 // slot 2^31
	f.Add(negative)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		if m.slot < 0 || m.slot >= maxSlots {
			t.Errorf("%x is of slot %d, want 0 to %d", b, m.slot, maxSlots-1)
		}
		if m.kind == kindCall || b[1] == 0 {
			again, err := parseMessage(appendMessage(nil, &m))
			if err != nil || again.method != m.method || !bytes.Equal(again.body, m.body) || again.in != m.in || again.out != m.out {
				t.Errorf("%+v became %+v, %v, want the same", m, again, err)
			}
		}
	})
}

// FuzzHello: a hello that was taken is within its bounds, and is written as the hello came.
func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, hello{slots: 4, longest: 4096}))
	f.Add(append(appendHello(nil, hello{slots: maxSlots, longest: maxMessage}), make([]byte, 40)...)) // private data is filled up
	f.Add(appendHello(nil, hello{slots: 0, longest: minMessage}))
	f.Add(appendHello(nil, hello{slots: 4, longest: 4096, selective: true}))
	for _, at := range []int{4, 8} { // numbers that are negative for an int of 32 bits
		b := appendHello(nil, hello{slots: 4, longest: 4096})
		b[at] = 0x80
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%x: got error %v, want %v", b, err, ErrProtocol)
			}
			return
		}
		if h.slots < 1 || h.slots > maxSlots || h.longest < minMessage || h.longest > maxMessage {
			t.Errorf("%x is taken as %+v, beyond the bounds, want %d slots at most, and messages of %d to %d bytes", b, h, maxSlots, minMessage, maxMessage)
		}
		b = append(b[:helloSize-1:helloSize-1], b[helloSize-1]&flagSelective) // other flags are for ends that know them
		clear(b[helloSize-4 : helloSize-1])
		if got := appendHello(nil, h); !bytes.Equal(b, got) {
			t.Errorf("%x is taken as %+v, which is written as %x, want the same", b, h, got)
		}
	})
}
