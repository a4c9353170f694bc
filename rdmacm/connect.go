package rdmacm

import (
	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// connection is an ID's end of a connection, or of a UD exchange.
type connection struct {
	conn     connector.Conn // not nil once the ID has a device
	listener *ID            // whose request has made this ID, or nil at the connecting end
	own      ConnParam      // this end's parameters
	peer     ConnParam      // the other end's parameters, its resources as they are for this end

	// unreported is an EventEstablished that the program has not seen, as the peer was ending the
	// connection when it became due. It is reported before the end.
	unreported *Event

	tells   bool  // the QP tells of its failure
	failure error // of the QP

	agreement agreement // on keys
	ending    bool      // an event says that the connection has ended, and drain is about to report it
	exited    bool      // the time-wait is over, which drain is about to report behind that
}

// Connect asks the peer for a connection (rdma_connect), after ResolveRoute. A nil p stands for
// DefaultConnParam. The answer is EventEstablished, EventRejected, EventConnectError, or
// EventUnreachable after 17 s without a word of the peer, or later: see SetACKTimeout. For an ID without a QP,
// EventConnectResponse comes in place of EventEstablished.
//
// In PortSpaceUDP it asks for the QP of the peer's service. The answer is EventEstablished, whose UD
// says how to send to it, or EventUnreachable, also for a refusal.
func (id *ID) Connect(p *ConnParam) error {
	const op = "connect"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "call ResolveAddr and ResolveRoute first, and wait for EventRouteResolved; after a failure make a new ID", stateRouteResolved); err != nil {
		return err
	}
	if id.remote.Port() == 0 && id.service == 0 {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "port 0 is no peer's port"))
	}
	if !id.ib && id.remote.Addr().IsMulticast() {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "%v is a multicast address: a group has no QP to ask for; EventMulticastJoin says how to send to it", id.remote.Addr()))
	}
	param := orDefault(p)
	if err := id.prepare(&param); err != nil {
		return id.error(op, err)
	}
	call := id.call()
	call.Params = connector.Params(param)
	if err := id.offer(&call); err != nil {
		return id.error(op, err)
	}
	if err := id.conn.Connect(&call); err != nil {
		return id.error(op, err)
	}
	id.own = param
	id.state = stateConnecting
	return nil
}

// prepare completes the parameters of Connect, or says why they do not go. The caller holds id.mu.
func (id *ID) prepare(param *ConnParam) error {
	room := id.agent.connector.Limits()
	if id.ib { // without IP addresses before it
		room.LookUp, room.Connect = MaxIBUDConnectData, MaxIBConnectData
	}
	if id.ps.datagram() {
		return checkPrivateData(param.PrivateData, room.LookUp)
	}
	if err := param.resolve(id.agent.limits, nil, room.Connect); err != nil {
		return err
	}
	return id.nameQP(param)
}

// nameQP has the parameters name the ID's QP. Without one, the program must have named its own. The
// caller holds id.mu.
func (id *ID) nameQP(param *ConnParam) error {
	if id.qp != nil {
		param.QPN, param.SRQ = id.own.QPN, id.own.SRQ
	}
	if param.QPN == 0 {
		return verbs.Errorf(verbs.ErrState, "there is no QP to connect: call CreateQP, or name one in ConnParam.QPN")
	}
	return nil
}

// Establish answers EventConnectResponse, once the program has taken its QP to RTS by QPAttr
// (rdma_establish).
func (id *ID) Establish() error {
	const op = "establish"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "it answers EventConnectResponse", stateResponded); err != nil {
		return err
	}
	return id.error(op, id.ready())
}

// ready tells the peer that this end's QP is in service. The caller holds id.mu.
func (id *ID) ready() error {
	err := id.conn.Ready(id.agreement.confirmation())
	if err == nil {
		id.state = stateConnected
	}
	return err
}

// Disconnect ends the connection (rdma_disconnect). The QP goes to the error state, which flushes
// its work requests, and the peer is told. EventDisconnected follows at both ends. Messages that
// the peer has sent and this end has not received yet are lost, so programs agree on an end first.
// Once the peer has disconnected, and in PortSpaceUDP, Disconnect does nothing.
func (id *ID) Disconnect() error {
	const op = "disconnect"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.ps.datagram() && id.state != stateClosed {
		return nil
	}
	switch id.state {
	case stateDisconnecting, stateDisconnected, stateFailed:
		id.queuePair.fail()
		return nil
	case stateConnected, stateAccepting, stateResponded:
	default:
		return id.expect(op, "there is no connection to end", stateConnected)
	}
	id.queuePair.fail()
	// A connection that one end only believes in is rejected. If that fails it has been completed
	// just now, or has ended.
	if id.state != stateConnected && id.conn.Reject(nil) == nil {
		id.state = stateDisconnected
		id.report(Event{Type: EventDisconnected, ours: true})
		return nil
	}
	if err := id.conn.Disconnect(); err != nil {
		return id.error(op, err)
	}
	id.state = stateDisconnecting
	return nil
}

// Notify tells the ID of an event of the program's own QP (rdma_notify). verbs.EventCommEst
// completes a connection whose last message was lost. IDs whose QP CreateQP has made need no
// telling.
func (id *ID) Notify(t verbs.EventType) error {
	const op = "notify"
	id.mu.Lock()
	defer id.mu.Unlock()
	if t != verbs.EventCommEst {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "%v: only EVENT_COMM_EST means something to a connection", t))
	}
	if err := id.expect(op, "it tells an ID that has accepted that its peer sends", stateAccepting); err != nil {
		return err
	}
	return id.error(op, id.conn.Established())
}

// commEst is called by the QP when the peer's first packet comes.
func (id *ID) commEst() {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateAccepting {
		_ = id.conn.Established() // it fails if the peer's message has come first
	}
}
