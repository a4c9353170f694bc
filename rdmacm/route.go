package rdmacm

import (
	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// opRoute names the operation in errors.
const opRoute = "resolve route"

// PathRecord is a path from one port to another (struct ibv_sa_path_rec). LIDs and the service level are InfiniBand's.
type PathRecord struct {
	SGID, DGID     verbs.GID
	SLID, DLID     uint16
	FlowLabel      uint32
	HopLimit       uint8
	TrafficClass   uint8
	PKey           verbs.PKey // 0 stands for the default one, 0xffff, in SetPath
	SL             uint8
	MTU            verbs.MTU
	Rate           verbs.Rate
	PacketLifetime uint8 // code of how long a packet is under way, one way: 4.096 µs × 2^code
}

// ResolveRoute finds the route to the resolved address (rdma_resolve_route). The answer is
// EventRouteResolved, or EventRouteError, after which it may be called again. On RoCE the network's routers
// decide, so the answer of a software device comes at once.
func (id *ID) ResolveRoute() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(opRoute, "call ResolveAddr first, and wait for EventAddrResolved", stateAddrResolved); err != nil {
		return err
	}
	return id.route()
}

// route is ResolveRoute for an ID whose address is resolved. The caller holds id.mu.
func (id *ID) route() error {
	call := id.call()
	known, err := id.conn.Route(&call)
	if err != nil {
		return id.error(opRoute, err)
	}
	id.state = stateRouting
	if known {
		id.routed(&connector.Event{})
	}
	return nil
}

// routed reports the route. The caller holds id.mu.
func (id *ID) routed(ev *connector.Event) {
	if id.state != stateRouting {
		return
	}
	id.state = stateRouteResolved
	if ev.Port != 0 && ev.Port != id.local.Port() && id.binding == nil {
		id.agent.changePort(id, ev.Port)
	}
	id.report(Event{Type: EventRouteResolved})
}

// call has what is known of the connection before its parameters. The caller holds id.mu.
func (id *ID) call() connector.Call {
	call := connector.Call{Type: id.qpType, Local: id.local, Remote: id.remote, Bound: id.binding != nil, TOS: id.options.tos, HasTOS: id.options.hasTOS,
		IB: id.ib, Service: id.peerService, PKey: id.pkey}
	if id.options.hasACK {
		call.ACKTimeout = id.options.ackTimeout
	}
	if id.options.path != nil {
		path := connector.PathRecord(*id.options.path)
		call.Path = &path
	}
	return call
}

// Path returns the path to the peer (rdma_cm_id.route.path_rec), from EventRouteResolved or a request on. On a software
// device, and on RoCE, it is made of the addresses and the port's MTU. iWARP has none: verbs.ErrUnsupported.
func (id *ID) Path() (PathRecord, error) {
	const op = "find path"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.conn == nil {
		return PathRecord{}, id.error(op, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr first"))
	}
	p, err := id.conn.Path()
	if err == connector.ErrNoPeer {
		err = verbs.Errorf(verbs.ErrState, "the ID is %v: call ResolveRoute, and wait for EventRouteResolved", id.state)
	}
	return PathRecord(p), id.error(op, err)
}

// SetPath takes a path that the program has found, in place of ResolveRoute (RDMA_OPTION_IB_PATH). The answer is
// EventRouteResolved or EventRouteError. On InfiniBand all of it counts: LIDs, service level, P_Key. RoCE takes from it
// the path MTU, up to the port's, the packet lifetime, of which acknowledgement timeouts are made, and the traffic class.
// Where SetACKTimeout or SetTOS was called before, that counts in place of the latter two.
func (id *ID) SetPath(p PathRecord) error {
	const op = "set path"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "call ResolveAddr first, and wait for EventAddrResolved", stateAddrResolved); err != nil {
		return err
	}
	const maxSL = 15
	switch {
	case p.MTU > verbs.MTU4096:
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "path MTU %d: it has a code from 1 to %d", p.MTU, verbs.MTU4096))
	case p.PacketLifetime > maxTimeoutCode:
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "packet lifetime %d: codes are 0 to %d", p.PacketLifetime, maxTimeoutCode))
	case p.SL > maxSL:
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "service level %d: there are 0 to %d", p.SL, maxSL))
	}
	if p.PKey == 0 {
		p.PKey = defaultPKey
	}
	id.options.usePath(&p)
	return id.route()
}

// usePath takes note of a path.
func (o *options) usePath(p *PathRecord) {
	o.path = p
	if !o.hasTOS {
		o.tos = p.TrafficClass
	}
}
