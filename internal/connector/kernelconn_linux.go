package connector

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// kernelConn is one end of a connection that the kernel's connection manager makes.
type kernelConn struct {
	c     *kernelConnector
	name  Name  // of NewConn, or of the listener
	asked bool  // by the peer
	at    place // of the device: the port that has the address

	groups kernelGroups

	mu            sync.Mutex
	handle        func(Event)
	id            *kernelID // nil before Route
	typ           verbs.QPType
	call          Call
	connects      bool // Connect was called, and CONNECT is due once there is a route
	ours          bool // this end has asked to disconnect
	local, remote netip.AddrPort
	state         string
	closed        bool
}

// NewConn implements Connector. The ID comes with Route, which knows the type of QP.
func (c *kernelConnector) NewConn(from Name, handle func(Event)) (Conn, error) {
	var at place
	var err error
	switch {
	case !from.IB:
		at, err = portWith(c.dev, c.kernel, from.Addr)
	case c.iwarp:
		err = errNoGIDs
	default:
		at, err = portWithGID(c.dev, from.Addr)
	}
	if err != nil {
		return nil, err
	}
	return &kernelConn{c: c, name: from, typ: typeOf(from.PS), at: at, handle: handle}, nil
}

// Serve implements Conn. The kernel's QPs are of the one device, however often it is open.
func (c *kernelConn) Serve(dev *verbs.Device, from netip.Addr) error {
	if dev == c.c.dev && from == c.name.Addr { // NewConn has looked, and a card's GID table is long
		return nil
	}
	if _, ok := kernelOf(dev); !ok {
		return verbs.Errorf(syscall.ENODEV, "device %s is not the kernel's", dev.Name())
	}
	if c.name.IB {
		return CheckGID(dev, from)
	}
	return CheckAddr(dev, from)
}

// come makes the connection one that a peer has asked for, by a number of the kernel's.
func (c *kernelConn) come(number uint32) error {
	c.mu.Lock()
	c.id = c.c.name(number, c.event)
	c.mu.Unlock()
	c.c.count(c, true)
	local, remote, on, err := c.id.addresses()
	if err == nil && on.guid != c.c.guid {
		err = verbs.Errorf(syscall.ENODEV, "the request has come to another device than %s", c.c.dev.Name())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.local, c.remote, c.at = local, remote, on
	c.name.Addr = local.Addr() // of the listener's it may be any
	return err
}

// findType finds the type of the QP that a request is for. The kernel does not tell it, but a UC QP has no RNR timer.
func (c *kernelConn) findType() {
	_, mask, err := c.QPAttr(verbs.QPTypeRC, verbs.QPStateRTR)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && mask&verbs.MaskMinRNRTimer == 0 && !c.c.iwarp {
		c.typ = verbs.QPTypeUC
	}
}

// hear has handle take the events.
func (c *kernelConn) hear(handle func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.handle = handle
	}
}

