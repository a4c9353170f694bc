package rdmacm

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// maxBacklog is the largest number of requests that wait for a listener to answer. A listener that
// names no number gets it (net.rdma_ucm.max_backlog of Linux).
const maxBacklog = 1024

// Listen makes a bound ID take requests (rdma_listen). Each comes as EventConnectRequest with an ID of its
// own. Up to backlog of them wait to be answered. A backlog of 0 is the largest, 1024. Further ones come when
// there is room, as long as their senders wait. Requests over RoCE are dropped, and their senders repeat
// them. On iWARP their connections wait, up to 2048 for an address, half of them of one source. The Dial of
// one more fails with ErrReset.
//
// Nobody can keep others out. A source is an IPv4 address, or an IPv6 network (/64), whose hosts share the
// source's places. When there is no room, the source with the most requests loses its oldest one to a source
// that has fewer. A source may have 1024 attempts that are not complete, accepted requests without an answer
// included, and all sources 2048 at all listeners of a device. A request whose peer does not repeat it is
// forgotten. The ID of a request or connection that ends in these ways gets EventUnreachable, unless nobody
// has fetched its request: then the request is not seen at all. On iWARP a request that has lost its place
// comes again, and connections that say nothing end after 5 s, or before if others need their places: 1024
// for an address, half of them of one source.
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
	id.backlog = backlog
	b, number := id.binding, id.local.Port()
	err := b.take(id.ps, number)
	if err == nil {
		err = b.own(id.ps, number)
	}
	if err != nil {
		return id.error(op, err)
	}
	for _, c := range b.claims {
		if c.port == nil {
			continue
		}
		if err := id.listenAt(c.agent, c.port); err != nil {
			b.releasePorts()
			return id.error(op, err)
		}
	}
	id.state = stateListening
	return nil
}

// listenAt takes requests at one address. The caller holds id.mu.
func (id *ID) listenAt(a *agent, port connector.Port) error {
	return port.Listen(id.backlog, func(r *connector.Request) func(connector.Event) { return id.requested(a, r) })
}

// requested makes an ID for a request that has come to the listening one, and reports it. It
// returns the function that handles the new ID's events, or nil if the listener is closing. The
// connector's goroutine calls it.
func (id *ID) requested(a *agent, r *connector.Request) func(connector.Event) {
	child := &ID{ps: id.ps, state: stateRequested, agent: a}
	child.local, child.remote = r.Local, r.Remote
	child.conn, child.listener = r.Conn, id
	child.qpType = r.Type
	report := Event{Type: EventConnectRequest, ListenID: id}
	if id.ps.datagram() {
		report.UD.PrivateData = r.Params.PrivateData
	} else {
		child.peer = ConnParam(r.Params)
		report.Param = child.peer
		// The parameters of Accept by default, for programs that call QPAttr before.
		child.own = DefaultConnParam()
		if child.own.resolve(a.limits, &child.peer, 0) != nil {
			return nil
		}
	}
	child.options.tos = r.TOS
	if !child.screen(id.wants(), r) {
		return nil
	}
	if report.Param.QPN != 0 {
		report.Param = child.peer
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateListening || !a.retain() {
		return nil
	}
	if id.ch.attach() != nil {
		a.release() // not the last: a listener has its agent. The last would wait for this goroutine.
		return nil
	}
	child.ch, child.family = id.ch, id.family
	a.add(child)
	child.report(report)
	return child.handle
}

// Accept says yes to a request (rdma_accept), after CreateQP. A nil p stands for DefaultConnParam
// with no more resources than the peer has offered. The QP can be used at once for the first
// messages to the peer. EventEstablished follows when the peer is there. In PortSpaceUDP nothing
// follows.
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
	if id.ps.datagram() {
		return id.error(op, id.answer(&param))
	}
	room := id.agent.connector.Limits().Accept
	if id.agreement.request != nil {
		room = SecuredAcceptData
	}
	if err := param.resolve(id.agent.limits, &id.peer, room); err != nil {
		return id.error(op, err)
	}
	if err := id.nameQP(&param); err != nil {
		return id.error(op, err)
	}
	id.own = param
	if err := id.answerSecured(&param); err != nil {
		return id.error(op, err)
	}
	if id.qp != nil {
		// Before RTR, so that the device waits for no neighbor: a stranger may have asked, under any address.
		// Where the device cannot tell, the peer's repeats will.
		_ = id.qp.NotifyCommEst(id.commEst)
		if err := id.serveQP(); err != nil {
			return id.error(op, err)
		}
	}
	if err := id.conn.Accept(connector.Params(param)); err != nil {
		id.queuePair.fail()
		return id.error(op, err)
	}
	id.state = stateAccepting
	return nil
}

// answer names the ID's QP to the peer that has asked for it. The caller holds id.mu.
func (id *ID) answer(param *ConnParam) error {
	if err := checkPrivateData(param.PrivateData, id.agent.connector.Limits().Answer); err != nil {
		return err
	}
	if id.qp != nil {
		param.QPN = id.qp.QPN()
	}
	if param.QPN == 0 {
		return verbs.Errorf(verbs.ErrState, "there is no QP to name: call CreateQP, or name one in ConnParam.QPN")
	}
	err := id.conn.Accept(connector.Params(*param))
	if err == nil {
		id.state = stateConnected
	}
	return err
}

// Reject says no to a request (rdma_reject), or to the peer's answer while the connection is being
// made. The peer gets EventRejected with the private data or, in PortSpaceUDP, EventUnreachable. If CreateQP has met a limit
// before, and there is no private data, the peer is told that this end has no resources.
func (id *ID) Reject(privateData []byte) error {
	const op = "reject"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "only a request that is not answered can be rejected", stateRequested, stateAccepting, stateResponded); err != nil {
		return err
	}
	limits := id.agent.connector.Limits()
	room := limits.Reject
	if id.ps.datagram() {
		room = limits.Answer
	}
	if err := checkPrivateData(privateData, room); err != nil {
		return id.error(op, err)
	}
	var err error
	if id.lacks && len(privateData) == 0 {
		err = id.conn.RejectFor(wire.RejNoResources, nil)
	} else {
		err = id.conn.Reject(privateData)
	}
	if err != nil {
		return id.error(op, err)
	}
	id.queuePair.fail()
	id.state = stateFailed
	return nil
}
