package rdmaio

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A client that takes no answers, and calls again and again in one slot, has no more of them wait than the send queue holds.
func TestAnswersNotTaken(t *testing.T) { synctest.Test(t, testAnswersNotTaken) }

func testAnswersNotTaken(t *testing.T) {
	const calls = 200
	var answered atomic.Int32
	s := new(Server)
	s.Handle("count", func(context.Context, *Call) ([]byte, error) { answered.Add(1); return nil, nil })
	p := newServer(t, rdmatest.Config{}, s)
	conn, mr := p.stranger(t)
	var wcs [1]verbs.WC
	for i := range uint32(calls) {
		n := copy(mr.Bytes(), appendMessage(nil, &message{kind: kindCall, number: i, method: "count"}))
		ok(t, conn.QP().PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}, mr.SGE(0, n)))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := conn.SendCQ().Wait(ctx, wcs[:])
		cancel()
		if err != nil || wcs[0].Status != verbs.WCSuccess { // the server takes no more
			break
		}
		synctest.Wait() // the slot is free
	}
	if n, most := int(answered.Load()), 2*(DefaultCalls+moves); n > most {
		t.Errorf("%d of %d calls in one slot are answered though no answer is taken, want %d at most", n, calls, most)
	}
}

// A call ends with its context though the server takes no messages, and none can be sent any more.
func TestCallNotTaken(t *testing.T) { synctest.Test(t, testCallNotTaken) }

func testCallNotTaken(t *testing.T) {
	net := rdmatest.New(t)
	from, at := net.Device(), net.Device()
	gid, err := at.GID(1, 0)
	ok(t, err)
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{at}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	ok(t, err)
	defer l.Close()
	go func() {
		if r, err := l.Accept(t.Context()); err == nil {
			if conn, err := r.Accept(t.Context(), &rdmacm.Config{PrivateData: appendHello(nil, hello{slots: 32, longest: maxMessage})}); err == nil {
				t.Cleanup(func() { conn.Close() })
			}
		}
	}()
	c, err := Dial(patience(t), l.Addr(), &Config{Message: maxMessage, Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{from}}})
	ok(t, err)
	const calls = 20 // more than there is memory for
	done := make(chan error, calls)
	for range calls {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := c.Call(ctx, "x", make([]byte, maxMessage/2), Bulk{})
			done <- err
		}()
	}
	limit := time.After(time.Second)
	for i := range calls {
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call to a server that takes none: %v, want %v", err, context.DeadlineExceeded)
			}
		case <-limit:
			t.Errorf("%d of %d calls have not returned a second after they began, want them to after 20 ms", calls-i, calls)
			c.Close()
			return
		}
	}
	ok(t, c.Close())
}

// A program may close the connection under a client that has calls.
func TestConnClosedUnderCalls(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods())
	for i := range 25 {
		c := p.dial(t, Config{})
		var work sync.WaitGroup
		for range 16 {
			work.Go(func() {
				for { // with a context that does not end a call which hangs
					if _, err := c.Call(t.Context(), "upper", []byte("x"), Bulk{}); err != nil {
						return
					}
				}
			})
		}
		for range i % 7 {
			if _, err := c.Call(patience(t), "upper", []byte("x"), Bulk{}); err != nil {
				t.Fatal(err)
			}
		}
		ok(t, c.Conn().Close())
		done := make(chan struct{})
		go func() { work.Wait(); c.Close(); close(done) }()
		select {
		case <-done:
		case <-time.After(rdmatest.Patience):
			t.Fatalf("round %d: calls or Close hang, want them to return", i)
		}
	}
}

// Who gets no connection leaves no memory behind.
func TestRefusedLeavesNothing(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods())
	for _, c := range []struct {
		what  string
		hello []byte
	}{{"none of ours", []byte("GET /")}, {"none at all", nil}} {
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.from}}).Listen(netip.AddrPortFrom(mustAddr(t, p.from), 0))
		ok(t, err)
		go func() {
			if r, err := l.Accept(t.Context()); err == nil {
				if c.hello == nil {
					r.Reject(nil)
				} else if conn, err := r.Accept(t.Context(), &rdmacm.Config{PrivateData: c.hello}); err == nil {
					t.Cleanup(func() { conn.Close() })
				}
			}
		}()
		before, err := p.from.Resources()
		ok(t, err)
		if cl, err := Dial(patience(t), l.Addr(), &Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{p.from}}}); err == nil {
			t.Errorf("an answer with %s: got a client, want an error", c.what)
			cl.Close()
		}
		after, err := p.from.Resources()
		ok(t, err)
		if len(after.MR) > len(before.MR) {
			t.Errorf("an answer with %s: %d regions more, want none", c.what, len(after.MR)-len(before.MR))
		}
		l.Close()
	}
}

func mustAddr(t *testing.T, d *verbs.Device) netip.Addr {
	t.Helper()
	gid, err := d.GID(1, 0)
	ok(t, err)
	return gid.GID.Addr()
}
