package rdmacm

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// ListenConfig says how to listen.
type ListenConfig struct {
	Devices   []*verbs.Device // to listen on, instead of those of the registered providers
	Backlog   int             // requests that may wait for Accept; 0 stands for 1024: see ID.Listen
	ReuseAddr bool            // see ID.SetReuseAddr
	AFOnly    bool            // have [::] leave out IPv4: see ID.SetAFOnly
	Security  *Security       // that peers must have as well; nil is none
	UC        bool            // listen in PortSpaceIB, where UC QPs connect, instead of PortSpaceTCP
}

// Listener takes requests for connections.
type Listener struct {
	ch *EventChannel
	id *ID

	closing sync.Once
	err     error // of Close
}

// Listen listens on an address of this host. An unspecified address stands for all, and [::]
// includes IPv4, unless ListenConfig.AFOnly is set: for those that the host has, and for those that it will have, as
// with TCP. Port 0 asks for a free port. A link-local address of IPv6 needs its zone, as in fe80::1%eth0.
func Listen(addr netip.AddrPort) (*Listener, error) { return new(ListenConfig).Listen(addr) }

// Listen is the function Listen, as c configures it.
func (c *ListenConfig) Listen(addr netip.AddrPort) (*Listener, error) {
	return c.listen(addr, func(id *ID) error { return id.BindAddr(addr) })
}

// listen is Listen at an address to which the function bind binds.
func (c *ListenConfig) listen(addr netip.AddrPort, bind func(*ID) error) (*Listener, error) {
	ps := PortSpaceTCP
	if c.UC {
		ps = PortSpaceIB
	}
	l := &Listener{ch: NewEventChannel(c.Devices...)}
	var err error
	if l.id, err = NewID(l.ch, ps); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return l.id.SetReuseAddr(c.ReuseAddr) },
		func() error { return l.id.SetAFOnly(c.AFOnly) },
		func() error { return bind(l.id) },
		func() error { return l.id.SetSecurity(c.Security) },
		func() error { return l.id.Listen(c.Backlog) },
	} {
		if err = step(); err != nil {
			break
		}
	}
	if err != nil {
		l.Close()
		return nil, opError("listen", addr, netip.AddrPort{}, err)
	}
	return l, nil
}

// Addr returns the address and port that the listener listens on.
func (l *Listener) Addr() netip.AddrPort { return l.id.LocalAddr() }

// Accept waits for a request. After Close it returns verbs.ErrClosed. Once the device of the listener's
// address has failed, or the last of ListenConfig.Devices, each call returns that error: close the listener,
// and listen anew. A listener on all addresses of the host waits for others, and goes on.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		ev, err := l.ch.Next(ctx)
		if err != nil {
			return nil, opError("accept", l.Addr(), netip.AddrPort{}, err)
		}
		switch ev.Type {
		case EventConnectRequest:
			return newRequest(ev), nil
		case EventDeviceRemoval:
			if ev.ID != l.id { // a request's, which another call is about to return: other devices may be left
				continue
			}
			l.ch.shut(ev.Err) // no request will come any more, so every call returns this error
			return nil, ev.Err
		}
		// A request that nobody has answered yet may end: its Accept says so.
	}
}

// Close stops listening. It rejects requests that Accept has not returned. Connections stay, and so
// do requests that Accept has returned. Goroutines in Accept get verbs.ErrClosed.
func (l *Listener) Close() error {
	l.closing.Do(func() {
		l.err = l.id.Close()
		// A request that Accept has just taken is still on its way to a channel of its own.
		l.ch.shut(nil)
	})
	return l.err
}

// Request is a peer's wish to connect. The program accepts or rejects it.
type Request struct {
	conn     *Conn
	param    ConnParam
	accepted atomic.Bool // the program has the connection
}

// newRequest moves the new ID to a channel of its own.
func newRequest(ev Event) *Request {
	conn := newConn()
	conn.id, conn.param = ev.ID, ev.Param
	conn.ch = &EventChannel{handle: conn.handle}
	err := conn.id.Migrate(conn.ch) // it fails if the ID was closed meanwhile, and Accept will say so
	if err == nil {
		err = conn.id.requestOver()
	}
	if err != nil {
		conn.handle(Event{Type: EventDisconnected, Err: err})
	}
	return &Request{conn: conn, param: ev.Param}
}

