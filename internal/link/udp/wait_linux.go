//go:build !adverb_portable

package udp

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A waiter sleeps in Go's network poller until a datagram arrives, but bothers the poller only
// while somebody sleeps: the socket stands in an epoll set of its own, armed for one event at a
// time, and only that set is registered with the poller. A program that polls busily with
// Recv would otherwise wake the poller's thread at every datagram.
type waiter struct {
	socket int
	epoll  *os.File
	set    int // epoll's descriptor; not to be used once closed
	conn   syscall.RawConn
	events [1]unix.EpollEvent
	ready  func(fd uintptr) bool // made once, for Wait not to allocate
	fired  bool                  // of ready

	mu       sync.Mutex
	closed   bool
	waiting  bool
	woken    bool
	deadline bool // epoll has one
}

func (w *waiter) init(socket int) error {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	w.socket, w.set = socket, set
	if err := unix.SetNonblock(set, true); err != nil { // os.NewFile asks the poller only for these
		unix.Close(set)
		return os.NewSyscallError("fcntl", err)
	}
	w.epoll = os.NewFile(uintptr(set), "epoll")
	w.conn, err = w.epoll.SyscallConn()
	if err == nil {
		err = w.epoll.SetReadDeadline(time.Time{}) // fails when the poller did not take it
	}
	if err == nil {
		err = w.control(unix.EPOLL_CTL_ADD, 0)
	}
	if err != nil {
		w.epoll.Close()
		return err
	}
	w.ready = func(fd uintptr) bool {
		n, _ := unix.EpollWait(int(fd), w.events[:], 0)
		w.fired = n > 0
		return w.fired
	}
	return nil
}

// control sets what the epoll set watches the socket for.
func (w *waiter) control(op int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(w.socket)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.set, op, w.socket, &e))
}

// begin arms the socket. It reports false when Wait is over already.
func (w *waiter) begin(d time.Duration) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false, link.ErrClosed
	}
	if w.woken {
		w.woken = false
		return false, nil
	}
	switch {
	case d >= 0:
		w.epoll.SetReadDeadline(time.Now().Add(d))
		w.deadline = true
	case w.deadline:
		w.epoll.SetReadDeadline(time.Time{})
		w.deadline = false
	}
	w.waiting = true
	w.fired = false
	return true, w.control(unix.EPOLL_CTL_MOD, unix.EPOLLIN|unix.EPOLLONESHOT)
}

// end disarms the socket, unless the event has.
func (w *waiter) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	w.woken = false
	if w.closed {
		return link.ErrClosed
	}
	if w.fired {
		return nil
	}
	return w.control(unix.EPOLL_CTL_MOD, 0)
}

// Wait implements link.Link.
func (l *Link) Wait(d time.Duration) error {
	w := &l.arrival
	sleep, err := w.begin(d)
	if !sleep || err != nil {
		return err
	}
	_ = w.conn.Read(w.ready) // its errors are the deadline and Close
	return w.end()
}

// Wake implements link.Link.
func (l *Link) Wake() {
	w := &l.arrival
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.woken = true
	if w.waiting {
		w.epoll.SetReadDeadline(time.Unix(1, 0))
		w.deadline = true
	}
}

// close ends Wait. The socket can be closed after it.
func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.epoll.Close()
}
