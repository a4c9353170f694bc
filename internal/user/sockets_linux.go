package user

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Socket is a unix socket, as the kernel lists it.
type Socket struct {
	Name  string // the name begins with "@"
	Inode uint64
	UID   uint32
	Owned bool // UID is known: since Linux 5.3 the kernel tells the owner
}

// Mine reports whether the socket is of this process's user, beyond doubt.
func (s Socket) Mine() bool { return s.Owned && Check(s.UID) == nil }

// Others reports whether the socket is of another user, beyond doubt.
func (s Socket) Others() bool { return s.Owned && errors.Is(Check(s.UID), ErrOther) }

// Kind says which sockets EachSocket is about.
type Kind struct {
	Type   uint8  // unix.SOCK_DGRAM, say
	States uint32 // a bit for each state of the kernel's enumeration of TCP states
}

var (
	Datagram  = Kind{unix.SOCK_DGRAM, 1<<32 - 1}
	Listening = Kind{unix.SOCK_STREAM, 1 << unix.BPF_TCP_LISTEN}
)

// The kernel may take listTime for a part of the list of the sockets.
const listTime = time.Second

// A kernel that does not list sockets is not asked again for unlistedTime. It looks for its module unix_diag each
// time, which takes the kernel a tenth of a second and more.
const unlistedTime = time.Minute

// ErrUnlisted is the error of a kernel that does not list unix sockets.
var ErrUnlisted = errors.New("the kernel does not list unix sockets")

// unlisted is when the kernel last did not list the sockets, or nil.
var unlisted atomic.Pointer[time.Time]

// EachSocket calls f for the unix sockets of a kind in this network namespace that have an abstract name, until f returns
// false. It fails in sandboxes, and where the kernel lacks its module unix_diag.
func EachSocket(kind Kind, f func(Socket) (more bool)) error {
	return unlessUnlisted(&unlisted, func() error { return listSockets(kind, f) })
}

// unlessUnlisted calls list, unless it has failed with ErrUnlisted lately.
func unlessUnlisted(at *atomic.Pointer[time.Time], list func() error) error {
	if t := at.Load(); t != nil && time.Since(*t) < unlistedTime {
		return ErrUnlisted
	}
	err := list()
	if errors.Is(err, ErrUnlisted) {
		at.Store(new(time.Now()))
	}
	return err
}

func listSockets(kind Kind, f func(Socket) bool) error {
	const (
		byFamily = 20       // SOCK_DIAG_BY_FAMILY
		show     = 1 | 0x40 // UDIAG_SHOW_NAME, UDIAG_SHOW_UID
	)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(listTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	var req []byte
	req = binary.NativeEndian.AppendUint32(req, 16+24) // the length, header included
	req = binary.NativeEndian.AppendUint16(req, byFamily)
	req = binary.NativeEndian.AppendUint16(req, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req = append(req, make([]byte, 8)...) // sequence number, port
	req = append(req, unix.AF_UNIX, 0, 0, 0)
	for _, v := range []uint32{kind.States, 0, show, 0, 0} { // states, inode, attributes to show, cookie
		req = binary.NativeEndian.AppendUint32(req, v)
	}
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 1<<15)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for i := range msgs {
			switch msgs[i].Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return ErrUnlisted
			}
			if s, ok := decodeSocket(kind.Type, msgs[i].Data); ok && !f(s) {
				return nil
			}
		}
	}
}

// decodeSocket decodes a struct unix_diag_msg with its attributes. It reports false if the socket is of no
// interest.
func decodeSocket(typ uint8, b []byte) (s Socket, ok bool) {
	const (
		headSize = 16
		attrName = 0 // UNIX_DIAG_NAME
		attrUID  = 7 // UNIX_DIAG_UID
	)
	if len(b) < headSize || b[1] != typ {
		return s, false
	}
	s = Socket{Inode: uint64(binary.NativeEndian.Uint32(b[4:]))}
	attrs, err := netlink.NewAttributeDecoder(b[headSize:])
	if err != nil {
		return s, false
	}
	for attrs.Next() {
		switch attrs.Type() {
		case attrName:
			if name := attrs.Bytes(); len(name) > 1 && name[0] == 0 {
				s.Name = "@" + string(name[1:])
			}
		case attrUID:
			s.UID, s.Owned = attrs.Uint32(), true
		}
	}
	return s, s.Name != "" && attrs.Err() == nil
}