// event takes an event of the kernel's. It is called by the connector's goroutine.
func (c *kernelConn) event(ev *uapi.CMEventResp) {
	c.mu.Lock()
	id, call := c.id, &c.call
	if c.closed || id == nil || id.name != ev.UID {
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	switch ev.Event {
	case uapi.CMEventAddrResolved:
		c.addrResolved(id, call)
	case uapi.CMEventRouteResolved:
		c.routeResolved(id, call)
	case uapi.CMEventAddrError, uapi.CMEventRouteError:
		c.failed(verbs.Errorf(statusErr(ev), "the kernel finds no way to %v: %w", call.Remote, statusErr(ev)))
	case uapi.CMEventConnectError:
		c.become("CLOSED")
		c.report(Event{Kind: Unreachable, Err: verbs.Errorf(statusErr(ev), "the kernel cannot connect to %v: %w", call.Remote, statusErr(ev))})
	case uapi.CMEventUnreachable:
		c.become("CLOSED")
		if s := int32(ev.Status); c.typ == verbs.QPTypeUD && s > 0 {
			c.report(Event{Kind: NotFound, Reason: uint16(s), Peer: Datagram{PrivateData: connParams(ev, c.typ).PrivateData}})
			return
		}
		c.report(Event{Kind: Unreachable, TimedOut: statusErr(ev) == syscall.ETIMEDOUT, Err: statusErr(ev)})
	case uapi.CMEventRejected:
		c.become("CLOSED")
		c.report(Event{Kind: Rejected, Reason: rejReason(ev), Params: Params{PrivateData: connParams(ev, c.typ).PrivateData}})
	case uapi.CMEventConnectResponse:
		c.report(Event{Kind: Replied, Params: connParams(ev, c.typ)})
	case uapi.CMEventEstablished:
		c.become("ESTABLISHED")
		c.moved()
		if c.typ == verbs.QPTypeUD {
			c.report(Event{Kind: Found, Peer: datagramOf(ev)})
			return
		}
		var params Params
		if !c.asked { // iWARP's kernel brings QPs into service itself
			params = connParams(ev, c.typ)
		}
		c.report(Event{Kind: Established, Params: params})
	case uapi.CMEventDisconnected:
		c.mu.Lock()
		ours := c.ours
		c.state = "CLOSED"
		c.mu.Unlock()
		if !ours {
			_ = id.do(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: id.number}) // which confirms the peer's wish
		}
		c.report(Event{Kind: Disconnected})
	case uapi.CMEventTimewaitExit:
		c.report(Event{Kind: TimewaitExit})
	}
}

// rejReason is why the peer has rejected a connection. iWARP has errors in place of reasons.
func rejReason(ev *uapi.CMEventResp) uint16 {
	if int32(ev.Status) < 0 {
		return uint16(wire.RejConsumerDefined)
	}
	return uint16(ev.Status)
}

// statusErr is the error that an event's status stands for.
func statusErr(ev *uapi.CMEventResp) error {
	if s := int32(ev.Status); s < 0 {
		return syscall.Errno(-s)
	}
	return syscall.EIO
}

// datagramOf reads where a UD peer gets its datagrams.
func datagramOf(ev *uapi.CMEventResp) Datagram {
	var p uapi.CMUDParam
	_ = uapi.Decode(ev.Param[:], &p) // of the right size
	return Datagram{AH: addressVector(&p.AHAttr), QPN: verbs.QPN(p.QPNum), QKey: verbs.QKey(p.QKey), PrivateData: append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)}
}

// addressVector reads a path.
func addressVector(a *uapi.AHAttr) verbs.AHAttr {
	v := verbs.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: verbs.Rate(a.StaticRate), Port: int(a.PortNum)}
	if a.IsGlobal != 0 {
		g := &a.GRH
		v.DGID, v.FlowLabel, v.SGIDIndex, v.HopLimit, v.TrafficClass = verbs.GID(g.DGID), g.FlowLabel, int(g.SGIDIndex), g.HopLimit, g.TrafficClass
	}
	return v
}

func (c *kernelConn) become(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = state
}

// report passes an event on.
func (c *kernelConn) report(ev Event) {
	c.mu.Lock()
	handle := c.handle
	c.mu.Unlock()
	if handle != nil {
		handle(ev)
	}
}

// failed reports that there is no way to the peer, unless err is nil.
func (c *kernelConn) failed(err error) {
	if err != nil {
		c.lose()
		c.report(Event{Kind: Unreachable, Err: err})
	}
}

// used returns the connection's ID, if it is in use.
func (c *kernelConn) used() (*kernelID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id == nil || c.closed {
		return nil, ErrState
	}
	return c.id, nil
}

// do carries out a command for the connection's ID. A command that the ID's state does not allow fails with ErrState.
func (c *kernelConn) do(number uint32, arg func(id *kernelID) any) error {
	id, err := c.used()
	if err != nil {
		return err
	}
	err = id.do(number, arg(id))
	if err == unix.EINVAL || err == unix.EISCONN || err == unix.ENOTCONN {
		return ErrState
	}
	return err
}

