//go:build !adverb_portable

package udp

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/epoll"
	"github.com/adverb-rdma/adverb/internal/link"
)

// A waiter sleeps in Go's network poller until a datagram arrives, but uses the poller only while
// somebody sleeps. The socket is in an epoll set of its own, and armed for one event at a time.
// Only that set is registered with the poller: see package epoll. For a member of multicast
// groups, the epoll set of the groups' sockets is in the set as well.
type waiter struct {
	set    *epoll.Set
	events [maxWatched]unix.EpollEvent
	ready  func(set uintptr) bool // made once, so that Wait does not allocate
	fired  int                    // how many of events ready has filled

	mu       sync.Mutex
	watched  []int // descriptors in the set
	closed   bool
	inWait   bool
	woken    bool
	deadline bool // set has a deadline
}

func (w *waiter) init(socket int) (err error) {
	if w.set, err = epoll.New(); err != nil {
		return err
	}
	if err = w.add(socket); err != nil {
		w.set.Close()
		return err
	}
	w.ready = func(set uintptr) bool {
		w.fired = epoll.Ready(set, w.events[:])
		return w.fired > 0
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
	return w.set.Control(op, fd, int32(fd), events)
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
		_ = w.control(unix.EPOLL_CTL_DEL, fd, disarmed) // fd is in the set
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
		w.set.SetDeadline(time.Now().Add(d))
		w.deadline = true
	case w.deadline:
		w.set.SetDeadline(time.Time{})
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
	_ = w.set.Await(w.ready) // Await fails at the deadline and at Close only
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
		w.set.SetDeadline(time.Unix(1, 0))
		w.deadline = true
	}
}

// close ends Wait. The socket can be closed afterwards.
func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.set.Close()
}
