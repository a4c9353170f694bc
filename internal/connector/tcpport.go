package connector

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/crowd"
	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// tcpPort is a TCP port on one of the device's addresses.
//
// Anybody may connect and say nothing, or ask and wait. So the connections of each kind are a crowd. A request beyond the
// backlog waits, as one that the InfiniBand connection manager drops comes again.
type tcpPort struct {
	c  *tcpConnector
	ps PortSpace
	at netip.AddrPort
	p  *tcp.Port

	onRequest func(*Request) func(Event)

	mu         sync.Mutex
	released   bool
	silent     *crowd.Crowd[*asker]   // connections whose request has not come
	waiting    *crowd.Crowd[*tcpConn] // requests that the backlog has no place for
	unanswered *crowd.Crowd[*tcpConn] // requests that are handed out: the backlog
}

// asker is a connection whose request has not come.
type asker struct {
	seat crowd.Seat[*asker]
	conn net.Conn
}

// Own implements Port.
func (p *tcpPort) Own() error {
	err := p.p.Own()
	if errors.Is(err, syscall.EADDRINUSE) {
		err = verbs.Errorf(verbs.ErrBusy, "%w", err)
	}
	return err
}

// Listen implements Port.
func (p *tcpPort) Listen(backlog int, onRequest func(*Request) func(Event)) error {
	p.serve(backlog, onRequest)
	p.c.mu.Lock()
	p.c.ports[p] = true
	p.c.mu.Unlock()
	go p.accept()
	return nil
}

// serve makes room for requests.
func (p *tcpPort) serve(backlog int, onRequest func(*Request) func(Event)) {
	p.onRequest = onRequest
	files := max(minPlaces, tcp.Files()/portFiles)
	asking, waiting := min(maxAsking, files), min(maxWaiting, files)
	p.silent, p.waiting = crowd.New[*asker](asking, asking/2), crowd.New[*tcpConn](waiting, waiting/2)
	p.unanswered = crowd.NewReturning[*tcpConn](backlog, backlog)
}

// accept takes connections until the port is released.
func (p *tcpPort) accept() {
	for {
		conn, err := p.p.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor to spare, perhaps
			p.c.carrier.Unaccepted(p.at, err)
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-p.c.done:
				return
			}
		}
		a := &asker{conn: p.c.carrier.Wrap(conn)}
		if !p.admit(a) {
			_ = conn.Close()
			return
		}
		go p.ask(a)
	}
}

// admit takes a connection in, unless the port is released. When there is no room, one that has said nothing for longer
// gives way: of another source by the rule of crowds, and else of the same host.
func (p *tcpPort) admit(a *asker) bool {
	from := addrPort(a.conn.RemoteAddr()).Addr()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		return false
	}
	loser, ok := p.silent.Room(from)
	if !ok {
		loser, _ = p.silent.Oldest(from)
	}
	if loser != nil {
		loser.seat.Leave()
		_ = loser.conn.Close()
		p.c.refused.Add(1)
	}
	p.silent.Take(&a.seat, from, a)
	return true
}

// ask reads a request.
func (p *tcpPort) ask(a *asker) {
	conn := a.conn
	_ = conn.SetDeadline(time.Now().Add(requestTime))
	frame, early, err := readFrame(conn)
	_ = conn.SetDeadline(time.Time{})
	p.mu.Lock()
	a.seat.Leave()
	p.mu.Unlock()
	if err == nil {
		err = mpa.CheckRequest(&frame)
	}
	if err != nil || len(early) > 0 { // an initiator waits for the reply: RFC 5044
		if frame.Revision > 0 && !frame.Reply {
			p.c.refuse(conn, &frame, nil)
			return
		}
		_ = conn.Close()
		return
	}
	p.c.dispatch(func() { p.requested(conn, &frame) })
}

// requested has a request wait for a place in the backlog, and hands out whose turn it is.
func (p *tcpPort) requested(conn net.Conn, frame *mpa.Frame) {
	c := &tcpConn{
		c: p.c, ps: p.ps, port: p, local: addrPort(conn.LocalAddr()), remote: addrPort(conn.RemoteAddr()),
		carrier: p.c.carrier, conn: conn, request: frame, awaited: make(chan struct{}),
	}
	c.mu.Lock()
	c.become(tcpRequested)
	c.mu.Unlock()
	go c.await(conn)
	if away := p.join(c); away != nil {
		p.c.refused.Add(1)
		away.turnAway()
	}
	p.advance()
}

// join has a request wait. It returns the request for which there is no room then, or nil.
func (p *tcpPort) join(c *tcpConn) (away *tcpConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	loser, ok := p.waiting.Room(c.remote.Addr())
	if !ok || p.released {
		return c
	}
	if loser != nil {
		loser.seat.Leave()
	}
	p.waiting.Take(&c.seat, c.remote.Addr(), c)
	return loser
}

