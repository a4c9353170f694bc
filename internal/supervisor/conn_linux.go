//go:build amd64 || arm64

package supervisor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// message goes between the starter, the supervisor and the reaper.
type message struct {
	Kind   kind
	Base   int             `json:",omitempty"` // of kindListener
	PID    int             `json:",omitempty"` // of kindStarted
	At     int64           `json:",omitempty"` // of kindStarted: when the program ran, by monotonic
	Status unix.WaitStatus `json:",omitempty"` // of kindStopped, kindExited
	Left   bool            `json:",omitempty"` // of kindExited: others of the tree are left
	Text   string          `json:",omitempty"` // of kindFailed
	Code   int             `json:",omitempty"` // of kindFailed: the exit status of the starter
	Filter *Filter         `json:",omitempty"` // of kindFilter
	Trees  []string        `json:",omitempty"` // of kindFilter
	Join   *join           `json:",omitempty"` // of kindJoin
}

type kind int

const (
	kindFilter    kind = iota + 1 // to the reaper: start the program. With the locks of the trees
	kindKill                      // to the reaper
	kindListener                  // from the reaper, with the listener; to the run that serves another, with standard error too
	kindStarted                   // from the reaper and to the starter, with a pidfd of the program
	kindStopped                   // the program has stopped
	kindContinued                 // and goes on
	kindExited                    // the program has ended, and others of its tree may be left
	kindOver                      // from the reaper, or from the run that serves another: nobody is left
	kindFailed                    // to the starter, and from the reaper: nothing was started
	kindJoin                      // to the run that is to serve another
	kindShared                    // and its answer
)

// conn is a Unix socket with messages.
type conn struct{ fd int }

// pair makes two connected sockets.
func pair() (a, b conn, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return conn{-1}, conn{-1}, os.NewSyscallError("socketpair", err)
	}
	return conn{p[0]}, conn{p[1]}, nil
}

// mostMessage is the size of the largest message.
const mostMessage = 1 << 16

func (c conn) send(m message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > mostMessage {
		return fmt.Errorf("send a message of %d bytes, at most %d: give fewer rules", len(b), mostMessage)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		if err = unix.Sendmsg(c.fd, b, rights, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
			return err
		}
	}
}

// receive waits for a message. At the other end's end it fails with io.EOF.
func (c conn) receive() (m message, fds []int, err error) {
	b, oob := make([]byte, mostMessage), make([]byte, 256)
	var n, on int
	for {
		n, on, _, _, err = unix.Recvmsg(c.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		// ECONNRESET says that the other end left something unread. What it sent itself comes after.
		if err != unix.EINTR && err != unix.ECONNRESET {
			break
		}
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return m, nil, err
	}
	all, _ := unix.ParseSocketControlMessage(oob[:on])
	for i := range all {
		if list, err := unix.ParseUnixRights(&all[i]); err == nil {
			fds = append(fds, list...)
		}
	}
	return m, fds, json.Unmarshal(b[:n], &m)
}

func (c conn) close() { unix.Close(c.fd) }
