package connector

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/mpa"
)

// closing is a connection that says when it is closed.
type closing struct {
	net.Conn
	closed *atomic.Int32
}

func (c *closing) Close() error {
	c.closed.Add(1)
	return c.Conn.Close()
}

// Peers that are refused and keep their connections open hold maxLeaving of them, for requestTime. They held
// any number, each with a descriptor.
func TestRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3 * maxLeaving
		c, request := &tcpConnector{leaving: make(chan struct{}, maxLeaving)}, (&mpa.Offer{}).Request()
		var closed atomic.Int32
		for range n {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go func() {
				var b [mpa.MaxFrame]byte
				_, _ = theirs.Read(b[:])
			}()
			c.refuse(&closing{ours, &closed}, &request, nil)
			synctest.Wait()
		}
		if got := closed.Load(); got != n-maxLeaving {
			t.Errorf("%d of %d connections are closed, want all but %d", got, n, maxLeaving)
		}
		time.Sleep(requestTime)
		synctest.Wait()
		if got := closed.Load(); got != n || len(c.leaving) != 0 {
			t.Errorf("%d of %d connections are closed after %v, want all", got, n, requestTime)
		}
	})
}

// A host that opens connections and says nothing takes its share of a listener's, and others ask meanwhile.
func TestSilentConnections(t *testing.T) {
	p := &tcpPort{askingOf: map[netip.Addr]int{}}
	flood := func(from string) (n int) {
		for range 2 * maxAsking {
			if p.admit(netip.MustParseAddr(from)) {
				n++
			}
		}
		return n
	}
	if n := flood("10.6.6.6"); n != maxAskingOfSource {
		t.Errorf("one host has %d connections, want %d", n, maxAskingOfSource)
	}
	if n := flood("10.6.6.7"); n != maxAsking-maxAskingOfSource {
		t.Errorf("another host has %d connections, want %d", n, maxAsking-maxAskingOfSource)
	}
	if n := flood("10.6.6.8"); n != 0 {
		t.Errorf("%d connections more than the most, %d, want none", n, maxAsking)
	}
	for range maxAskingOfSource {
		p.asked(netip.MustParseAddr("10.6.6.6"))
	}
	if n := flood("10.6.6.8"); n != maxAskingOfSource || len(p.askingOf) != 2 {
		t.Errorf("a third host has %d connections then, of %d hosts; want %d, of 2", n, len(p.askingOf), maxAskingOfSource)
	}
}
