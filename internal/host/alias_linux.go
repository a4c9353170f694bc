//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Anybody may bind any name of an abstract unix socket first, and so shut others out. But the kernel
// tells whose a socket is. If another user has the name of a mailbox, its owner binds an alias: the name
// with a random number behind it. Nobody can have taken that before. A process that looks for the mailbox
// looks for aliases too, and passes over those of other users.
//
// A mailbox must have one owner among the processes of a user. So a process that has bound the name or an
// alias then looks whether another process of this user has one of them, and lets go if so. Of two that look
// at the same time both let go, never none.

// alias returns a name that a mailbox can have instead of its own.
func (n boxName) alias() string {
	b := binary.BigEndian.AppendUint64(nil, rand.Uint64())
	return n.String() + "/" + hex.EncodeToString(b)
}

// socket is what the kernel tells of a unix datagram socket.
type socket struct {
	name  string
	inode uint64
	uid   int // -1 where the kernel does not tell: before Linux 5.3
}

// The kernel may take listTime to list the sockets.
const listTime = time.Second

// A kernel that does not list sockets is not asked again for unlistedTime. It looks for its module unix_diag
// each time, which takes it a tenth of a second and more.
const unlistedTime = time.Minute

var errUnlisted = errors.New("the kernel does not list unix sockets")

// unlisted is when the kernel last did not list the sockets, or nil.
var unlisted atomic.Pointer[time.Time]

// eachSocket calls f for the unix datagram sockets of this network namespace that have an abstract name.
// It fails in sandboxes, and where the kernel lacks its module unix_diag.
func eachSocket(f func(socket)) error {
	return unlessUnlisted(&unlisted, func() error { return listSockets(f) })
}

// unlessUnlisted calls list, unless it has failed with errUnlisted lately.
func unlessUnlisted(at *atomic.Pointer[time.Time], list func() error) error {
	if t := at.Load(); t != nil && time.Since(*t) < unlistedTime {
		return errUnlisted
	}
	err := list()
	if errors.Is(err, errUnlisted) {
		at.Store(new(time.Now()))
	}
	return err
}

func listSockets(f func(socket)) error {
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
	for _, v := range []uint32{1<<32 - 1, 0, show, 0, 0} { // states, inode, what to show, cookie
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
				return errUnlisted
			}
			if s, ok := decodeSocket(msgs[i].Data); ok {
				f(s)
			}
		}
	}
}

// decodeSocket decodes a struct unix_diag_msg with its attributes. It reports false if the socket is of no
// interest.
func decodeSocket(b []byte) (s socket, ok bool) {
	const (
		headSize = 16
		attrName = 0 // UNIX_DIAG_NAME
		attrUID  = 7 // UNIX_DIAG_UID
	)
	if len(b) < headSize || b[1] != unix.SOCK_DGRAM {
		return s, false
	}
	s = socket{inode: uint64(binary.NativeEndian.Uint32(b[4:])), uid: -1}
	attrs, err := netlink.NewAttributeDecoder(b[headSize:])
	if err != nil {
		return s, false
	}
	for attrs.Next() {
		switch attrs.Type() {
		case attrName:
			if name := attrs.Bytes(); len(name) > 1 && name[0] == 0 {
				s.name = "@" + string(name[1:])
			}
		case attrUID:
			s.uid = int(attrs.Uint32())
		}
	}
	return s, s.name != "" && attrs.Err() == nil
}

// plainName returns the name of the mailbox that has a name or an alias, or "" of other sockets.
func plainName(name string) string {
	parts := 3 // of the plain name
	switch {
	case strings.HasPrefix(name, "@adverb/svc/"):
		parts = 4
	case !strings.HasPrefix(name, "@adverb/gsi/") && !strings.HasPrefix(name, "@adverb/qpn/"):
		return ""
	}
	switch strings.Count(name, "/") + 1 {
	case parts:
		return name
	case parts + 1:
		return name[:strings.LastIndexByte(name, '/')]
	}
	return ""
}

// bearers are the sockets that have the name of a mailbox or an alias of it.
type bearers struct {
	mine  []socket // of this user: two at most, since more would not change anything
	plain socket   // the one with the name itself, of any user; the zero value if nobody has bound it
}

// bearersOf looks for the sockets of a mailbox.
func bearersOf(name boxName) (b bearers, err error) {
	plain := name.String()
	err = eachSocket(func(s socket) {
		if !strings.HasPrefix(s.name, plain) || plainName(s.name) != plain {
			return
		}
		if s.name == plain {
			b.plain = s
		}
		if s.uid == os.Geteuid() && len(b.mine) < 2 {
			b.mine = append(b.mine, s)
		}
	})
	return b, err
}

// stranger reports whether another user has the name of the mailbox, beyond doubt.
func (b *bearers) stranger() bool {
	return b.plain.name != "" && b.plain.uid >= 0 && b.plain.uid != os.Geteuid()
}

// besides reports whether a socket of this user has the name or an alias, apart from one of them.
func (b *bearers) besides(inode uint64) bool {
	return slices.ContainsFunc(b.mine, func(s socket) bool { return s.inode != inode })
}

// aliases finds the aliases of mailboxes. It remembers those of this user, and asks the kernel now and
// then: what others bind costs neither memory nor more than a share of the time.
type aliases struct {
	list func(func(socket)) error // eachSocket, but in tests
	mine map[string]string        // by the plain name
	next time.Time                // when it may ask the kernel again
}

// of returns the name by which a mailbox of this user can be reached.
func (a *aliases) of(name boxName) string {
	if now := time.Now(); !now.Before(a.next) {
		a.mine = map[string]string{}
		_ = a.list(func(s socket) { // without a list there are no aliases
			if s.uid == os.Geteuid() {
				if plain := plainName(s.name); plain != "" && plain != s.name {
					a.mine[plain] = s.name
				}
			}
		})
		end := time.Now()
		a.next = end.Add(max(absentTime, listShare*end.Sub(now)))
	}
	plain := name.String()
	if alias, ok := a.mine[plain]; ok {
		return alias
	}
	return plain
}
