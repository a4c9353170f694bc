package connector

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/rnic"
	"github.com/adverb-rdma/adverb/verbs"
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

// A request that is closed unanswered leaves its place in the backlog to the next one.
func TestClosedRequestLeavesBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &tcpConnector{conns: map[*tcpConn]bool{}, leaving: make(chan struct{}, maxLeaving)}
		var requests []*Request
		p := &tcpPort{c: c, backlog: 1, onRequest: func(r *Request) func(Event) {
			requests = append(requests, r)
			return func(Event) {}
		}}
		request := (&mpa.Offer{}).Request()
		for i := range 2 {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			p.requested(ours, &request)
			if len(requests) != i+1 {
				t.Fatalf("%d requests are delivered, want %d", len(requests), i+1)
			}
			requests[i].Conn.Close()
		}
	})
}

// A request whose peer leaves before it is answered is over, and leaves its place in the backlog to the next one. It
// cannot be accepted any more.
func TestDepartedRequestLeavesBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &tcpConnector{conns: map[*tcpConn]bool{}, leaving: make(chan struct{}, maxLeaving)}
		var requests []*Request
		var events []Event
		p := &tcpPort{c: c, backlog: 1, onRequest: func(r *Request) func(Event) {
			requests = append(requests, r)
			return func(ev Event) { events = append(events, ev) }
		}}
		request := (&mpa.Offer{}).Request()
		for i, leave := range []func(net.Conn){
			func(theirs net.Conn) { _ = theirs.Close() },
			func(theirs net.Conn) { _, _ = theirs.Write([]byte{0}) }, // it is not to speak before the answer
		} {
			var closed atomic.Int32
			ours, theirs := net.Pipe()
			defer theirs.Close()
			p.requested(&closing{ours, &closed}, &request)
			if len(requests) != i+1 {
				t.Fatalf("%d requests are delivered, want %d", len(requests), i+1)
			}
			leave(theirs)
			synctest.Wait()
			for _, f := range c.queue {
				f()
			}
			c.queue = nil
			if len(events) != i+1 || events[i].Kind != Unreachable || !errors.Is(events[i].Err, syscall.ECONNRESET) {
				t.Fatalf("got events %+v, want %d that say that the peer has left", events, i+1)
			}
			if closed.Load() != 1 || len(c.conns) != 0 || p.unanswered != 0 {
				t.Errorf("a request that is over: connection closed %d times, %d connections listed, %d requests wait; want 1, 0, 0", closed.Load(), len(c.conns), p.unanswered)
			}
			if err := requests[i].Conn.Accept(Params{}); !errors.Is(err, ErrState) {
				t.Errorf("Accept: got error %v, want %v", err, ErrState)
			}
			requests[i].Conn.Close()
			if p.unanswered != 0 {
				t.Errorf("a place was given back twice: %d requests wait", p.unanswered)
			}
		}
	})
}

// A port that is released ends the connections that have said nothing yet. Their peers need not wait for requestTime.
func TestReleaseEndsSilentConnections(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:0")
	claimed, err := tcp.Claim(at)
	if err != nil {
		t.Fatal(err)
	}
	var closed atomic.Int32
	ours, theirs := net.Pipe()
	defer theirs.Close()
	p := &tcpPort{c: &tcpConnector{}, p: claimed, at: at, conns: map[net.Conn]bool{&closing{ours, &closed}: true}}
	p.Release()
	if got := closed.Load(); got != 1 {
		t.Errorf("%d of 1 connections are closed, want all", got)
	}
}

// unbounded is a connection that says when its deadline is taken away, which is when its request was read.
type unbounded struct {
	net.Conn
	f func()
}

func (c *unbounded) SetDeadline(at time.Time) error {
	if at.IsZero() {
		c.f()
	}
	return c.Conn.SetDeadline(at)
}

// A request that has been read just when its listener closes, and the connector with it, is refused. Nothing of it stays,
// and its peer need not wait for an answer.
func TestRequestWhileConnectorCloses(t *testing.T) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	d, err := rnic.Open(sim.New(sim.Config{}).Netdev("sim", loopback), rnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := openTCP(verbs.NewDevice(d), d, func(error) {})
	claimed, err := c.Claim(0x0106, loopback, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := claimed.(*tcpPort)
	if err := p.Listen(1, func(*Request) func(Event) { return nil }); err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if err := theirs.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	offer := mpa.Offer{}
	request := offer.Request()
	go func() { _, _ = theirs.Write(request.AppendTo(nil)) }()
	go p.ask(&unbounded{ours, func() {
		p.Release()
		c.Close()
	}})
	reply, _, err := readFrame(theirs)
	if err != nil {
		t.Fatalf("got %v in place of an answer, want a refusal", err)
	}
	if _, err := offer.Settle(&reply); !errors.Is(err, mpa.ErrRejected) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A frame can say larger depths than an event. They count as the largest, and each is the other's for this end.
func TestDepthsOfFrame(t *testing.T) {
	for _, c := range []struct {
		ird, ord  uint16
		resp, ini uint8
	}{{5, 7, 7, 5}, {256, mpa.MaxDepth, maxTCPDepth, maxTCPDepth}, {0, 0, 0, 0}} {
		if p := paramsOfFrame(&mpa.Frame{Enhanced: true, IRD: c.ird, ORD: c.ord}); p.ResponderResources != c.resp || p.InitiatorDepth != c.ini {
			t.Errorf("IRD %d, ORD %d: got %d responder resources and initiator depth %d, want %d and %d", c.ird, c.ord, p.ResponderResources, p.InitiatorDepth, c.resp, c.ini)
		}
	}
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
