package rdmamsg

import (
	"context"
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// messageState is where a receive slot is in its round.
type messageState uint8

const (
	messagePosted  messageState = iota // the device has the slot
	messageOffered                     // large, and without a buffer yet
	messageReading                     // large, and being read, or about to be
	messageReady                       // complete
	messageHeld                        // the program has it
)

// Message is a message that was received. Its memory is the channel's until Release.
type Message struct {
	c      *Channel
	slot   int
	state  messageState
	length int
	remote verbs.RemoteAddr
	id     uint32
	buf    *rdmapool.Buffer // of a large message
	data   []byte
}

// Bytes returns the message. The slice must not be used after Release.
func (m *Message) Bytes() []byte { return m.data }

// Release gives the message's memory back, and with it a credit to the peer. It panics if the
// message was released already.
func (m *Message) Release() {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.state != messageHeld {
		panic("rdmamsg: a message was released twice")
	}
	c.held--
	m.state, m.data = messagePosted, nil
	if m.buf != nil {
		m.buf.Release()
		m.buf = nil
	}
	switch {
	case c.freed && c.held == 0:
		_ = c.free() // Close has returned already
	case c.err == nil:
		c.owed++
		c.repost(m.slot)
		c.kick()
	}
}

// Recv returns the next message. Recv waits until there is a message, and for a large message until
// RecvPool has room. If ctx ends before, no message is lost: the next call returns the message. The error is io.EOF
// after the peer's Shutdown, and an [*Error] once the channel has ended; messages that had come whole are
// returned first.
func (c *Channel) Recv(ctx context.Context) (*Message, error) {
	if err := c.lock(ctx, c.receiving, "receive"); err != nil {
		return nil, err
	}
	defer func() { <-c.receiving }()
	for {
		m, starved, err := c.next()
		if m != nil || err != nil {
			return m, err
		}
		if starved != nil {
			if err := c.feed(ctx, starved); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-c.recvReady:
		case <-c.drained:
		case <-ctx.Done():
			return nil, fmt.Errorf("rdmamsg: receive: %w", context.Cause(ctx))
		}
	}
}

// next returns the first message if the message is complete, or as starved if the message lacks a buffer.
func (c *Channel) next() (m, starved *Message, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox.n > 0 {
		m := &c.messages[c.inbox.first()]
		switch {
		case m.state == messageReady:
			c.inbox.pop()
			m.state = messageHeld
			c.held++
			return m, nil, nil
		case c.isDrained:
			return nil, nil, c.err
		case m.state == messageOffered && c.err == nil:
			return nil, m, nil
		}
		return nil, nil, nil
	}
	switch {
	case c.eof:
		return nil, nil, io.EOF
	case c.isDrained: // not before: completions of messages may be behind the one that failed
		return nil, nil, c.err
	}
	return nil, nil, nil
}

// feed gets a buffer for the first message. The caller holds c.receiving, so nobody else gets a buffer for the message.
func (c *Channel) feed(ctx context.Context, m *Message) error {
	b, err := c.getBuffer(ctx, c.cfg.RecvPool, m.length)
	if err != nil {
		if c.life.Err() != nil {
			return nil // Recv waits for messages that have come before the end
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || m.state != messageOffered {
		b.Release()
		return nil // Recv looks again
	}
	c.startRead(m, b)
	c.starved = false
	c.prefetch()
	c.kick()
	return nil
}

// prefetch gives buffers to the large messages that have arrived, in order, as far as the pool has
// any without waiting.
func (c *Channel) prefetch() {
	for i := range c.inbox.n {
		m := &c.messages[c.inbox.slots[(c.inbox.head+i)%len(c.inbox.slots)]]
		if m.state != messageOffered {
			continue
		}
		b := c.cfg.RecvPool.TryGet(m.length)
		if b == nil {
			c.starved = true
			return
		}
		c.startRead(m, b)
	}
}

func (c *Channel) startRead(m *Message, b *rdmapool.Buffer) {
	m.buf, m.state = b, messageReading
	c.toRead.push(m.slot)
}
