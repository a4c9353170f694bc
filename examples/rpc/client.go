package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/examples/internal/node"
	"github.com/adverb-rdma/adverb/rdmamsg"
)

// client makes calls over one connection. Its methods may be called from any goroutine.
type client struct {
	ch   *rdmamsg.Channel
	done chan struct{} // closed when receive has ended

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan result
	err     error // why there are no more answers
}

type result struct {
	value []byte
	err   error
}

func dial(ctx context.Context, addr, local string) (*client, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	config := channelConfig
	if config.Dialer, err = node.Dialer(local); err != nil {
		return nil, err
	}
	ch, err := rdmamsg.Dial(ctx, at, &config)
	if err != nil {
		return nil, err
	}
	c := &client{ch: ch, done: make(chan struct{}), waiting: make(map[uint64]chan result)}
	go c.receive()
	return c, nil
}

func (c *client) close() {
	c.ch.Close()
	<-c.done
}

// call calls a method and waits for the answer. If ctx ends before, the call may still be executed;
// its answer is thrown away.
func (c *client) call(ctx context.Context, method string, arg []byte) ([]byte, error) {
	if len(method) > 255 {
		return nil, fmt.Errorf("a method's name of %d bytes", len(method))
	}
	answer := make(chan result, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	id := c.last
	c.waiting[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}()
	if err := c.ch.Send(ctx, appendCall(nil, id, method, arg)); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	select {
	case r := <-answer:
		return r.value, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("call %s: no answer: %w", method, context.Cause(ctx))
	}
}

// receive hands out the answers until the channel ends.
func (c *client) receive() {
	defer close(c.done)
	for {
		m, err := c.ch.Recv(context.Background())
		if err != nil {
			c.fail(err)
			return
		}
		p := m.Bytes()
		if len(p) < answerHead {
			m.Release()
			c.fail(fmt.Errorf("%w of %d bytes", errWrong, len(p)))
			return
		}
		r := result{value: bytes.Clone(p[answerHead:])}
		if p[idSize] != 0 {
			r.err = errors.New("the server says: " + string(p[answerHead:]))
		}
		id := binary.BigEndian.Uint64(p)
		m.Release()
		c.mu.Lock()
		if answer := c.waiting[id]; answer != nil { // otherwise nobody waits any more
			answer <- r
			delete(c.waiting, id)
		}
		c.mu.Unlock()
	}
}

// fail tells all who wait that no answer comes.
func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, answer := range c.waiting {
		answer <- result{err: fmt.Errorf("the call may or may not have been executed: %w", err)}
		delete(c.waiting, id)
	}
}
