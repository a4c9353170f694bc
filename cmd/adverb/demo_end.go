package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// Sizes of the demonstration's programs.
const (
	demoBufferSize = 1024
	demoQueueDepth = 10
)

// The work request IDs of an end.
const (
	demoRecvMRID = iota + 1
	demoRecvDoneID
	demoSendMRID
	demoRDMAID
	demoSendDoneID
)

// How far an end is with sending and receiving.
type (
	demoSendState int
	demoRecvState int
)

const (
	demoSendInit demoSendState = iota
	demoMRSent
	demoRDMASent
	demoDoneSent
)

const (
	demoRecvInit demoRecvState = iota
	demoMRReceived
	demoDoneReceived
)

// demoEnd is the program of one end: rdma-server or rdma-client.
type demoEnd struct {
	who  demoWho
	mode demoMode
	view *demoView
	peer *demoEnd
	done chan struct{} // closed when this end has seen all that it waited for

	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP

	recvMR, sendMR    *verbs.MR // messages
	localMR, remoteMR *verbs.MR // the RDMA buffers: ours to use, and the peer's to reach

	gidIndex int
	local    pingpongEnd
	peerMR   verbs.RemoteAddr

	sendState demoSendState
	recvState demoRecvState
}

func (e *demoEnd) note(format string, args ...any) { e.view.note(e.who, format, args...) }
func (e *demoEnd) say(line, note string)           { e.view.say(e.who, line, note) }

// listen makes the server ready for a client.
func (e *demoEnd) listen(addr netip.Addr) (demoListener, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return demoListener{}, err
	}
	dl := demoListener{l}
	e.say(fmt.Sprintf("listening on port %d.", dl.port()), "on TCP, in place of the connection manager (CM), which this demo leaves out")
	return dl, nil
}

// serve is the server from the client's call on.
func (e *demoEnd) serve(ctx context.Context, l demoListener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	e.say("received connection request.", "")
	if err := e.build(); err != nil {
		conn.Close()
		return err
	}
	if err := e.exchange().serve(ctx, conn); err != nil {
		return err
	}
	if err := e.converse(ctx); err != nil {
		return err
	}
	e.say("peer disconnected.", "")
	return nil
}

// call is the client.
func (e *demoEnd) call(ctx context.Context, server netip.AddrPort) error {
	e.say("address resolved.", fmt.Sprintf("%v has GID %v: RoCEv2 makes GIDs of IP addresses", server.Addr(), verbs.GIDFromAddr(server.Addr())))
	if err := e.build(); err != nil {
		return err
	}
	e.say("route resolved.", "QPN, PSN and GID go over TCP here, as ibv_rc_pingpong does it; the CM has UD packets to QP 1 for it")
	if err := e.exchange().client(ctx, server.Addr().String(), int(server.Port())); err != nil {
		return err
	}
	if err := e.sendOurMR(); err != nil {
		return err
	}
	if err := e.converse(ctx); err != nil {
		return err
	}
	e.say("disconnected.", "")
	return nil
}

