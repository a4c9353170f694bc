package tcp

import (
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// hold is a socket that is bound to a port, and neither listens nor connects. Linux lets sockets of one user be bound
// to one port if all of them have SO_REUSEPORT. SO_REUSEADDR is set for the time of bind alone: it lets bind pass
// connections whose ends are still remembered, and would let a listener in for good.
type hold struct{ fd int } // -1 once a listener owns the socket

// shareSocket makes a socket one that shares its port.
func shareSocket(_, _ string, c syscall.RawConn) (err error) {
	if cerr := c.Control(func(fd uintptr) { err = reusePort(int(fd), 1) }); cerr != nil {
		return cerr
	}
	return err
}

func reusePort(fd, on int) error {
	return os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, on))
}

func reuseAddr(fd, on int) error {
	return os.NewSyscallError("setsockopt SO_REUSEADDR", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, on))
}

// holdShared binds a socket that shares its port.
func holdShared(addr netip.AddrPort) (_ *hold, err error) {
	family, to, err := sockaddr(addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	h := &hold{fd}
	if err = reusePort(fd, 1); err == nil {
		err = reuseAddr(fd, 1)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err == nil {
		err = reuseAddr(fd, 0)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func sockaddr(addr netip.AddrPort) (family int, to unix.Sockaddr, err error) {
	ip := addr.Addr().Unmap()
	if ip.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}, nil
	}
	scope := uint32(0)
	if zone := ip.Zone(); zone != "" {
		ifi, err := net.InterfaceByName(zone)
		if err != nil {
			return 0, nil, err
		}
		scope = uint32(ifi.Index)
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: ip.As16(), ZoneId: scope}, nil
}

// listen makes the socket a listener that is alone at the port. After an error the socket is unchanged.
func (h *hold) listen() (net.Listener, error) {
	err := reusePort(h.fd, 0)
	if err == nil {
		// The kernel looks for other sockets once more. Sockets that had SO_REUSEADDR, as connections of an earlier
		// listener do, do not count. The kernel bounds the backlog, as for any listener.
		if err = reuseAddr(h.fd, 1); err == nil {
			err = os.NewSyscallError("listen", unix.Listen(h.fd, 1<<16-1))
		}
	}
	if err != nil {
		_, _ = reuseAddr(h.fd, 0), reusePort(h.fd, 1)
		return nil, err
	}
	f := os.NewFile(uintptr(h.fd), "listener")
	defer f.Close() // FileListener has a copy
	h.fd = -1
	return net.FileListener(f)
}

func (h *hold) close() {
	if h.fd >= 0 {
		unix.Close(h.fd)
	}
}
