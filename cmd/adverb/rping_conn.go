package main

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// rpingState is how far a connection is. The numbers are the C program's, which prints them.
type rpingState int

const (
	rpingIdle rpingState = iota + 1
	rpingConnectRequest
	rpingAddrResolved
	rpingRouteResolved
	rpingConnected
	rpingReadAdv       // the client has sent, or the server has got, where to read
	rpingReadComplete  // the server has read
	rpingWriteAdv      // the same for the way back
	rpingWriteComplete //
	rpingDisconnected
	rpingError
)

var rpingStateNames = map[rpingState]string{
	rpingConnectRequest: "CONNECT_REQUEST", rpingConnected: "CONNECTED", rpingReadAdv: "RDMA_READ_ADV",
	rpingReadComplete: "RDMA_READ_COMPLETE", rpingWriteAdv: "RDMA_WRITE_ADV", rpingWriteComplete: "RDMA_WRITE_COMPLETE",
}

// Sizes of the queues, as in the C program.
const (
	rpingSendWRs = 16
	rpingRecvWRs = 2
	rpingCQEs    = 2 * rpingSendWRs
)

// The work request IDs of rping.
const (
	rpingRecvID = iota + 1
	rpingSendID
	rpingReadID
	rpingWriteID
)

// rpingConn is an end of a connection: a client, or a server with one client.
type rpingConn struct {
	*rping
	side string // "client" or "server"
	id   *rdmacm.ID
	feed *feed

	state       rpingState
	established bool
	cause       error // of rpingError, or of an event which says that there is no connection

	pd    *verbs.PD
	cq    *verbs.CQ
	qp    *verbs.QP
	recv  *verbs.MR // of the peer's adverts
	send  *verbs.MR // of this end's
	data  *verbs.MR // where the server reads to, and the client is written to
	start *verbs.MR // what the client sends

	peer   rpingAdvert
	recvWR [1]verbs.RecvWR
	sendWR [1]verbs.SendWR
	op     [1]verbs.SendWR // READ or WRITE
}

func (r *rping) newConn(side string, id *rdmacm.ID, f *feed) *rpingConn {
	return &rpingConn{rping: r, side: side, id: id, feed: f, state: rpingIdle}
}

// setup makes the objects and posts the first receive, so that it is there before the peer is told.
func (c *rpingConn) setup() error {
	if err := c.createQP(); err != nil {
		return err
	}
	if err := c.register(); err != nil {
		c.errorf("rping_setup_buffers failed: %d\n", cmStatusNoMemory)
		return err
	}
	c.debugf("allocated & registered buffers...\n")
	c.recvWR[0] = verbs.RecvWR{ID: rpingRecvID, SGList: []verbs.SGE{c.recv.SGE(0, rpingAdvertSize)}}
	c.sendWR[0] = verbs.SendWR{ID: rpingSendID, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{c.send.SGE(0, rpingAdvertSize)}}
	c.op[0] = verbs.SendWR{Flags: verbs.SendSignaled, SGList: make([]verbs.SGE, 1)}
	if _, err := c.qp.PostRecv(c.recvWR[:]); err != nil {
		return c.report(err, "ibv_post_recv failed: %d\n", cmPostStatus(err))
	}
	return nil
}

func (c *rpingConn) createQP() (err error) {
	const failed = "setup_qp failed: %d\n"
	dev := c.id.Device()
	if c.pd, err = dev.AllocPD(); err != nil {
		c.errorf("ibv_alloc_pd failed\n")
		return c.report(err, failed, cmPostStatus(err))
	}
	c.debugf("created pd %p\n", c.pd)
	if c.cq, err = dev.CreateCQ(rpingCQEs); err != nil {
		c.errorf("ibv_create_cq failed\n")
		return c.report(err, failed, cmPostStatus(err))
	}
	c.debugf("created channel %p\ncreated cq %p\n", c.cq.Events(), c.cq)
	c.feed.cq = c.cq
	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: rpingSendWRs, MaxRecvWR: rpingRecvWRs, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if c.flags.ownQP {
		if c.qp, err = c.pd.CreateQP(attr); err != nil {
			return c.perror("ibv_create_qp", err)
		}
		err = c.modify(verbs.QPStateInit)
	} else if err = c.id.CreateQP(c.pd, attr); err != nil {
		err = c.perror("rdma_create_qp", err)
	} else {
		c.qp = c.id.QP()
	}
	if err == nil {
		c.debugf("created qp %p\n", c.qp)
	}
	return err
}