// build makes the objects, registers memory, posts receives and takes the QP to INIT.
func (e *demoEnd) build() (err error) {
	entries, err := e.dev.GIDs(1)
	if err != nil {
		return err
	}
	var ok bool
	if e.gidIndex, ok = firstGID(entries); !ok {
		return fmt.Errorf("%s has no GID", e.dev.Name())
	}
	entry, err := e.dev.GID(1, e.gidIndex)
	if err != nil {
		return err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(demoQueueDepth); err != nil {
		return err
	}
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: demoQueueDepth, MaxRecvWR: demoQueueDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	e.local = pingpongEnd{QPN: e.qp.QPN(), PSN: verbs.PSN(rand.Uint32N(1 << 24)), GID: entry.GID}
	e.note("device %s: GID %d is %v", e.dev.Name(), e.gidIndex, entry.GID)
	e.note("create a PD, a CQ of %d entries and an RC QP, number %v, in state RESET", e.cq.Cap(), e.local.QPN)
	if err := e.registerMemory(); err != nil {
		return err
	}
	if err := e.qp.Init(1, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return err
	}
	e.note("modify QP RESET -> INIT: port 1; the peer may read and write")
	return e.postReceives()
}

func (e *demoEnd) registerMemory() error {
	local, remote := verbs.Access(0), verbs.AccessLocalWrite|verbs.AccessRemoteWrite
	localUse, remoteUse := "what the WRITE takes from here", "what the peer's WRITE may fill"
	if e.mode == demoRead {
		local, remote = verbs.AccessLocalWrite, verbs.AccessRemoteRead
		localUse, remoteUse = "where the READ puts what it fetches", "what the peer's READ may fetch"
	}
	for _, r := range []struct {
		mr     **verbs.MR
		size   int
		access verbs.Access
		use    string
	}{
		{&e.sendMR, demoMessageSize, 0, "the message to send"},
		{&e.recvMR, 2 * demoMessageSize, verbs.AccessLocalWrite, "the messages to receive"},
		{&e.localMR, demoBufferSize, local, localUse},
		{&e.remoteMR, demoBufferSize, remote, remoteUse},
	} {
		mr, err := e.pd.AllocMR(r.size, r.access)
		if err != nil {
			return err
		}
		*r.mr = mr
		access := strings.ReplaceAll(r.access.String(), "ACCESS_", "")
		if r.access == 0 {
			access = "local read only"
		}
		e.note("register %4d bytes at %#x: lkey %v, rkey %v, %s (%s)", r.size, mr.Addr(), mr.LKey(), mr.RKey(), access, r.use)
	}
	side := "passive/server"
	if e.who == demoClient {
		side = "active/client"
	}
	source := e.localMR
	if e.mode == demoRead {
		source = e.remoteMR
	}
	copy(source.Bytes(), fmt.Sprintf("message from %s side with pid %d\x00", side, demoPID()))
	return nil
}

// postReceives posts a receive for each of the peer's two messages. The C programs post the
// second when the first has come, which may be too late: the peer then tries again.
func (e *demoEnd) postReceives() error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{
		{ID: demoRecvMRID, SGList: []verbs.SGE{e.recvMR.SGE(0, demoMessageSize)}},
		{ID: demoRecvDoneID, SGList: []verbs.SGE{e.recvMR.SGE(demoMessageSize, demoMessageSize)}},
	})
	e.note("post 2 receives: wr_id %d for MSG_MR, wr_id %d for MSG_DONE", demoRecvMRID, demoRecvDoneID)
	return err
}

func (e *demoEnd) exchange() *exchange {
	return &exchange{[]pingpongEnd{e.local}, func(remote []pingpongEnd) error { return e.connect(remote[0]) }}
}

// connect takes the QP to RTR and RTS.
func (e *demoEnd) connect(remote pingpongEnd) error {
	err := e.qp.RTR(verbs.Peer{QPN: remote.QPN, PSN: remote.PSN, GID: remote.GID},
		verbs.Path{SGIDIndex: e.gidIndex, MTU: verbs.MTU1024, MaxDestRDAtomic: 1})
	if err != nil {
		return err
	}
	e.note("modify QP INIT -> RTR: peer is QP %v at %v, its first PSN %v, path MTU 1024", remote.QPN, remote.GID, remote.PSN)
	retry := verbs.DefaultRetry
	retry.MaxRDAtomic = 1
	if err := e.qp.RTS(e.local.PSN, retry); err != nil {
		return err
	}
	e.note("modify QP RTR -> RTS: own first PSN %v", e.local.PSN)
	return nil
}

// sendOurMR tells the peer where it may read or write.
func (e *demoEnd) sendOurMR() error {
	r := e.remoteMR.Remote(0)
	return e.sendMessage(demoSendMRID, demoMessage{
		kind: demoMR, addr: r.VA, size: uint64(e.remoteMR.Len()), lkey: e.remoteMR.LKey(), rkey: r.RKey,
	})
}

func (e *demoEnd) sendMessage(id uint64, m demoMessage) error {
	m.put(e.sendMR.Bytes())
	e.note("post SEND, wr_id %d: %v", id, m)
	_, err := e.qp.PostSend([]verbs.SendWR{{
		ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.sendMR.SGE(0, demoMessageSize)},
	}})
	return err
}

