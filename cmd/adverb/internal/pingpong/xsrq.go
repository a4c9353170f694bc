package pingpong

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/verbs"
)

// XSRQ is the command of XRC.
var XSRQ = &cli.Command{
	Name:    "xsrq_pingpong",
	Classic: []string{"ibv_xsrq_pingpong"},
	Short:   "Bounce messages between a server and its clients over XRC, to a shared receive queue",
	Flags:   xsrqFlags(),
	Forms: []cli.Form{
		{Does: "wait for the clients"},
		{Args: "<host>", Does: "be a client of the server at <host>"},
	},
	Usage: usage,
	More:  xsrqMore,
	Run:   runXSRQ,
}

const xsrqMore = more + `With several clients the server sends to each of them over the connections of all, in turn, which
shows that a message goes to the SRQ that it names: they must share an XRC domain, and so a device.
Clients of a software device can only do so in one process: give it --as-clients. Where the clients
have several GIDs, the server sends to each over its own connection, and the C program fails.
`

const (
	maxXSRQClients = 1 << 12
	maxSends       = 16 // of one QP at a time: further ones wait
)

func xsrqFlags() []cli.Flag {
	list := cli.PickFlags(flagTable, "pdismcnleog")
	for i := range list {
		switch f := &list[i]; f.Short {
		case 'c':
			*f = cli.Flag{Short: 'c', Long: "clients", Arg: "<n>", Help: "clients to wait for (on server only, default 1)", Check: clib.Within(1, maxXSRQClients)}
		case 'n':
			*f = cli.Flag{Short: 'n', Long: "num_tests", Arg: "<n>", Help: "messages each way for each client (default 5)", Check: clib.Within(1, math.MaxInt32)}
		case 's':
			f.Help, f.Check = "bytes in a message (default 4096)", clib.Within(1, math.MaxUint32)
		}
	}
	return append(list, cli.Flag{Long: "as-clients", Arg: "<n>", Help: "be so many clients, which share an XRC domain (on client only, default 1)",
		Check: clib.Within(1, maxXSRQClients)})
}

// kindXSRQ has what the parts have that all pingpong programs share.
var kindXSRQ = kind{size: 4096, numQP: 1, iters: 5, needsLID: true, gidLine: connectedGIDLine,
	onDemandLine: "The device isn't ODP capable or does not support XRC send, receive and srq with ODP"}

// xsrq is a run of xsrq_pingpong.
type xsrq struct {
	inv   *cli.Invocation
	flags flags
	ctx   context.Context // ends with the user's patience, and with a peer
	end   context.CancelCauseFunc

	dev     *verbs.Device
	pd      *verbs.PD
	mr      *verbs.MR
	cq      *verbs.CQ
	xrcd    *verbs.XRCD
	srq     *verbs.SRQ    // of a server: one for all clients
	members []*xsrqMember // the clients of a server, or those that this end is

	own       xsrqEnd // the fields that all members share
	sgidIndex int
	depth     int  // of a send queue
	turns     bool // the server sends over the connections of all clients, in turn
	wcs       []verbs.WC
	sent      int // messages
	completed int // sends
	received  int
	owed      []*xsrqMember // whose next message has found a full queue
}

// xsrqMember is one client's connection, at either end.
type xsrqMember struct {
	srq           *verbs.SRQ // of a client; a server's are one
	target        *verbs.QP
	initiator     *verbs.QP
	local, remote xsrqEnd
	conn          net.Conn
	farewell      chan struct{} // closed when the peer has taken its leave

	recv   []verbs.RecvWR
	send   []verbs.SendWR
	bounds int // messages sent to the peer
}

func runXSRQ(inv *cli.Invocation) int {
	f, code, ok := parse(inv, &kindXSRQ)
	if !ok {
		return code
	}
	x := &xsrq{inv: inv, flags: f}
	x.ctx, x.end = context.WithCancelCause(inv.Ctx)
	defer x.end(nil)
	if x.dev = device.Open(inv, f.device); x.dev == nil {
		return cli.ExitError
	}
	err := x.run()
	if cerr := x.close(); err == nil {
		err = cerr
	}
	if err == nil {
		inv.Printf("success\n")
	}
	return inv.Finish(err, func(err error) int { return reportFailure(inv, err) })
}

