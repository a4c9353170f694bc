package rsocket

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// DefaultBacklog is how many connections may be made before Accept takes them, unless ListenConfig
// says otherwise.
const DefaultBacklog = 128

// DefaultHandshakeTime is how long a peer has to complete its connection, unless ListenConfig says otherwise.
const DefaultHandshakeTime = 20 * time.Second

// Listen listens on an address of this host, such as "192.0.2.1:7471". An empty host, or an unspecified
// address, stands for all that the host has and will have, and port 0 for a free port. The networks are those of Dial.
// [::] includes IPv4, but not with "rsocket6" and "tcp6". The Addr of a listener on an empty host is [::], also where the
// host has no IPv6, which it may get: Dial takes it for this host.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// ListenConfig says how to listen. Its zero value listens as Listen does.
type ListenConfig struct {
	Config // of the connections

	Devices []*verbs.Device // to listen on, instead of those of the registered providers

	// Backlog is how many connections may be made, or on the way, before Accept takes them. Further ones
	// wait, and then are refused. No host can keep others out by requests that it does not complete: the source
	// with the most on the way loses its oldest to one that has fewer. A source is an IPv4 address or an IPv6
	// network (/64). 0 is DefaultBacklog.
	Backlog int

	// HandshakeTime bounds the making of one connection: a peer that asks and says no more has its place for
	// no longer. 0 is DefaultHandshakeTime; negative is an error.
	HandshakeTime time.Duration

	// ReuseAddr has the listener share its port until it listens: see rdmacm.ID.SetReuseAddr.
	ReuseAddr bool
}

// Listen listens: see the function Listen. ctx bounds the resolution of the address.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	fail := func(err error) error {
		return &net.OpError{Op: "listen", Net: netName, Err: err}
	}
	cfg, err := lc.Config.orDefault()
	if err == nil && lc.HandshakeTime < 0 {
		err = verbs.Errorf(verbs.ErrInvalid, "HandshakeTime is %v: give a time, or 0 for %v", lc.HandshakeTime, DefaultHandshakeTime)
	}
	if err != nil {
		return nil, fail(err)
	}
	addrs, err := resolve(ctx, net.DefaultResolver, network, address)
	if err != nil {
		return nil, fail(err)
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	rc := rdmacm.ListenConfig{
		Devices: lc.Devices, Backlog: backlog, ReuseAddr: lc.ReuseAddr, AFOnly: families[network] == 128, Security: cfg.Security,
	}
	at := preferred(addrs)
	inner, err := rc.Listen(at)
	if err != nil {
		return nil, dialError("listen", nil, net.TCPAddrFromAddrPort(at), err)
	}
	l := &Listener{
		inner: inner, cfg: cfg, handshakeTime: cmp.Or(lc.HandshakeTime, DefaultHandshakeTime), addr: net.TCPAddrFromAddrPort(inner.Addr()),
		made: make(chan *Conn, backlog), short: make(chan error, 1), places: newPlaces(backlog), failed: make(chan struct{}), closing: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.work.Add(1)
	go l.run()
	return l, nil
}

// preferred returns the address to listen on, of those that a name has. Package net prefers IPv4, since those who dial
// localhost mostly mean 127.0.0.1.
func preferred(addrs []netip.AddrPort) netip.AddrPort {
	i := slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().Is4() })
	if i < 0 || addrs[0].Addr().IsUnspecified() { // [::] includes IPv4
		i = 0
	}
	return addrs[i]
}

// Listener takes connections. It is a net.Listener.
//
// It has one goroutine, and one more for each connection that is being made or waits for its turn.
type Listener struct {
	inner *rdmacm.Listener
	cfg   Config
	addr  *net.TCPAddr

	handshakeTime time.Duration

	made     chan *Conn
	short    chan error // why a connection could not be made for want of resources: the first since Accept was told
	places   *places
	deadline deadline

	ctx    context.Context // of the goroutines
	cancel context.CancelFunc
	work   sync.WaitGroup

	failed  chan struct{} // closed when err is set: no more connections come
	err     error
	once    sync.Once
	closing chan struct{}
}

// run takes requests. The connection manager bounds how many there are that nobody has answered.
func (l *Listener) run() {
	defer l.work.Done()
	for {
		req, err := l.inner.Accept(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.err = err
				close(l.failed)
			}
			return
		}
		l.work.Add(1)
		go l.accept(req)
	}
}

