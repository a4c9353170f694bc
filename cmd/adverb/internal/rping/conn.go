package rping

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// state is how far a connection has come. The numbers are those of the C program, which prints them.
type state int

const (
	stateIdle state = iota + 1
	stateConnectRequest
	stateAddrResolved
	stateRouteResolved
	stateConnected
	stateReadAdv       // the advert of where to read has been sent or received
	stateReadComplete  // the server has read
	stateWriteAdv      // the same for where to write
	stateWriteComplete // the server has written
	stateDisconnected
	stateError
)

var stateNames = map[state]string{
	stateConnectRequest: "CONNECT_REQUEST", stateConnected: "CONNECTED", stateReadAdv: "RDMA_READ_ADV",
	stateReadComplete: "RDMA_READ_COMPLETE", stateWriteAdv: "RDMA_WRITE_ADV", stateWriteComplete: "RDMA_WRITE_COMPLETE",
}

// Sizes of the queues, as in the C program.
const (
	sendWRs = 16
	recvWRs = 2
	cqDepth = 2 * sendWRs
)

// The work request IDs of rping.
const (
	recvID = iota + 1
	sendID
	readID
	writeID
)

// conn is an end of a connection: a client, or a server with one client.
type conn struct {
	*rping
	side string // "client" or "server"
	id   *rdmacm.ID
	feed *cm.Feed

	state       state
	established bool
	cause       error // the cause of stateError, or why there is no connection

	pd    *verbs.PD
	cq    *verbs.CQ
	qp    *verbs.QP
	recv  *verbs.MR // for the peer's adverts
	send  *verbs.MR // for this end's adverts
	data  *verbs.MR // the server READs into it, and WRITEs into the client's
	start *verbs.MR // the client's data of the round

	peer   advert
	recvWR [1]verbs.RecvWR
	sendWR [1]verbs.SendWR
	op     [1]verbs.SendWR // READ or WRITE
}

func (r *rping) newConn(side string, id *rdmacm.ID, f *cm.Feed) *conn {
	return &conn{rping: r, side: side, id: id, feed: f, state: stateIdle}
}

// setup makes the objects and posts the first receive. It comes before the peer learns of this end.
func (c *conn) setup() error {
	if err := c.createQP(); err != nil {
		return err
	}
	if err := c.register(); err != nil {
		c.Errorf("rping_setup_buffers failed: %d\n", cm.StatusNoMemory)
		return err
	}
	c.debugf("allocated & registered buffers...\n")
	c.recvWR[0] = verbs.RecvWR{ID: recvID, SGList: []verbs.SGE{c.recv.SGE(0, advertSize)}}
	c.sendWR[0] = verbs.SendWR{ID: sendID, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{c.send.SGE(0, advertSize)}}
	c.op[0] = verbs.SendWR{Flags: verbs.SendSignaled, SGList: make([]verbs.SGE, 1)}
	if _, err := c.qp.PostRecv(c.recvWR[:]); err != nil {
		return c.report(err, "ibv_post_recv failed: %d\n", clib.PostStatus(err))
	}
	return nil
}

func (c *conn) createQP() (err error) {
	const failed = "setup_qp failed: %d\n"
	dev := c.id.Device()
	if c.pd, err = dev.AllocPD(); err != nil {
		c.Errorf("ibv_alloc_pd failed\n")
		return c.report(err, failed, clib.PostStatus(err))
	}
	c.debugf("created pd %p\n", c.pd)
	if c.cq, err = dev.CreateCQ(cqDepth); err != nil {
		c.Errorf("ibv_create_cq failed\n")
		return c.report(err, failed, clib.PostStatus(err))
	}
	c.debugf("created channel %p\ncreated cq %p\n", c.cq.Events(), c.cq)
	c.feed.CQ = c.cq
	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: sendWRs, MaxRecvWR: recvWRs, MaxSendSGE: 1, MaxRecvSGE: 1}}
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

