package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/verbs"
)

// queueDepth is how many entries each queue has room for, as in the C programs.
const queueDepth = 10

// The work request IDs of an end.
const (
	recvMRID = iota + 1
	recvDoneID
	sendMRID
	rdmaID
	sendDoneID
)

// How far an end has come with sending and receiving.
type (
	sendProgress int
	recvProgress int
)

const (
	sentNothing sendProgress = iota
	mrSent
	rdmaSent
	doneSent
)

const (
	receivedNothing recvProgress = iota
	mrReceived
	doneReceived
)

// end is the program of one end: rdma-server or rdma-client.
type end struct {
	who  role
	mode rwdemo.Mode
	view *view
	peer *end
	done chan struct{} // closed when this end has received all that it waits for

	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP

	recvMR, sendMR    *verbs.MR // messages
	localMR, remoteMR *verbs.MR // the RDMA buffers: one for this end, one that the peer reaches

	gidIndex int
	ownEnd   exchange.End
	peerMR   verbs.RemoteAddr

	sendState sendProgress
	recvState recvProgress
	operated  bool // the RDMA operation is posted
}

func (e *end) note(format string, args ...any) { e.view.note(e.who, format, args...) }
func (e *end) say(line, note string)           { e.view.say(e.who, line, note) }

// listen makes the server ready for a client.
func (e *end) listen(addr netip.Addr) (listener, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return listener{}, err
	}
	dl := listener{l}
	e.say(fmt.Sprintf("listening on port %d.", dl.port()), "on TCP, in place of the connection manager (CM), which this demo leaves out")
	return dl, nil
}

// serve is the server's work from the client's call on.
func (e *end) serve(ctx context.Context, l listener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	e.say("received connection request.", "")
	if err := e.build(); err != nil {
		conn.Close()
		return err
	}
	if err := e.exchange().Serve(ctx, conn); err != nil {
		return err
	}
	if err := e.converse(ctx); err != nil {
		return err
	}
	e.say("peer disconnected.", "")
	return nil
}

