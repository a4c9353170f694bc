package connector

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
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
		p := &tcpPort{c: c}
		p.serve(1, func(r *Request) func(Event) {
			requests = append(requests, r)
			return func(Event) {}
		})
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
		p := &tcpPort{c: c}
		p.serve(1, func(r *Request) func(Event) {
			requests = append(requests, r)
			return func(ev Event) { events = append(events, ev) }
		})
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
			if closed.Load() != 1 || len(c.conns) != 0 || p.unanswered.Len() != 0 {
				t.Errorf("a request that is over: connection closed %d times, %d connections listed, %d requests wait; want 1, 0, 0", closed.Load(), len(c.conns), p.unanswered.Len())
			}
			if err := requests[i].Conn.Accept(Params{}); !errors.Is(err, ErrState) {
				t.Errorf("Accept: got error %v, want %v", err, ErrState)
			}
			requests[i].Conn.Close()
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
	p := &tcpPort{c: &tcpConnector{}, p: claimed, at: at}
	p.serve(1, nil)
	if !p.admit(&asker{conn: &closing{ours, &closed}}) {
		t.Fatal("a connection is not taken in")
	}
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
	c := openTCP(verbs.NewDevice(d), d, Watcher{Gone: func(error) {}, Changed: func() {}})
	claimed, err := c.Claim(Name{PS: 0x0106, Addr: loopback, Port: 0}, false)
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
	go p.ask(&asker{conn: &unbounded{ours, func() {
		p.Release()
		c.Close()
	}}})
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

// hosted is a connection from an address.
type hosted struct {
	net.Conn
	from string
}

func (c *hosted) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1))
}

// crowded is a port whose connections come from addresses of the test's choice.
type crowded struct {
	*tcpPort
	t        *testing.T
	requests []*Request // that are handed out
	ended    []error    // requests that are over though the program has not answered
	closed   map[string]int
	mu       sync.Mutex
}

func newCrowded(t *testing.T, backlog int) *crowded {
	p := &crowded{t: t, closed: map[string]int{}}
	p.tcpPort = &tcpPort{c: &tcpConnector{conns: map[*tcpConn]bool{}, leaving: make(chan struct{}, maxLeaving)}}
	p.serve(backlog, func(r *Request) func(Event) {
		p.requests = append(p.requests, r)
		return func(ev Event) { p.ended = append(p.ended, ev.Err) }
	})
	return p
}

// settle lets the connector's goroutines run until all of them wait.
func (p *crowded) settle() {
	for {
		synctest.Wait()
		p.c.mu.Lock()
		queue := p.c.queue
		p.c.queue = nil
		p.c.mu.Unlock()
		if len(queue) == 0 {
			return
		}
		for _, f := range queue {
			f()
		}
	}
}

// come has connections come from an address, which ask or say nothing. It returns the peers' ends.
func (p *crowded) come(from string, n int, asks bool) (peers []net.Conn) {
	for range n {
		ours, theirs := net.Pipe()
		p.t.Cleanup(func() { theirs.Close() })
		peers = append(peers, theirs)
		a := &asker{conn: &hosted{ours, from}}
		if !p.admit(a) {
			p.t.Fatal("a connection is not taken in")
		}
		go p.ask(a)
		go func() {
			if asks {
				request := (&mpa.Offer{}).Request()
				_, _ = theirs.Write(request.AppendTo(nil))
			}
			if n, _ := io.Copy(io.Discard, theirs); n == 0 { // closed without an answer
				p.mu.Lock()
				p.closed[from]++
				p.mu.Unlock()
			}
		}()
		p.settle()
	}
	return peers
}

// places returns how many connections have said nothing, how many requests wait, and how many are handed out.
func (p *crowded) places() (silent, waiting, unanswered int) {
	p.tcpPort.mu.Lock()
	defer p.tcpPort.mu.Unlock()
	return p.silent.Len(), p.waiting.Len(), p.unanswered.Len()
}

func (p *crowded) closedOf(from string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed[from]
}

// Two addresses that open connections and say nothing have a listener's places. A third host asks, and is heard. Its
// request was turned away, and its program told that the peer's program had rejected it. So are the addresses of one
// IPv6 network, which one host has.
func TestSilentConnections(t *testing.T) {
	for name, strangers := range map[string][2]string{
		"IPv4": {"10.6.6.6", "10.6.6.7"}, "one network": {"2001:db8::6", "2001:db8::7"}, "two networks": {"2001:db8::6", "2001:db8:0:1::7"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newCrowded(t, 8)
				for _, from := range strangers {
					p.come(from, maxAsking/2, false)
				}
				before, _, _ := p.places()
				for range 3 {
					for _, from := range []string{"2001:db8::8", "10.6.6.8"} { // the former in the network of strangers
						p.come(from, 1, true)
						if n := len(p.requests); n == 0 || p.requests[n-1].Remote.Addr().String() != from {
							t.Fatalf("%d connections are silent, and the request of %s does not come through", before, from)
						}
						p.requests[len(p.requests)-1].Conn.Close()
						p.settle()
					}
				}
				most := maxAsking
				if name == "one network" {
					most = maxAsking / 2
				}
				if after, _, _ := p.places(); before > most || after > most {
					t.Errorf("%d connections are silent, and %d then, want %d at most", before, after, most)
				}
				time.Sleep(requestTime)
				p.settle()
				if after, _, _ := p.places(); after != 0 {
					t.Errorf("%d connections are silent for %v, want none", after, requestTime)
				}
			})
		})
	}
}