// modify takes the QP of -q through states, with the attributes that the connection manager has for
// each.
func (c *conn) modify(states ...verbs.QPState) error {
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

func (c *conn) register() (err error) {
	c.debugf("rping_setup_buffers called on cb %p\n", c)
	const remote = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	if c.recv, err = c.pd.AllocMR(advertSize, verbs.AccessLocalWrite); err != nil {
		return c.report(err, "recv_buf reg_mr failed\n")
	}
	if c.send, err = c.pd.AllocMR(advertSize, 0); err != nil {
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

// param is the ends' agreement: one READ at a time.
func (c *conn) param() *rdmacm.ConnParam {
	p := &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
	if c.flags.ownQP {
		p.QPN = c.qp.QPN()
	}
	return p
}

// wait blocks until something sets the connection's state. It fails if the state is not want then.
func (c *conn) wait(want state) error {
	for woken := false; !woken; {
		wc, ev, err := c.feed.Wait()
		switch {
		case err != nil:
			return err
		case wc != nil:
			woken = c.completed(wc)
		default:
			woken, err = c.handleEvent(ev)
		}
		if err != nil {
			return err
		}
	}
	if c.state == want {
		return nil
	}
	if want == stateRouteResolved {
		return c.report(c.cause, "waiting for addr/route resolution state %d\n", c.state)
	}
	return c.report(c.cause, "wait for %s state %d\n", stateNames[want], c.state)
}

// handleEvent handles an event of the ID. It returns true if the event sets the state.
func (c *conn) handleEvent(ev *rdmacm.Event) (bool, error) {
	whose := "parent"
	if c.side == "server" {
		whose = "child"
	}
	c.debugf("cma_event type %v cma_id %p (%s)\n", ev.Type, ev.ID, whose)
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		c.state = stateAddrResolved
		if err := c.id.ResolveRoute(); err != nil {
			c.state = stateError
			return true, c.perror("rdma_resolve_route", err)
		}
		return false, nil
	case rdmacm.EventRouteResolved:
		c.state = stateRouteResolved
		return true, nil
	case rdmacm.EventConnectResponse, rdmacm.EventEstablished:
		c.established = true
		c.feed.Probe(c.qp)
		if c.side == "server" { // a server waits for the first message instead
			c.debugf("ESTABLISHED\n")
			return false, nil
		}
		if ev.Type == rdmacm.EventConnectResponse {
			c.debugf("CONNECT_RESPONSE\n")
		} else {
			c.debugf("ESTABLISHED\n")
		}
		c.state = stateConnected
		return true, nil
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		c.Errorf("cma event %v, error %d\n", ev.Type, ev.Status)
		c.cause = ev.Err
		return true, nil
	case rdmacm.EventDisconnected:
		c.Errorf("%s DISCONNECT EVENT...\n", c.side)
		c.state = stateDisconnected
		return true, nil
	case rdmacm.EventDeviceRemoval:
		c.Errorf("cma detected device removal!!!!\n")
		c.state, c.cause = stateError, ev.Err
		return true, nil
	}
	c.Errorf("unhandled event: %v, ignoring\n", ev.Type)
	return false, nil
}

// completed handles a completion. It returns true if the completion sets the state.
func (c *conn) completed(wc *verbs.WC) bool {
	if wc.Status == verbs.WCFlushErr && wc.ID != cm.ProbeID {
		return false // the connection has ended, and an event tells of that
	}
	if wc.Status != verbs.WCSuccess {
		c.Errorf("cq completion failed status %d\n", wc.Status)
		c.fail(c.causeOf(wc))
		return true
	}
	switch wc.ID {
	case sendID:
		c.debugf("send completion\n")
		return false
	case readID:
		c.debugf("rdma read completion\n")
		c.state = stateReadComplete
	case writeID:
		c.debugf("rdma write completion\n")
		c.state = stateWriteComplete
	case recvID:
		c.debugf("recv completion\n")
		c.received(wc)
	}
	return true
}

// received takes a message. It posts the receive of the next one before the peer can answer.
func (c *conn) received(wc *verbs.WC) {
	if wc.ByteLen != advertSize {
		c.Errorf("Received bogus data, size %d\nrecv wc error: %d\n", wc.ByteLen, -1)
		c.fail(fmt.Errorf("the peer's message has %d bytes, and rping's have %d: the peer is another program", wc.ByteLen, advertSize))
		return
	}
	if c.side == "server" {
		c.peer = decodeAdvert(c.recv.Bytes())
		c.debugf("Received rkey %x addr %x len %d from peer\n", uint32(c.peer.Remote.RKey), c.peer.Remote.VA, c.peer.Size)
	}
	// Only the state tells a server, or a client, which message of the round this is.
	switch {
	case c.side == "server" && (c.state <= stateConnected || c.state == stateWriteComplete):
		c.state = stateReadAdv
		c.feed.Probe(c.qp)
	case c.side == "server", c.state == stateReadAdv:
		c.state = stateWriteAdv
	default:
		c.state = stateWriteComplete
	}
	if _, err := c.qp.PostRecv(c.recvWR[:]); err != nil {
		c.Errorf("post recv error: %d\n", clib.PostStatus(err))
		c.fail(err)
	}
}

func (c *conn) fail(cause error) { c.state, c.cause = stateError, cause }

// causeOf adds to the error of a failed completion the cause that the completion alone does not show.
func (c *conn) causeOf(wc *verbs.WC) error {
	err := wc.Err()
	if c.side == "server" && wc.ID == readID && int64(c.peer.Size) > int64(c.flags.size) {
		return fmt.Errorf("%w: the client's data have %d bytes, and this server has room for %d: start it with -S %[2]d", err, c.peer.Size, c.flags.size)
	}
	return err
}

// advertise SENDs an advert. An advert of zeros is the server's go-ahead.
func (c *conn) advertise(a advert) error {
	a.AppendTo(c.send.Bytes()[:0])
	return c.post(&c.sendWR)
}

func (c *conn) post(wr *[1]verbs.SendWR) error {
	if _, err := c.qp.PostSend(wr[:]); err != nil {
		return c.report(err, "post send error %d\n", clib.PostStatus(err))
	}
	return nil
}

// disconnect ends the connection, and waits for a moment for the peer to agree.
func (c *conn) disconnect() {
	// A message may arrive before the news that the connection is established. The connection can be
	// ended only after that news.
	if !c.events(func() bool { return c.established || c.state == stateDisconnected }) {
		return
	}
	if c.id.Disconnect() == nil { // an error means that it has ended already
		c.events(func() bool { return c.state == stateDisconnected })
	}
}

// events handles events until done, and for cm.DisconnectWait at most.
func (c *conn) events(done func() bool) bool {
	timeout := errors.New("no event")
	c.feed.OnIdle(cm.DisconnectWait, func() error { return timeout })
	for !done() {
		_, ev, err := c.feed.Wait()
		if err != nil {
			return false
		}
		if ev != nil {
			c.handleEvent(ev)
		}
	}
	return true
}

// close closes everything that was made, except the ID.
func (c *conn) close() {
	c.debugf("rping_free_buffers called on cb %p\n", c)
	switch {
	case c.qp != nil && c.flags.ownQP:
		c.Explain(c.qp.Close())
	case c.qp != nil:
		c.Explain(c.id.DestroyQP())
	}
	for _, mr := range []*verbs.MR{c.recv, c.send, c.data, c.start} {
		if mr != nil {
			c.Explain(mr.Close())
		}
	}
	if c.cq != nil {
		c.Explain(c.cq.Close())
	}
	if c.pd != nil {
		c.Explain(c.pd.Close())
	}
}
