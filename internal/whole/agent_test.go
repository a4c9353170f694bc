package whole

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	service   = 0x0106_1cea
	madRecvs  = 64
	madSize   = verbs.GRHSize + wire.MADSize
	madSends  = 64
	cmTimeout = 14 // code: 67 ms
	cmRetries = 7
)

// agent is a node's connection manager: the machine, and QP1. The agent does the work of package connector
// without goroutines.
type agent struct {
	n       *node
	machine *cm.Machine
	cq      *verbs.CQ
	mr      *verbs.MR
	qp      *verbs.QP
	ahs     map[cm.Path]*verbs.AH
}

// call is one end's part in introducing the ends of a life.
type call struct {
	c    *conn
	life int
	side int
	psn  verbs.PSN // the first that the peer sends
}

func newAgent(n *node) *agent {
	w, a := n.w, &agent{n: n, ahs: map[cm.Path]*verbs.AH{}}
	gsi, err := n.dev.GSI()
	w.must(err)
	a.cq, err = n.dev.CreateCQ(madRecvs + madSends)
	w.must(err)
	a.mr, err = n.pd.AllocMR(madRecvs*madSize, verbs.AccessLocalWrite)
	w.must(err)
	n.allocs = append(n.allocs, a.mr)
	a.qp, err = gsi.CreateQP(n.pd, verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: madSends, MaxRecvWR: madRecvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize}})
	w.must(err)
	w.must(a.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: wire.GSIQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	w.must(a.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	w.must(a.qp.RTS(0, verbs.Retry{}))
	for i := range madRecvs {
		a.post(uint64(i))
	}
	base, bits, err := gsi.CommIDs()
	w.must(err)
	guid := n.dev.Info().NodeGUID
	var secret [16]byte
	fill(secret[:], n.rnd.Uint64())
	a.machine = cm.New(cm.Config{GUID: binary.BigEndian.Uint64(guid[:]), IDBase: base, IDBits: bits, Secret: secret, ACKDelay: 10})
	_, err = a.machine.Listen(service, netip.Addr{}, 0)
	w.must(err)
	return a
}

func (a *agent) post(i uint64) {
	_, err := a.qp.PostRecv([]verbs.RecvWR{{ID: i, SGList: []verbs.SGE{a.mr.SGE(int(i)*madSize, madSize)}}})
	a.n.w.must(err)
}

// act hands MADs and the time to the machine, and takes the machine's messages and events.
func (a *agent) act() (did bool) {
	w := a.n.w
	if a.machine.NextTimeout() <= w.now() {
		a.machine.HandleTimeout(w.now())
		did = true
	}
	var wcs [16]verbs.WC
	for {
		k, err := a.cq.Poll(wcs[:])
		w.must(err)
		for i := range wcs[:k] {
			wc := &wcs[i]
			if wc.Op != verbs.WCRecv {
				continue
			}
			if b := a.mr.Bytes()[int(wc.ID)*madSize:][:madSize]; wc.ByteLen == madSize {
				w.totals.MADs++
				a.machine.Handle(w.now(), madPath(b), b[verbs.GRHSize:])
			}
			a.post(wc.ID)
		}
		if k == 0 {
			break
		}
		did = true
	}
	return a.pump() || did
}

// madPath reads the way back from a GRH.
func madPath(grh []byte) cm.Path {
	if ip := grh[verbs.GRHSize-20:]; ip[0] == 0x45 && grh[0]>>4 != 6 {
		return cm.Path{Local: netip.AddrFrom4([4]byte(ip[16:])), Remote: netip.AddrFrom4([4]byte(ip[12:]))}
	}
	return cm.Path{Local: netip.AddrFrom16([16]byte(grh[24:])), Remote: netip.AddrFrom16([16]byte(grh[8:]))}
}

// pump takes the machine's messages and events.
func (a *agent) pump() (did bool) {
	w := a.n.w
	for {
		p, mad, ok := a.machine.Transmit()
		if !ok {
			break
		}
		did = true
		ah := a.ahs[p]
		if ah == nil {
			var err error
			ah, err = a.n.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(p.Remote), HopLimit: 64})
			w.must(err)
			a.ahs[p] = ah
		}
		// Where the send queue is full the MAD is lost, and the machine sends the MAD again.
		a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: mad, AH: ah, RemoteQPN: wire.GSIQPN, RemoteQKey: wire.GSIQKey}})
	}
	for {
		ev, ok := a.machine.Event()
		if !ok {
			return did
		}
		did = true
		a.event(&ev)
	}
}