// ownQPN is the number of this end's QP.
func (c *kernelConn) ownQPN() verbs.QPN {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.call.Params.QPN
}

// moved tells the provider of an iWARP device that the kernel has taken the QP to RTS.
func (c *kernelConn) moved() {
	if m, ok := c.c.dev.Provider().(kernelMoved); ok && c.c.iwarp {
		m.Connected(c.ownQPN())
	}
}

// Accept implements Conn. The kernel takes an iWARP QP to RTS in it, so that this end may send at once.
func (c *kernelConn) Accept(p Params) error {
	c.mu.Lock()
	c.call.Params.QPN = p.QPN
	c.mu.Unlock()
	err := c.do(uapi.CMAccept, func(id *kernelID) any {
		return uapi.CMAcceptArg{UID: id.name, ConnParam: userParams(&p), ID: id.number}
	})
	if err == nil {
		c.moved()
	}
	return err
}

// Ready implements Conn. The kernel has no room for a confirmation.
func (c *kernelConn) Ready([]byte) error {
	err := c.do(uapi.CMAccept, func(id *kernelID) any { return uapi.CMAcceptArg{UID: id.name, ID: id.number} })
	if err == nil {
		c.become("ESTABLISHED")
	}
	return err
}

// Reject implements Conn.
func (c *kernelConn) Reject(privateData []byte) error {
	return c.do(uapi.CMReject, func(id *kernelID) any {
		arg := uapi.CMRejectArg{ID: id.number}
		arg.PrivateDataLen = uint8(copy(arg.PrivateData[:], privateData))
		return arg
	})
}

// RejectFor implements Conn. The kernel lets programs give no other reason than that they say no.
func (c *kernelConn) RejectFor(wire.RejReason, []byte) error { return c.Reject(nil) }

// Established implements Conn.
func (c *kernelConn) Established() error {
	return c.do(uapi.CMNotify, func(id *kernelID) any { return uapi.CMNotifyArg{ID: id.number, Event: uint32(verbs.EventCommEst)} })
}

// Disconnect implements Conn.
func (c *kernelConn) Disconnect() error {
	c.mu.Lock()
	c.ours = true
	c.mu.Unlock()
	err := c.do(uapi.CMDisconnect, func(id *kernelID) any { return uapi.CMDisconnectArg{ID: id.number} })
	if errors.Is(err, ErrState) {
		return nil
	}
	return err
}

// Close implements Conn.
func (c *kernelConn) Close() {
	c.mu.Lock()
	id, closed := c.id, c.closed
	c.closed, c.handle, c.id = true, nil, nil
	c.mu.Unlock()
	if id != nil && !closed {
		c.c.count(c, false)
		id.destroy()
	}
	if !closed {
		c.groups.close()
	}
}

// LimitMTU implements Conn. The kernel asks for the path MTU of its route.
func (c *kernelConn) LimitMTU(verbs.MTU) {}

// QPAttr implements Conn. Before the kernel knows the device, INIT has the attributes that fit each device of RoCE.
func (c *kernelConn) QPAttr(typ verbs.QPType, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	a := verbs.QPAttr{State: to}
	if c.c.iwarp && to != verbs.QPStateInit { // the kernel takes the QP there
		return a, 0, nil
	}
	if typ == verbs.QPTypeUD && to != verbs.QPStateInit {
		if to == verbs.QPStateRTS {
			return a, verbs.MaskState | verbs.MaskSQPSN, nil
		}
		return a, verbs.MaskState, nil
	}
	id, err := c.used()
	var u uapi.QPAttr
	if err == nil {
		err = id.call(uapi.CMInitQPAttr, func(at uint64) any {
			return uapi.CMInitQPAttrArg{Response: at, ID: id.number, QPState: uint32(to)}
		}, &u)
	}
	switch {
	case err == nil:
		a, mask := attrOf(&u, to)
		return a, mask, nil
	case to != verbs.QPStateInit:
		return a, 0, ErrNoPeer
	}
	c.mu.Lock()
	at := c.at
	c.mu.Unlock()
	a.Port = max(at.port, DevicePort)
	a.PKeyIndex = c.c.pkeyIndex(at)
	mask := verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort
	if typ == verbs.QPTypeUD {
		a.QKey = UDQKey
		return a, mask | verbs.MaskQKey, nil
	}
	a.Access = qpAccess
	if c.c.iwarp {
		mask &^= verbs.MaskPKeyIndex
	}
	return a, mask | verbs.MaskAccessFlags, nil
}

