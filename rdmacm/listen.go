package rdmacm

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// maxBacklog is the largest number of requests that wait for a listener, and what it gets that
// does not say (net.rdma_ucm.max_backlog of Linux).
const maxBacklog = 1024

// listening is a listener in the machine of one device, on one address.
type listening struct {
	agent *agent
	l     *cm.Listener
}

// Listen makes a bound ID take requests (rdma_listen): each comes as EventConnectRequest with an ID
// of its own. Up to backlog of them wait to be answered; what comes beyond is dropped, and repeated by
// the peers. A backlog of 0 is the largest, 1024.
func (id *ID) Listen(backlog int) error {
	const op = "listen"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateIdle {
		if err := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return id.error(op, err)
		}
		id.state = stateBound
	}
	if err := id.expect(op, "call BindAddr first", stateBound); err != nil {
		return err
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	port := id.local.Port()
	if err := id.binding.take(id.ps, port); err != nil { // if it is not ours already
		return id.error(op, err)
	}
	for _, c := range id.binding.claims {
		var err error
		c.agent.do(func(m *cm.Machine, _ time.Duration) {
			var l *cm.Listener
			if l, err = m.Listen(wire.RDMAServiceID(uint16(id.ps), port), c.addr, backlog); err == nil {
				l.User = id
				id.listeners = append(id.listeners, listening{c.agent, l})
			}
		})
		if err != nil {
			id.stopListening()
			return id.error(op, err)
		}
	}
	id.state = stateListening
	return nil
}

// stopListening ends what Listen has begun. The caller holds id.mu.
func (id *ID) stopListening() {
	for _, l := range id.listeners {
		l.agent.do(func(_ *cm.Machine, now time.Duration) { l.l.Close(now) })
	}
	id.listeners = nil
}

// requested takes a request that the machine has for the listening ID. The agent's goroutine calls it.
func (id *ID) requested(a *agent, ev *cm.Event) {
	child, reason, info := id.admit(a, ev)
	if child != nil {
		return
	}
	a.do(func(_ *cm.Machine, now time.Duration) {
		if ev.SIDR != nil {
			ev.SIDR.Close(now) // which says no
			return
		}
		if reason != 0 {
			_ = ev.Conn.Reject(now, wire.RejReason(reason), info, nil)
		}
		ev.Conn.Close(now)
	})
}

// admit makes an ID for a request and reports it, or says why it cannot be: by the reason to reject
// it with, or 0 if the listener is closing.
func (id *ID) admit(a *agent, ev *cm.Event) (child *ID, reason RejectReason, info []byte) {
	data := ev.Params.PrivateData
	if ev.SIDR != nil {
		data = ev.PrivateData
	}
	h, err := wire.DecodeIPCMHeader(data)
	if err != nil || h.Dst.Unmap() != ev.Path.Local {
		return nil, RejectConsumerDefined, nil // as Linux answers what is not for IP addresses, or not for ours
	}
	sgid, err := a.gidIndex(ev.Path.Local)
	if err != nil {
		return nil, RejectInvalidGID, nil
	}
	if !a.retain() {
		return nil, 0, nil
	}
	_, port, _ := wire.SplitRDMAServiceID(ev.Request.Service)
	child = &ID{
		ps: id.ps, qpType: id.qpType, state: stateRequested, listener: id, sgid: sgid, path: ev.Path, psn: newPSN(),
		local:  netip.AddrPortFrom(h.Dst.Unmap(), port),
		remote: netip.AddrPortFrom(h.Src.Unmap(), h.SrcPort),
	}
	data = data[wire.IPCMHeaderSize:]
	report := Event{Type: EventConnectRequest, ListenID: id}
	if ev.SIDR != nil {
		child.sidr = ev.SIDR
		report.UD.PrivateData = data
	} else if reason, info = child.takeRequest(a, ev); reason != 0 {
		a.release()
		return nil, reason, info
	} else {
		child.conn = ev.Conn
		child.peer.PrivateData = data
		report.Param = child.peer
	}

	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateListening || id.ch.attach() != nil {
		a.release()
		return nil, 0, nil
	}
	child.ch, child.options = id.ch, options{tos: ev.Path.TrafficClass}
	a.mu.Lock()
	if child.conn != nil {
		child.conn.User = child
	} else {
		child.sidr.User = child
	}
	a.mu.Unlock()
	child.useAgent(a)
	child.report(report)
	return child, 0, nil
}

