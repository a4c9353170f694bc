package rsocket

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// causeTime is how long the connection manager has to say why a connection has ended.
const causeTime = time.Second

// spins is how often a call that has to wait polls before it sleeps.
const spins = 1

// side is one of those who may wait for the connection.
type side struct {
	deadline deadline
	wake     chan struct{} // has a value if the condition for which the side waits holds
	sleeps   ready         // the condition for which the side waits, or nil while the side is awake
}

// ready reports whether the condition for which a side waits holds, or why it never will.
type ready func(*Conn) (bool, error)

func (s *side) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// await waits until ready reports true or an error, and returns the error of ready, or why the condition
// never holds. The caller holds c.mu, which await gives away while it sleeps.
func (c *Conn) await(s *side, ready ready) error {
	slept := false
	for polls := 0; ; polls++ {
		leaves := c.leaves(s)
		if !leaves {
			c.progress()
		}
		ok, err := ready(c)
		if !ok && err == nil && s.deadline.over.Load() {
			err = os.ErrDeadlineExceeded
		}
		if ok || err != nil {
			if slept {
				c.handOver()
			}
			return err
		}
		if leaves {
			if slept {
				c.handOver()
			}
			c.leave(ready)
			slept, polls = false, 0
			continue
		}
		if polls < spins {
			continue
		}
		if c.mayLook() {
			c.mu.Unlock()
			soon := c.cq.Soon()
			c.mu.Lock()
			if soon || c.leaves(s) {
				continue
			}
		}
		if err := c.cq.Notify(false); err != nil {
			c.fail(err)
			continue
		}
		c.progress()
		if ok, err := ready(c); ok || err != nil {
			slept = true // the event that was asked for may be another's by now
			continue
		}
		s.sleeps = ready
		c.mu.Unlock()
		select {
		case <-c.cq.Events():
		case <-s.wake:
		case <-s.deadline.done():
		case <-c.closing:
			if s == &c.f { // it has begun after Close
				select {
				case <-c.cq.Events():
				case <-s.wake:
				case <-s.deadline.done():
				}
			}
		}
		c.mu.Lock()
		s.sleeps, slept, polls = nil, true, 0
	}
}

// leaves reports whether a side leaves the completions to the call that writes. The end of sending does not: a call that
// writes may wait for its lock.
func (c *Conn) leaves(s *side) bool { return c.bulk && s == &c.r }

// leave sleeps until ready reports true for a call that reads, or until the call that writes is done, which takes the
// completions meanwhile. The caller holds c.mu, which leave gives away while it sleeps.
func (c *Conn) leave(ready ready) {
	c.r.sleeps, c.readLeaves = ready, true
	c.mu.Unlock()
	select {
	case <-c.r.wake:
	case <-c.r.deadline.done():
	}
	c.mu.Lock()
	c.r.sleeps, c.readLeaves = nil, false
}

// handOver leaves the queue to those who sleep: an event is for one, and the one who had it goes.
func (c *Conn) handOver() {
	if c.r.sleeps == nil && c.w.sleeps == nil && c.f.sleeps == nil {
		return
	}
	if err := c.cq.Notify(false); err != nil {
		c.fail(err)
	}
	c.progress()
}

// progress takes the completions that have come, and sends the control messages that are due. The caller holds c.mu.
func (c *Conn) progress() {
	for !c.dead { // also after a failure: completions from before the failure may be there
		n, err := c.cq.Poll(c.wcs[:])
		for i := range n {
			c.complete(&c.wcs[i])
		}
		if err != nil {
			c.fail(err)
			c.dead = true
		}
		if n < len(c.wcs) {
			break
		}
	}
	c.repost()
	c.grant()
	for _, s := range [...]*side{&c.r, &c.w, &c.f} {
		if s.sleeps != nil {
			if ok, err := s.sleeps(c); ok || err != nil {
				s.kick()
			}
		}
	}
}

// complete deals with one completion.
func (c *Conn) complete(wc *verbs.WC) {
	if wc.Status != verbs.WCSuccess {
		if c.err == nil { // the others are flushed after the first one
			c.fail(c.cause(wc))
		}
		return
	}
	switch wc.ID & idKind {
	case idRecv:
		c.consumed++
		msg, err := c.wordOf(wc)
		if err == nil {
			err = c.receive(msg>>kindShift, msg&numberMask)
		}
		if err != nil {
			c.fail(err)
		}
	case idData:
		c.done = uint32(wc.ID)
		c.wrsDone = uint32(wc.ID>>32) & wrMask
	case idControl:
		c.controls++
	case idLast:
		c.controls++
		c.lastDone = true
	}
}

// receive deals with a word from the peer.
func (c *Conn) receive(kind, number uint32) error {
	switch kind {
	case kindData:
		if int(number) > c.granted {
			return fmt.Errorf("%w: %d bytes where %d may come", errProtocol, number, c.granted)
		}
		if c.peerShut {
			return fmt.Errorf("%w: data after the end", errProtocol)
		}
		c.received++
		c.granted -= int(number)
		c.unread += int(number)
	case kindSGL:
		c.limit = uint16(number) - c.reserve
	case kindIomap:
		c.received++ // the entry is looked at when it is needed
	case kindControl:
		switch number {
		case controlDisconnect:
			c.peerShut, c.peerGone = true, true
		case controlShutdown:
			c.peerShut = true
		}
	default:
		return fmt.Errorf("%w: a message of kind %d", errProtocol, kind)
	}
	return nil
}

// fail notes why nothing works any more.
func (c *Conn) fail(cause error) {
	if c.err != nil {
		return
	}
	if c.err = cause; !isEnding(cause) {
		c.err = withErrno(cause)
	}
}

