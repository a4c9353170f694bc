package rdmamsg

import (
	"context"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// workKind is the kind of work request that an ID stands for. The rest of the ID is a slot.
type workKind uint64

const (
	workRecv workKind = iota
	workSend
	workControl
	workRead
)

func work(k workKind, slot int) uint64 { return uint64(k)<<32 | uint64(slot) }

// batch is how many completions are taken at a time.
const batch = 32

// loop takes the completions of a CQ until the channel has ended and nothing is left.
func (c *Channel) loop(ctx context.Context, cq *verbs.CQ) {
	wcs := make([]verbs.WC, batch)
	for {
		n, err := cq.Wait(ctx, wcs)
		c.mu.Lock()
		for i := range n {
			c.complete(&wcs[i])
		}
		if err != nil && ctx.Err() == nil { // the CQ is closed, or was overrun: nothing comes any more
			c.outstanding = 0
			c.fail(err)
			c.checkDrained()
		} else {
			c.kick()
		}
		done := c.isDrained
		c.mu.Unlock()
		if done || err != nil {
			return
		}
	}
}

// complete deals with one completion.
func (c *Channel) complete(wc *verbs.WC) {
	if c.isDrained { // the memory may be gone
		return
	}
	c.outstanding--
	kind, slot := workKind(wc.ID>>32), int(uint32(wc.ID))
	if wc.Status != verbs.WCSuccess {
		if kind == workRead {
			c.reading--
		}
		c.fail(c.endCause(wc))
		c.checkDrained()
		return
	}
	switch kind {
	case workRecv:
		c.received(slot, int(wc.ByteLen))
	case workSend:
		// The first byte still has the type of the frame: an offer is acknowledged by a done frame.
		if frameType(c.mr.Bytes()[c.sendSlot(slot)]) == frameData {
			c.acked()
		}
		c.freeSend = append(c.freeSend, slot)
		wake(c.sendReady)
	case workControl:
		if frameType(c.mr.Bytes()[c.controlSlot(slot)]) == frameBye {
			c.saying = false
			c.wakeFlush()
		}
		c.freeControl = append(c.freeControl, slot)
		wake(c.sendReady)
	case workRead:
		c.reading--
		m := &c.messages[slot]
		m.state, m.data = messageReady, m.buf.Bytes()
		if c.toFinish.n == len(c.toFinish.slots) {
			c.fail(fmt.Errorf("%w: more than %d offers at a time", ErrProtocol, c.toFinish.n))
			return
		}
		c.toFinish.push(int(m.id))
		wake(c.recvReady)
	}
	c.checkDrained()
}

// endCause says what cause a failed completion has. Most ends show by receives that are flushed, and
// the QP knows why the receives were flushed.
func (c *Channel) endCause(wc *verbs.WC) error {
	err := wc.Err()
	if errors.Is(err, verbs.WCFlushErr) {
		if err = c.qp.Err(); err == nil || errors.Is(err, verbs.ErrState) { // the connection manager has ended the QP
			return ErrEnded
		}
	}
	return fmt.Errorf("%w: %w", ErrEnded, err)
}

// received deals with a frame.
func (c *Channel) received(slot, n int) {
	m := &c.messages[slot]
	h, err := parse(c.bytes(c.recvSlot(slot), n))
	if err == nil {
		err = c.checkFrame(&h)
	}
	if err != nil {
		c.fail(err)
		return
	}
	// The slot of a control frame is posted again before the frame counts, so that the receive is
	// there when the peer may send the next.
	if h.typ != frameData && h.typ != frameOffer {
		c.repost(slot)
		if c.isDrained { // the QP is gone, and nothing that is left has a buffer
			return
		}
	}
	if h.credits > 0 {
		c.credits += int(h.credits)
		wake(c.sendReady)
	}
	switch h.typ {
	case frameHello:
		c.helloed = true
		c.depth = int(h.remote.VA >> 32)
		c.credits = c.depth
		c.eager = min(c.cfg.EagerSize, int(uint32(h.remote.VA)))
		c.longest = max(h.length, uint64(c.eager))
		close(c.greeted)
	case frameData:
		m.length = int(h.length)
		m.data = c.bytes(c.recvSlot(slot)+headerSize, m.length)
		m.state = messageReady
		c.inbox.push(slot)
		wake(c.recvReady)
	case frameOffer:
		m.length, m.remote, m.id, m.state = int(h.length), h.remote, h.id, messageOffered
		c.inbox.push(slot)
		if !c.starved {
			c.prefetch()
		}
		wake(c.recvReady)
	case frameDone:
		o := &c.offers[h.id&0xff]
		o.buf.Release()
		o.buf = nil
		c.offered--
		c.acked()
		wake(c.sendReady)
	case frameBye:
		c.eof = true
		wake(c.recvReady)
	}
}

// checkFrame reports a frame that no channel sends at this point.
func (c *Channel) checkFrame(h *header) error {
	switch {
	case (h.typ == frameHello) == c.helloed:
		return fmt.Errorf("%w: a hello must come first, and once", ErrProtocol)
	case c.eof && (h.typ == frameData || h.typ == frameOffer || h.typ == frameBye):
		return fmt.Errorf("%w: a message after the bye", ErrProtocol)
	case h.typ == frameHello && (h.remote.VA>>32 == 0 || uint32(h.remote.VA) == 0 || h.remote.VA>>32 > 1<<20 || uint32(h.remote.VA) > 1<<30):
		return fmt.Errorf("%w: a hello that grants %d messages of %d bytes", ErrProtocol, h.remote.VA>>32, uint32(h.remote.VA))
	case uint64(h.credits) > uint64(c.depth-c.credits):
		return fmt.Errorf("%w: %d credits beside %d, where it has receives for %d messages", ErrProtocol, h.credits, c.credits, c.depth)
	case h.typ == frameOffer && (h.length == 0 || h.length > c.maxMessage()):
		return fmt.Errorf("%w: an offer of %d bytes, where %d are allowed", ErrProtocol, h.length, c.maxMessage())
	case h.typ == frameDone:
		if i := h.id & 0xff; i >= maxOffers || c.offers[i].buf == nil || c.offers[i].gen<<8|i != h.id {
			return fmt.Errorf("%w: an answer to offer %#x, which there is not", ErrProtocol, h.id)
		}
	}
	return nil
}

// kick posts whatever waits for a slot: READs, the answers to offers, and credits.
func (c *Channel) kick() {
	for c.err == nil && c.toRead.n > 0 && c.reading < maxReads {
		m := &c.messages[c.toRead.pop()]
		c.sge[0] = m.buf.SGE(0, m.length)
		c.sendWR[0] = verbs.SendWR{ID: work(workRead, m.slot), Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: c.sge[:], Remote: m.remote}
		if c.postSend() == nil {
			c.reading++
		}
	}
	for c.err == nil && c.toFinish.n > 0 && len(c.freeControl) > 0 {
		c.postControl(header{typ: frameDone, id: uint32(c.toFinish.pop())})
	}
	if c.err == nil && c.owed >= max(1, c.cfg.Depth/2) && len(c.freeControl) > 0 {
		c.postControl(header{typ: frameCredit})
	}
}

// repost gives a slot back to the device. An error ends the channel.
func (c *Channel) repost(slot int) {
	if c.err != nil {
		return
	}
	if err := c.postRecv(slot); err != nil {
		c.fail(err)
	}
}

func (c *Channel) postRecv(slot int) error {
	c.sge[0] = c.mr.SGE(c.recvSlot(slot), c.slotSize())
	c.recvWR[0] = verbs.RecvWR{ID: work(workRecv, slot), SGList: c.sge[:]}
	if _, err := c.qp.PostRecv(c.recvWR[:]); err != nil {
		return err
	}
	c.messages[slot].state = messagePosted
	c.outstanding++
	return nil
}

// wake tells one waiter that something has changed. The waiter looks at everything again.
func wake(ready chan struct{}) {
	select {
	case ready <- struct{}{}:
	default:
	}
}
