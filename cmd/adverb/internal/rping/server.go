package rping

import (
	"context"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// backlog is how many connection requests may wait. In the C program it is 3, which is too few when
// several clients start together.
const backlog = 128

// server listens. It serves one client or, with -P, all clients.
func (r *rping) server(id *rdmacm.ID, f *cm.Feed) error {
	if err := id.BindAddr(netip.AddrPortFrom(r.flags.addr, r.flags.port)); err != nil {
		return r.perror("rdma_bind_addr", err)
	}
	r.debugf("rdma_bind_addr successful\n")
	r.debugf("rdma_listen\n")
	if err := id.Listen(backlog); err != nil {
		return r.perror("rdma_listen", err)
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		child, err := r.request(f)
		if err != nil {
			return err
		}
		if r.flags.persistent {
			conns.Go(func() { r.serve(child) }) // its failure is not the server's
			continue
		}
		ctx, stop := context.WithCancel(r.Ctx)
		others := f.WithContext(ctx)
		conns.Go(func() { r.refuse(others) })
		err = r.serve(child)
		stop()
		return err
	}
}

// request waits for a client. It returns the ID of its connection.
func (r *rping) request(f *cm.Feed) (*rdmacm.ID, error) {
	for {
		_, ev, err := f.Wait()
		if err != nil {
			return nil, err
		}
		r.debugf("cma_event type %v cma_id %p (parent)\n", ev.Type, ev.ID)
		switch ev.Type {
		case rdmacm.EventConnectRequest:
			r.debugf("child cma %p\n", ev.ID)
			return ev.ID, nil
		case rdmacm.EventDeviceRemoval:
			return nil, r.report(ev.Err, "cma detected device removal!!!!\n")
		}
		r.Errorf("unhandled event: %v, ignoring\n", ev.Type)
	}
}

// refuse rejects further clients, which would wait in vain otherwise.
func (r *rping) refuse(f *cm.Feed) {
	for {
		id, err := r.request(f)
		if err != nil {
			return
		}
		r.Explain(id.Reject(nil))
		r.Explain(id.Close())
	}
}

// serve serves a client until it leaves.
func (r *rping) serve(id *rdmacm.ID) error {
	c := r.newConn("server", id, id.Context.(*cm.Feed))
	defer func() {
		c.close()
		r.debugf("destroy cm_id %p\n", id)
		r.Explain(id.Close())
	}()
	c.state = stateConnectRequest
	if err := c.setup(); err != nil {
		r.Explain(id.Reject(nil))
		return err
	}
	if err := c.accept(); err != nil {
		return c.connectFailed(err)
	}
	run := c.rounds
	if r.flags.persistent { // the C program ignores how its threads end
		run = func(f func() error) error { return f() }
	}
	err := run(c.serverRounds)
	c.disconnect()
	return err
}

func (c *conn) accept() error {
	c.debugf("accepting client connection request\n")
	if c.flags.ownQP {
		if err := c.modify(verbs.QPStateRTR, verbs.QPStateRTS); err != nil {
			return err
		}
	}
	if err := c.id.Accept(c.param()); err != nil {
		return c.perror("rdma_accept", err)
	}
	return nil
}

func (c *conn) serverRounds() error {
	for {
		if err := c.wait(stateReadAdv); err != nil {
			return err
		}
		c.debugf("server received sink adv\n")
		if err := c.operate(readID, verbs.OpRDMARead, c.peer.Size); err != nil {
			return err
		}
		c.debugf("server posted rdma read req \n")
		if err := c.wait(stateReadComplete); err != nil {
			return err
		}
		c.debugf("server received read complete\n")
		text := clib.String(c.data.Bytes())
		if c.flags.verbose {
			c.Printf("server ping data: %s\n", clib.Printable(text))
		}
		if err := c.goAhead(); err != nil {
			return err
		}
		if err := c.wait(stateWriteAdv); err != nil {
			return err
		}
		c.debugf("server received sink adv\n")
		length := min(len(text)+1, c.data.Len()) // with its NUL, if it has one
		if err := c.operate(writeID, verbs.OpRDMAWrite, uint32(length)); err != nil {
			return err
		}
		if err := c.wait(stateWriteComplete); err != nil {
			return err
		}
		c.debugf("server rdma write complete \n")
		c.state = stateConnected
		if err := c.goAhead(); err != nil {
			return err
		}
	}
}

func (c *conn) goAhead() error {
	if err := c.advertise(advert{}); err != nil {
		return err
	}
	c.debugf("server posted go ahead\n")
	return nil
}

// operate posts the READ or WRITE of a round, between the server's buffer and where the client said.
// If the buffer has no room for length, then the device refuses the operation.
func (c *conn) operate(id uint64, op verbs.Opcode, length uint32) error {
	wr := &c.op[0]
	wr.ID, wr.Op, wr.Remote = id, op, c.peer.Remote
	wr.SGList[0] = verbs.SGE{Addr: c.data.Addr(), Length: length, LKey: c.data.LKey()}
	if op == verbs.OpRDMAWrite {
		c.debugf("rdma write from lkey %x laddr %x len %d\n", uint32(c.data.LKey()), c.data.Addr(), length)
	}
	return c.post(&c.op)
}