// pkeyIndex returns where the P_Key of a place stands in its port's table. It is 0 for one that the table lacks: the kernel
// says so when it connects.
func (c *kernelConnector) pkeyIndex(at place) int {
	if at.pkey == 0 || at.pkey == wire.DefaultPKey {
		return 0
	}
	i, _ := findPKey(c.dev, at.port, func(k verbs.PKey) bool { return k == at.pkey })
	return i
}

// attrOf reads attributes of the kernel's. Each MR has access flags of its own, so the QP's are wide.
func attrOf(u *uapi.QPAttr, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask) {
	a := verbs.QPAttr{State: to, CurState: verbs.QPState(u.CurQPState), PathMTU: verbs.MTU(u.PathMTU), PathMigState: verbs.MigState(u.PathMigState),
		QKey: verbs.QKey(u.QKey), RQPSN: verbs.PSN(u.RQPSN), SQPSN: verbs.PSN(u.SQPSN), DestQPN: verbs.QPN(u.DestQPNum), AH: addressVector(&u.AHAttr),
		PKeyIndex: int(u.PKeyIndex), MaxRDAtomic: int(u.MaxRdAtomic), MaxDestRDAtomic: int(u.MaxDestRdAtomic), MinRNRTimer: u.MinRNRTimer,
		Port: int(u.PortNum), Timeout: u.Timeout, RetryCnt: u.RetryCnt, RNRRetry: u.RNRRetry}
	mask := verbs.QPAttrMask(u.QPAttrMask) | verbs.MaskState
	if mask&verbs.MaskAccessFlags != 0 {
		a.Access = qpAccess
	}
	return a, mask
}

var (
	_ Connector = (*kernelConnector)(nil)
	_ Port      = (*kernelPort)(nil)
	_ Conn      = (*kernelConn)(nil)
)

var _ verbs.Manager = (*kernelConnector)(nil)

// Counters implements verbs.Manager. The kernel counts messages, in /sys/class/infiniband/*/ports/*/cm_*.
func (c *kernelConnector) Counters() verbs.Counters {
	conns, ports := c.listed()
	return verbs.Counters{{Name: "cm_conns", Value: uint64(len(conns))}, {Name: "cm_listeners", Value: uint64(len(ports))}}
}

// CMIDs implements verbs.Manager.
func (c *kernelConnector) CMIDs() []verbs.CMID {
	conns, list := c.listed()
	list = append(list, conns...)
	sortCMIDs(list)
	return list
}

// listed returns the connections and listeners of the moment.
func (c *kernelConnector) listed() (conns, ports []verbs.CMID) {
	c.mu.Lock()
	list := slices.Collect(maps.Keys(c.conns))
	for name, shared := range c.ports {
		for _, p := range shared {
			if p.listens {
				ports = append(ports, verbs.CMID{State: "LISTEN", Local: name.At()})
			}
		}
	}
	c.mu.Unlock()
	for _, conn := range list {
		conn.mu.Lock()
		conns = append(conns, verbs.CMID{QPN: conn.call.Params.QPN, Type: conn.typ, State: conn.state, Local: conn.local, Remote: conn.remote})
		conn.mu.Unlock()
	}
	return conns, ports
}

// count takes note of a connection, or forgets it.
func (c *kernelConnector) count(conn *kernelConn, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if there {
		c.conns[conn] = true
	} else {
		delete(c.conns, conn)
	}
}