// accept makes one connection, once there is a place.
func (l *Listener) accept(req *rdmacm.Request) {
	defer l.work.Done()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	a := &attempt{from: req.RemoteAddr().Addr().Unmap(), place: make(chan struct{}), cancel: cancel}
	l.places.join(a)
	select {
	case <-a.place:
	case <-req.Disconnected():
	case <-ctx.Done():
	}
	ctx, stop := context.WithTimeout(ctx, l.handshakeTime)
	defer stop()
	c, err := l.acceptIn(ctx, a, req)
	if err != nil { // the peer has gone, or is none of ours, or another one needs the place, or this end has no room
		l.places.leave(a)
		if err := shortage(req.RemoteAddr(), err); err != nil {
			select {
			case l.short <- err:
			default: // Accept has not told of an earlier one yet
			}
		}
		return
	}
	l.places.complete(a)
	l.made <- c // there is room: it has a place
}

// acceptIn answers a request if it has a place.
func (l *Listener) acceptIn(ctx context.Context, a *attempt, req *rdmacm.Request) (*Conn, error) {
	select {
	case <-a.place:
		return accept(ctx, req, l.cfg)
	default:
		req.Reject(nil)
		return nil, net.ErrClosed
	}
}

// accept answers a request.
func accept(ctx context.Context, req *rdmacm.Request, cfg Config) (*Conn, error) {
	late := cfg.Security != nil && bytes.HasPrefix(req.PrivateData(), []byte(secured))
	var h parameters
	var err error
	if !late {
		if h, err = parseHello(req.PrivateData()); err != nil {
			req.Reject(nil)
			return nil, err
		}
	}
	var c *Conn
	hello := make([]byte, helloSize)
	_, err = req.Accept(ctx, cfg.rdmacm(hello, func(cm *rdmacm.Conn) (err error) {
		if c, err = newConn(cm, cfg, hello); err == nil && !late {
			c.takeHello(&h)
		}
		return err
	}))
	if err != nil {
		return nil, err
	}
	c.start()
	if late {
		if err := c.readHello(ctx); err != nil {
			c.letGo()
			return nil, err
		}
	}
	return c, nil
}

// readHello takes the peer's hello from the stream. No control message is sent before: the stream has brought too few
// bytes for a grant.
func (c *Conn) readHello(ctx context.Context) error {
	var b [helloSize]byte
	err := within(ctx, &c.r, func() error {
		_, err := io.ReadFull(c, b[:])
		return err
	})
	if err != nil {
		return err
	}
	h, err := parseHello(b[:])
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeHello(&h)
	return nil
}

// Accept waits for a connection, which is a *Conn.
//
// If the process or the host lacks a resource that the connection of a peer takes, Accept returns an error that names the
// limit, as with TCP for want of descriptors. Its Temporary is true: net/http and gRPC pause, and go on. errors.Is finds
// syscall.ENOMEM in it, or an errno such as syscall.EMFILE. The peer has been refused, and was told why. If several peers
// were, Accept tells of the first.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.acceptConn()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: netName, Addr: l.addr, Err: err}
	}
	return c, nil
}

func (l *Listener) acceptConn() (*Conn, error) {
	select { // Close and the deadline come first
	case <-l.closing:
		return nil, net.ErrClosed
	case <-l.deadline.done():
		return nil, os.ErrDeadlineExceeded
	default:
	}
	select {
	case c := <-l.made:
		l.places.accepted()
		return c, nil
	case err := <-l.short:
		return nil, err
	case <-l.closing:
		return nil, net.ErrClosed
	case <-l.deadline.done():
		return nil, os.ErrDeadlineExceeded
	case <-l.failed:
		select {
		case c := <-l.made:
			l.places.accepted()
			return c, nil
		default:
			return nil, l.err
		}
	}
}

// Addr returns the address and port that the listener listens on, a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline sets the time from which Accept fails with os.ErrDeadlineExceeded. The zero time sets none.
func (l *Listener) SetDeadline(t time.Time) error {
	select {
	case <-l.closing:
		return &net.OpError{Op: "set", Net: netName, Addr: l.addr, Err: net.ErrClosed}
	default:
		l.deadline.set(t)
		return nil
	}
}

// Close stops listening. Connections that Accept has not returned are closed, and others stay.
func (l *Listener) Close() error {
	err := error(net.ErrClosed)
	l.once.Do(func() {
		close(l.closing)
		l.cancel()
		err = l.inner.Close()
		l.work.Wait()
		l.deadline.set(time.Time{})
		var ends sync.WaitGroup // side by side, since each waits for its peer, which may not answer
		defer ends.Wait()
		for {
			select {
			case c := <-l.made:
				ends.Go(func() { c.Close() })
				continue
			default:
			}
			break
		}
	})
	if err != nil {
		return &net.OpError{Op: "close", Net: netName, Addr: l.addr, Err: err}
	}
	return nil
}

var (
	_ net.Conn     = (*Conn)(nil)
	_ net.Listener = (*Listener)(nil)
)
