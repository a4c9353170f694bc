package rsocket

import (
	"io"
	"sync"
)

// ReadFrom reads pieces of fewPiece bytes or, while r fills those, of maxMessage.
const fewPiece = 32 << 10

var fewPieces, manyPieces = pieces(fewPiece), pieces(maxMessage)

func pieces(n int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, n)
		return &b
	}}
}

// ReadFrom sends the bytes of r until io.EOF. io.Copy calls it. While r has nothing to read yet, other calls may
// write, and Close gives back the connection's resources, unless r has filled the piece before.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	pool := fewPieces
	piece := pool.Get().(*[]byte)
	defer func() { pool.Put(piece) }()
	for {
		m, rerr := r.Read(*piece)
		checkRead(m, len(*piece))
		if m > 0 { // the end of r is no error where the peer has gone
			c.wmu.Lock()
			sent, err := c.write((*piece)[:m])
			c.doneWriting()
			n += int64(sent)
			if err != nil {
				return n, c.opError("readfrom", err)
			}
		}
		if rerr == nil && m == maxMessage {
			var k int64
			k, rerr, err = c.readIntoRing(r)
			if n += k; err != nil {
				return n, c.opError("readfrom", err)
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
		if next := poolFor(m, len(*piece)); next != pool {
			pool.Put(piece)
			pool, piece = next, next.Get().(*[]byte)
		}
	}
}

func checkRead(n, most int) {
	if n < 0 || n > most {
		panic("rsocket: a Reader returned a count that Read does not allow")
	}
}

// poolFor returns where the next piece comes from when m bytes of size have been read. A connection on which little
// comes holds little memory.
func poolFor(m, size int) *sync.Pool {
	if m == size || m >= maxMessage/4 {
		return manyPieces
	}
	return fewPieces
}

// A lent piece of the send ring is one that the source of a ReadFrom fills, which may take long. Others may write
// meanwhile: behind it in the ring, and before it in the stream.

// readIntoRing is ReadFrom while r fills pieces of the ring, and there is room for the next: that saves a copy. It returns
// r's error, and the connection's.
func (c *Conn) readIntoRing(r io.Reader) (n int64, rerr, err error) {
	select {
	case c.lending <- struct{}{}:
	default: // another ReadFrom is at it, or the connection is closed
		return 0, nil, nil
	}
	defer func() {
		c.endLoan() // r may have panicked
		<-c.lending
	}()
	for {
		start, size := c.lend()
		if size == 0 {
			return n, nil, nil
		}
		m, rerr := r.Read(c.outRing[start : start+size])
		checkRead(m, size)
		k, err := c.takeBack(start, size, m)
		n += int64(k)
		if m < size || rerr != nil || err != nil {
			return n, rerr, err
		}
	}
}

// lend lends a piece of the ring, of size bytes from start on. It lends none if nothing may be sent now, as lend must
// not wait: r may be at its end. Nor does it lend of a short ring, or where bytes go straight to the peer's ring.
func (c *Conn) lend() (start, size int) {
	c.wmu.Lock()
	defer c.doneWriting()
	if c.reaches || c.maxPiece() < fewPiece {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = c.maxPiece()
	c.progress()
	if ok, err := c.canWrite(); !ok || err != nil || c.w.deadline.over.Load() {
		return 0, 0
	}
	size = len(c.piece(c.maxPiece())) // which may move wpos
	start = c.wpos
	c.lent, c.lentAt = true, c.posted
	c.take(size)
	return start, size
}

// takeBack ends the loan of size bytes from start on, and sends the first n of them. It returns how many it has sent.
func (c *Conn) takeBack(start, size, n int) (sent int, err error) {
	idle := c.wmu.TryLock()
	c.mu.Lock()
	if idle && c.posted == c.lentAt+uint32(size) { // it is the ring's next piece again
		c.lent, c.wpos, c.posted = false, start, c.lentAt
		c.want = n
		ok, err := c.canWrite() // a WriteAt may have taken the last place
		if ok && err == nil && n == c.target.most(n) {
			c.mu.Unlock()
			defer c.doneWriting()
			return c.post(n, n)
		}
	}
	c.mu.Unlock()
	// A call that writes may wait for this very piece.
	piece := manyPieces.Get().(*[]byte)
	defer manyPieces.Put(piece)
	copy(*piece, c.outRing[start:start+n])
	c.endLoan()
	if !idle {
		c.wmu.Lock()
	}
	defer c.doneWriting()
	return c.write((*piece)[:n])
}

// endLoan gives a lent piece back to those who write.
func (c *Conn) endLoan() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lent {
		return
	}
	c.lent = false
	if c.w.sleeps != nil {
		c.w.kick()
	}
}
