package main

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// runClient connects id and bounces data.
func (r *rping) runClient(id *rdmacm.ID, f *feed) error {
	c := r.newConn("client", id, f)
	var src netip.AddrPort
	if r.flags.source.IsValid() {
		src = netip.AddrPortFrom(r.flags.source, 0)
	}
	if err := id.ResolveAddr(src, netip.AddrPortFrom(r.flags.addr, r.flags.port)); err != nil {
		return r.perror("rdma_resolve_addr", err)
	}
	if err := c.wait(rpingRouteResolved); err != nil {
		return err
	}
	c.debugf("rdma_resolve_addr - rdma_resolve_route successful\n")
	defer c.close()
	if err := c.setup(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return c.connectFailed(err)
	}
	err := c.rounds(c.clientRounds)
	c.disconnect()
	return err
}

func (c *rpingConn) connect() error {
	if err := c.id.Connect(c.param()); err != nil {
		return c.perror("rdma_connect", err)
	}
	if err := c.wait(rpingConnected); err != nil {
		return err
	}
	if c.flags.ownQP {
		if err := c.modify(verbs.QPStateRTR, verbs.QPStateRTS); err != nil {
			return err
		}
		if err := c.id.Establish(); err != nil {
			return c.perror("rdma_establish", err)
		}
	}
	c.debugf("rdma_connect successful\n")
	return nil
}

// connectFailed adds to a report.
func (c *rpingConn) connectFailed(err error) error {
	if errors.Is(err, errReported) {
		c.errorf("connect error %d\n", -1)
	}
	return err
}

// rounds runs the rounds of either side until they are done or the connection ends. A peer that
// disconnects, between rounds or in one, is no failure.
func (c *rpingConn) rounds(run func() error) error {
	err := run()
	switch {
	case err == nil, c.state == rpingDisconnected, c.ctx.Err() != nil:
		return c.ctx.Err()
	}
	c.errorf("rping %s failed: %d\n", c.side, -1)
	return err
}

func (c *rpingConn) clientRounds() error {
	start, data := c.start.Bytes(), c.data.Bytes()
	for round := 0; c.flags.count == 0 || round < c.flags.count; round++ {
		c.state = rpingReadAdv
		fillRping(start, round)
		if err := c.offer(c.start); err != nil {
			return err
		}
		if err := c.wait(rpingWriteAdv); err != nil {
			return err
		}
		if err := c.offer(c.data); err != nil {
			return err
		}
		if err := c.wait(rpingWriteComplete); err != nil {
			return err
		}
		if c.flags.validate && !bytes.Equal(start, data) {
			return c.report(nil, "data mismatch!\n")
		}
		if c.flags.verbose {
			c.printf("ping data: %s\n", cString(data))
		}
	}
	return nil
}

// offer tells the server where it may read or write.
func (c *rpingConn) offer(mr *verbs.MR) error {
	a := rpingAdvert{Remote: mr.Remote(0), Size: uint32(mr.Len())}
	c.debugf("RDMA addr %x rkey %x len %d\n", a.Remote.VA, uint32(a.Remote.RKey), a.Size)
	return c.advertise(a)
}
