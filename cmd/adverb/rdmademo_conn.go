package main

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// rdmaDemoWRs is how many work requests each queue has room for, as in the C programs. The probe of a silent
// peer is one of them.
const rdmaDemoWRs = 10

// States of a connection: how many completions of its own an end has seen, and how many messages.
const (
	rdmaDemoMRSent   = 1 // send_state: SS_MR_SENT
	rdmaDemoRDMADone = 2 // SS_RDMA_SENT
	rdmaDemoDoneSent = 3 // SS_DONE_SENT

	rdmaDemoMRReceived   = 1 // recv_state: RS_MR_RECV
	rdmaDemoDoneReceived = 2 // RS_DONE_RECV
)

const (
	rdmaDemoSent          = "send completed successfully.\n"
	rdmaDemoBadCompletion = "on_completion: status is not IBV_WC_SUCCESS.\n"
)

// rdmaDemoConn is an end of a connection. The C programs share one CQ, and the thread that polls it, among
// all connections; here each has its own, so that no number of clients overruns it.
type rdmaDemoConn struct {
	*rdmaDemo
	client bool
	id     *rdmacm.ID
	feed   *feed

	pd            *verbs.PD
	cq            *verbs.CQ
	qp            *verbs.QP
	send, recv    *verbs.MR // messages
	local, remote *verbs.MR // see rdmaDemoMore

	connected     bool // established: sends may be posted
	mrPosted      bool
	rdmaPosted    bool
	disconnecting bool
	sendState     int
	recvState     int
	overtaken     int // flushed when the end was through
	peer          verbs.RemoteAddr
}

func (d *rdmaDemo) newConn(id *rdmacm.ID, f *feed) *rdmaDemoConn {
	return &rdmaDemoConn{rdmaDemo: d, id: id, feed: f}
}

// run handles what comes until the connection has ended.
func (c *rdmaDemoConn) run() error {
	for {
		wc, ev, err := c.feed.wait()
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
			ended, err = c.happened(ev)
		}
		if ended || err != nil {
			return err
		}
	}
}

// setup makes the QP, registers the memory and posts the first receive, before the peer is told.
func (c *rdmaDemoConn) setup() (err error) {
	dev := c.id.Device()
	if c.pd, err = dev.AllocPD(); err != nil {
		return c.die(err, rdmaDemoCallNull, "s_ctx->pd = ibv_alloc_pd(s_ctx->ctx)")
	}
	if c.cq, err = dev.CreateCQ(2 * rdmaDemoWRs); err != nil {
		return c.die(err, rdmaDemoCallNull, "s_ctx->cq = ibv_create_cq(s_ctx->ctx, 10, NULL, s_ctx->comp_channel, 0)")
	}
	c.feed.cq = c.cq
	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: rdmaDemoWRs, MaxRecvWR: rdmaDemoWRs, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if err = c.id.CreateQP(c.pd, attr); err != nil {
		return c.failed(err, "rdma_create_qp(id, s_ctx->pd, &qp_attr)")
	}
	c.qp = c.id.QP()
	localAccess, remoteAccess := c.mode.access()
	for _, r := range []struct {
		mr     **verbs.MR
		name   string
		size   int
		access verbs.Access
	}{
		{&c.send, "send_mr", rdmaDemoMessageSize, 0},
		{&c.recv, "recv_mr", rdmaDemoMessageSize, verbs.AccessLocalWrite},
		{&c.local, "rdma_local_mr", rdmaDemoBufferSize, localAccess},
		{&c.remote, "rdma_remote_mr", rdmaDemoBufferSize, remoteAccess},
	} {
		if *r.mr, err = c.pd.AllocMR(r.size, r.access); err != nil {
			return c.die(err, rdmaDemoCallNull, "conn->"+r.name+" = ibv_reg_mr(…)")
		}
	}
	return c.postRecv()
}

// completed is on_completion of the C programs.
func (c *rdmaDemoConn) completed(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		switch {
		case wc.Status != verbs.WCFlushErr:
		case !c.connected || c.disconnecting:
			return nil // an event says why
		case c.through():
			c.overtaken++ // no failure, if a disconnect follows
			c.feed.onIdle(disconnectWait, func() error { return c.die(errRDMADemoCut, rdmaDemoBadCompletion) })
			return nil
		}
		return c.die(c.explained(wc), rdmaDemoBadCompletion)
	}
	if wc.Op&verbs.WCRecv != 0 {
		if err := c.received(wc); err != nil {
			return err
		}
	} else {
		c.sendState++
		c.printf(rdmaDemoSent)
	}
	switch {
	case !c.rdmaPosted && c.sendState >= rdmaDemoMRSent && c.recvState >= rdmaDemoMRReceived:
		return c.operate()
	case !c.disconnecting && c.sendState == rdmaDemoDoneSent && c.recvState == rdmaDemoDoneReceived:
		c.printText()
		return c.disconnect()
	}
	return nil
}

func (c *rdmaDemoConn) printText() { c.printf("remote buffer: %s\n", c.peerText()) }