// converse handles completions until both ends are done.
func (e *demoEnd) converse(ctx context.Context) error {
	var wcs [demoQueueDepth]verbs.WC
	for e.sendState != demoDoneSent || e.recvState != demoDoneReceived {
		n, err := e.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range n {
			if err := e.completed(&wcs[i]); err != nil {
				return err
			}
		}
	}
	close(e.done)
	select {
	case <-e.peer.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	e.note("both ends are done: destroy the QP (the CM would send DREQ and DREP first)")
	return e.qp.Close()
}

// completed handles a completion as the C programs do: by counting what was sent and received.
func (e *demoEnd) completed(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		return fmt.Errorf("%v: %w", e.who, wc.Err())
	}
	text := fmt.Sprintf("completion: %v, %v, wr_id %d", wc.Status, wc.Op, wc.ID)
	if wc.Op&verbs.WCRecv != 0 {
		if err := e.received(wc, text); err != nil {
			return err
		}
	} else {
		e.sendState++
		e.say("send completed successfully.", text)
	}
	switch {
	case e.sendState == demoMRSent && e.recvState == demoMRReceived:
		return e.operate()
	case e.sendState == demoDoneSent && e.recvState == demoDoneReceived:
		e.sayResult()
	}
	return nil
}

// received takes a message of the peer.
func (e *demoEnd) received(wc *verbs.WC, text string) error {
	off := int(wc.ID-demoRecvMRID) * demoMessageSize
	m, err := parseDemoMessage(e.recvMR.Bytes()[off : off+min(int(wc.ByteLen), demoMessageSize)])
	if err != nil {
		return err
	}
	e.recvState++
	e.note("%s, %d bytes: %v", text, wc.ByteLen, m)
	if m.kind != demoMR {
		return nil
	}
	e.peerMR = verbs.RemoteAddr{VA: m.addr, RKey: m.rkey}
	if e.sendState == demoSendInit && e.who == demoServer {
		return e.sendOurMR()
	}
	return nil
}

// operate posts the RDMA operation and, right behind it, MSG_DONE: the peer gets the message
// only after the operation is done.
func (e *demoEnd) operate() error {
	op, doing := verbs.OpRDMAWrite, "writing message to"
	if e.mode == demoRead {
		op, doing = verbs.OpRDMARead, "reading message from"
	}
	e.say("received MSG_MR. "+doing+" remote memory...",
		fmt.Sprintf("post %v, wr_id %d: %d bytes, local %#x, remote %#x by rkey %v",
			strings.TrimPrefix(op.String(), "WR_"), demoRDMAID, demoBufferSize, e.localMR.Addr(), e.peerMR.VA, e.peerMR.RKey))
	_, err := e.qp.PostSend([]verbs.SendWR{{
		ID: demoRDMAID, Op: op, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{e.localMR.SGE(0, demoBufferSize)}, Remote: e.peerMR,
	}})
	if err != nil {
		return err
	}
	return e.sendMessage(demoSendDoneID, demoMessage{kind: demoDone})
}

// sayResult prints the peer's message: what its WRITE put here, or our READ fetched.
func (e *demoEnd) sayResult() {
	mr, note := e.remoteMR, "the peer's WRITE put this into our memory; no receive was used and no completion came"
	if e.mode == demoRead {
		mr, note = e.localMR, "our READ fetched this; nothing at the peer's program took part"
	}
	text, _, _ := strings.Cut(string(mr.Bytes()), "\x00")
	e.say("remote buffer: "+text, note)
}

// close closes what there is, in the order of dependence.
func (e *demoEnd) close() {
	if e.qp != nil {
		e.qp.Close()
	}
	if e.cq != nil {
		e.cq.Close()
	}
	for _, mr := range []*verbs.MR{e.sendMR, e.recvMR, e.localMR, e.remoteMR} {
		if mr != nil {
			mr.Close()
		}
	}
	if e.pd != nil {
		e.pd.Close()
	}
}
