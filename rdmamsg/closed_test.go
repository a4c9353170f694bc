package rdmamsg

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// dialEcho dials a listener whose channels send back the messages that the channels receive.
func dialEcho(t *testing.T) func() *Channel {
	t.Helper()
	net := rdmatest.New(t)
	from, at := net.Device(), net.Device()
	gid, err := at.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{at}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var echoes sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		cancel()
		echoes.Wait()
	})
	echoes.Go(func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			echoes.Go(func() {
				c, err := Accept(ctx, r, nil)
				if err != nil {
					return
				}
				defer c.Close()
				for {
					m, err := c.Recv(ctx)
					if err != nil {
						return
					}
					_ = c.Send(ctx, m.Bytes())
					m.Release()
				}
			})
		}
	})
	return func() *Channel {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
		defer cancel()
		c, err := Dial(ctx, l.Addr(), &Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{from}}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// TestConnClosedAtFrame closes the connection while a frame is dealt with that ends an offer.
func TestConnClosedAtFrame(t *testing.T) {
	x := dialEcho(t)()
	x.mu.Lock()
	buf := x.cfg.SendPool.TryGet(100_000)
	x.offers[0].buf = buf
	x.offered++
	x.inFlight++
	h := header{typ: frameDone, version: version, id: x.offers[0].gen << 8}
	h.put(x.bytes(x.recvSlot(0), headerSize))
	if err := x.conn.Close(); err != nil {
		t.Error(err)
	}
	x.outstanding++
	x.complete(&verbs.WC{ID: work(workRecv, 0), ByteLen: headerSize})
	if x.err == nil || x.offers[0].buf != nil {
		t.Errorf("the channel has ended by %v, and an offer stands: %v; want it ended, and none", x.err, x.offers[0].buf != nil)
	}
	x.complete(&verbs.WC{ID: work(workRecv, 0), ByteLen: headerSize}) // as of a CQ whose completions were taken before
	x.mu.Unlock()
	_ = x.Close() // says what was not delivered
}

// TestConnClosedUnderChannel closes the connection under channels on which much is under way. All calls return.
func TestConnClosedUnderChannel(t *testing.T) {
	dial := dialEcho(t)
	for i := range 30 {
		x := dial()
		var work sync.WaitGroup
		for k := range 4 {
			work.Go(func() {
				b := make([]byte, 100+20_000*(k&1))
				for x.Send(context.Background(), b) == nil {
				}
			})
		}
		for range 1 + i%7 {
			m, err := x.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
		work.Go(func() {
			for {
				m, err := x.Recv(context.Background())
				if err != nil {
					return
				}
				m.Release()
			}
		})
		if err := x.Conn().Close(); err != nil {
			t.Error(err)
		}
		done := make(chan struct{})
		go func() {
			_ = x.Close() // says what was not delivered
			work.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(rdmatest.Patience):
			t.Fatalf("round %d: calls or Close hang, want them to return", i)
		}
	}
}
