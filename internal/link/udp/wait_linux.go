//go:build !adverb_portable

package udp

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A waiter sleeps in Go's network poller until a datagram arrives, but uses the poller only while
// somebody sleeps. The socket is in an epoll set of its own, and armed for one event at a time.
// Only that set is registered with the poller. If the socket itself were, then a program that polls
// busily with Recv would have every datagram wake the poller's thread. For a member of multicast
// groups, the epoll set of the groups' sockets is in the set as well.
type waiter struct {
	epoll  *os.File
	set    int // epoll's descriptor, which must not be used once closed
	conn   syscall.RawConn
	events [maxWatched]unix.EpollEvent
	ready  func(fd uintptr) bool // made once, so that Wait does not allocate
	fired  int                   // how many of events ready has filled

	mu       sync.Mutex
	watched  []int // descriptors in the set
	closed   bool
	inWait   bool
	woken    bool
	deadline bool // epoll has a deadline
}

func (w *waiter) init(socket int) error {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	w.set = set
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
		err = w.add(socket)
	}
	if err != nil {
		w.epoll.Close()
		return err
	}
	w.ready = func(fd uintptr) bool {
		n, _ := unix.EpollWait(int(fd), w.events[:], 0)
		w.fired = max(0, n)
		return n > 0
	}
	return nil
}

const (
	maxWatched = 3 // the socket, the set of the groups' sockets, and one descriptor of the caller's

	armed    = unix.EPOLLIN | unix.EPOLLONESHOT
	disarmed = 0
)

// control sets the events for which the epoll set watches a descriptor.
func (w *waiter) control(op, fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.set, op, fd, &e))
}

// add makes Wait end when fd is readable, including a Wait that is under way.
func (w *waiter) add(fd int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return link.ErrClosed
	}
	events := uint32(disarmed)
	if w.inWait {
		events = armed
	}
	if err := w.control(unix.EPOLL_CTL_ADD, fd, events); err != nil {
		return err
	}
	w.watched = append(w.watched, fd)
	return nil
}

// remove undoes add.
func (w *waiter) remove(fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = slices.DeleteFunc(w.watched, func(other int) bool { return other == fd })
	if !w.closed {
		_ = w.control(unix.EPOLL_CTL_DEL, fd, disarmed) // it is there
	}
}

// begin arms the descriptors. It reports false if Wait need not sleep.
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
	w.inWait = true
	w.fired = 0
	for _, fd := range w.watched {
		if err := w.control(unix.EPOLL_CTL_MOD, fd, armed); err != nil {
			return true, err
		}
	}
	return true, nil
}

// end disarms the descriptors. Those whose event has come are disarmed already.
func (w *waiter) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inWait = false
	w.woken = false
	if w.closed {
		return link.ErrClosed
	}
	for _, fd := range w.watched {
		if w.hasFired(fd) {
			continue
		}
		if err := w.control(unix.EPOLL_CTL_MOD, fd, disarmed); err != nil {
			return err
		}
	}
	return nil
}

func (w *waiter) hasFired(fd int) bool {
	for i := range w.fired {
		if w.events[i].Fd == int32(fd) {
			return true
		}
	}
	return false
}

// Wait implements link.Link.
func (l *Link) Wait(d time.Duration) error {
	w := &l.arrival
	sleep, err := w.begin(d)
	if !sleep || err != nil {
		return err
	}
	_ = w.conn.Read(w.ready) // it fails at the deadline and at Close only
	return w.end()
}

// Watch has Wait end, too, when a descriptor is readable. The descriptor stays the caller's, and open for
// as long as the link is. There can be one.
func (l *Link) Watch(fd int) error { return l.arrival.add(fd) }

// Wake implements link.Link.
func (l *Link) Wake() {
	w := &l.arrival
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.woken = true
	if w.inWait {
		w.epoll.SetReadDeadline(time.Unix(1, 0))
		w.deadline = true
	}
}

// close ends Wait. The socket can be closed afterwards.
func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.epoll.Close()
}