// call is the client.
func (e *end) call(ctx context.Context, server netip.AddrPort) error {
	e.say("address resolved.", fmt.Sprintf("%v has GID %v: RoCEv2 makes GIDs of IP addresses", server.Addr(), verbs.GIDFromAddr(server.Addr())))
	if err := e.build(); err != nil {
		return err
	}
	e.say("route resolved.", "QPN, PSN and GID go over TCP here, as ibv_rc_pingpong does it; the CM has UD packets to QP 1 for it")
	if err := e.exchange().Client(ctx, server.Addr().String(), int(server.Port())); err != nil {
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
func (e *end) build() (err error) {
	entries, err := e.dev.GIDs(1)
	if err != nil {
		return err
	}
	var ok bool
	if e.gidIndex, ok = device.FirstGID(entries); !ok {
		return fmt.Errorf("%s has no GID", e.dev.Name())
	}
	entry, err := e.dev.GID(1, e.gidIndex)
	if err != nil {
		return err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(queueDepth); err != nil {
		return err
	}
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	e.ownEnd = exchange.End{QPN: e.qp.QPN(), PSN: verbs.PSN(rand.Uint32N(1 << 24)), GID: entry.GID}
	e.note("device %s: GID %d is %v", e.dev.Name(), e.gidIndex, entry.GID)
	e.note("create a PD, a CQ of %d entries and an RC QP, number %v, in state RESET", e.cq.Cap(), e.ownEnd.QPN)
	if err := e.registerMemory(); err != nil {
		return err
	}
	if err := e.qp.Init(1, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return err
	}
	e.note("modify QP RESET -> INIT: port 1; the peer may read and write")
	return e.postReceives()
}

func (e *end) registerMemory() error {
	local, remote := e.mode.Access()
	localUse, remoteUse := "the source of the WRITE", "the memory that the peer's WRITE may fill"
	if e.mode == rwdemo.Read {
		localUse, remoteUse = "the target of the READ", "the memory that the peer's READ may fetch"
	}
	for _, r := range []struct {
		mr     **verbs.MR
		size   int
		access verbs.Access
		use    string
	}{
		{&e.sendMR, rwdemo.MessageSize, 0, "the message to send"},
		{&e.recvMR, 2 * rwdemo.MessageSize, verbs.AccessLocalWrite, "the messages to receive"},
		{&e.localMR, rwdemo.BufferSize, local, localUse},
		{&e.remoteMR, rwdemo.BufferSize, remote, remoteUse},
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
	copy(e.mode.Own(e.localMR, e.remoteMR).Bytes(), rwdemo.Text(e.who == roleClient)) // the rest is zeros
	return nil
}

// postReceives posts a receive for each of the peer's two messages. The C programs post the second
// one when the first message has come. That may be too late, and the peer then sends again.
func (e *end) postReceives() error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{
		{ID: recvMRID, SGList: []verbs.SGE{e.recvMR.SGE(0, rwdemo.MessageSize)}},
		{ID: recvDoneID, SGList: []verbs.SGE{e.recvMR.SGE(rwdemo.MessageSize, rwdemo.MessageSize)}},
	})
	e.note("post 2 receives: wr_id %d for MSG_MR, wr_id %d for MSG_DONE", recvMRID, recvDoneID)
	return err
}

// exchange is how this end and its peer learn of each other.
func (e *end) exchange() *exchange.Exchange {
	return &exchange.Exchange{Local: []exchange.End{e.ownEnd},
		Connect: func(remote []exchange.End) error { return e.connect(remote[0]) }}
}

// connect takes the QP to RTR and RTS.
func (e *end) connect(remote exchange.End) error {
	err := e.qp.RTR(verbs.Peer{QPN: remote.QPN, PSN: remote.PSN, GID: remote.GID},
		verbs.Path{SGIDIndex: e.gidIndex, MTU: verbs.MTU1024, MaxDestRDAtomic: 1})
	if err != nil {
		return err
	}
	e.note("modify QP INIT -> RTR: peer is QP %v at %v, its first PSN %v, path MTU 1024", remote.QPN, remote.GID, remote.PSN)
	retry := verbs.DefaultRetry
	retry.MaxRDAtomic = 1
	if err := e.qp.RTS(e.ownEnd.PSN, retry); err != nil {
		return err
	}
	e.note("modify QP RTR -> RTS: own first PSN %v", e.ownEnd.PSN)
	return nil
}

// sendOurMR tells the peer where it may read or write.
func (e *end) sendOurMR() error {
	return e.sendMessage(sendMRID, rwdemo.RegionMessage(rwdemo.MsgMR, e.remoteMR))
}

func (e *end) sendMessage(id uint64, m *rwdemo.Message) error {
	m.AppendTo(e.sendMR.Bytes()[:0])
	e.note("post SEND, wr_id %d: %v", id, m)
	_, err := e.qp.PostSend([]verbs.SendWR{{
		ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.sendMR.SGE(0, rwdemo.MessageSize)},
	}})
	return err
}

// converse handles completions until both ends are done.
func (e *end) converse(ctx context.Context) error {
	var wcs [queueDepth]verbs.WC
	for e.sendState != doneSent || e.recvState != doneReceived {
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

// completed handles a completion as the C programs do: it counts messages sent and received.
func (e *end) completed(wc *verbs.WC) error {
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
		e.say(rwdemo.SendCompleted, text)
	}
	switch {
	case e.mayOperate():
		e.operated = true
		return e.operate()
	case e.sendState == doneSent && e.recvState == doneReceived:
		e.sayResult()
	}
	return nil
}

// mayOperate reports whether the RDMA operation is due. The peer may have sent MSG_DONE before the acknowledgement of this
// end's MSG_MR has come.
func (e *end) mayOperate() bool {
	return !e.operated && e.sendState >= mrSent && e.recvState >= mrReceived
}

// received takes a message of the peer.
func (e *end) received(wc *verbs.WC, text string) error {
	off := int(wc.ID-recvMRID) * rwdemo.MessageSize
	m, err := rwdemo.DecodeMessage(e.recvMR.Bytes()[off : off+min(int(wc.ByteLen), rwdemo.MessageSize)])
	if err != nil {
		return err
	}
	e.recvState++
	e.note("%s, %d bytes: %v", text, wc.ByteLen, &m)
	if m.Type != rwdemo.MsgMR {
		return nil
	}
	e.peerMR = m.Remote()
	if e.sendState == sentNothing && e.who == roleServer {
		return e.sendOurMR()
	}
	return nil
}

// operate posts the RDMA operation and, right behind it, MSG_DONE. The peer gets the message only
// after the operation is done.
func (e *end) operate() error {
	op := e.mode.Opcode()
	e.say(e.mode.Operating(),
		fmt.Sprintf("post %v, wr_id %d: %d bytes, local %#x, remote %#x by rkey %v",
			strings.TrimPrefix(op.String(), "WR_"), rdmaID, rwdemo.BufferSize, e.localMR.Addr(), e.peerMR.VA, e.peerMR.RKey))
	_, err := e.qp.PostSend([]verbs.SendWR{{
		ID: rdmaID, Op: op, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{e.localMR.SGE(0, rwdemo.BufferSize)}, Remote: e.peerMR,
	}})
	if err != nil {
		return err
	}
	return e.sendMessage(sendDoneID, &rwdemo.Message{Type: rwdemo.MsgDone})
}

// sayResult prints the peer's text, which its WRITE put here or our READ fetched.
func (e *end) sayResult() {
	note := "the peer's WRITE put this into our memory; no receive was used and no completion came"
	if e.mode == rwdemo.Read {
		note = "our READ fetched this; nothing at the peer's program took part"
	}
	text := clib.Printable(e.mode.Peers(e.localMR, e.remoteMR).Bytes())
	e.say(rwdemo.RemoteBuffer+string(text), note)
}

// close closes all objects that there are, the dependent ones first.
func (e *end) close() {
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
