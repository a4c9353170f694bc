package connector

import (
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/verbs"
)

// lingerTime is how long Close waits for peers to answer.
const lingerTime = 250 * time.Millisecond

// run is the connector's goroutine.
func (c *ibConnector) run() {
	defer close(c.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	wcs := make([]verbs.WC, qp1Batch)
	for {
		n, err := c.receive(wcs)
		c.dispatch()
		if err != nil {
			c.fail(err)
			return
		}
		if n > 0 {
			continue
		}
		if err := c.qp1.recvCQ.Notify(false); err != nil {
			c.fail(err)
			return
		}
		if n, _ := c.receive(wcs); n > 0 { // it came before the CQ was armed
			c.dispatch()
			continue
		}
		if next := c.nextTimeout(); next != cm.Never {
			timer.Reset(max(0, next-c.now()))
		} else {
			timer.Stop()
		}
		select {
		case <-c.qp1.recvCQ.Events():
		case <-c.wake:
		case <-timer.C:
			_ = c.do(func(now time.Duration) error { c.machine.HandleTimeout(now); return nil })
		case <-c.qp1.gsi.Changed():
			c.watcher.Changed()
		case <-c.qp1.gsi.Gone():
			c.fail(verbs.Errorf(syscall.ENODEV, "device %s is gone", c.dev.Name()))
			return
		case <-c.done:
			return
		}
	}
}

// nextTimeout returns when run has to wake by itself, and tells Close if it waits for nothing any more. It comes before
// each sleep of run.
func (c *ibConnector) nextTimeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered != nil && c.machine.Outstanding() == 0 {
		close(c.answered)
		c.answered = nil
	}
	c.sleepUntil = c.machine.NextTimeout()
	return c.sleepUntil
}

// fail reports that the device has failed: somebody has closed it, or its network interface is gone. After Close nobody
// wants to know. QP1 ends before: the device that takes the place of this one gets the messages that are for nobody, and
// refuses them.
func (c *ibConnector) fail(err error) {
	c.mu.Lock()
	_ = c.qp1.qp.Close()
	c.mu.Unlock()
	select {
	case <-c.done:
	default:
		c.watcher.Gone(err)
	}
}

// receive hands the MADs that have arrived to the machine.
func (c *ibConnector) receive(wcs []verbs.WC) (int, error) {
	n, err := c.qp1.recvCQ.Poll(wcs)
	if n == 0 {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs[:n] {
		path, mad, err := c.qp1.take(&wcs[i])
		if err != nil {
			return n, err
		}
		if mad != nil {
			c.machine.Handle(c.now(), path, mad)
		}
		if err := c.qp1.post(wcs[i].ID); err != nil {
			return n, err
		}
	}
	c.flush()
	return n, nil
}

// flush sends the machine's messages, and reports whether there were any. A MAD that finds no way out
// counts as lost: the end that waits for the answer repeats it. The caller holds c.mu.
func (c *ibConnector) flush() (sent bool) {
	for {
		path, mad, ok := c.machine.Transmit()
		if !ok {
			return sent
		}
		sent = true
		_ = c.qp1.send(path, mad)
	}
}

// dispatch reports the machine's events.
func (c *ibConnector) dispatch() {
	for {
		c.mu.Lock()
		ev, ok := c.machine.Event()
		if !ok {
			c.mu.Unlock()
			return
		}
		if ev.Listener != nil {
			port, _ := ev.Listener.User.(*ibPort)
			c.mu.Unlock()
			port.requested(&ev)
			continue
		}
		conn := connOf(&ev)
		report := conn.take(&ev)
		c.mu.Unlock()
		conn.handle(report)
	}
}

// connOf returns the Conn that an event is about.
func connOf(ev *cm.Event) *ibConn {
	if ev.Conn != nil {
		return ev.Conn.User.(*ibConn)
	}
	return ev.SIDR.User.(*ibConn)
}

// linger waits a moment until peers have answered the disconnects of closed connections.
func (c *ibConnector) linger() {
	c.mu.Lock()
	if c.machine.Outstanding() == 0 {
		c.mu.Unlock()
		return
	}
	answered := make(chan struct{})
	c.answered = answered
	c.mu.Unlock()
	limit := time.NewTimer(lingerTime)
	defer limit.Stop()
	select {
	case <-answered:
	case <-c.ended:
	case <-limit.C:
	}
}
