//go:build !adverb_portable

package handover

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
)

const (
	// MaxDescriptors is how many descriptors come with a message at most.
	MaxDescriptors = 2

	// A connection takes PerConn descriptors: its socket, and one that comes by it and stays open. Connections leave the
	// program one part in SparePart of the descriptors that it may have.
	PerConn   = 2
	SparePart = 4

	// acceptAgain is the pause after an accept that has failed.
	acceptAgain = 100 * time.Millisecond
)

var (
	// ErrMalformed is the error for a message of another size.
	ErrMalformed = errors.New("malformed message")

	// ErrNoDescriptor says that descriptors came, and that this process has none to spare for them.
	ErrNoDescriptor = errors.New("too many open files to receive another one")
)

// AcceptAll hands out the connections of processes of this user, and says who they are, until the server is closed. It
// closes the connections of other users, before these count for anything.
func AcceptAll(server *net.UnixListener, take func(*net.UnixConn, user.Process)) {
	acceptEach(server.AcceptUnix, func(c *net.UnixConn) {
		from, err := Peer(c)
		if err != nil {
			c.Close()
			return
		}
		take(c, from)
	})
}

// acceptEach hands out the connections that accept returns, until the server is closed. Other errors pass: most often
// there is no descriptor to spare.
func acceptEach(accept func() (*net.UnixConn, error), take func(*net.UnixConn)) {
	for {
		c, err := accept()
		switch {
		case err == nil:
			take(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// Peer returns the process at the other end of a connection, and fails unless the process is of this user. It may be
// this process.
func Peer(c *net.UnixConn) (user.Process, error) {
	p, err := user.PeerOfConn(c)
	if err == nil {
		err = p.Check()
	}
	return p, err
}

// Spares reports whether a connection leaves the program descriptors enough. The kernel gives out the lowest number that
// is free.
func Spares(c *net.UnixConn) bool {
	var limit unix.Rlimit
	raw, err := c.SyscallConn()
	if err != nil || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return false
	}
	spares := false
	err = raw.Control(func(fd uintptr) { spares = uint64(fd)+PerConn <= limit.Cur-limit.Cur/SparePart })
	return err == nil && spares
}

// Send sends a message with descriptors. It fails where it would have to wait: a process that is stopped reads nothing.
func Send(c *net.UnixConn, b []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(s uintptr) {
		failed = unix.Sendmsg(int(s), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, failed)
}

// Receive receives a message of size bytes, and the descriptors that come with it. With ErrNoDescriptor it returns the
// message, and no descriptor.
func Receive(c *net.UnixConn, size int) (b []byte, fds []int, err error) {
	b = make([]byte, size+1)
	oob := make([]byte, unix.CmsgSpace(4*(MaxDescriptors+1))) // to see that there are too many
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, nil, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range cmsgs {
		if got, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if n != size {
		CloseAll(fds)
		return nil, nil, ErrMalformed
	}
	if flags&unix.MSG_CTRUNC != 0 {
		CloseAll(fds)
		return b[:n], nil, ErrNoDescriptor
	}
	return b[:n], fds, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
