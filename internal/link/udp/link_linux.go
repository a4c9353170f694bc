//go:build !adverb_portable

package udp

import (
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Link is a link.Link over UDP sockets. They are not connected, because a connected socket would count the IPv4
// identification up instead of leaving it 0.
type Link struct {
	counters
	sources
	addr    netip.AddrPort
	ifindex int // of the network interface

	closed  atomic.Bool
	trains  pauser
	labels  pauser // IPv6 flow labels
	rx      receiver
	tx      [sendSockets]sender
	arrival waiter
}

var _ link.Link = (*Link)(nil)

// openLink opens the link of addr, which has no zone, on the interface of an index.
func openLink(addr netip.Addr, index int) (link.Link, error) {
	l, err := newLink(addr, index, false)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// newLink opens a link. If shared, other processes of the same user can receive on the address as
// well.
func newLink(addr netip.Addr, index int, shared bool) (*Link, error) {
	l := &Link{addr: netip.AddrPortFrom(addr, link.Port), ifindex: index}
	scope := uint32(0)
	if addr.IsLinkLocalUnicast() && addr.Is6() {
		scope = uint32(index)
	}
	fds := make([]int, 0, 1+sendSockets)
	fail := func(err error) (*Link, error) {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, openError(addr, shared, err)
	}
	denied, err := deniedCalls()
	if err != nil {
		return fail(err)
	}
	fd, err := openReceiveSocket(l.addr, scope, shared)
	if err != nil {
		return fail(err)
	}
	fds = append(fds, fd)
	l.rx.init(fd, l.addr, &l.counters)
	l.rx.single = denied.recvmmsg
	// Kernels before 4.18 do not know the option, nor do some systems that only look like Linux.
	_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	l.trains.on.Store(err == nil)

	for i := range l.tx {
		fd, err := openSocket(addr)
		if err != nil {
			return fail(err)
		}
		fds = append(fds, fd)
		port, err := bindSource(func(port uint16) error { return bind(fd, netip.AddrPortFrom(addr, port), scope) })
		if err != nil {
			return fail(fmt.Errorf("bind a socket to send from: %w", err))
		}
		tryOptions(fd, sendOptions(addr))
		if err := configureMulticastSending(fd, addr, index); err != nil && !refused(err) {
			return fail(err)
		}
		if addr.Is6() {
			l.labels.on.Store(takesOption(fd, ipv6FlowInfoSend))
		}
		l.sources[i] = netip.AddrPortFrom(addr, port)
		l.tx[i].init(fd, addr, uint32(index), l) // the link's address may be global, and a peer's link-local
		l.tx[i].single = denied.sendmmsg
	}
	if err := l.arrival.init(fds[0]); err != nil {
		return fail(err)
	}
	return l, nil
}

// OpenShared opens a link that shares its port with the links of other processes of the same user.
// All of them must be shared. The kernel's hash picks which of them receives a datagram or, once
// one of them has called Steer, a program does.
func (d *Netdev) OpenShared(addr netip.Addr) (*Link, error) {
	addr, index, err := d.resolve(addr)
	if err != nil {
		return nil, err
	}
	return newLink(addr, index, true)
}

// Steer sets the classic BPF program that picks the receiver of each datagram among the links
// that share the address. The program begins at the UDP payload and returns the index of a link.
// Links are numbered in the order of opening; when one closes, the last takes its number.
func (l *Link) Steer(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	l.rx.mu.Lock()
	defer l.rx.mu.Unlock()
	if l.rx.own.fd < 0 {
		return link.ErrClosed
	}
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF", unix.SetsockoptSockFprog(l.rx.own.fd, unix.SOL_SOCKET,
		unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
}

// openSocket returns a UDP socket that is not registered with Go's network poller.
func openSocket(addr netip.Addr) (int, error) {
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	return fd, os.NewSyscallError("socket", err)
}

func openReceiveSocket(at netip.AddrPort, scope uint32, shared bool) (int, error) {
	fd, err := openSocket(at.Addr())
	if err != nil {
		return -1, err
	}
	configureReceiveSocket(fd, at.Addr())
	if shared {
		err = setOptions(fd, sharedPort)
	}
	if err == nil {
		err = bind(fd, at, scope)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// configureReceiveSocket sets the options, as far as the system grants them.
func configureReceiveSocket(fd int, addr netip.Addr) {
	receiveClass(fd, addr)
	tryOptions(fd, receiveOptions(addr))
	// Datagrams that overflow the buffer are lost. The windows of a few QPs fill the 208 KiB that a system grants by
	// default. With CAP_NET_ADMIN there is more.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)
}

func bind(fd int, at netip.AddrPort, scope uint32) error {
	return os.NewSyscallError("bind", unix.Bind(fd, unixSockaddr(at, scope)))
}

func unixSockaddr(at netip.AddrPort, scope uint32) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: scope}
}

// Addr implements link.Link.
func (l *Link) Addr() netip.AddrPort { return l.addr }

// MaxTrain implements link.Link.
func (l *Link) MaxTrain() int {
	if !l.trains.on.Load() {
		return 1
	}
	return maxTrain
}

// Close implements link.Link.
func (l *Link) Close() error {
	if l.closed.Swap(true) {
		return link.ErrClosed
	}
	l.trains.close()
	l.labels.close()
	l.arrival.close()
	l.rx.groups.close(&l.rx)
	l.rx.close()
	for i := range l.tx {
		l.tx[i].close()
	}
	return nil
}
