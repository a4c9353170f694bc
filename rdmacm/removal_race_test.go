package rdmacm

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A listener on the addresses of two devices goes on when one of them is gone. So it does if one goroutine has just
// fetched a request of that device, and another one in Accept fetches the news for the request.
func TestDeviceRemovalWhileAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := rdmatest.New(t)
		a, b, c := n.Device(), n.Device(), n.Device()
		l, err := (&ListenConfig{Devices: []*verbs.Device{b, c}}).Listen(netip.MustParseAddrPort("0.0.0.0:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		dial := func(d *verbs.Device) {
			gid, err := d.GID(1, 0)
			if err != nil {
				t.Fatal(err)
			}
			dialing, giveUp := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if conn, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial(dialing, netip.AddrPortFrom(gid.GID.Addr(), l.Addr().Port()), nil); err == nil {
					conn.Close()
				}
			}()
			t.Cleanup(func() { giveUp(); <-done })
		}
		ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
		defer cancel()
		dial(c)
		request, err := l.ch.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.Provider().Close()
		synctest.Wait()
		dial(b)
		other, err := l.Accept(ctx) // as the other goroutine does
		if err != nil {
			t.Errorf("Accept with one of two devices: got error %v, want a request", err)
		} else {
			defer other.conn.Close()
		}
		r := newRequest(request)
		defer r.conn.Close()
		select {
		case <-r.Disconnected():
		default:
			t.Error("the device of the request is gone, and Disconnected does not say so")
		}
	})
}
