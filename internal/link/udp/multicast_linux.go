//go:build !adverb_portable

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// multicastHops is the TTL or hop limit of datagrams to a group. Linux's rxe uses the same, and so do unicast
// datagrams. The system's default for multicast is 1, which would end at the first router. The group's address and
// the routers decide how far the group reaches.
const multicastHops = 64

var _ link.Multicaster = (*Link)(nil)

// groups are the multicast groups that a link is a member of. Each has a socket of its own, because
// the link's socket is bound to the link's address. Every socket that is bound to a group gets a
// copy of each datagram, including those of other links and processes, and whatever the program of
// Steer says.
//
// Most calls of Recv come from programs that poll, and most polls find nothing. So the sockets are
// in an epoll set. One system call looks at all of them, and one entry in the waiter's set waits
// for any of them.
type groups struct {
	mu     sync.Mutex // held during changes, which are slow; taken before the receiver's mu
	closed bool
	joined map[netip.Addr]*socket

	// Guarded by the receiver's mu.
	set    int                // -1 before the first Join
	byFD   map[int32]*socket  // the sockets in set
	events [1]unix.EpollEvent // one at a time: the kernel takes turns among the sockets that are ready
	first  bool               // receiveAny has last looked at the groups first
}

// Join implements link.Multicaster.
func (l *Link) Join(group netip.Addr) error {
	addr := l.addr.Addr()
	if err := link.CheckGroup(addr, group); err != nil {
		return err
	}
	g := &l.rx.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return link.ErrClosed
	}
	if g.joined[group] != nil {
		return link.GroupError("join", addr, group, link.ErrJoined)
	}
	if err := l.checkRoute(group); err != nil {
		return link.GroupError("join", addr, group, err)
	}
	at := netip.AddrPortFrom(group, link.Port)
	fd, err := openGroupSocket(at, l.ifindex)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("UDP port %d of the group is held by a program that does not share it (such as the kernel's rdma_rxe "+
			"in this network namespace); end it, or use a network namespace of your own: %w", link.Port, err)
	}
	if err != nil {
		return link.GroupError("join", addr, group, err)
	}
	s := &socket{fd: fd, at: at}
	if err := l.watch(s); err != nil {
		unix.Close(fd)
		return link.GroupError("join", addr, group, err)
	}
	if g.joined == nil {
		g.joined = make(map[netip.Addr]*socket)
	}
	g.joined[group] = s
	return nil
}

// Leave implements link.Multicaster.
func (l *Link) Leave(group netip.Addr) error {
	g := &l.rx.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return link.ErrClosed
	}
	s := g.joined[group]
	if s == nil {
		return link.GroupError("leave", l.addr.Addr(), group, link.ErrNotJoined)
	}
	delete(g.joined, group)

	l.rx.mu.Lock()
	delete(g.byFD, int32(s.fd))
	last := len(g.byFD) == 0
	l.rx.mu.Unlock()
	if last {
		l.arrival.remove(g.set)
	}
	unix.Close(s.fd) // this ends the membership, and takes the socket out of the set
	return nil
}

// watch makes Recv and Wait look at a group's socket. The caller holds groups.mu.
func (l *Link) watch(s *socket) error {
	r, g := &l.rx, &l.rx.groups
	set := g.set
	if set < 0 {
		var err error
		if set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return os.NewSyscallError("epoll_create1", err)
		}
	}
	err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
	if err != nil {
		err = os.NewSyscallError("epoll_ctl", err)
	} else if len(g.joined) == 0 {
		err = l.arrival.add(set)
	}
	if err != nil {
		if g.set < 0 {
			unix.Close(set)
		}
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g.set = set
	if g.byFD == nil {
		g.byFD = make(map[int32]*socket)
	}
	g.byFD[int32(s.fd)] = s
	return nil
}

// close closes all sockets. Nobody may be in Wait any more.
func (g *groups) close(r *receiver) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	g.closed = true
	for _, s := range g.joined {
		unix.Close(s.fd)
	}
	g.joined, g.byFD = nil, nil
	if g.set >= 0 {
		unix.Close(g.set)
		g.set = -1
	}
}

