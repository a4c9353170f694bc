package cmtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
)

// The instances of cmtime's newer form find each other, and wait for each other, over TCP. The
// instance that can bind the controller's address is the root. The others are leaves, and connect to
// the root.

// meshPeer is an instance.
type meshPeer struct {
	addr    netip.AddrPort // where a server listens; zero for clients
	listens bool
}

// meshPeerSize is the size of a peer's description: a struct sockaddr_storage of Linux, the role,
// and padding.
const meshPeerSize = 136

// The fields of a message. Numbers are little-endian, as x86 has them in memory. The port is big-endian.
const (
	afInet, afInet6  = 2, 10
	peerFamilyOffset = 0
	peerPortOffset   = 2
	peerAddr4Offset  = 4
	peerAddr6Offset  = 8
	peerRoleOffset   = 128
)

var errBadPeer = errors.New("a peer's description is not understood: is it the cmtime of a machine that is not little-endian?")

func (p meshPeer) appendTo(b []byte) []byte {
	var d [meshPeerSize]byte
	switch a := p.addr.Addr(); {
	case a.Is4():
		binary.LittleEndian.PutUint16(d[peerFamilyOffset:], afInet)
		copy(d[peerAddr4Offset:], a.AsSlice())
	case a.Is6():
		binary.LittleEndian.PutUint16(d[peerFamilyOffset:], afInet6)
		copy(d[peerAddr6Offset:], a.AsSlice())
	}
	if p.addr.IsValid() {
		binary.BigEndian.PutUint16(d[peerPortOffset:], p.addr.Port())
	}
	if p.listens {
		d[peerRoleOffset] = 1
	}
	return append(b, d[:]...)
}

// seenFrom returns the peer's address as it is for an instance with an address of its own. A zone is a host's, and nothing
// that peers tell each other.
func (p meshPeer) seenFrom(own netip.Addr) netip.AddrPort {
	if clib.CheckZone(p.addr.Addr()) != nil {
		return netip.AddrPortFrom(p.addr.Addr().WithZone(own.Zone()), p.addr.Port())
	}
	return p.addr
}

// decodeMeshPeer reads a description of meshPeerSize bytes.
func decodeMeshPeer(b []byte) (p meshPeer, err error) {
	switch role := binary.LittleEndian.Uint32(b[peerRoleOffset:]); role {
	case 0:
		return p, nil
	case 1:
		p.listens = true
	default:
		return p, errBadPeer
	}
	var a netip.Addr
	switch binary.LittleEndian.Uint16(b[peerFamilyOffset:]) {
	case afInet:
		a = netip.AddrFrom4([4]byte(b[peerAddr4Offset:]))
	case afInet6:
		a = netip.AddrFrom16([16]byte(b[peerAddr6Offset:]))
	default:
		return p, errBadPeer
	}
	p.addr = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[peerPortOffset:]))
	return p, nil
}

// oob is an instance's connection to the others.
type oob struct {
	root  bool
	peers int
	conns []net.Conn // to all leaves, or to the root
	stop  func() bool
}

// openOOB connects this instance with the others, and waits until all are there.
func openOOB(ctx context.Context, inv *cli.Invocation, controller, port string, peers int) (*oob, error) {
	a, err := cm.Lookup(ctx, controller, false, netip.Addr{})
	if e, ok := errors.AsType[*cm.LookupError](err); ok {
		inv.Errorf("getaddrinfo error: %s\n", e.Text())
		inv.Explain(err)
		return nil, cm.Failed(cli.ExitError)
	} else if err != nil {
		return nil, err
	}
	number, err := cm.Port(ctx, port)
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(a.String(), strconv.Itoa(int(number)))
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	o := &oob{peers: peers}
	switch {
	case err == nil:
		inv.Printf("Running as OOB root\n")
		o.root = true
		err = o.acceptLeaves(ctx, l)
	case errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL):
		var d net.Dialer
		var c net.Conn
		if c, err = d.DialContext(ctx, "tcp", addr); err != nil {
			return nil, fmt.Errorf("%w: start the instance on the controller's host first", err)
		}
		o.conns = []net.Conn{c}
	default:
		inv.Errorf("unexpected bind error: %s (%d)\n", clib.Strerror(err), int(clib.Errno(err)))
		inv.Explain(err)
		return nil, cm.Failed(cli.ExitError)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	o.stop = context.AfterFunc(ctx, o.closeConns)
	return o, nil
}

func (o *oob) acceptLeaves(ctx context.Context, l net.Listener) error {
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for len(o.conns) < o.peers-1 {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		o.conns = append(o.conns, c)
	}
	return nil
}

func (o *oob) close() {
	if o.stop != nil {
		o.stop()
	}
	o.closeConns()
}

func (o *oob) closeConns() {
	for _, c := range o.conns {
		c.Close()
	}
}

var errOOBGone = errors.New("another instance of cmtime is gone: its output says why")

// receive reads len(b) bytes from each connection in turn, and calls take each time.
func (o *oob) receive(b []byte, take func() error) error {
	for _, c := range o.conns {
		if _, err := io.ReadFull(c, b); err != nil {
			return fmt.Errorf("%w (%w)", errOOBGone, err)
		}
		if err := take(); err != nil {
			return err
		}
	}
	return nil
}

func (o *oob) send(b []byte) error {
	for _, c := range o.conns {
		if _, err := c.Write(b); err != nil {
			return fmt.Errorf("%w (%w)", errOOBGone, err)
		}
	}
	return nil
}

// exchange tells the other instances of self. It returns all instances, the root first.
func (o *oob) exchange(self meshPeer) ([]meshPeer, error) {
	all := self.appendTo(nil)
	one := make([]byte, meshPeerSize)
	if o.root {
		if err := o.receive(one, func() error { all = append(all, one...); return nil }); err != nil {
			return nil, err
		}
		if err := o.send(all); err != nil {
			return nil, err
		}
	} else {
		if err := o.send(all); err != nil {
			return nil, err
		}
		all = make([]byte, meshPeerSize*o.peers)
		if err := o.receive(all, func() error { return nil }); err != nil {
			return nil, err
		}
	}
	var peers []meshPeer
	for len(all) > 0 {
		p, err := decodeMeshPeer(all)
		if err != nil {
			return nil, err
		}
		peers, all = append(peers, p), all[meshPeerSize:]
	}
	return peers, nil
}

// sync waits until all instances have come to step.
func (o *oob) sync(step byte) error {
	b := []byte{0}
	check := func() error {
		if b[0] != step {
			return fmt.Errorf("another instance of cmtime is at step %d, this one at %d: give all the same options", b[0], step)
		}
		return nil
	}
	if o.root {
		if err := o.receive(b, check); err != nil {
			return err
		}
		return o.send([]byte{step})
	}
	if err := o.send([]byte{step}); err != nil {
		return err
	}
	return o.receive(b, check)
}
