package rnic

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/epoll"
)

// poller tells sockets that bytes have come, or that there is room. They are in a set of its own, each armed for one
// event at a time. On a machine with few cores a thread that wakes takes one from a program that polls busily, or from
// its peer. So the streams of such a program nap: their sockets are not armed until it polls no more, or somebody is
// about to wait.
type poller struct {
	dev    *Device
	set    *epoll.Set
	events [64]unix.EpollEvent
	fired  int // how many of events there are
	done   chan struct{}

	mu      sync.Mutex
	sockets map[uint32]*tcpSocket // by the number under which the set has them
	last    uint32
	closed  bool
	napping []*tcpSocket
	nappers atomic.Int32 // len(napping)
	timer   *time.Timer  // the end of the first nap
}

const (
	// A stream naps for napTime, and goes on napping as long as in each napTime there are busyLooks polls that look at
	// it. Each nap is then twice as long, up to napMost.
	napTime   = 500 * time.Microsecond
	napMost   = 4 * napTime
	busyLooks = 50
	// shortTurn bounds the bytes that the poller's goroutine reads at a time. The goroutine goes on with one stream
	// that has more, between looks at the others. Further ones are read by goroutines of their own meanwhile.
	shortTurn = 256 << 10
)

// poller returns the device's. It makes it at first use.
func (d *Device) poller() (*poller, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.polling.Load(); p != nil {
		return p, nil
	}
	set, err := epoll.New()
	if err != nil {
		return nil, err
	}
	p := &poller{dev: d, set: set, sockets: map[uint32]*tcpSocket{}, done: make(chan struct{})}
	p.timer = time.AfterFunc(time.Hour, p.endNaps)
	p.timer.Stop()
	d.polling.Store(p)
	go p.run()
	return p, nil
}

// close ends the poller, whose sockets are closed.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	p.timer.Stop()
	p.mu.Unlock()
	p.set.Close()
	<-p.done
}

// run is the poller's goroutine.
func (p *poller) run() {
	defer close(p.done)
	var more *tcpSocket // that is read on and on
	look := func(set uintptr) bool {
		p.fired = epoll.Ready(set, p.events[:])
		return p.fired > 0 || more != nil
	}
	for p.set.Await(look) == nil { // it fails once the set is closed
		if more != nil && !more.serve(0, min(shortTurn, p.dev.turn)) {
			more = nil
		}
		for i := range p.fired {
			e := &p.events[i]
			t := p.happened(uint32(e.Fd), e.Events)
			switch {
			case t == nil || !t.serve(e.Events, min(shortTurn, p.dev.turn)):
			case more == nil:
				more = t
			default:
				p.dev.streams.Go(func() {
					for t.serve(0, p.dev.turn) {
						runtime.Gosched()
					}
				})
			}
		}
	}
}

// happened returns the socket of an event, or nil if it is closed.
func (p *poller) happened(id, events uint32) *tcpSocket {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.sockets[id]
	if t != nil && events&unix.EPOLLOUT != 0 {
		t.wantsRoom = false
	}
	return t
}

// add puts a socket into the set, without arming it.
func (p *poller) add(t *tcpSocket) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.last++; p.sockets[p.last] != nil; p.last++ {
	}
	t.id = p.last
	if err := p.control(unix.EPOLL_CTL_ADD, t, 0); err != nil {
		return err
	}
	p.sockets[t.id] = t
	return nil
}

// remove takes a socket out of the set.
func (p *poller) remove(t *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.control(unix.EPOLL_CTL_DEL, t, 0) // it is there
	delete(p.sockets, t.id)
	p.wake(t)
}

func (p *poller) control(op int, t *tcpSocket, events uint32) error {
	return p.set.Control(op, t.fd, int32(t.id), events)
}

// arm has the next event of a socket told.
func (p *poller) arm(t *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armLocked(t)
}

// armLocked is arm under p.mu.
func (p *poller) armLocked(t *tcpSocket) {
	events := uint32(unix.EPOLLIN | unix.EPOLLONESHOT)
	if t.wantsRoom {
		events |= unix.EPOLLOUT
	}
	_ = p.control(unix.EPOLL_CTL_MOD, t, events) // it is there
}

// wantRoom has a socket told when there is room. While the socket naps, polls look for room.
func (p *poller) wantRoom(t *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.wantsRoom = true
	if !slices.Contains(p.napping, t) {
		p.armLocked(t)
	}
}

// wake takes a socket from those that nap, and reports whether it was there. The caller holds p.mu.
func (p *poller) wake(t *tcpSocket) bool {
	i := slices.Index(p.napping, t)
	if i < 0 {
		return false
	}
	p.napping = slices.Delete(p.napping, i, i+1)
	p.nappers.Store(int32(len(p.napping)))
	return true
}

// nap lets a socket nap, unless somebody has begun to wait for its CQs since the moment of waits.
func (p *poller) nap(t *tcpSocket, d time.Duration, waits uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.waits() != waits {
		return false
	}
	t.until = time.Now().Add(d)
	if !slices.Contains(p.napping, t) {
		p.napping = append(p.napping, t)
	}
	p.nappers.Store(int32(len(p.napping)))
	if len(p.napping) == 1 {
		p.timer.Reset(d)
	}
	return true
}

// endNaps ends the naps whose time is over, or has them go on.
func (p *poller) endNaps() {
	var over []*tcpSocket
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	now := time.Now()
	for _, t := range slices.Clone(p.napping) {
		if !t.until.After(now) && p.wake(t) {
			over = append(over, t)
		}
	}
	if len(p.napping) > 0 {
		first := slices.MinFunc(p.napping, func(a, b *tcpSocket) int { return a.until.Compare(b.until) })
		p.timer.Reset(max(napTime/4, first.until.Sub(now)))
	}
	p.mu.Unlock()
	for _, t := range over {
		t.rest()
	}
}

// expectWait ends the naps of the streams that use a CQ: somebody is about to block for it, and will not poll.
func (p *poller) expectWait(c *cq) {
	if p.nappers.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range slices.Clone(p.napping) {
		if q := t.s.q; q.sendCQ == c || q.recvCQ == c {
			p.wake(t)
			p.armLocked(t)
		}
	}
}