// ready returns a group's socket that has something to receive, or nil. The caller holds the
// receiver's mu.
func (g *groups) ready() *socket {
	// epoll_pwait without a signal mask is the same as epoll_wait, which newer architectures lack.
	// With a timeout of 0 it does not block.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(g.set), uintptr(unsafe.Pointer(&g.events[0])), 1, 0, 0, 0)
	if errno != 0 || n == 0 {
		return nil
	}
	return g.byFD[g.events[0].Fd] // nil while Leave is under way
}

// openGroupSocket returns a socket that receives datagrams to a group through the interface of an index.
func openGroupSocket(at netip.AddrPort, index int) (int, error) {
	group := at.Addr()
	fd, err := openSocket(group)
	if err != nil {
		return -1, err
	}
	configureReceiveSocket(fd, group)
	// The socket is REUSEADDR, because REUSEPORT would keep other users out. Where REUSEADDR is refused the group is
	// this link's alone.
	if err = setOptions(fd, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR", ""}); err != nil && refused(err) {
		err = nil
	}
	if err == nil {
		// If somebody joins the group on another interface, the socket must not get datagrams through that one. An
		// IPv4 membership can tell interfaces apart, an IPv6 membership cannot.
		only := option{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index, "SO_BINDTOIFINDEX", ""}
		if group.Is4() {
			only = option{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL", ""}
		}
		err = setOptions(fd, only)
		if err != nil && refused(err) { // so do Linux before 5.1 and 5.7
			err = nil
		}
	}
	if err == nil {
		err = bind(fd, at, uint32(index))
	}
	if err == nil {
		if group.Is4() {
			err = os.NewSyscallError("setsockopt IP_ADD_MEMBERSHIP", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP,
				unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)}))
		} else {
			err = os.NewSyscallError("setsockopt IPV6_JOIN_GROUP", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6,
				unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)}))
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// configureMulticastSending makes a socket's datagrams to groups leave through the interface of an index. Members on
// this host receive them too.
func configureMulticastSending(fd int, addr netip.Addr, index int) error {
	if !addr.Is4() {
		return errors.Join(
			setOptions(fd, option{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index, "IPV6_MULTICAST_IF", ""}),
			setOptions(fd, option{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, multicastHops, "IPV6_MULTICAST_HOPS", ""}),
			setOptions(fd, option{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 1, "IPV6_MULTICAST_LOOP", ""}))
	}
	err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(index)})
	if err != nil {
		err = fmt.Errorf("set socket option IP_MULTICAST_IF to interface %d: %w", index, err)
	}
	return errors.Join(err,
		setOptions(fd, option{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, multicastHops, "IP_MULTICAST_TTL", ""}),
		setOptions(fd, option{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 1, "IP_MULTICAST_LOOP", ""}))
}

// checkRoute returns why the system would not send to a group through the link's interface, or nil. If the system
// would not send, it would not receive either. Connecting a UDP socket only looks for the route.
func (l *Link) checkRoute(group netip.Addr) error {
	addr := l.addr.Addr()
	fd, err := openSocket(addr)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := configureMulticastSending(fd, addr, l.ifindex); err != nil && !refused(err) {
		return err
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: link.Port, Addr: group.As16(), ZoneId: uint32(l.ifindex)}
	if group.Is4() {
		sa = &unix.SockaddrInet4{Port: link.Port, Addr: group.As4()}
	}
	if err := unix.Connect(fd, sa); err != nil {
		return multicastCause(group, err)
	}
	return nil
}

// multicastCause adds a remedy to an error of sending to dst.
func multicastCause(dst netip.Addr, err error) error {
	if err != unix.ENETUNREACH || !dst.IsMulticast() || dst.Is4() {
		return err
	}
	return fmt.Errorf("the network interface has no route for IPv6 multicast, which loopback has only if it was added "+
		"(as root: ip -6 route add local ff00::/8 dev lo table local); use IPv4, or another network interface: %w", err)
}
