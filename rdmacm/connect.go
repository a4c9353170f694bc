package rdmacm

import (
	"errors"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// packetLifetime is the code that acknowledgement timeouts are made of, unless SetACKTimeout says
// otherwise: 17 ms one way. With the delay that software devices ask for, QPs then wait 0.13 s.
const packetLifetime = 12

// Connect asks the peer for a connection (rdma_connect), after ResolveRoute; nil stands for
// DefaultConnParam. The answer is EventEstablished, EventRejected, EventUnreachable after 17 s without an
// answer, or EventConnectError; for an ID without a QP it is EventConnectResponse in place of
// EventEstablished.
//
// In PortSpaceUDP it asks for the QP of the peer's service. The answer is EventEstablished, whose UD
// says how to send to it, or EventUnreachable, also for a refusal.
func (id *ID) Connect(p *ConnParam) error {
	const op = "connect"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "call ResolveAddr and ResolveRoute first; after a failure make a new ID", stateRouteResolved); err != nil {
		return err
	}
	if id.remote.Port() == 0 {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "port 0 is no peer's port"))
	}
	param := orDefault(p)
	if id.ps.datagram() {
		return id.error(op, id.lookUp(&param))
	}
	return id.error(op, id.connect(&param))
}

// connect sends the REQ. The caller holds id.mu.
func (id *ID) connect(param *ConnParam) error {
	if err := param.resolve(id.agent.limits, nil, MaxConnectData); err != nil {
		return err
	}
	if id.qp != nil {
		param.QPN, param.SRQ = id.param.QPN, id.param.SRQ
	}
	if param.QPN == 0 {
		return verbs.Errorf(verbs.ErrState, "there is no QP to connect: call CreateQP, or name one in ConnParam.QPN")
	}
	attr, err := id.agent.dev.QueryPort(devicePort)
	if err != nil {
		return err
	}
	id.param = *param
	id.offered = offer{mtu: attr.ActiveMTU, retryCount: param.RetryCount}
	c := cm.ConnectParams{
		Service: wire.RDMAServiceID(uint16(id.ps), id.remote.Port()),
		Params:  id.params(),
		MTU:     uint8(attr.ActiveMTU), RetryCount: param.RetryCount,
		FlowLabel:      id.flowLabel(),
		PacketLifetime: packetLifetime,
	}
	if id.options.hasACK && id.options.ackTimeout > 0 {
		c.ACKTimeout = id.options.ackTimeout
		c.PacketLifetime = max(1, id.options.ackTimeout-1)
	}
	c.PrivateData = append(id.header(), param.PrivateData...)
	id.agent.do(func(m *cm.Machine, now time.Duration) {
		if id.conn, err = m.Connect(now, id.path, c); err == nil {
			id.conn.User = id
		}
	})
	if err == nil {
		id.state = stateConnecting
	}
	return err
}

// header is the IP CM header, which says between which addresses the connection is.
func (id *ID) header() []byte {
	h := wire.IPCMHeader{Src: id.path.Local, Dst: id.path.Remote, SrcPort: id.local.Port()}
	return h.AppendTo(nil)
}

// flowLabel is what Linux makes of the ports.
func (id *ID) flowLabel() uint32 {
	const factor, mask = 31, 1<<20 - 1
	return (uint32(id.local.Port())*factor + uint32(id.remote.Port())) & mask
}

// params are this end's for a REQ or REP.
func (id *ID) params() cm.Params {
	return cm.Params{
		QPN: uint32(id.param.QPN), PSN: uint32(id.psn), UC: id.qpType == verbs.QPTypeUC,
		ResponderResources: id.param.ResponderResources, InitiatorDepth: id.param.InitiatorDepth,
		FlowControl: id.param.FlowControl, SRQ: id.param.SRQ, RNRRetryCount: id.param.RNRRetryCount,
		PrivateData: id.param.PrivateData,
	}
}

// lookUp sends the SIDR_REQ. The caller holds id.mu.
func (id *ID) lookUp(param *ConnParam) error {
	if err := checkPrivateData(param.PrivateData, MaxUDConnectData); err != nil {
		return err
	}
	p := cm.SIDRParams{
		Service:     wire.RDMAServiceID(uint16(id.ps), id.remote.Port()),
		PrivateData: append(id.header(), param.PrivateData...),
	}
	var err error
	id.agent.do(func(m *cm.Machine, now time.Duration) {
		if id.sidr, err = m.Resolve(now, id.path, p); err == nil {
			id.sidr.User = id
		}
	})
	if err == nil {
		id.state = stateConnecting
	}
	return err
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

// ready sends the RTU. The caller holds id.mu.
func (id *ID) ready() (err error) {
	id.agent.do(func(_ *cm.Machine, now time.Duration) { err = id.conn.Ready(now) })
	if err == nil {
		id.state = stateConnected
	}
	return err
}

// Disconnect ends the connection (rdma_disconnect): the QP goes to the error state, which flushes its
// work requests, and the peer is told. EventDisconnected follows at both ends. What the peer has sent and
// this end not yet received is lost: programs agree on an end first. Once the peer has disconnected,
// and for PortSpaceUDP, it does nothing.
func (id *ID) Disconnect() error {
	const op = "disconnect"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.ps.datagram() && id.state != stateClosed {
		return nil
	}
	switch id.state {
	case stateDisconnecting, stateDisconnected, stateFailed:
		id.failQP()
		return nil
	case stateConnected, stateAccepting, stateResponded:
	default:
		return id.expect(op, "there is no connection to end", stateConnected)
	}
	id.failQP()
	var err error
	half := id.state != stateConnected
	id.agent.do(func(_ *cm.Machine, now time.Duration) {
		if half {
			if err = id.conn.Reject(now, wire.RejReason(RejectConsumerDefined), nil, nil); err == nil {
				return
			}
			half = false // it has become whole, and that event is on its way
		}
		if err = id.conn.Disconnect(now, nil); errors.Is(err, cm.ErrState) { // the peer was first
			err = nil
		}
	})
	if err != nil {
		return id.error(op, err)
	}
	if half {
		id.state = stateDisconnected
		id.report(Event{Type: EventDisconnected})
		return nil
	}
	id.state = stateDisconnecting
	return nil
}

// Notify tells the ID of an event of its QP's (rdma_notify). verbs.EventCommEst completes a connection
// whose last message was lost. IDs with a QP of their own need no telling.
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
	return id.error(op, id.established())
}

// established tells the machine that the peer is there. The caller holds id.mu.
func (id *ID) established() (err error) {
	id.agent.do(func(_ *cm.Machine, now time.Duration) { err = id.conn.Established(now) })
	return err
}

// commEst is what the QP calls when the peer's first packet comes.
func (id *ID) commEst() {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateAccepting {
		_ = id.established() // else the RTU was first
	}
}