// advance hands out the requests that the backlog has a place for. The source with the fewest there is the next. If its
// request takes the place of another source's, that one waits again.
func (p *tcpPort) advance() {
	for {
		p.mu.Lock()
		next, ok := p.waiting.Next(p.unanswered)
		var loser *tcpConn
		if ok = ok && !p.released; ok {
			loser, ok = p.unanswered.Room(next.remote.Addr())
		}
		if ok {
			if loser != nil {
				loser.seat.Leave()
			}
			next.seat.Leave()
			p.unanswered.Take(&next.seat, next.remote.Addr(), next)
		}
		p.mu.Unlock()
		if !ok {
			return
		}
		if loser != nil {
			p.displace(loser)
		}
		p.handOut(next)
	}
}

// handOut has the program answer a request.
func (p *tcpPort) handOut(c *tcpConn) {
	c.mu.Lock()
	over := c.state == tcpOver
	c.mu.Unlock()
	if over { // the peer has left while it waited, perhaps just when it began to
		p.leaveQueue(c)
		return
	}
	r := &Request{Conn: c, Type: verbs.QPTypeRC, Local: c.local, Remote: c.remote, Params: paramsOfFrame(c.request)}
	if handle := p.onRequest(r); handle != nil {
		c.hear(handle)
		return
	}
	c.Close() // which says no, unless somebody has said it
}

// displace takes a request back that the program has not answered. It waits again.
func (p *tcpPort) displace(c *tcpConn) {
	conn := c.withdraw(errDisplaced)
	if conn == nil { // the program answers just now
		return
	}
	if c.spoke {
		_ = conn.Close()
		return
	}
	p.requested(conn, c.request)
}

// leaveQueue takes note that a request does not wait for an answer any more.
func (p *tcpPort) leaveQueue(c *tcpConn) {
	p.mu.Lock()
	c.seat.Leave()
	p.mu.Unlock()
	p.c.dispatch(p.advance)
}

// paramsOfFrame returns the peer's resources in a frame, as they are for this end.
func paramsOfFrame(f *mpa.Frame) Params {
	p := Params{PrivateData: f.PrivateData, ResponderResources: maxTCPDepth, InitiatorDepth: maxTCPDepth, FlowControl: true}
	if f.Enhanced {
		p.ResponderResources, p.InitiatorDepth = uint8(min(f.ORD, maxTCPDepth)), uint8(min(f.IRD, maxTCPDepth))
	}
	return p
}

// Release implements Port.
func (p *tcpPort) Release() {
	p.c.unclaim(p.at, p.p)
	p.c.mu.Lock()
	delete(p.c.ports, p)
	p.c.mu.Unlock()
	p.p.Close()
	p.mu.Lock()
	p.released = true
	var waiting []*tcpConn
	if p.silent != nil { // it has listened
		waiting = slices.Collect(p.waiting.All())
		for a := range p.silent.All() {
			_ = a.conn.Close()
		}
	}
	p.mu.Unlock()
	for _, c := range waiting {
		c.Close()
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	}
	return netip.AddrPort{}
}

// readFrame reads an MPA frame, and returns the bytes that have come behind the frame.
func readFrame(conn net.Conn) (f mpa.Frame, early []byte, err error) {
	buf := make([]byte, mpa.MaxFrame)
	n := 0
	for {
		k, err := conn.Read(buf[n:])
		n += k
		f, used, ferr := mpa.DecodeFrame(buf[:n])
		switch {
		case ferr == nil:
			return f, buf[used:n], nil
		case !errors.Is(ferr, mpa.ErrShort):
			return f, nil, ferr
		case err != nil:
			return f, nil, err
		}
	}
}

// refuse says no to a request, and leaves the connection to the peer for a while: RFC 5044. A siw that learns of
// its end together with the answer may take no note of the answer. Beyond maxLeaving it has to.
func (c *tcpConnector) refuse(conn net.Conn, request *mpa.Frame, privateData []byte) {
	f := mpa.Refuse(request, privateData)
	if len(f.PrivateData) > mpa.MaxProgramData {
		f.PrivateData = nil
	}
	_, _ = conn.Write(f.AppendTo(nil))
	select {
	case c.leaving <- struct{}{}:
	default:
		_ = conn.Close()
		return
	}
	go func() {
		_ = conn.SetReadDeadline(time.Now().Add(requestTime))
		var b [64]byte
		for {
			if _, err := conn.Read(b[:]); err != nil {
				break
			}
		}
		_ = conn.Close()
		<-c.leaving
	}()
}