// modify takes the QP of -q to a state, with the attributes that the connection manager found out.
func (c *rpingConn) modify(states ...verbs.QPState) error {
	for _, s := range states {
		attr, mask, err := c.id.QPAttr(s)
		if err == nil {
			err = c.qp.Modify(&attr, mask)
		}
		if err != nil {
			return c.perror("rping_modify_qp", err)
		}
	}
	return nil
}

func (c *rpingConn) register() (err error) {
	c.debugf("rping_setup_buffers called on cb %p\n", c)
	const remote = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	if c.recv, err = c.pd.AllocMR(rpingAdvertSize, verbs.AccessLocalWrite); err != nil {
		return c.report(err, "recv_buf reg_mr failed\n")
	}
	if c.send, err = c.pd.AllocMR(rpingAdvertSize, 0); err != nil {
		return c.report(err, "send_buf reg_mr failed\n")
	}
	if c.data, err = c.pd.AllocMR(c.flags.size, remote); err != nil {
		return c.report(err, "rdma_buf reg_mr failed\n")
	}
	if c.side == "server" {
		return nil
	}
	if c.start, err = c.pd.AllocMR(c.flags.size, remote); err != nil {
		return c.report(err, "start_buf reg_mr failed\n")
	}
	return nil
}

// param is what the ends agree upon: one READ at a time.
func (c *rpingConn) param() *rdmacm.ConnParam {
	p := &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
	if c.flags.ownQP {
		p.QPN = c.qp.QPN()
	}
	return p
}

// wait blocks until the connection's state is set, which should be to want.
func (c *rpingConn) wait(want rpingState) error {
	for woken := false; !woken; {
		wc, ev, err := c.feed.wait()
		switch {
		case err != nil:
			return err
		case wc != nil:
			woken = c.completed(wc)
		default:
			woken, err = c.happened(ev)
		}
		if err != nil {
			return err
		}
	}
	if c.state == want {
		return nil
	}
	if want == rpingRouteResolved {
		return c.report(c.cause, "waiting for addr/route resolution state %d\n", c.state)
	}
	return c.report(c.cause, "wait for %s state %d\n", rpingStateNames[want], c.state)
}

// happened handles an event of the ID. It is true if that sets the state.
func (c *rpingConn) happened(ev *rdmacm.Event) (bool, error) {
	whose := "parent"
	if c.side == "server" {
		whose = "child"
	}
	c.debugf("cma_event type %v cma_id %p (%s)\n", ev.Type, ev.ID, whose)
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		c.state = rpingAddrResolved
		if err := c.id.ResolveRoute(); err != nil {
			c.state = rpingError
			return true, c.perror("rdma_resolve_route", err)
		}
		return false, nil
	case rdmacm.EventRouteResolved:
		c.state = rpingRouteResolved
		return true, nil
	case rdmacm.EventConnectResponse, rdmacm.EventEstablished:
		c.established = true
		c.feed.probe(c.qp)
		if c.side == "server" { // the first message says as much
			c.debugf("ESTABLISHED\n")
			return false, nil
		}
		if ev.Type == rdmacm.EventConnectResponse {
			c.debugf("CONNECT_RESPONSE\n")
		} else {
			c.debugf("ESTABLISHED\n")
		}
		c.state = rpingConnected
		return true, nil
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		c.errorf("cma event %v, error %d\n", ev.Type, ev.Status)
		c.cause = ev.Err
		return true, nil
	case rdmacm.EventDisconnected:
		c.errorf("%s DISCONNECT EVENT...\n", c.side)
		c.state = rpingDisconnected
		return true, nil
	case rdmacm.EventDeviceRemoval:
		c.errorf("cma detected device removal!!!!\n")
		c.state, c.cause = rpingError, ev.Err
		return true, nil
	}
	c.errorf("unhandled event: %v, ignoring\n", ev.Type)
	return false, nil
}