func (x *xsrq) run() error {
	clients := x.flags.clients
	if x.flags.host != "" {
		clients = x.flags.asClients
	}
	if err := x.setup(max(clients, 1)); err != nil {
		return err
	}
	if x.flags.host != "" {
		for _, m := range x.members {
			if err := x.call(m); err != nil {
				return err
			}
		}
	} else if err := x.serve(); err != nil {
		return err
	}
	if err := x.bounce(); err != nil {
		return err
	}
	return x.part()
}

// setup makes the objects, takes the QPs to INIT, and posts a receive for each member.
func (x *xsrq) setup(clients int) (err error) {
	// The C program opens the domain of a file in /tmp, which all its processes share.
	if x.xrcd, err = x.dev.OpenXRCD(verbs.XRCDAttr{}); err != nil {
		return fail(err, "Couldn't Open the XRC Domain")
	}
	lid, e, err := chooseGID(x.dev, &x.flags, &kindXSRQ)
	if err != nil {
		return err
	}
	x.own.lid, x.own.gid, x.sgidIndex = lid, e.GID, e.Index
	if x.pd, err = x.dev.AllocPD(); err != nil {
		return fail(err, "Couldn't allocate PD")
	}
	access := verbs.AccessLocalWrite
	if x.flags.odp {
		access |= verbs.AccessOnDemand
	}
	x.mr, err = x.pd.AllocMR(int(x.flags.size), access)
	switch {
	case x.flags.odp && errors.Is(err, verbs.ErrUnsupported):
		return fail(err, "%s", kindXSRQ.onDemandLine)
	case err != nil:
		return fail(err, "Couldn't register MR")
	}
	copy(x.mr.Bytes(), bytes.Repeat([]byte{fillByte}, x.mr.Len()))
	x.depth = min(clients, maxSends) + 1
	if x.cq, err = x.dev.CreateCQ(clients + clients*x.depth); err != nil {
		return fail(err, "Couldn't create recv CQ")
	}
	x.wcs = make([]verbs.WC, clients+1)
	if x.flags.events {
		if err := x.cq.Notify(false); err != nil {
			return fail(err, "Couldn't request CQ notification")
		}
	}
	if x.flags.host == "" {
		if x.srq, err = x.createSRQ(clients); err != nil {
			return err
		}
	}
	for i := range clients {
		if err := x.addMember(i); err != nil {
			return err
		}
	}
	return nil
}

func (x *xsrq) createSRQ(receives int) (*verbs.SRQ, error) {
	q, err := x.xrcd.CreateSRQ(x.pd, x.cq, verbs.SRQAttr{MaxWR: receives, MaxSGE: 1})
	if err != nil {
		return nil, fail(err, "Couldn't create SRQ")
	}
	return q, nil
}

func (x *xsrq) addMember(i int) (err error) {
	m := &xsrqMember{local: x.own}
	x.members = append(x.members, m)
	if x.srq == nil {
		if m.srq, err = x.createSRQ(1); err != nil {
			return err
		}
	}
	if m.target, err = x.xrcd.CreateQP(verbs.QPInitAttr{}); err != nil {
		return fail(err, "Couldn't create recv QP[%d]", i)
	}
	if err := m.target.Init(x.flags.ibPort, verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return fail(err, "Failed to modify recv QP[%d] to INIT", i)
	}
	m.initiator, err = x.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCSend, SendCQ: x.cq, Cap: verbs.QPCap{MaxSendWR: x.depth, MaxSendSGE: 1}})
	if err != nil {
		return fail(err, "Couldn't create send QP[%d]", i)
	}
	if err := m.initiator.Init(x.flags.ibPort, 0); err != nil {
		return fail(err, "Failed to modify send QP[%d] to INIT", i)
	}
	m.local.recv, m.local.send = m.target.QPN(), m.initiator.QPN()
	m.local.psn, m.local.srqn = verbs.PSN(rand.Uint32N(1<<24)), x.srqOf(m).Num()
	m.recv = []verbs.RecvWR{{ID: uint64(i), SGList: []verbs.SGE{x.mr.SGE(0, int(x.flags.size))}}}
	return x.postRecv(m)
}

// srqOf is the SRQ that a member's peer sends to.
func (x *xsrq) srqOf(m *xsrqMember) *verbs.SRQ { return cmp.Or(x.srq, m.srq) }

