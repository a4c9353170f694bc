package user

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is another process, by the kernel's word.
type Process struct {
	PID int // 0 for one that this process's PID namespace does not have
	UID uint32
}

// Check returns nil if the process is of this process's user, beyond doubt: see [Check].
func (p Process) Check() error { return Check(p.UID) }

// PeerOf returns the process at the other end of a connected unix socket: the one that has connected or, at that end,
// the one that has begun to listen. It may be this process.
func PeerOf(fd int) (Process, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Process{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Process{int(cred.Pid), cred.Uid}, nil
}

// PeerOfConn is PeerOf for a connection of package net.
func PeerOfConn(c syscall.Conn) (p Process, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	if cerr := raw.Control(func(fd uintptr) { p, err = PeerOf(int(fd)) }); cerr != nil {
		return p, cerr
	}
	return p, err
}

var errNoCredentials = errors.New("the kernel does not say who has sent the message")

// SenderOf returns the process that has sent a message, by the message's control messages: the credentials alone, for
// which the socket has SO_PASSCRED.
func SenderOf(oob []byte) (Process, error) {
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(cmsgs) != 1 {
		return Process{}, errNoCredentials
	}
	cred, err := unix.ParseUnixCredentials(&cmsgs[0])
	if err != nil {
		return Process{}, errNoCredentials
	}
	return Process{int(cred.Pid), cred.Uid}, nil
}