// connect begins to introduce the ends of a life.
func (a *agent) connect(c *conn) {
	e := c.ends[0]
	psn := verbs.PSN(e.rnd.IntN(1 << 24))
	var private [8]byte
	binary.BigEndian.PutUint32(private[:], uint32(c.index))
	binary.BigEndian.PutUint32(private[4:], uint32(c.life))
	conn, err := a.machine.Connect(c.w.now(), cm.Path{Local: a.n.addr, Remote: c.nodes[1].addr}, cm.ConnectParams{
		Service: service, Params: cm.Params{QPN: uint32(e.qp.QPN()), PSN: uint32(psn), PrivateData: private[:]}, MTU: uint8(c.mtu),
		PacketLifetime: cmTimeout - 2, RemoteCMTimeout: cmTimeout, LocalCMTimeout: cmTimeout, MaxCMRetries: cmRetries})
	a.n.w.must(err)
	conn.User = &call{c, c.life, 0, psn}
	e.cm = conn
	a.pump()
}

// event is one of the machine's.
func (a *agent) event(ev *cm.Event) {
	w := a.n.w
	if ev.Conn == nil {
		return
	}
	if ev.Type == cm.EventRequest {
		a.requested(ev)
		return
	}
	u, ok := ev.Conn.User.(*call)
	if !ok {
		return
	}
	c := u.c
	current := c.life == u.life && c.phase != waiting && !c.over
	w.logf("%v: CM event %v of %v, current %v", a.n, ev.Type, c, current)
	var e *end
	if current {
		e = c.ends[u.side]
	}
	if e == nil || e.closed || e.cm != ev.Conn {
		return
	}
	e.checkDisconnect(ev.Type)
	switch ev.Type {
	case cm.EventReply:
		if c.phase != opening {
			return
		}
		p := ev.Params
		if y := c.ends[1]; y == nil || verbs.QPN(p.QPN) != y.qp.QPN() {
			w.failf("%v: the reply names QP %#x, which is not the peer's", e, p.QPN)
		}
		if c.ends[1].closed || e.qp.State() == verbs.QPStateErr {
			c.refuse() // the peer crashed after the reply, or a queue has overrun
			return
		}
		e.toRTRWith(verbs.QPN(p.QPN), u.psn, c.nodes[1])
		e.psn = verbs.PSN(p.PSN)
		e.toRTS()
		w.must(ev.Conn.Ready(w.now()))
		c.start()
	case cm.EventRejected, cm.EventUnreachable, cm.EventDisconnected:
		if !w.plan.mayFail() && w.plan.Crashes == 0 && c.phase == opening { // a message that is lost comes again
			w.failf("%v: %v on a network that loses little", e, ev.Type)
		}
		if c.phase == opening {
			c.refuse()
			return
		}
		if !e.failed && (c.phase == running || c.phase == breaking) {
			e.kill()
		}
	}
}

// requested answers a request.
func (a *agent) requested(ev *cm.Event) {
	w, p := a.n.w, ev.Params
	index, life := binary.BigEndian.Uint32(p.PrivateData), int(binary.BigEndian.Uint32(p.PrivateData[4:]))
	var c *conn
	if int(index) < len(w.conns) {
		c = w.conns[index]
	}
	if c == nil || c.life != life || c.phase != opening || c.nodes[1] != a.n || c.ends[0] == nil || c.ends[1] != nil ||
		uint32(c.ends[0].qp.QPN()) != p.QPN {
		ev.Conn.Reject(w.now(), wire.RejConsumerDefined, nil, nil)
		ev.Conn.Close(w.now())
		return
	}
	e := newEnd(c, 1)
	c.ends[1] = e
	c.agree()
	psn := verbs.PSN(e.rnd.IntN(1 << 24))
	e.toRTRWith(verbs.QPN(p.QPN), psn, c.nodes[0])
	e.psn = verbs.PSN(p.PSN)
	e.toRTS()
	ev.Conn.User = &call{c, life, 1, psn}
	e.cm = ev.Conn
	w.must(ev.Conn.Accept(w.now(), cm.Params{QPN: uint32(e.qp.QPN()), PSN: uint32(psn)}))
	w.logf("%v accepts", e)
}

// disconnect ends the connection of one end.
func (e *end) disconnect() {
	if e.cm == nil || e.crashed {
		return
	}
	e.parted = true
	e.cm.Disconnect(e.n.w.now(), nil) // the peer may have been first
	e.cm.Close(e.n.w.now())
	e.n.soon()
}

// refuse gives up a life that the connection manager could not begin.
func (c *conn) refuse() {
	c.w.logf("%v is refused", c)
	for _, e := range c.ends {
		if e != nil && !e.closed {
			if !e.n.awake() {
				c.later(time.Millisecond, c.refuse)
				return
			}
		}
	}
	for _, e := range c.ends {
		if e != nil && !e.closed {
			e.disconnect()
			e.close()
		}
	}
	c.nextLife()
}

func (a *agent) close() {
	for _, ah := range a.ahs {
		a.n.w.must(ah.Close())
	}
	a.n.w.must(a.qp.Close())
	a.n.w.must(a.cq.Close())
	a.n.w.must(a.mr.Close())
	a.n.allocs = nil
}