func (x *xsrq) postRecv(m *xsrqMember) error {
	if _, err := x.srqOf(m).PostRecv(m.recv); err != nil {
		return fail(err, "Failed to post receive to SRQ")
	}
	return nil
}

// call connects one of a client's members to the server.
func (x *xsrq) call(m *xsrqMember) (err error) {
	if m.conn, err = exchange.Dial(x.ctx, x.flags.host, x.flags.port); err != nil {
		return err
	}
	defer context.AfterFunc(x.ctx, func() { m.conn.Close() })()
	x.printEnd("local", &m.local)
	if _, err := m.conn.Write(m.local.message()); err != nil {
		return fail(err, "Couldn't send local address")
	}
	if m.remote, err = readXSRQEnd(m.conn); err != nil {
		return err
	}
	x.printEnd("remote", &m.remote)
	if err := x.connect(m); err != nil {
		return err
	}
	m.await(x.end)
	return nil
}

// serve connects to all clients.
func (x *xsrq) serve() error {
	l, err := listenXSRQ(x.ctx, x.flags.port)
	if err != nil {
		return err
	}
	i := 0
	err = acceptAll(x.ctx, l, len(x.members), func(c xsrqCaller) error {
		m := x.members[i]
		i++
		m.conn, m.remote = c.conn, c.end
		if c.err != nil {
			return c.err
		}
		x.printEnd("remote", &m.remote)
		// Unlike the C program's server, ours connects before the client learns of its QPs.
		if err := x.connect(m); err != nil {
			return err
		}
		x.printEnd("local", &m.local)
		if _, err := m.conn.Write(m.local.message()); err != nil {
			return fail(err, "Couldn't send local address")
		}
		m.await(x.end)
		return nil
	})
	if err != nil {
		return err
	}
	x.turns = true
	for _, m := range x.members {
		if m.remote.gid != x.members[0].remote.gid || m.remote.lid != x.members[0].remote.lid {
			x.turns = false
		}
	}
	return nil
}

// connect takes the QPs of a member to RTR and the initiator to RTS.
func (x *xsrq) connect(m *xsrqMember) error {
	i := 0
	for x.members[i] != m {
		i++
	}
	ah := verbs.AHAttr{DLID: m.remote.lid, SL: uint8(x.flags.sl), Port: x.flags.ibPort, DGID: m.remote.gid, SGIDIndex: x.sgidIndex}
	if port, err := x.dev.QueryPort(x.flags.ibPort); err == nil && port.LinkLayer == verbs.LinkLayerEthernet && !m.remote.hasGID() {
		return fail(errNoPeerGID, "Failed to modify recv QP[%d] to RTR", i)
	}
	attr := verbs.QPAttr{State: verbs.QPStateRTR, AH: ah, PathMTU: x.flags.mtu, DestQPN: m.remote.send, RQPSN: m.remote.psn,
		MaxDestRDAtomic: rdAtomic, MinRNRTimer: minRNRTimer}
	const mask = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN
	if err := m.target.Modify(&attr, mask|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer); err != nil {
		return fail(err, "Failed to modify recv QP[%d] to RTR", i)
	}
	attr.DestQPN = m.remote.recv
	if err := m.initiator.Modify(&attr, mask); err != nil {
		return fail(err, "Failed to modify send QP[%d] to RTR", i)
	}
	err := m.initiator.RTS(m.local.psn, verbs.Retry{Timeout: ackTimeout, RetryCount: retryCount, RNRRetryCount: retryCount, MaxRDAtomic: rdAtomic})
	if err != nil {
		return fail(err, "Failed to modify send QP[%d] to RTS", i)
	}
	m.send = []verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{x.mr.SGE(0, int(x.flags.size))}, RemoteSRQN: m.remote.srqn}}
	return nil
}

// bounce exchanges the messages: the server sends to each client, and each end answers a message with one.
func (x *xsrq) bounce() error {
	if x.flags.host == "" {
		patience := firstPatience + time.Duration(x.flags.size/slowest)*time.Second
		first := time.AfterFunc(patience, func() {
			x.end(fmt.Errorf("wait for the clients' first message: none has come for %v: are the clients %s too, with the same flags?",
				patience, x.inv.Cmd.Name))
		})
		defer first.Stop()
		for _, m := range x.members {
			if err := x.post(m); err != nil {
				return err
			}
		}
		if err := x.take(1); err != nil {
			return err
		}
		first.Stop()
	}
	total := len(x.members) * x.flags.iters
	if err := x.take(total); err != nil {
		return err
	}
	for x.sent < total || x.completed < x.sent {
		if err := x.poll(); err != nil {
			return err
		}
	}
	return nil
}

