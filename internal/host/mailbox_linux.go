//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
)

// boxName is the block, service or address that a process owns with a mailbox. It determines the name of the mailbox's
// socket.
type boxName struct {
	kind    boxKind
	block   uint32     // blockBox
	addr    netip.Addr // gsiBox and serviceBox
	service uint64     // serviceBox
}

type boxKind uint8

const (
	blockBox   boxKind = iota // a block of QPNs, and the communication IDs that begin with its number
	serviceBox                // a service ID at an address: the messages to QP1 that begin conversations with it
	gsiBox                    // the messages to QP1 of an address that belong to nobody
	boxKinds
)

func blockName(block uint32) boxName { return boxName{kind: blockBox, block: block} }

func serviceName(addr netip.Addr, service uint64) boxName {
	return boxName{kind: serviceBox, addr: addr.Unmap().WithZone(""), service: service}
}

func gsiName(addr netip.Addr) boxName {
	return boxName{kind: gsiBox, addr: addr.Unmap().WithZone("")}
}

// String returns the name of the mailbox' abstract unix socket.
func (n boxName) String() string {
	switch n.kind {
	case serviceBox:
		return fmt.Sprintf("@adverb/svc/%v/%016x", n.addr, n.service)
	case gsiBox:
		return fmt.Sprintf("@adverb/gsi/%v", n.addr)
	}
	return fmt.Sprintf("@adverb/qpn/%03x", n.block)
}

// mailbox is a unix socket. The process that has bound the socket owns the block, service or address of the socket's
// name, and receives by the socket the datagrams that other processes pass on.
type mailbox struct {
	name boxName
	file *os.File
	conn syscall.RawConn
}

// errTaken is the error for a mailbox that has an owner.
var errTaken = errors.New("it has an owner")

// openMailbox makes this process the owner of a mailbox. It takes an alias if another user has the name. It asks
// the kernel for all unix sockets for this, which may take long. So the mailboxes of those who stand in for all at an
// address have no aliases: many processes try often to open one.
func openMailbox(name boxName) (*mailbox, error) {
	m, err := bindMailbox(name, name.String())
	if name.kind == gsiBox {
		return m, err
	}
	if err == errTaken {
		if b, _ := bearersOf(name); b.stranger() {
			m, err = bindMailbox(name, name.alias())
		}
	}
	if err != nil {
		return nil, err
	}
	inode, err := m.inode()
	if err == nil {
		if b, _ := bearersOf(name); b.besides(inode) { // no list, no aliases
			err = errTaken
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// credentialSocket returns a socket whose messages have the credentials of their senders.
func credentialSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket of AF_UNIX", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set socket option SO_PASSCRED to 1: %w", err)
	}
	return fd, nil
}

// bindMailbox opens a mailbox by its name or an alias.
func bindMailbox(name boxName, as string) (*mailbox, error) {
	fd, err := credentialSocket()
	if err != nil {
		return nil, err
	}
	if err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: as})); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			err = errTaken
		}
		return nil, err
	}
	m := &mailbox{name: name, file: os.NewFile(uintptr(fd), "mailbox")}
	if m.conn, err = m.file.SyscallConn(); err != nil {
		m.file.Close()
		return nil, err
	}
	return m, nil
}

// serve calls handle for each message of a process of the same user, until the mailbox closes.
func (m *mailbox) serve(handle func([]byte)) {
	buf := make([]byte, maxMessage)
	// There is room for the credentials only. So descriptors that come with a message are not received.
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn, flags int
	var err error
	receive := func(fd uintptr) bool {
		n, oobn, flags, _, err = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN
	}
	for {
		if m.conn.Read(receive) != nil { // closed
			return
		}
		if err == nil && flags&unix.MSG_TRUNC == 0 && sameUser(oob[:oobn]) {
			handle(buf[:n])
		}
	}
}

// sameUser reports whether the kernel vouches that a message is from a process of this user.
func sameUser(oob []byte) bool {
	from, err := user.SenderOf(oob)
	return err == nil && from.Check() == nil
}

func (m *mailbox) close() { m.file.Close() }

// outlet is a socket that is connected to another process's mailbox. The kernel queues only few
// messages there: 11 by default.
type outlet struct{ fd int }

// connect connects to the socket that is bound to a name now. If the socket's process ends, the outlet
// breaks. The outlet never leads to the process that binds the name next.
func connect(name string) (*outlet, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return &outlet{fd}, nil
}

// send sends a message if the mailbox has room. It reports whether the message was sent, and whether the mailbox's owner
// still lives.
func (o *outlet) send(b []byte) (sent, alive bool) {
	switch unix.Sendto(o.fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) {
	case nil:
		return true, true
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM:
		return false, true
	}
	return false, false
}

func (o *outlet) close() { unix.Close(o.fd) }
