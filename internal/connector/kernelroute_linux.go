package connector

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// resolveTime is how long the kernel looks for the peer's link address, and for the route, in ms. rdma-core's programs
// give it as long.
const resolveTime = 2000

// Route implements Conn: RESOLVE_ADDR, and RESOLVE_ROUTE with the event of the former.
func (c *kernelConn) Route(call *Call) (known bool, err error) { return false, c.begin(call, false) }

// begin looks for the way to the peer. connect says that CONNECT follows by itself.
func (c *kernelConn) begin(call *Call, connect bool) error {
	id, bound, err := c.take(call)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.id, c.call, c.typ, c.local, c.remote, c.state, c.connects = id, *call, call.Type, call.Local, call.Remote, "ADDR_QUERY", connect
	c.mu.Unlock()
	c.c.count(c, true)
	if call.HasTOS {
		err = id.set(uapi.OptionIDTOS, []byte{call.TOS})
	}
	if call.ACKTimeout != 0 && call.Type != verbs.QPTypeUD {
		err = errors.Join(err, id.set(uapi.OptionIDACKTimeout, []byte{call.ACKTimeout}))
	}
	if err == nil {
		err = id.resolve(call, bound)
	}
	if err != nil {
		c.lose()
		return verbs.Errorf(err, "resolve %v in the kernel's connection manager: %w", call.Remote, err)
	}
	return nil
}

// resolve begins the search for the peer's address. An ID that is bound has its own.
func (id *kernelID) resolve(call *Call, bound bool) error {
	arg := uapi.CMResolveAddrArg{ID: id.number, TimeoutMs: resolveTime}
	switch {
	case call.IB:
		arg.DstAddr, arg.DstSize = sockaddrIB(call.Remote.Addr(), call.Service, call.PKey)
		if !bound {
			arg.SrcAddr, arg.SrcSize = sockaddrIB(call.Local.Addr(), call.Service&uapi.ServiceMask, call.PKey)
		}
	default:
		arg.DstAddr, arg.DstSize = sockaddr(call.Remote)
		if !bound { // the port is a number, and may be by chance that of a listener
			arg.SrcAddr, arg.SrcSize = sockaddr(netip.AddrPortFrom(call.Local.Addr(), 0))
		}
	}
	return id.do(uapi.CMResolveAddr, arg)
}

// lose ends the connection's ID, which has found no way. Another search gets another.
func (c *kernelConn) lose() {
	c.mu.Lock()
	id := c.id
	c.id, c.state = nil, "IDLE"
	c.mu.Unlock()
	c.c.count(c, false)
	if id != nil {
		id.destroy()
	}
}

// Connect implements Conn.
func (c *kernelConn) Connect(call *Call) error {
	c.mu.Lock()
	id, state := c.id, c.state
	if id != nil {
		c.call.Params = call.Params
		c.connects = true
	}
	c.mu.Unlock()
	switch {
	case id == nil:
		return c.begin(call, true)
	case state != "ROUTE_RESOLVED": // CONNECT follows with the event
		return nil
	}
	c.become("CONNECT")
	return c.connect(id, &call.Params)
}

// connect asks the peer. TCP's word for no listener is a rejection, as it is elsewhere.
func (c *kernelConn) connect(id *kernelID, p *Params) error {
	err := id.do(uapi.CMConnect, uapi.CMConnectArg{ConnParam: userParams(p), ID: id.number})
	if c.c.iwarp && err == syscall.ECONNREFUSED {
		c.become("CLOSED")
		go c.report(Event{Kind: Rejected, Reason: uint16(wire.RejInvalidServiceID)}) // who has called holds what the handler waits for
		return nil
	}
	return err
}

// Path implements Conn.
func (c *kernelConn) Path() (PathRecord, error) {
	c.mu.Lock()
	id := c.id
	c.mu.Unlock()
	if id == nil {
		return PathRecord{}, ErrNoPeer
	}
	return id.path()
}

// take makes the connection's ID, or takes that of its port over.
func (c *kernelConn) take(call *Call) (id *kernelID, bound bool, err error) {
	k := c.c
	if !call.Bound {
		id, err = k.create(c.name.PS, call.Type, c.event)
		return id, false, err
	}
	name := c.name
	name.Port = call.Local.Port()
	k.mu.Lock()
	for _, p := range k.ports[name] { // those who share a port are as good as each other
		if !p.listens && !p.taken {
			p.taken, id = true, p.id
			id.handle = c.event
			break
		}
	}
	k.mu.Unlock()
	switch {
	case id == nil:
		id, err = k.create(c.name.PS, call.Type, c.event)
		return id, false, err
	case name.PS != wire.PortSpaceIB:
		return id, true, nil
	}
	id.destroy() // it is of any type, which is fixed
	if id, err = k.create(name.PS, call.Type, c.event); err != nil {
		return nil, false, err
	}
	if err = id.bind(name); err != nil {
		id.destroy()
	}
	return id, true, err
}

// addrResolved goes on to the route.
func (c *kernelConn) addrResolved(id *kernelID, call *Call) {
	local, _, on, err := id.addresses()
	if err == nil && on.guid != c.c.guid {
		err = verbs.Errorf(syscall.ENODEV, "the way to %v leads by another device than %s", call.Remote, c.c.dev.Name())
	}
	if err == nil {
		c.mu.Lock()
		c.local, c.at, c.state = local, on, "ROUTE_QUERY"
		c.mu.Unlock()
		if call.Path != nil {
			path := call.chosenPath()
			err = id.setPath(&path) // whose event is that of a route
		} else {
			err = id.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: id.number, TimeoutMs: resolveTime})
		}
	}
	c.failed(err)
}

// routeResolved reports the route, or connects.
func (c *kernelConn) routeResolved(id *kernelID, call *Call) {
	c.mu.Lock()
	connects, params, local := c.connects, call.Params, c.local
	c.state = "ROUTE_RESOLVED"
	if connects {
		c.state = "CONNECT"
	}
	c.mu.Unlock()
	if !connects {
		c.report(Event{Kind: Routed, Port: local.Port()})
		return
	}
	c.failed(c.connect(id, &params))
}