// take polls until so many messages have come.
func (x *xsrq) take(messages int) error {
	for x.received < messages {
		if err := x.poll(); err != nil {
			return err
		}
	}
	return nil
}

// post sends the next message to a member's peer. A server with clients of one XRC domain takes the connections of all
// of them in turn: the message names the SRQ of its client.
func (x *xsrq) post(m *xsrqMember) error {
	over := m
	if i := int(m.send[0].ID); x.turns {
		over = x.members[(i+m.bounds)%len(x.members)]
	}
	_, err := over.initiator.PostSend(m.send)
	switch {
	case errors.Is(err, verbs.ErrQueueFull):
		x.owed = append(x.owed, m)
		return nil
	case err != nil:
		return fail(err, "Couldn't post send")
	}
	m.bounds++
	x.sent++
	return nil
}

// poll waits for completions, and accounts for them. With -e there may be none.
func (x *xsrq) poll() error {
	var n int
	var err error
	if x.flags.events {
		select {
		case <-x.cq.Events():
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		}
		if err := x.cq.Notify(false); err != nil {
			return fail(err, "Couldn't request CQ notification")
		}
	}
	for {
		if x.flags.events {
			n, err = x.cq.Poll(x.wcs)
		} else if n, err = device.Wait(x.ctx, x.cq, x.wcs); n == 0 && x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		if err != nil {
			return fail(err, "Error polling cq %d", -1)
		}
		for i := range n {
			if err := x.completion(x.wcs[i]); err != nil {
				return err
			}
		}
		if !x.flags.events || n == 0 {
			return nil
		}
	}
}

// completion accounts for a completion.
func (x *xsrq) completion(wc verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		err := wc.Err()
		if x.turns && len(x.members) > 1 && wc.Status == verbs.WCRemInvReqErr {
			err = fmt.Errorf("%w: the clients have one GID, and share no XRC domain. Clients of a software device share one in one "+
				"process alone, by --as-clients; else give each a device with an address of its own", err)
		}
		return fail(err, "Work completion error %d", wc.Status)
	}
	if wc.Op != verbs.WCRecv {
		x.completed++
		for _, m := range slices.Clone(x.owed) { // there is room in one of the queues
			x.owed = x.owed[1:]
			if err := x.post(m); err != nil {
				return err
			}
		}
		return nil
	}
	m := x.members[wc.ID]
	if x.srq != nil { // a receive of all: the connection says who has sent
		for _, c := range x.members {
			if c.target.QPN() == wc.QPN {
				m = c
			}
		}
	}
	x.received++
	if err := x.postRecv(m); err != nil {
		return err
	}
	if m.bounds < x.flags.iters {
		return x.post(m)
	}
	return nil
}

// close closes everything that was made, and returns the first failure.
func (x *xsrq) close() (first error) {
	note := func(err error, format string, args ...any) {
		if err != nil && first == nil {
			first = fail(err, format, args...)
		}
	}
	for i, m := range x.members {
		if m.conn != nil {
			m.conn.Close()
		}
		if m.initiator != nil {
			note(m.initiator.Close(), "Couldn't destroy INI QP[%d]", i)
		}
		if m.target != nil {
			note(m.target.Close(), "Couldn't destroy TGT QP[%d]", i)
		}
		if m.srq != nil {
			note(m.srq.Close(), "Couldn't destroy SRQ")
		}
	}
	if x.srq != nil {
		note(x.srq.Close(), "Couldn't destroy SRQ")
	}
	if x.xrcd != nil {
		note(x.xrcd.Close(), "Couldn't close the XRC Domain")
	}
	if x.cq != nil {
		note(x.cq.Close(), "Couldn't destroy recv CQ")
	}
	if x.mr != nil {
		note(x.mr.Close(), "Couldn't deregister MR")
	}
	if x.pd != nil {
		note(x.pd.Close(), "Couldn't deallocate PD")
	}
	note(x.dev.Close(), "Couldn't release context")
	return first
}
