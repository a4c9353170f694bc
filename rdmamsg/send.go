package rdmamsg

import (
	"context"
	"fmt"

	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// Send sends a message, which may be empty. Send copies p, so the caller may reuse p at once. Send
// waits while the peer grants no credit, and for a large message while SendPool has no room. Send
// returns when the message is on its way; Flush waits until the peer has the message.
//
// If ctx ends before, the message is not sent, and the channel goes on. The error is ErrTooLong if
// the peer does not take such messages, and an [*Error] once the channel has ended.
func (c *Channel) Send(ctx context.Context, p []byte) error {
	if err := c.lock(ctx, c.sending, "send"); err != nil {
		return err
	}
	defer func() { <-c.sending }()
	if len(p) <= c.eager {
		return c.sendSmall(ctx, p)
	}
	if err := c.checkLength(len(p)); err != nil {
		return err
	}
	b, err := c.getBuffer(ctx, c.cfg.SendPool, len(p))
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	if err := c.sendLarge(ctx, b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// SendBuffer sends the message that is in b, and takes b over: b is released when the peer has the
// message. A large message is not copied. b must be of a pool that peers may read, on the PD of the
// channel's QP, such as SendPool. On an error b is still the caller's. See Send for the rest.
func (c *Channel) SendBuffer(ctx context.Context, b *rdmapool.Buffer) error {
	if err := c.lock(ctx, c.sending, "send"); err != nil {
		return err
	}
	defer func() { <-c.sending }()
	if b.Len() > c.eager {
		if err := c.checkLength(b.Len()); err != nil {
			return err
		}
		return c.sendLarge(ctx, b)
	}
	err := c.sendSmall(ctx, b.Bytes())
	if err == nil {
		b.Release()
	}
	return err
}

// lock takes one of the channel's two locks, unless ctx or the channel ends before. Sending needs
// the peer's hello.
func (c *Channel) lock(ctx context.Context, sem chan struct{}, verb string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("rdmamsg: %s: %w", verb, context.Cause(ctx))
	}
	if sem == c.sending {
		select {
		case <-c.greeted:
		case <-c.life.Done():
			return c.failure()
		case <-ctx.Done():
			return fmt.Errorf("rdmamsg: %s: %w", verb, context.Cause(ctx))
		}
	}
	select {
	case sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rdmamsg: %s: %w", verb, context.Cause(ctx))
	}
}

func (c *Channel) checkLength(n int) error {
	if uint64(n) > c.longest {
		return fmt.Errorf("rdmamsg: send %d bytes: %w, %d bytes", n, ErrTooLong, c.longest)
	}
	return nil
}

// getBuffer is pool.Get, which the end of the channel ends too.
func (c *Channel) getBuffer(ctx context.Context, pool *rdmapool.Pool, n int) (*rdmapool.Buffer, error) {
	if b := pool.TryGet(n); b != nil {
		return b, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	defer stop()
	return pool.Get(ctx, n)
}

func (c *Channel) sendSmall(ctx context.Context, p []byte) error {
	slot, err := c.acquire(ctx, false)
	if err != nil {
		return err
	}
	defer c.mu.Unlock()
	off := c.sendSlot(slot)
	copy(c.bytes(off+headerSize, len(p)), p)
	return c.postMessage(slot, header{typ: frameData, length: uint64(len(p))}, headerSize+len(p))
}

func (c *Channel) sendLarge(ctx context.Context, b *rdmapool.Buffer) error {
	slot, err := c.acquire(ctx, true)
	if err != nil {
		return err
	}
	defer c.mu.Unlock()
	i := 0
	for c.offers[i].buf != nil {
		i++
	}
	o := &c.offers[i]
	o.gen++
	h := header{typ: frameOffer, length: uint64(b.Len()), remote: b.Remote(0), id: o.gen<<8 | uint32(i)}
	if err := c.postMessage(slot, h, headerSize); err != nil {
		return err
	}
	o.buf = b
	c.offered++
	return nil
}

// acquire waits for a credit and a slot, and for a large message for a place among the offers. acquire
// returns with mu held if there is no error.
func (c *Channel) acquire(ctx context.Context, large bool) (slot int, err error) {
	for {
		c.mu.Lock()
		switch {
		case c.err != nil:
			defer c.mu.Unlock()
			return 0, c.err
		case c.shut:
			c.mu.Unlock()
			return 0, fmt.Errorf("rdmamsg: send: %w: the channel was shut down", verbs.ErrClosed)
		case c.credits > 0 && len(c.freeSend) > 0 && (!large || c.offered < maxOffers):
			last := len(c.freeSend) - 1
			slot, c.freeSend = c.freeSend[last], c.freeSend[:last]
			return slot, nil
		}
		c.mu.Unlock()
		select {
		case <-c.sendReady:
		case <-c.life.Done():
		case <-ctx.Done():
			return 0, fmt.Errorf("rdmamsg: send: the peer grants no credit: %w", context.Cause(ctx))
		}
	}
}

// postMessage posts a frame that takes a credit.
func (c *Channel) postMessage(slot int, h header, n int) error {
	if err := c.postFrame(work(workSend, slot), c.sendSlot(slot), h, n); err != nil {
		c.freeSend = append(c.freeSend, slot)
		return c.err
	}
	c.credits--
	c.inFlight++
	return nil
}

// postControl posts a frame that needs no credit. There must be a free slot.
func (c *Channel) postControl(h header) {
	last := len(c.freeControl) - 1
	slot := c.freeControl[last]
	c.freeControl = c.freeControl[:last]
	// An error has ended the channel, so postControl returns no error.
	_ = c.postFrame(work(workControl, slot), c.controlSlot(slot), h, headerSize)
}

// postFrame posts a SEND of n bytes at off, whose first are the header. Every frame takes along the
// credits that are owed. An error ends the channel.
func (c *Channel) postFrame(id uint64, off int, h header, n int) error {
	h.version, h.credits = version, uint32(c.owed)
	h.put(c.bytes(off, headerSize))
	c.sge[0] = c.mr.SGE(off, n)
	c.sendWR[0] = verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: c.sge[:]}
	if err := c.postSend(); err != nil {
		return err
	}
	c.owed = 0
	return nil
}

// postSend posts c.sendWR.
func (c *Channel) postSend() error {
	if c.err != nil {
		return c.err
	}
	if _, err := c.qp.PostSend(c.sendWR[:]); err != nil {
		c.fail(err)
		return err
	}
	c.outstanding++
	return nil
}

// Flush waits until no message is in flight: each small one is in the peer's memory, and each large
// one has been read by the peer's channel, which needs room in its pool for the message.
func (c *Channel) Flush(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.err != nil {
			defer c.mu.Unlock()
			return c.err
		}
		if c.inFlight == 0 && !c.saying {
			c.mu.Unlock()
			return nil
		}
		if c.allAcked == nil {
			c.allAcked = make(chan struct{})
		}
		acked := c.allAcked
		c.mu.Unlock()
		select {
		case <-acked:
		case <-c.life.Done():
		case <-ctx.Done():
			return fmt.Errorf("rdmamsg: flush: %w", context.Cause(ctx))
		}
	}
}

// Shutdown ends the sending direction: Shutdown waits until no message is in flight, and tells the peer
// that no message follows. Recv works on. To shut down a second time does nothing.
func (c *Channel) Shutdown(ctx context.Context) error {
	if err := c.lock(ctx, c.sending, "shut down"); err != nil {
		return err
	}
	defer func() { <-c.sending }()
	if err := c.Flush(ctx); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		if c.err != nil {
			defer c.mu.Unlock()
			return c.err
		}
		if c.shut {
			c.mu.Unlock()
			return nil
		}
		if len(c.freeControl) > 0 {
			c.shut, c.saying = true, true
			c.postControl(header{typ: frameBye})
			c.mu.Unlock()
			return c.Flush(ctx)
		}
		c.mu.Unlock()
		select {
		case <-c.sendReady:
		case <-c.life.Done():
		case <-ctx.Done():
			return fmt.Errorf("rdmamsg: shut down: %w", context.Cause(ctx))
		}
	}
}

// acked takes note of a message that the peer has.
func (c *Channel) acked() {
	c.inFlight--
	c.delivered++
	c.wakeFlush()
}

// wakeFlush wakes the goroutines that wait until the peer has everything, if the peer has everything.
func (c *Channel) wakeFlush() {
	if c.inFlight == 0 && !c.saying && c.allAcked != nil {
		close(c.allAcked)
		c.allAcked = nil
	}
}
