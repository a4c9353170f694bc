//go:build linux

package uverbs

import (
	"context"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// getContext opens the stream of asynchronous events.
func (c *Context) getContext(k *call) error {
	resp := uapi.GetContextResp{NumCompVectors: uint32(max(1, c.attr.NumCompVectors))}
	if err := k.needs(resp, nil); err != nil {
		return err
	}
	if c.async != nil {
		return verbs.ErrInvalid
	}
	ch, fd, err := c.newChannel(k, 16)
	if err != nil {
		return err
	}
	resp.AsyncFD = uint32(fd)
	if err := k.out(resp, nil); err != nil {
		ch.close()
		return err
	}
	c.async = ch
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	c.events.Go(func() { c.forward(ctx, ch) })
	return nil
}

// forward passes the device's events on.
func (c *Context) forward(ctx context.Context, to *channel) {
	for {
		e, err := c.dev.NextEvent(ctx)
		if err != nil {
			return
		}
		if of, ok := c.element(&e); ok {
			to.send(uapi.Append(nil, uapi.AsyncEventDesc{Element: of, EventType: uint32(e.Type)}))
		}
	}
}

// element returns the program's name for the subject of an event: the object's handle of the program's, or the port.
func (c *Context) element(e *verbs.AsyncEvent) (of uint64, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch {
	case e.QP != nil:
		for _, q := range c.qps {
			if q.v == e.QP {
				return q.user, true
			}
		}
	case e.CQ != nil:
		for _, q := range c.cqs {
			if q.v == e.CQ {
				return q.user, true
			}
		}
	case e.SRQ != nil:
		for _, s := range c.srqs {
			if s.v == e.SRQ {
				return s.user, true
			}
		}
	default:
		return uint64(e.Port), true
	}
	return 0, false
}
