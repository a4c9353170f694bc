// Package tcp gives software RNICs their TCP connections. A device claims a TCP port of the host, and listens on it
// or connects from it.
package tcp

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// Port is a TCP port on one address. It has one owner among all programs of the host.
//
// The port listens from the start, since Go has no other way to hold a port on all systems. So a peer that comes
// before Listen is called waits, where a kernel would turn it away. A port that is shared listens once it is owned.
type Port struct {
	addr   netip.AddrPort
	shared bool

	mu   sync.Mutex
	l    net.Listener // nil once the port is closed, or has become a connection, and while it is shared
	hold *hold        // of a shared port; nil once the port is closed, or owned
}

// Claim takes a port. It fails with EADDRINUSE while another program has the port.
func Claim(addr netip.AddrPort) (*Port, error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, explain(err)
	}
	return &Port{addr: addr, l: l}, nil
}

// Share takes a port together with others of this user who share it too. While a program owns the port Share fails
// with EADDRINUSE, and while the port is shared nobody can own it. On systems other than Linux it is Claim.
func Share(addr netip.AddrPort) (*Port, error) {
	h, err := holdShared(addr)
	if errors.Is(err, errors.ErrUnsupported) {
		return Claim(addr)
	}
	if err != nil {
		return nil, explain(err)
	}
	return &Port{addr: addr, shared: true, hold: h}, nil
}

// Own makes a shared port one that listens and is nobody else's, as Claim does. It fails with EADDRINUSE while others
// share the port, and then this program still shares it. A port that is owned stays as it is.
func (p *Port) Own() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold == nil {
		return nil
	}
	l, err := p.hold.listen()
	if err != nil {
		return explain(err)
	}
	p.l, p.hold, p.shared = l, nil, false
	return nil
}

// Accept waits for the next connection.
func (p *Port) Accept() (net.Conn, error) {
	p.mu.Lock()
	l := p.l
	p.mu.Unlock()
	if l == nil {
		return nil, net.ErrClosed
	}
	c, err := l.Accept()
	if err != nil {
		return nil, explain(err)
	}
	return c, nil
}

// Dial connects from the port, which does not listen any more. A port that is shared goes on to be so.
func (p *Port) Dial(ctx context.Context, remote netip.AddrPort) (net.Conn, error) {
	if p.isShared() {
		return dial(ctx, p.addr, remote, shareSocket)
	}
	p.Close()
	return dial(ctx, p.addr, remote, nil)
}

func (p *Port) isShared() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shared
}

// Close gives the port back. It may be called more than once.
func (p *Port) Close() {
	p.mu.Lock()
	l, h := p.l, p.hold
	p.l, p.hold = nil, nil
	p.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	if h != nil {
		h.close()
	}
}

// Dial connects from an address. The port is tried, and another is taken if the port is in use.
func Dial(ctx context.Context, local, remote netip.AddrPort) (net.Conn, error) {
	c, err := dial(ctx, local, remote, nil)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return dial(ctx, netip.AddrPortFrom(local.Addr(), 0), remote, nil)
	}
	return c, err
}

// dial connects. control, or nil, prepares the socket before it is bound.
func dial(ctx context.Context, local, remote netip.AddrPort, control func(network, address string, c syscall.RawConn) error) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(local), Control: control}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return nil, explain(err)
	}
	return c, nil
}

// fileLimit says how many files a process may have open.
func fileLimit() string {
	if n := Files(); n != math.MaxInt {
		return strconv.Itoa(n)
	}
	return "a limited number of them"
}

// explain adds the limit on the number of connections, if that is why there is none.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return verbs.Errorf(verbs.ErrLimit, "%w: each iWARP connection and each port is an open file, and this process may have %s: raise RLIMIT_NOFILE (ulimit -n)", err, fileLimit())
	case errors.Is(err, syscall.ENFILE):
		return verbs.Errorf(verbs.ErrLimit, "%w: each iWARP connection is an open file, and the host has no more: raise fs.file-max", err)
	}
	return err
}
