// Package cmtest connects devices of tests by the connection manager, as package rdmatest connects them by
// hand.
package cmtest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Dial connects two devices of an rdmatest.Network by the connection manager: a dials, and b listens on a port of
// its first address. A nil Config is rdmacm's default. The connections are closed at the end of the test.
func Dial(t testing.TB, a, b *verbs.Device, dialer, listener *rdmacm.Config) (x, y *rdmacm.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatalf("cmtest: %v", err)
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	if err != nil {
		t.Fatalf("cmtest: %v", err)
	}
	defer l.Close()
	type accepted struct {
		conn *rdmacm.Conn
		err  error
	}
	done := make(chan accepted, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			done <- accepted{err: err}
			return
		}
		conn, err := req.Accept(ctx, listener)
		done <- accepted{conn, err}
	}()
	x, err = (&rdmacm.Dialer{Devices: []*verbs.Device{a}}).Dial(ctx, l.Addr(), dialer)
	if err != nil {
		cancel()
		if other := <-done; other.conn != nil {
			other.conn.Close()
		}
		t.Fatalf("cmtest: %v", err)
	}
	t.Cleanup(func() { x.Close() })
	other := <-done
	if other.err != nil {
		t.Fatalf("cmtest: %v", other.err)
	}
	t.Cleanup(func() { other.conn.Close() })
	return x, other.conn
}
