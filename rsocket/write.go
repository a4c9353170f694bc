package rsocket

import (
	"net"
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// maxMessage is how many bytes one message has at most. While one is on its way the next is copied. Each costs an
// acknowledgement, and a train of packets that is cut short. It is a little less than a multiple of any path MTU, so that
// the last packet, which has immediate data, is not longer than those before it, and so ends their train.
const maxMessage = 256<<10 - 64

// maxPiece is maxMessage, or less where the ring is short: while one message is on its way there is room for the next.
func (c *Conn) maxPiece() int { return min(maxMessage, len(c.outRing)/4) }

// minBulk is from how many bytes on a call that writes takes the completions for one that reads, unless they go straight to
// the peer's ring. It is at it for so long that the other would only be in its way.
const minBulk = 64 << 10

// minAligned is from how many bytes on a message begins with a cache line of the ring: those of the largest path MTU.
const minAligned = 4 << 10

// A Write of minReach bytes or more goes straight to the peer's ring. For fewer bytes that makes no difference.
const minReach = 1 << 10

// Write sends b. It returns when all of b is in the send ring or at the peer, and posted, and so before the peer's
// program can know of it. If it fails n says how much was sent, of which the peer may have less.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.doneWriting()
	n, err = c.write(b)
	return n, c.opError("write", err)
}

// write is Write under wmu.
func (c *Conn) write(b []byte) (n int, err error) {
	for {
		room, err := c.room(len(b)-n, n > 0)
		if err != nil || n == len(b) {
			return n, err
		}
		m, err := c.send([][]byte{b[n:]}, len(b)-n, room)
		n += m
		if err != nil {
			return n, err
		}
	}
}

// send sends the beginning of v, of n bytes in all, straight to the peer's ring or by room, which room has returned. It
// returns how much it has sent. The caller holds wmu.
func (c *Conn) send(v [][]byte, n int, room []byte) (m int, err error) {
	if m = c.reach(v, n); m > 0 {
		return c.post(m, 0)
	}
	for _, b := range v {
		if m == len(room) {
			break
		}
		m += copy(room[m:], b)
	}
	return c.post(m, m)
}

// reach copies the beginning of v, of n bytes in all, straight to the peer's ring if the device can, and returns how
// much it has copied. That saves the copy to our ring. room has said that something may be sent: until it is posted the
// target is the writer's, who holds wmu.
func (c *Conn) reach(v [][]byte, n int) (m int) {
	if n < minReach {
		return 0
	}
	most := c.target.most(min(n, maxMessage))
	for _, b := range v {
		b = b[:min(len(b), most-m)]
		k := c.qp.TryWrite(c.target.remote.Add(m), b)
		if m += k; k < len(b) || m == most {
			break
		}
	}
	c.reaches = m > 0
	return m
}

// room waits until something may be sent, and returns the piece of the ring where it is to be put. It
// waits for as much room as n bytes need, or for a good part of the ring. begun says that the call has sent bytes before: when
// none are left it has succeeded, and an end that has come since is the next call's. The caller holds wmu.
func (c *Conn) room(n int, begun bool) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := n == 0 && begun
	if c.w.deadline.over.Load() && !sent {
		return nil, os.ErrDeadlineExceeded
	}
	c.want = min(n, len(c.outRing)/4)
	if n >= minBulk && !c.reaches {
		c.bulk = true
	}
	// The peer sends a message for each target. So a call that finds one in memory posts the receives that those before
	// have used up, though it need not wait.
	if c.bulk || c.target.length == 0 {
		c.progress()
	}
	ok, err := c.canWrite()
	switch {
	case sent:
		return nil, nil
	case n == 0:
		return nil, err
	}
	if !ok && err == nil {
		err = c.await(&c.w, (*Conn).canWrite)
	}
	if err != nil {
		return nil, err
	}
	return c.piece(n), nil
}

// piece returns the piece of the ring for the next n bytes, or for as many of them as may be sent. The caller holds wmu
// and mu.
func (c *Conn) piece(n int) []byte { return c.ringPiece(n, c.target.most(c.maxPiece())) }

