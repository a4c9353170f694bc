package rdmademo

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// queueDepth is how many work requests each queue has room for, as in the C programs. One of them is
// the probe of a silent peer.
const queueDepth = 10

// States of a connection. sendState counts the completions of this end's work requests, and
// recvState counts the peer's messages.
const (
	mrSent   = 1 // send_state: SS_MR_SENT
	rdmaDone = 2 // SS_RDMA_SENT
	doneSent = 3 // SS_DONE_SENT

	mrReceived   = 1 // recv_state: RS_MR_RECV
	doneReceived = 2 // RS_DONE_RECV
)

const (
	sendCompleted = rwdemo.SendCompleted + "\n"
	badCompletion = "on_completion: status is not IBV_WC_SUCCESS.\n"
)

// conn is an end of a connection. In the C programs all connections share one CQ and the thread
// that polls it. Here each connection has its own CQ, so that no number of clients overruns it.
type conn struct {
	*demo
	client bool
	id     *rdmacm.ID
	feed   *cm.Feed

	pd            *verbs.PD
	cq            *verbs.CQ
	qp            *verbs.QP
	send, recv    *verbs.MR // messages
	local, remote *verbs.MR // regions; the constant steps explains them

	connected     bool // established: sends may be posted
	mrPosted      bool
	rdmaPosted    bool
	disconnecting bool
	sendState     int
	recvState     int
	overtaken     int // completions flushed when this end was through
	peer          verbs.RemoteAddr
}

func (d *demo) newConn(id *rdmacm.ID, f *cm.Feed) *conn {
	return &conn{demo: d, id: id, feed: f}
}

// run handles completions and events until the connection has ended.
func (c *conn) run() error {
	for {
		wc, ev, err := c.feed.Wait()
		ended := false
		switch {
		case errors.Is(err, errNoGoodbye):
			c.goodbye()
			return nil
		case err != nil:
			return err
		case wc != nil:
			err = c.completed(wc)
		default:
			ended, err = c.handleEvent(ev)
		}
		if ended || err != nil {
			return err
		}
	}
}

// setup makes the QP, registers the memory and posts the first receive. It comes before the peer
// learns of this end.
func (c *conn) setup() (err error) {
	dev := c.id.Device()
	if c.pd, err = dev.AllocPD(); err != nil {
		return c.die(err, callNull, "s_ctx->pd = ibv_alloc_pd(s_ctx->ctx)")
	}
	if c.cq, err = dev.CreateCQ(2 * queueDepth); err != nil {
		return c.die(err, callNull, "s_ctx->cq = ibv_create_cq(s_ctx->ctx, 10, NULL, s_ctx->comp_channel, 0)")
	}
	c.feed.CQ = c.cq
	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if err = c.id.CreateQP(c.pd, attr); err != nil {
		return c.failed(err, "rdma_create_qp(id, s_ctx->pd, &qp_attr)")
	}
	c.qp = c.id.QP()
	localAccess, remoteAccess := c.mode.Access()
	for _, r := range []struct {
		mr     **verbs.MR
		name   string
		size   int
		access verbs.Access
	}{
		{&c.send, "send_mr", rwdemo.MessageSize, 0},
		{&c.recv, "recv_mr", rwdemo.MessageSize, verbs.AccessLocalWrite},
		{&c.local, "rdma_local_mr", rwdemo.BufferSize, localAccess},
		{&c.remote, "rdma_remote_mr", rwdemo.BufferSize, remoteAccess},
	} {
		if *r.mr, err = c.pd.AllocMR(r.size, r.access); err != nil {
			return c.die(err, callNull, "conn->"+r.name+" = ibv_reg_mr(…)")
		}
	}
	return c.postRecv()
}

// completed is on_completion of the C programs.
func (c *conn) completed(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		switch {
		case wc.Status != verbs.WCFlushErr:
		case !c.connected || c.disconnecting:
			return nil // an event tells why
		case c.through():
			c.overtaken++ // no failure, if a disconnect follows
			c.feed.OnIdle(cm.DisconnectWait, func() error { return c.die(errCut, badCompletion) })
			return nil
		}
		return c.die(c.causeOf(wc), badCompletion)
	}
	if wc.Op&verbs.WCRecv != 0 {
		if err := c.received(wc); err != nil {
			return err
		}
	} else {
		c.sendState++
		c.Printf(sendCompleted)
	}
	switch {
	case !c.rdmaPosted && c.sendState >= mrSent && c.recvState >= mrReceived:
		return c.operate()
	case !c.disconnecting && c.sendState == doneSent && c.recvState == doneReceived:
		c.printText()
		return c.disconnect()
	}
	return nil
}