// cause says why a completion has failed. Receives that are flushed are how most ends show.
func (c *Conn) cause(wc *verbs.WC) error {
	if wc.Status != verbs.WCFlushErr {
		return wc.Err()
	}
	return c.endCause(errEnded)
}

// endCause says why the QP is in the error state, or err if nobody knows.
func (c *Conn) endCause(err error) error {
	e := &ending{err, time.Now().Add(causeTime)}
	select {
	case <-c.cm.Disconnected():
		return c.theCause(e)
	default:
		return e
	}
}

// ending is why nothing works any more until the connection manager says more: it flushes first, and then notes why.
type ending struct {
	error
	until time.Time // for so long it is asked
}

func isEnding(err error) bool {
	_, ok := err.(*ending)
	return ok
}

func (c *Conn) theCause(e *ending) error { return cmp.Or(c.cm.Cause(), c.qp.Err(), e.error) }

// ended waits for the connection manager's report of an ending, unless the side's calls end before. The caller does
// not hold c.mu: others go on.
func (c *Conn) ended(s *side, e *ending) error {
	limit := time.NewTimer(time.Until(e.until))
	defer limit.Stop()
	select {
	case <-c.cm.Disconnected():
	case <-limit.C:
	case <-s.deadline.done():
		return os.ErrDeadlineExceeded
	case <-c.closing:
		return net.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == error(e) {
		c.err = withErrno(c.theCause(e))
	}
	return c.err
}

// postCause says why a post has failed: mostly because the connection has ended.
func (c *Conn) postCause(err error) error {
	if errors.Is(err, verbs.ErrState) {
		return c.endCause(err)
	}
	return err
}

// repost posts receives for those that messages have used up.
func (c *Conn) repost() {
	for c.consumed >= repostAt && c.err == nil {
		n, err := c.postReceives(c.consumed)
		c.consumed -= n
		if err != nil {
			c.fail(c.postCause(err))
		}
	}
}

// grant tells the peer of the ring's next half when it has been read, and of the messages that it
// may send.
func (c *Conn) grant() {
	half := len(c.inRing) / 2
	memory := c.mayGrant()
	for c.err == nil && !c.closed && !c.peerShut && c.controls > 0 {
		memory = memory && c.freed >= half
		if !memory && int16(c.received-c.creditsAt) < 0 {
			return
		}
		// The messages for which the peer gets credits must find receives.
		for c.consumed > 0 && c.err == nil {
			n, err := c.postReceives(c.consumed)
			c.consumed -= n
			if err != nil {
				c.fail(c.postCause(err))
				return
			}
		}
		c.creditsAt = c.received + c.creditStep()
		msg := word(kindSGL, uint32(c.received+uint16(c.cfg.Depth)))
		if !memory {
			c.postControl(idControl, msg, 0, verbs.RemoteAddr{})
			continue
		}
		putSGE(c.controlBuf(), c.order, extent{c.in.Remote(c.inStart + c.grantAt), uint32(half)})
		to := c.peerSGL.remote.Add(c.peerEntry * sgeSize)
		c.peerEntry = (c.peerEntry + 1) % int(c.peerSGL.length)
		c.freed -= half
		c.granted += half
		c.grantAt = (c.grantAt + half) % len(c.inRing)
		c.postControl(idControl, msg, sgeSize, to)
	}
}

// controlBuf is the memory of the next control message.
func (c *Conn) controlBuf() []byte {
	return c.out.Bytes()[c.controlSeq%controls*iomapEntrySize:][:iomapEntrySize]
}

// postControl posts a message of our own, of which n bytes are in controlBuf. There must be room: controls.
func (c *Conn) postControl(id uint64, msg uint32, n int, to verbs.RemoteAddr) {
	c.control.wrs[0] = verbs.SendWR{ID: id, Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: msg, Remote: to}
	start := int(c.controlSeq%controls) * iomapEntrySize
	c.controlSeq++
	c.controls--
	if err := c.postMessage(&c.control, start, n); err != nil {
		c.fail(c.postCause(err))
	}
}

// canRead reports whether Read has something to return, or why it never will.
func (c *Conn) canRead() (bool, error) {
	switch {
	case c.closed:
		return false, net.ErrClosed
	case c.unread > 0:
		return true, nil
	case c.rclosed, c.peerShut:
		return false, io.EOF
	}
	return false, c.err
}

// canWrite reports whether data may be posted: want bytes of the ring are free, and the peer has room.
func (c *Conn) canWrite() (bool, error) {
	if err := c.writeErr(); err != nil {
		return false, err
	}
	if c.target.length == 0 {
		c.takeTarget()
	}
	return c.target.length > 0 && c.sent != c.limit && c.free() >= c.want && c.places(c.parts()), nil
}

func (c *Conn) writeErr() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.wclosed:
		return errPipeLocal
	case c.peerGone:
		return errPipe
	}
	return c.err
}

// places reports whether the send queue has room for n work requests of data.
func (c *Conn) places(n uint32) bool { return (c.wrs-c.wrsDone)&wrMask+n <= uint32(c.cfg.Depth) }

// free returns how many bytes of the send ring are free.
func (c *Conn) free() int {
	done := c.done
	if c.lent && int32(done-c.lentAt) > 0 {
		done = c.lentAt
	}
	return len(c.outRing) - int(c.posted-done)
}

// takeTarget takes the next entry of the target SGL, if the peer has written it.
func (c *Conn) takeTarget() {
	off := c.next * sgeSize
	if e := loadSGE(c.in, off); e.length > 0 {
		c.in.Store64(off+8, 0) // the peer writes here again only when all of this entry is used
		c.target = e
		c.next = (c.next + 1) % sglSize
	}
}