// through reports whether only acknowledgements are missing: the peer has said MSG_DONE, and this
// end has posted its own. A peer that then disconnects has got it, but its disconnect may be faster
// than its acknowledgement, for which the C programs die. What a READ brings must have come.
func (c *rdmaDemoConn) through() bool {
	return c.recvState == rdmaDemoDoneReceived && c.rdmaPosted && (c.mode == rdmaDemoWrite || c.sendState >= rdmaDemoRDMADone)
}

// received takes a message.
func (c *rdmaDemoConn) received(wc *verbs.WC) error {
	m, err := decodeRDMADemoMessage(c.recv.Bytes()[:wc.ByteLen])
	if err != nil {
		return c.die(err, rdmaDemoBadCompletion)
	}
	c.recvState++
	want := rdmaDemoMR
	if c.recvState == rdmaDemoDoneReceived {
		want = rdmaDemoDone
	}
	if m.Type != want || c.recvState > rdmaDemoDoneReceived {
		return c.die(fmt.Errorf("the peer sent %v where %v was to come", m.Type, want), rdmaDemoBadCompletion)
	}
	if m.Type == rdmaDemoDone {
		return nil // no message follows, so no receive is posted
	}
	c.peer = verbs.RemoteAddr{VA: m.Addr, RKey: m.RKey}
	if err := c.postRecv(); err != nil {
		return err
	}
	if !c.connected {
		return nil // the answer goes out once the connection is established
	}
	return c.sendMR()
}

// sendMR tells the peer where this end's remote region is, once.
func (c *rdmaDemoConn) sendMR() error {
	if c.mrPosted {
		return nil
	}
	c.mrPosted = true
	return c.sendMessage(rdmaDemoMR)
}

// sendMessage sends a message. MSG_DONE has the region in it too, of which nobody takes notice.
func (c *rdmaDemoConn) sendMessage(t rdmaDemoMessageType) error {
	m := rdmaDemoMessage{Type: t, Addr: c.remote.Addr(), Length: uint64(c.remote.Len()), LKey: c.remote.LKey(), RKey: c.remote.RKey()}
	m.AppendTo(c.send.Bytes()[:0])
	return c.post(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{c.send.SGE(0, rdmaDemoMessageSize)}})
}

// operate reads or writes the peer's region, and says so.
func (c *rdmaDemoConn) operate() error {
	c.rdmaPosted = true
	verb := "writing message to"
	if c.mode == rdmaDemoRead {
		verb = "reading message from"
	}
	c.printf("received MSG_MR. %s remote memory...\n", verb)
	op := verbs.SendWR{Op: c.mode.opcode(), Remote: c.peer, SGList: []verbs.SGE{c.local.SGE(0, rdmaDemoBufferSize)}}
	if err := c.post(op); err != nil {
		return err
	}
	return c.sendMessage(rdmaDemoDone)
}

func (c *rdmaDemoConn) post(wr verbs.SendWR) error {
	wr.Flags = verbs.SendSignaled
	if _, err := c.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return c.failed(err, "ibv_post_send(conn->qp, &wr, &bad_wr)")
	}
	return nil
}

func (c *rdmaDemoConn) postRecv() error {
	wr := []verbs.RecvWR{{SGList: []verbs.SGE{c.recv.SGE(0, rdmaDemoMessageSize)}}}
	if _, err := c.qp.PostRecv(wr); err != nil {
		return c.failed(err, "ibv_post_recv(conn->qp, &wr, &bad_wr)")
	}
	return nil
}

// errNoGoodbye: a peer has not agreed to a disconnect. It has got all that it needs.
var errNoGoodbye = errors.New("the peer did not answer the disconnect")

// disconnect ends the connection. Both ends do, and both get the event.
func (c *rdmaDemoConn) disconnect() error {
	c.disconnecting = true
	c.feed.onIdle(disconnectWait, func() error { return errNoGoodbye })
	if err := c.id.Disconnect(); err != nil && !errors.Is(err, verbs.ErrState) { // the peer was first
		return c.die(err, "rdma_disconnect failed\n")
	}
	return nil
}

// explained adds to a failed completion what the work request alone does not show.
func (c *rdmaDemoConn) explained(wc *verbs.WC) error {
	const otherMode = "was the peer started with another mode than"
	switch err := wc.Err(); {
	case wc.Status == verbs.WCRemAccessErr:
		return fmt.Errorf("%w: %s %q?", err, otherMode, c.mode)
	case wc.Status != verbs.WCFlushErr:
		return err
	case c.rdmaPosted:
		return fmt.Errorf("%w, or refused access to its memory: %s %q?", errRDMADemoCut, otherMode, c.mode)
	}
	return errRDMADemoCut
}

// close closes everything that was made.
func (c *rdmaDemoConn) close() {
	if c.qp != nil {
		if !c.disconnecting {
			_ = c.id.Disconnect() // fails if it never was connected, or is no longer
		}
		c.explain(c.id.DestroyQP())
	}
	for _, mr := range []*verbs.MR{c.send, c.recv, c.local, c.remote} {
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
	c.explain(c.id.Close())
}