// ringPiece returns the next piece of the ring for n bytes, or for as many as are free, most at most. The caller holds wmu
// and mu.
func (c *Conn) ringPiece(n, most int) []byte {
	c.align(n)
	most = min(n, most, c.free())
	return c.outRing[c.wpos:min(c.wpos+most, len(c.outRing))]
}

// align moves on to the ring's next whole cache line, for n bytes. A software device copies bytes that begin there into
// packets and takes their ICRCs at once. The caller holds wmu and mu.
func (c *Conn) align(n int) {
	if pad := -c.wpos & (lineSize - 1); n >= minAligned && pad < c.free() {
		c.take(pad)
		c.unsigned += pad
	}
}

// doneWriting ends a call that writes, which holds wmu. A call that reads and has left the completions to it sees to them
// again.
func (c *Conn) doneWriting() {
	if c.bulk {
		c.mu.Lock()
		c.bulk = false
		if c.readLeaves {
			c.r.kick()
		}
		c.mu.Unlock()
	}
	c.wmu.Unlock()
}

// post sends n bytes, of which used are where room said: all, or none if they are in the peer's ring already and only the
// word of them goes. The caller holds wmu.
func (c *Conn) post(n, used int) (int, error) {
	if n == 0 {
		return 0, nil
	}
	c.posting.Lock()
	defer c.posting.Unlock()
	c.mu.Lock()
	if err := c.writeErr(); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	start := c.outOffset(c.wpos)
	wr := &c.sending.wrs[0]
	*wr = verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Imm: word(kindData, uint32(n)), Remote: c.target.remote}
	c.target.remote = c.target.remote.Add(n)
	c.target.length -= uint32(n)
	c.sent++
	c.advance(wr, c.parts(), used)
	c.mu.Unlock()
	return n, c.postSend(start, used)
}

// advance counts work requests, parts of them, with n bytes from the ring. Those that free much of the ring or of the
// send queue are signaled.
func (c *Conn) advance(wr *verbs.SendWR, parts uint32, n int) {
	c.take(n)
	c.wrs = (c.wrs + parts) & wrMask
	c.unsigned += n
	c.unsigWRs += parts
	if c.unsigned >= len(c.outRing)/4 || c.unsigWRs >= uint32(c.cfg.Depth/4) {
		wr.Flags = verbs.SendSignaled
		c.unsigned, c.unsigWRs = 0, 0
	}
	wr.ID = idData | uint64(c.wrs)<<32 | uint64(c.posted)
}

// take takes the next n bytes of the ring.
func (c *Conn) take(n int) {
	c.wpos = (c.wpos + n) % len(c.outRing)
	c.posted += uint32(n)
}

func (c *Conn) outOffset(ringPos int) int { return outStart + ringPos }

// postSend posts sending with n bytes of the memory out. The caller holds posting.
func (c *Conn) postSend(start, n int) error {
	err := c.postMessage(&c.sending, start, n)
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress() // the peer may have said that it goes
	c.fail(c.postCause(err))
	if err := c.writeErr(); err != nil {
		return err
	}
	return c.err
}

// WriteBuffers sends the contents of v as few messages, and takes the bytes that were sent off v,
// as WriteTo of net.Buffers does, which cannot do so on connections that are not of package net.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	c.wmu.Lock()
	defer c.doneWriting()
	left := 0
	for _, b := range *v {
		left += len(b)
	}
	for {
		room, err := c.room(left, n > 0)
		if err != nil || left == 0 {
			if err == nil {
				consume(v, 0) // they may all be empty
			}
			return n, c.opError("write", err)
		}
		m, err := c.send(*v, left, room)
		consume(v, m)
		n += int64(m)
		left -= m
		if err != nil {
			return n, c.opError("write", err)
		}
	}
}

// consume takes the first n bytes of v away.
func consume(v *net.Buffers, n int) {
	for len(*v) > 0 && n >= len((*v)[0]) {
		n -= len((*v)[0])
		(*v)[0] = nil
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}