// takeRequest takes over what the REQ says, or returns why it cannot be.
func (id *ID) takeRequest(a *agent, ev *cm.Event) (reason RejectReason, info []byte) {
	if ev.Params.UC {
		if id.ps != PortSpaceIB {
			return RejectInvalidTransport, nil
		}
		id.qpType = verbs.QPTypeUC
	}
	attr, err := a.dev.QueryPort(devicePort)
	if err != nil {
		return RejectConsumerDefined, nil
	}
	if verbs.MTU(ev.Request.MTU) > attr.ActiveMTU {
		return RejectInvalidMTU, []byte{uint8(attr.ActiveMTU)}
	}
	id.peer = fromPeer(&ev.Params)
	id.peer.RetryCount = ev.Request.RetryCount
	// What Accept does by default, for programs that ask by QPAttr before.
	id.param = DefaultConnParam()
	if id.param.resolve(a.limits, &id.peer, 0) != nil {
		return RejectConsumerDefined, nil
	}
	id.offered = offer{
		mtu: verbs.MTU(ev.Request.MTU), retryCount: ev.Request.RetryCount, ackTimeout: ev.Request.ACKTimeout,
		peerQPN: verbs.QPN(ev.Params.QPN), peerPSN: verbs.PSN(ev.Params.PSN), rnrRetry: ev.Params.RNRRetryCount,
	}
	return 0, nil
}

// fromPeer turns what the peer says of its resources into what this end may use.
func fromPeer(p *cm.Params) ConnParam {
	return ConnParam{
		PrivateData: p.PrivateData, ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
		FlowControl: p.FlowControl, RNRRetryCount: p.RNRRetryCount, QPN: verbs.QPN(p.QPN), SRQ: p.SRQ,
	}
}

// Accept says yes to a request (rdma_accept), after CreateQP; nil stands for DefaultConnParam with
// no more resources than the peer has offered. The QP can be used at once for what the peer needs to hear;
// EventEstablished follows when the peer is there. In PortSpaceUDP nothing follows.
func (id *ID) Accept(p *ConnParam) error {
	const op = "accept"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateResponded { // the old form of Establish
		return id.error(op, id.ready())
	}
	if err := id.expect(op, "only the ID of an EventConnectRequest can, once", stateRequested); err != nil {
		return err
	}
	param := orDefault(p)
	if id.sidr != nil {
		return id.error(op, id.answer(&param))
	}
	if err := param.resolve(id.agent.limits, &id.peer, MaxAcceptData); err != nil {
		return id.error(op, err)
	}
	if id.qp != nil {
		param.QPN, param.SRQ = id.param.QPN, id.param.SRQ
	}
	if param.QPN == 0 {
		return id.error(op, verbs.Errorf(verbs.ErrState, "there is no QP to connect: call CreateQP, or name one in ConnParam.QPN"))
	}
	id.param = param
	if id.qp != nil {
		if err := id.serveQP(); err != nil {
			return id.error(op, err)
		}
		// What the device cannot tell the peer's repeats will.
		_ = id.qp.NotifyCommEst(id.commEst)
	}
	var err error
	id.agent.do(func(_ *cm.Machine, now time.Duration) { err = id.conn.Accept(now, id.params()) })
	if err != nil {
		id.failQP()
		return id.error(op, err)
	}
	id.state = stateAccepting
	return nil
}

// answer sends the SIDR_REP. The caller holds id.mu.
func (id *ID) answer(param *ConnParam) error {
	if err := checkPrivateData(param.PrivateData, MaxUDAcceptData); err != nil {
		return err
	}
	if id.qp != nil {
		param.QPN = id.qp.QPN()
	}
	if param.QPN == 0 {
		return verbs.Errorf(verbs.ErrState, "there is no QP to name: call CreateQP, or name one in ConnParam.QPN")
	}
	var err error
	id.agent.do(func(_ *cm.Machine, now time.Duration) {
		err = id.sidr.Reply(now, cm.SIDRReply{QPN: uint32(param.QPN), QKey: uint32(UDQKey), PrivateData: param.PrivateData})
	})
	if err == nil {
		id.state = stateConnected
	}
	return err
}

// Reject says no to a request (rdma_reject), or to the answer of the peer while the connection is being made. The
// peer gets EventRejected with the private data; in PortSpaceUDP, EventUnreachable.
func (id *ID) Reject(privateData []byte) error {
	const op = "reject"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "only what has been requested and not answered can be rejected", stateRequested, stateAccepting, stateResponded); err != nil {
		return err
	}
	room := MaxRejectData
	if id.sidr != nil {
		room = MaxUDAcceptData
	}
	if err := checkPrivateData(privateData, room); err != nil {
		return id.error(op, err)
	}
	var err error
	id.agent.do(func(_ *cm.Machine, now time.Duration) {
		if id.sidr != nil {
			err = id.sidr.Reply(now, cm.SIDRReply{Status: wire.SIDRRejected, PrivateData: privateData})
			return
		}
		err = id.conn.Reject(now, wire.RejReason(RejectConsumerDefined), nil, privateData)
	})
	if err != nil {
		return id.error(op, err)
	}
	id.failQP()
	id.state = stateFailed
	return nil
}
