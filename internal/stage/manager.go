package stage

import (
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// manager is a host's connection manager: the machine of package cm on the device's QP1. Programs take its events.
type manager struct {
	cm     *cm.Machine
	qp1    *verbs.QP
	cq1    *verbs.CQ
	mads   *verbs.MR
	ah     *verbs.AH
	conn   *cm.Conn
	events []cm.Event // that the program has not taken
}

const (
	madRecvs = 16
	madSpace = verbs.GRHSize + wire.MADSize
)

// service is the service ID that B listens at: that of TCP port 7471 with librdmacm.
const service = 0x0000000001061d2f

// manageConnections opens QP1 and the machine.
func (n *node) manageConnections() (err error) {
	gsi, err := n.dev.GSI()
	if err != nil {
		return err
	}
	if n.cq1, err = n.dev.CreateCQ(4 * madRecvs); err != nil {
		return err
	}
	if n.mads, err = n.pd.AllocMR(madRecvs*madSpace, verbs.AccessLocalWrite); err != nil {
		return err
	}
	n.iova += pageSize * (1 + madRecvs*madSpace/pageSize)
	n.qp1, err = gsi.CreateQP(n.pd, verbs.QPInitAttr{SendCQ: n.cq1, RecvCQ: n.cq1, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: madRecvs, MaxRecvWR: madRecvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize}})
	if err != nil {
		return err
	}
	err = errors.Join(
		n.qp1.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: wire.GSIQKey}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey),
		n.qp1.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState), n.qp1.RTS(0, verbs.Retry{}), gsi.Serve(0))
	for i := range uint64(madRecvs) {
		err = errors.Join(err, n.postMAD(i))
	}
	if err != nil {
		return err
	}
	if n.ah, err = n.pd.CreateAH(verbs.AHAttr{Port: 1, DGID: n.peer.gid, HopLimit: 64}); err != nil {
		return err
	}
	n.cm = cm.New(n.cmConfig())
	if n == n.s.b {
		if _, err = gsi.ClaimService(0, service); err == nil {
			_, err = n.cm.Listen(service, netip.Addr{}, 0)
		}
	}
	return err
}

func (n *node) postMAD(i uint64) error {
	return n.qp1.PostOneRecv(i, n.mads.SGE(int(i)*madSpace, madSpace))
}

// manage hands messages between QP1 and the machine, and events to the program. It reports whether there was something.
func (n *node) manage() (busy bool) {
	if n.cm == nil {
		return false
	}
	var wc [1]verbs.WC
	for {
		if k, err := n.cq1.Poll(wc[:]); err != nil || k == 0 {
			break
		}
		if wc[0].Op&verbs.WCRecv == 0 || wc[0].Status != verbs.WCSuccess {
			continue
		}
		busy = true
		mad := n.mads.Bytes()[int(wc[0].ID)*madSpace:][verbs.GRHSize:madSpace]
		if int(wc[0].ByteLen) == madSpace {
			n.cm.Handle(n.s.now, n.path(), mad)
		}
		if err := n.postMAD(wc[0].ID); err != nil {
			n.s.note(Entry{Kind: "error", Text: err.Error()})
		}
	}
	for {
		_, mad, ok := n.cm.Transmit()
		if !ok {
			break
		}
		busy = true
		err := n.qp1.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: mad, AH: n.ah, RemoteQPN: wire.GSIQPN, RemoteQKey: wire.GSIQKey})
		if err != nil {
			n.s.note(Entry{Kind: "error", Text: err.Error()})
		}
	}
	for {
		e, ok := n.cm.Event()
		if !ok {
			return busy
		}
		busy = true
		n.events = append(n.events, e)
		n.s.note(Entry{Kind: "cm", Who: n.name, Text: e.Type.String()})
	}
}

func (n *node) path() cm.Path { return cm.Path{Local: n.addr, Remote: n.peer.addr} }

// awaits returns a condition: the program's next event of the connection manager is of a type.
func (n *node) awaits(t cm.EventType) func() bool {
	return func() bool { return len(n.events) > 0 && n.events[0].Type == t }
}

// take takes the next event.
func (n *node) take() cm.Event {
	e := n.events[0]
	n.events = n.events[1:]
	return e
}

// params are what the ends tell each other.
func (n *node) params() cm.Params {
	return cm.Params{QPN: uint32(n.qp.QPN()), PSN: uint32(n.firstPSN()), ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: uint8(n.s.play.RNRRetry)}
}

// peerOf is the peer that a REQ or a REP describes.
func (n *node) peerOf(p cm.Params) verbs.Peer {
	return verbs.Peer{QPN: verbs.QPN(p.QPN), PSN: verbs.PSN(p.PSN), GID: n.peer.gid}
}