// completed handles a completion. It is true if that sets the state.
func (c *rpingConn) completed(wc *verbs.WC) bool {
	if wc.Status == verbs.WCFlushErr && wc.ID != probeID {
		return false // of a connection that has ended, as an event says
	}
	if wc.Status != verbs.WCSuccess {
		c.errorf("cq completion failed status %d\n", wc.Status)
		c.fail(c.explained(wc))
		return true
	}
	switch wc.ID {
	case rpingSendID:
		c.debugf("send completion\n")
		return false
	case rpingReadID:
		c.debugf("rdma read completion\n")
		c.state = rpingReadComplete
	case rpingWriteID:
		c.debugf("rdma write completion\n")
		c.state = rpingWriteComplete
	case rpingRecvID:
		c.debugf("recv completion\n")
		c.received(wc)
	}
	return true
}

// received takes a message, and posts the receive of the next one before anybody can answer.
func (c *rpingConn) received(wc *verbs.WC) {
	if wc.ByteLen != rpingAdvertSize {
		c.errorf("Received bogus data, size %d\nrecv wc error: %d\n", wc.ByteLen, -1)
		c.fail(fmt.Errorf("the peer's message has %d bytes, and rping's have %d: the peer is another program", wc.ByteLen, rpingAdvertSize))
		return
	}
	if c.side == "server" {
		c.peer = decodeRpingAdvert(c.recv.Bytes())
		c.debugf("Received rkey %x addr %x len %d from peer\n", uint32(c.peer.Remote.RKey), c.peer.Remote.VA, c.peer.Size)
	}
	// Only the state tells a server, or a client, which message of the round this is.
	switch {
	case c.side == "server" && (c.state <= rpingConnected || c.state == rpingWriteComplete):
		c.state = rpingReadAdv
		c.feed.probe(c.qp)
	case c.side == "server", c.state == rpingReadAdv:
		c.state = rpingWriteAdv
	default:
		c.state = rpingWriteComplete
	}
	if _, err := c.qp.PostRecv(c.recvWR[:]); err != nil {
		c.errorf("post recv error: %d\n", cmPostStatus(err))
		c.fail(err)
	}
}

func (c *rpingConn) fail(cause error) { c.state, c.cause = rpingError, cause }

// explained adds to a failed completion what the work request alone does not show.
func (c *rpingConn) explained(wc *verbs.WC) error {
	err := wc.Err()
	if c.side == "server" && wc.ID == rpingReadID && int64(c.peer.Size) > int64(c.flags.size) {
		return fmt.Errorf("%w: the client's data have %d bytes, and this server has room for %d: start it with -S %[2]d", err, c.peer.Size, c.flags.size)
	}
	return err
}

// advertise SENDs an advert; of zeros, it is the server's go-ahead.
func (c *rpingConn) advertise(a rpingAdvert) error {
	a.AppendTo(c.send.Bytes()[:0])
	return c.post(&c.sendWR)
}

func (c *rpingConn) post(wr *[1]verbs.SendWR) error {
	if _, err := c.qp.PostSend(wr[:]); err != nil {
		return c.report(err, "post send error %d\n", cmPostStatus(err))
	}
	return nil
}

// disconnect ends the connection, and waits for a moment for the peer to agree.
func (c *rpingConn) disconnect() {
	// A message may overtake the news that the connection is established, and only then can it be ended.
	if !c.events(func() bool { return c.established || c.state == rpingDisconnected }) {
		return
	}
	if c.id.Disconnect() == nil { // else it has ended already
		c.events(func() bool { return c.state == rpingDisconnected })
	}
}

// events handles events until done, and for disconnectWait at most.
func (c *rpingConn) events(done func() bool) bool {
	timeout := errors.New("no event")
	c.feed.onIdle(disconnectWait, func() error { return timeout })
	for !done() {
		_, ev, err := c.feed.wait()
		if err != nil {
			return false
		}
		if ev != nil {
			c.happened(ev)
		}
	}
	return true
}

// close closes everything that was made but the ID.
func (c *rpingConn) close() {
	c.debugf("rping_free_buffers called on cb %p\n", c)
	switch {
	case c.qp != nil && c.flags.ownQP:
		c.explain(c.qp.Close())
	case c.qp != nil:
		c.explain(c.id.DestroyQP())
	}
	for _, mr := range []*verbs.MR{c.recv, c.send, c.data, c.start} {
		if mr != nil {
			c.explain(mr.Close())
		}
	}
	if c.cq != nil {
		c.explain(c.cq.Close())
	}
	if c.pd != nil {
		c.explain(c.pd.Close())
	}
}
