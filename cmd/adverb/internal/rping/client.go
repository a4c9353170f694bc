package rping

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// client connects id and bounces data.
func (r *rping) client(id *rdmacm.ID, f *cm.Feed) error {
	c := r.newConn("client", id, f)
	var src netip.AddrPort
	if r.flags.source.IsValid() {
		src = netip.AddrPortFrom(r.flags.source, 0)
	}
	if err := id.ResolveAddr(src, netip.AddrPortFrom(r.flags.addr, r.flags.port)); err != nil {
		return r.perror("rdma_resolve_addr", err)
	}
	if err := c.wait(stateRouteResolved); err != nil {
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

func (c *conn) connect() error {
	if err := c.id.Connect(c.param()); err != nil {
		return c.perror("rdma_connect", err)
	}
	if err := c.wait(stateConnected); err != nil {
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

// connectFailed adds a line to the report of a failure.
func (c *conn) connectFailed(err error) error {
	if errors.Is(err, cli.ErrReported) {
		c.Errorf("connect error %d\n", -1)
	}
	return err
}

// rounds runs the rounds of either side until they are done or the connection ends. It is no failure
// if the peer disconnects, be it between rounds or within one.
func (c *conn) rounds(run func() error) error {
	err := run()
	switch {
	case err == nil, c.state == stateDisconnected, c.Ctx.Err() != nil:
		return c.Ctx.Err()
	}
	c.Errorf("rping %s failed: %d\n", c.side, -1)
	return err
}

func (c *conn) clientRounds() error {
	start, data := c.start.Bytes(), c.data.Bytes()
	for round := 0; c.flags.count == 0 || round < c.flags.count; round++ {
		c.state = stateReadAdv
		fillData(start, round)
		if err := c.offer(c.start); err != nil {
			return err
		}
		if err := c.wait(stateWriteAdv); err != nil {
			return err
		}
		if err := c.offer(c.data); err != nil {
			return err
		}
		if err := c.wait(stateWriteComplete); err != nil {
			return err
		}
		if c.flags.validate && !bytes.Equal(start, data) {
			return c.report(nil, "data mismatch!\n")
		}
		if c.flags.verbose {
			c.Printf("ping data: %s\n", clib.Printable(data))
		}
	}
	return nil
}

// offer tells the server where it may read or write.
func (c *conn) offer(mr *verbs.MR) error {
	a := advert{Remote: mr.Remote(0), Size: uint32(mr.Len())}
	c.debugf("RDMA addr %x rkey %x len %d\n", a.Remote.VA, uint32(a.Remote.RKey), a.Size)
	return c.advertise(a)
}