// A host whose own users or whose neighbors behind one address say nothing connects all the same: the oldest of its
// silent connections goes.
func TestSilentConnectionsOfOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const host = "10.6.6.6"
		p := newCrowded(t, 1)
		p.come(host, maxAsking, false)
		if got := p.closedOf(host); got != maxAsking/2 {
			t.Errorf("%d connections of one host are closed, want %d", got, maxAsking/2)
		}
		p.come(host, 1, true)
		if len(p.requests) != 1 {
			t.Error("a request of that host does not come through")
		}
	})
}

// More requests than the backlog has places for wait, as many as a listener lets wait, and each is answered once it is
// its turn. They were refused at once in the name of the program.
func TestRequestsBeyondBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const host, backlog, n = "10.6.6.6", 128, 600
		p := newCrowded(t, backlog)
		peers := p.come(host, n, true)
		peers[n/2].Close() // which leaves while it waits
		p.settle()
		for answered := 0; answered < len(p.requests); answered++ {
			if waits := len(p.requests) - answered; waits > backlog {
				t.Fatalf("%d requests wait for the program, want no more than the backlog, %d", waits, backlog)
			}
			if err := p.requests[answered].Conn.Reject(nil); err != nil {
				t.Fatalf("request %d: %v", answered, err)
			}
			p.settle()
		}
		if len(p.requests) != n-1 || p.c.refused.Load() != 0 || len(p.ended) != 0 {
			t.Errorf("%d requests came, %d were refused, %d ended; want %d, none and none", len(p.requests), p.c.refused.Load(), len(p.ended), n-1)
		}
	})
}

// A host whose requests have all places of a backlog, and wait for more, makes room for the request of another host. Its
// own waits again, and comes again when the program has answered others.
func TestBacklogIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const host, backlog, waiting = "10.6.6.6", 4, 10
		p := newCrowded(t, backlog)
		p.come(host, backlog+waiting, true)
		for i, want := range []int{1, 2, 2} { // for the third the hosts have as many
			p.come("10.6.6.7", 1, true)
			if len(p.ended) != want || len(p.requests) != backlog+want {
				t.Fatalf("request %d of another host: %d were displaced, %d handed out, want %d and %d", i, len(p.ended), len(p.requests), want, backlog+want)
			}
		}
		if !errors.Is(p.ended[0], errDisplaced) {
			t.Errorf("a request that was displaced ends with %v, want %v", p.ended[0], errDisplaced)
		}
		if err := p.requests[0].Conn.Accept(Params{}); !errors.Is(err, ErrState) {
			t.Errorf("Accept of a request that was displaced: got %v, want %v", err, ErrState)
		}
		for i := 0; i < len(p.requests); i++ {
			_ = p.requests[i].Conn.Reject(nil) // of the displaced ones it fails
			p.settle()
		}
		if got, want := len(p.requests), backlog+waiting+3+2; got != want || p.closedOf(host) != 0 {
			t.Errorf("%d requests were handed out, and %d connections closed; want all, the displaced ones twice, %d, and none", got, p.closedOf(host), want)
		}
	})
}

// Half of the requests that may wait are of one host. More of them are closed without an answer, since nobody has said
// no. Those of others wait meanwhile, and when there is no room, who has most gives way.
func TestTooManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCrowded(t, 1)
		p.come("10.6.6.6", 1+maxWaiting/2+1, true)
		p.come("10.6.6.7", maxWaiting/2, true)
		_, waiting, _ := p.places()
		if a, b := p.closedOf("10.6.6.6"), p.closedOf("10.6.6.7"); a != 1 || b != 0 || waiting != maxWaiting {
			t.Errorf("%d and %d connections are closed, and %d wait; want 1, none and %d", a, b, waiting, maxWaiting)
		}
		p.come("10.6.6.8", 3, true)
		_, waiting, _ = p.places()
		if a, b, c := p.closedOf("10.6.6.6"), p.closedOf("10.6.6.7"), p.closedOf("10.6.6.8"); a+b != 4 || c != 0 || waiting != maxWaiting {
			t.Errorf("%d, %d and %d connections are closed, and %d wait; want 4 of the first two, and %d", a, b, c, waiting, maxWaiting)
		}
	})
}

// Bytes that follow a request before its answer end the request: RFC 5044. So a stranger cannot have the listener hold
// more than one frame.
func TestBytesBehindRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCrowded(t, 1)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		a := &asker{conn: &hosted{ours, "10.6.6.6"}}
		if !p.admit(a) {
			t.Fatal("a connection is not taken in")
		}
		go p.ask(a)
		request := (&mpa.Offer{}).Request()
		go func() { _, _ = theirs.Write(append(request.AppendTo(nil), 0)) }()
		reply, _, err := readFrame(theirs)
		if _, settled := (&mpa.Offer{}).Settle(&reply); err != nil || !errors.Is(settled, mpa.ErrRejected) {
			t.Errorf("got answer %+v, %v, want a refusal", reply, err)
		}
		p.settle()
		if len(p.requests) != 0 {
			t.Error("the request came through")
		}
	})
}

// The requests that wait for a place when their listener closes are refused, and none comes through.
func TestReleaseRefusesWaiting(t *testing.T) {
	claimed, err := tcp.Claim(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newCrowded(t, 1)
		p.p = claimed
		p.come("10.6.6.6", 3, true)
		p.Release()
		p.settle()
		if _, waiting, unanswered := p.places(); waiting != 0 || unanswered != 1 || len(p.requests) != 1 || p.closedOf("10.6.6.6") != 0 {
			t.Errorf("%d requests wait, %d are to be answered, %d came through, %d were closed without a word; want none, 1, 1 and none",
				waiting, unanswered, len(p.requests), p.closedOf("10.6.6.6"))
		}
		time.Sleep(requestTime) // until those that were refused are closed
		synctest.Wait()
	})
}