// requestOver says that a request has ended, if it has. The event may have gone to another goroutine in
// Listener.Accept before the ID moved to its own channel.
func (id *ID) requestOver() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateFailed {
		return nil
	}
	return id.error("accept", verbs.Errorf(ErrReset, "the request has ended: its peer has given up, or its device is gone"))
}

// PrivateData returns the private data of the peer's program. iWARP sends its length, so it is as long as
// the peer gave it. RoCE does not: there it has MaxConnectData bytes, filled up with zeros.
func (r *Request) PrivateData() []byte { return r.param.PrivateData }

// Param returns the peer's parameters. The peer's resources are given as they are for this end.
func (r *Request) Param() ConnParam { return r.param }

// Device returns the device that the request has come to.
func (r *Request) Device() *verbs.Device { return r.conn.id.Device() }

// LocalAddr returns the address and port that the peer wants to connect to.
func (r *Request) LocalAddr() netip.AddrPort { return r.conn.id.LocalAddr() }

// RemoteAddr returns the peer's address and port.
func (r *Request) RemoteAddr() netip.AddrPort { return r.conn.id.RemoteAddr() }

// Disconnected returns a channel that is closed when the request has ended: the peer has given up, or has lost its
// place to another host. Nobody needs to read from the channel.
func (r *Request) Disconnected() <-chan struct{} { return r.conn.down }

// MaxAcceptTime is how long Request.Accept waits, without a deadline, for a peer that has fallen silent:
// three minutes.
const MaxAcceptTime = connector.MaxAcceptTime

// Accept connects to the peer, with a QP as c describes it. It returns when the connection is
// established.
//
// ctx bounds the attempt. Without a deadline, a peer that falls silent ends it with ErrTimeout: after 17 s
// if the peer is an adverb, after 66 s if it is Linux, since the peer's own timeout and retries count, and
// at most after MaxAcceptTime, whatever times the peer names. A peer that has given up before ends it with
// ErrReset. On iWARP nothing is waited for but that TCP takes the answer, for 5 s at most. The time of
// Config.Setup comes on top.
//
// Where this end lacks a resource that the connection takes, the error names the limit, and errors.Is finds
// verbs.ErrLimit, or an errno such as EMFILE, in it. The peer is told so: RejectNoResources.
func (r *Request) Accept(ctx context.Context, c *Config) (*Conn, error) {
	if err := r.over("accept"); err != nil {
		return nil, err
	}
	config := c.orDefault()
	err := config.check()
	if err == nil && config.Security != nil {
		err = verbs.Errorf(verbs.ErrInvalid, "Config.Security is for Dial: whether peers of a listener need it is in ListenConfig.Security")
	}
	if err == nil {
		err = r.conn.setup(&config)
	}
	if err == nil {
		if err = r.conn.id.Accept(config.param()); err != nil {
			r.conn.mu.Lock()
			err = cmp.Or(r.conn.cause, err) // the request may have ended, which says more than the state that the ID is in
			r.conn.mu.Unlock()
		}
	}
	if err == nil {
		err = r.conn.await(ctx)
	}
	if err != nil {
		local, remote := r.LocalAddr(), r.RemoteAddr()
		if isLimit(err) {
			r.conn.id.lack()
		}
		r.conn.Close()
		return nil, opError("accept", local, remote, err)
	}
	r.accepted.Store(true)
	return r.conn, nil
}

// over refuses another answer to a request that Accept has made a connection of. To give the request up would end that.
func (r *Request) over(op string) error {
	if !r.accepted.Load() {
		return nil
	}
	return opError(op, r.LocalAddr(), r.RemoteAddr(), verbs.Errorf(verbs.ErrState, "Accept has made a connection of the request: Conn.Close ends it"))
}

// Reject refuses the peer. The peer's Dial returns a RejectError with the private data, which has
// at most MaxRejectData bytes. After Accept has returned a connection the error is verbs.ErrState, and the
// connection stays.
func (r *Request) Reject(privateData []byte) error {
	if err := r.over("reject"); err != nil {
		return err
	}
	err := r.conn.id.Reject(privateData)
	if cerr := r.conn.Close(); err == nil {
		err = cerr
	}
	return err
}