func (c *conn) printText() { c.Printf("%s%s\n", rwdemo.RemoteBuffer, c.peerText()) }

// through reports whether this end lacks only acknowledgements: the peer's MSG_DONE has come, and
// this end has posted its own. If the peer then disconnects, it has received everything, but its
// disconnect may be faster than its acknowledgement. The C programs die of that. In read mode the
// data of the READ must have come too.
func (c *conn) through() bool {
	return c.recvState == doneReceived && c.rdmaPosted && (c.mode == rwdemo.Write || c.sendState >= rdmaDone)
}

// received takes a message.
func (c *conn) received(wc *verbs.WC) error {
	m, err := rwdemo.DecodeMessage(c.recv.Bytes()[:wc.ByteLen])
	if err != nil {
		return c.die(err, badCompletion)
	}
	c.recvState++
	want := rwdemo.MsgMR
	if c.recvState == doneReceived {
		want = rwdemo.MsgDone
	}
	if m.Type != want || c.recvState > doneReceived {
		return c.die(fmt.Errorf("the peer sent %v where %v was to come", m.Type, want), badCompletion)
	}
	if m.Type == rwdemo.MsgDone {
		return nil // no message follows, so no receive is posted
	}
	c.peer = m.Remote()
	if err := c.postRecv(); err != nil {
		return err
	}
	if !c.connected {
		return nil // the answer goes out once the connection is established
	}
	return c.sendMR()
}

// sendMR tells the peer where this end's remote region is, once.
func (c *conn) sendMR() error {
	if c.mrPosted {
		return nil
	}
	c.mrPosted = true
	return c.sendMessage(rwdemo.MsgMR)
}

// sendMessage sends a message of type t. MSG_DONE describes the region too, which the receiver
// ignores.
func (c *conn) sendMessage(t rwdemo.MessageType) error {
	rwdemo.RegionMessage(t, c.remote).AppendTo(c.send.Bytes()[:0])
	return c.post(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{c.send.SGE(0, rwdemo.MessageSize)}})
}

// operate reads or writes the peer's region, and sends MSG_DONE behind the operation.
func (c *conn) operate() error {
	c.rdmaPosted = true
	c.Printf("%s\n", c.mode.Operating())
	op := verbs.SendWR{Op: c.mode.Opcode(), Remote: c.peer, SGList: []verbs.SGE{c.local.SGE(0, rwdemo.BufferSize)}}
	if err := c.post(op); err != nil {
		return err
	}
	return c.sendMessage(rwdemo.MsgDone)
}

func (c *conn) post(wr verbs.SendWR) error {
	wr.Flags = verbs.SendSignaled
	if _, err := c.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return c.failed(err, "ibv_post_send(conn->qp, &wr, &bad_wr)")
	}
	return nil
}

func (c *conn) postRecv() error {
	wr := []verbs.RecvWR{{SGList: []verbs.SGE{c.recv.SGE(0, rwdemo.MessageSize)}}}
	if _, err := c.qp.PostRecv(wr); err != nil {
		return c.failed(err, "ibv_post_recv(conn->qp, &wr, &bad_wr)")
	}
	return nil
}

// errNoGoodbye says that the peer has not answered a disconnect. That is no failure: by then the peer
// has got all that it needs.
var errNoGoodbye = errors.New("the peer did not answer the disconnect")

// disconnect ends the connection. Both ends disconnect, and both get the event.
func (c *conn) disconnect() error {
	c.disconnecting = true
	c.feed.OnIdle(cm.DisconnectWait, func() error { return errNoGoodbye })
	if err := c.id.Disconnect(); err != nil && !errors.Is(err, verbs.ErrState) { // the peer was first
		return c.die(err, "rdma_disconnect failed\n")
	}
	return nil
}

// causeOf adds to the error of a failed completion the cause that the completion alone does not show.
func (c *conn) causeOf(wc *verbs.WC) error {
	const otherMode = "was the peer started with another mode than"
	switch err := wc.Err(); {
	case wc.Status == verbs.WCRemAccessErr:
		return fmt.Errorf("%w: %s %q?", err, otherMode, c.mode)
	case wc.Status != verbs.WCFlushErr:
		return err
	case c.rdmaPosted:
		return fmt.Errorf("%w, or refused access to its memory: %s %q?", errCut, otherMode, c.mode)
	}
	return errCut
}

// close closes everything that was made.
func (c *conn) close() {
	if c.qp != nil {
		if !c.disconnecting {
			_ = c.id.Disconnect() // fails if it never was connected, or is no longer
		}
		c.Explain(c.id.DestroyQP())
	}
	for _, mr := range []*verbs.MR{c.send, c.recv, c.local, c.remote} {
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
	c.Explain(c.id.Close())
}
