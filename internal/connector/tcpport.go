package connector

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// tcpPort is a TCP port on one of the device's addresses.
type tcpPort struct {
	c  *tcpConnector
	ps PortSpace
	at netip.AddrPort
	p  *tcp.Port

	onRequest func(*Request) func(Event)
	backlog   int

	mu         sync.Mutex
	released   bool
	conns      map[net.Conn]bool  // whose request has not come
	asking     int                // connections whose request is not handed out yet
	askingOf   map[netip.Addr]int // those of each source
	unanswered int                // requests
}

// Listen implements Port.
func (p *tcpPort) Listen(backlog int, onRequest func(*Request) func(Event)) error {
	p.onRequest, p.backlog, p.conns, p.askingOf = onRequest, backlog, map[net.Conn]bool{}, map[netip.Addr]int{}
	p.c.mu.Lock()
	p.c.ports[p] = true
	p.c.mu.Unlock()
	go p.accept()
	return nil
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
		from := addrPort(conn.RemoteAddr()).Addr()
		if !p.admit(from) {
			p.c.refused.Add(1)
			_ = conn.Close() // too many that say nothing
			continue
		}
		conn = p.c.carrier.Wrap(conn)
		p.mu.Lock()
		if p.released {
			p.mu.Unlock()
			_ = conn.Close()
			return
		}
		p.conns[conn] = true
		p.mu.Unlock()
		go func() {
			p.ask(conn)
			p.asked(from)
		}()
	}
}

// admit takes a connection from a source in, unless there are too many whose request has not come. One source
// cannot keep the others out.
func (p *tcpPort) admit(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking >= maxAsking || p.askingOf[from] >= maxAskingOfSource {
		return false
	}
	p.asking++
	p.askingOf[from]++
	return true
}

// asked makes room for another connection.
func (p *tcpPort) asked(from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking--
	if p.askingOf[from]--; p.askingOf[from] == 0 {
		delete(p.askingOf, from)
	}
}

// ask reads a request.
func (p *tcpPort) ask(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(requestTime))
	frame, early, err := readFrame(conn)
	_ = conn.SetDeadline(time.Time{})
	p.mu.Lock()
	delete(p.conns, conn)
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

// requested hands a request out, or rejects it.
func (p *tcpPort) requested(conn net.Conn, frame *mpa.Frame) {
	c := &tcpConn{c: p.c, ps: p.ps, port: p, conn: conn, request: frame, awaited: make(chan struct{})}
	c.carrier = p.c.carrier
	c.local, c.remote = addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
	r := &Request{Conn: c, Type: verbs.QPTypeRC, Local: c.local, Remote: c.remote}
	r.Params = paramsOfFrame(frame)
	p.mu.Lock()
	room := p.unanswered < p.backlog && !p.released
	if room {
		p.unanswered++
	}
	p.mu.Unlock()
	if room {
		c.mu.Lock()
		c.become(tcpRequested)
		c.mu.Unlock()
		go c.await(conn)
		if handle := p.onRequest(r); handle != nil {
			c.hear(handle)
			return
		}
		c.Close() // which says no, unless somebody has said it
		return
	}
	p.c.refused.Add(1)
	p.c.refuse(conn, frame, nil)
}

// leaveQueue takes note that a request does not wait for an answer any more.
func (p *tcpPort) leaveQueue() {
	p.mu.Lock()
	p.unanswered--
	p.mu.Unlock()
}

// paramsOfFrame returns what a frame says of the peer's resources as they are for this end.
func paramsOfFrame(f *mpa.Frame) Params {
	p := Params{PrivateData: f.PrivateData, ResponderResources: maxTCPDepth, InitiatorDepth: maxTCPDepth, FlowControl: true}
	if f.Enhanced {
		p.ResponderResources, p.InitiatorDepth = uint8(min(f.ORD, maxTCPDepth)), uint8(min(f.IRD, maxTCPDepth))
	}
	return p
}

// Release implements Port.
func (p *tcpPort) Release() {
	p.c.mu.Lock()
	delete(p.c.claims, p.at)
	delete(p.c.ports, p)
	p.c.mu.Unlock()
	p.p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	}
	return netip.AddrPort{}
}

// readFrame reads an MPA frame, and returns what has come behind it.
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
