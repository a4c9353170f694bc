package rsocket

import (
	"io"
	"net"
	"os"
)

// Read reads the bytes that have come, at least one byte unless b is empty. When the peer has closed its
// end, or called CloseWrite, and all is read, Read returns io.EOF. With an empty b Read returns at once,
// and without an error unless this end is closed.
func (c *Conn) Read(b []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(b) == 0 {
		return 0, c.opError("read", c.closedErr())
	}
	p, err := c.peek()
	n := 0
	if err == nil {
		n = copy(b, p)
		if n < len(b) && n > 0 { // bytes behind the ring's end are at its beginning
			n += copy(b[n:], c.rest(n))
		}
		c.consume(n)
	}
	return n, c.opError("read", err)
}

// closedErr returns net.ErrClosed after Close.
func (c *Conn) closedErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return nil
}

// peek waits until there is something to read, and returns it, or the part of it up to the ring's end. The caller holds
// rmu.
func (c *Conn) peek() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.r.deadline.over.Load() {
		return nil, os.ErrDeadlineExceeded
	}
	ok, err := c.canRead()
	if !ok && (err == nil || err == c.err) {
		err = c.await(&c.r, (*Conn).canRead)
	}
	if err != nil {
		return nil, err
	}
	return c.inRing[c.rpos:min(c.rpos+c.unread, len(c.inRing))], nil
}

// rest returns the bytes to read behind the first n, up to the ring's end if the end was not yet
// reached. The caller holds rmu.
func (c *Conn) rest(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := (c.rpos + n) % len(c.inRing)
	return c.inRing[at:min(at+c.unread-n, len(c.inRing))]
}

// consume takes n bytes as read.
func (c *Conn) consume(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rpos = (c.rpos + n) % len(c.inRing)
	c.unread -= n
	c.freed += n
	c.grant()
}

// WriteTo writes the bytes that come to w, until the peer's end, straight from the receive ring. io.Copy calls it.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for {
		p, err := c.peek()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, c.opError("read", err)
		}
		m, err := w.Write(p)
		c.consume(max(0, min(m, len(p))))
		n += int64(m)
		if err == nil && m != len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return n, err
		}
	}
}
