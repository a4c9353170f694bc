package rsocket

import (
	"net"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Times that we chose.
const (
	// closeWait is how long Close waits by itself: long enough for a peer that is there.
	closeWait = 100 * time.Millisecond

	// lingerTime is how long the bytes that were written are sent after Close.
	lingerTime = 10 * time.Second
)

// Close ends the connection. Bytes that were written before still arrive: Close waits until they have, see
// SetLinger, and after that sending goes on in the background for 10 s at most, while the process lives.
// Bytes that the peer has sent and nobody has read are lost: the peer then reads the bytes of this end,
// and then syscall.ECONNRESET in place of io.EOF. The peer gets the same error after SetLinger(0). Calls
// that wait return net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	linger := c.linger
	close(c.closing)
	c.mu.Unlock()
	c.r.deadline.set(time.Time{})
	c.w.deadline.set(time.Time{})
	limit := lingerTime
	if linger >= 0 {
		limit = linger
	}
	c.f.deadline.set(time.Now().Add(limit))
	go c.finish()
	wait := closeWait
	if linger >= 0 {
		wait = linger + closeWait
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.finished:
	case <-t.C:
	}
	return nil
}

// finish says goodbye, waits until everything has arrived, and frees the connection's resources.
func (c *Conn) finish() {
	defer close(c.finished)
	c.mu.Lock()
	c.progress()
	lost, abort := c.unread > 0, c.linger == 0
	c.mu.Unlock()
	switch {
	case abort:
	case lost:
		c.sayLast((*Conn).noGoodbye)
	default:
		c.sayLast(func(*Conn) uint32 { return word(kindControl, controlDisconnect) })
	}
	if !abort {
		c.mu.Lock()
		c.await(&c.f, (*Conn).allSent)
		c.mu.Unlock()
	}
	c.f.deadline.set(time.Time{})
	// Whoever reads or writes uses the memory, and so does the source of a ReadFrom.
	c.lending <- struct{}{}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	c.fail(net.ErrClosed)
	c.dead = true
	c.mu.Unlock()
	c.letGo()
}

// noGoodbye is the last word of a connection that is reset: the credits of the peer, which the peer has already. Once the
// word has arrived the peer has all bytes that were written, and the connection manager's end finds no goodbye.
func (c *Conn) noGoodbye() uint32 {
	return word(kindSGL, uint32(c.creditsAt-c.creditStep()+uint16(c.cfg.Depth)))
}

// letGo undoes start.
func (c *Conn) letGo() {
	countEnd(c.cm.LocalAddr(), -1)
	c.cm.Close()
}

// sayLast sends a word that no data follows, once there is room for the message.
func (c *Conn) sayLast(last func(*Conn) uint32) error {
	c.posting.Lock()
	defer c.posting.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.f, (*Conn).canControl); err != nil {
		return err
	}
	id, msg := uint64(idLast), last(c)
	if msg == word(kindControl, controlShutdown) {
		id = idControl
	}
	c.postControl(id, msg, 0, verbs.RemoteAddr{})
	return c.err
}

// canControl reports whether a control message may be posted.
func (c *Conn) canControl() (bool, error) {
	if c.peerGone {
		return false, errPipe
	}
	return c.controls > 0, c.err
}

// allSent reports whether the peer has everything, or will have no more.
func (c *Conn) allSent() (bool, error) {
	if c.peerGone {
		return true, nil
	}
	return c.lastDone, c.err
}

// CloseWrite ends the sending direction: the peer reads io.EOF after the bytes that were sent. Reading goes on.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	var err error
	switch {
	case c.closed:
		err = net.ErrClosed
	case c.wclosed:
		c.mu.Unlock()
		return nil
	}
	c.wclosed = true
	what := uint32(controlShutdown)
	if c.rclosed {
		what = controlDisconnect
	}
	if c.w.sleeps != nil {
		c.w.kick()
	}
	c.mu.Unlock()
	if err == nil {
		if err = c.sayLast(func(*Conn) uint32 { return word(kindControl, what) }); err == errPipe { // the peer is gone, and need not hear of it: so with TCP
			err = nil
		}
	}
	return c.opError("close", err)
}

// CloseRead ends the receiving direction for this end's program: reads return the bytes that have come, and
// then io.EOF in place of waiting. The peer is not told, and can write until the receive ring is full.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.rclosed = true
	if c.r.sleeps != nil {
		c.r.kick()
	}
	return nil
}
