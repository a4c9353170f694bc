package rdmacm

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// ID is one end of a connection, of a UD exchange or of a listening port (struct rdma_cm_id). Its
// methods may be called from any goroutine.
type ID struct {
	// Context is the program's own.
	Context any

	ps PortSpace

	moving  sync.Mutex // held by Migrate and Close, and taken before mu
	mu      sync.Mutex // guards the fields below
	state   idState
	ch      *EventChannel
	agent   *agent // of the ID's device, or nil while the ID has none
	options options
	backlog int // of a listening ID
	endpoints
	connection
	queuePair
	groups groups
	lacks  bool // this end lacks the resources for a connection that a peer has requested: see lack.go
}

// idState is how far an ID has come.
type idState uint8

const (
	stateIdle idState = iota
	stateBound
	stateAddrResolved
	stateRouting
	stateRouteResolved
	stateConnecting
	stateResponded // the peer has accepted, and the program's QP is not ready
	stateRequested // a request has made the ID, and the program has not answered it
	stateAccepting // the program has accepted, and the peer has not confirmed it
	stateConnected
	stateDisconnecting
	stateDisconnected
	stateFailed
	stateListening
	stateClosed
)

var stateNames = [...]string{
	stateIdle: "idle", stateBound: "bound", stateAddrResolved: "address resolved", stateRouting: "looking for a route", stateRouteResolved: "route resolved",
	stateConnecting: "connecting", stateResponded: "answered by the peer", stateRequested: "requested", stateAccepting: "accepting",
	stateConnected: "connected", stateDisconnecting: "disconnecting", stateDisconnected: "disconnected", stateFailed: "failed",
	stateListening: "listening", stateClosed: "closed",
}

func (s idState) String() string { return stateNames[s] }

// NewID makes an ID (rdma_create_id). Its events come over ch.
func NewID(ch *EventChannel, ps PortSpace) (*ID, error) {
	if !ps.known() {
		return nil, &OpError{Op: "create id", Err: verbs.Errorf(verbs.ErrUnsupported, "port space %v: use RDMA_PS_TCP, RDMA_PS_UDP or RDMA_PS_IB", ps)}
	}
	if i := slices.Index(ch.devices, nil); i >= 0 {
		return nil, &OpError{Op: "create id", Err: verbs.Errorf(verbs.ErrInvalid, "device %d of %d is nil: name none for those of the registered providers", i, len(ch.devices))}
	}
	id := &ID{ps: ps, ch: ch}
	id.qpType = ps.qpType()
	if err := ch.attach(); err != nil {
		return nil, &OpError{Op: "create id", Err: err}
	}
	return id, nil
}

// error returns the error of a call, or nil if err is nil. The caller holds id.mu.
func (id *ID) error(op string, err error) error { return opError(op, id.local, id.remote, err) }

// expect fails unless the ID is in one of the states. hint names the call that the program should
// make. The caller holds id.mu.
func (id *ID) expect(op, hint string, states ...idState) error {
	if slices.Contains(states, id.state) {
		return nil
	}
	if id.state == stateClosed {
		return id.error(op, verbs.ErrClosed)
	}
	return id.error(op, verbs.Errorf(verbs.ErrState, "the ID is %v: %s", id.state, hint))
}

// PortSpace returns the ID's port space.
func (id *ID) PortSpace() PortSpace { return id.ps }

// LocalAddr returns this end's address and port (rdma_get_local_addr, rdma_get_src_port).
func (id *ID) LocalAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.local
}

// RemoteAddr returns the peer's address and port (rdma_get_peer_addr, rdma_get_dst_port).
func (id *ID) RemoteAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.remote
}

// Device returns the ID's device (rdma_cm_id.verbs). It is nil while the ID has none: before its
// address is resolved, and on an ID that is bound to all addresses. Once the ID has a QP it is the
// Open of the device that the QP is of, see CreateQP.
func (id *ID) Device() *verbs.Device {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.agent == nil {
		return nil
	}
	if id.qp != nil {
		return id.qp.PD().Device()
	}
	return id.agent.dev
}

// Port returns the port of the device, counted from 1 (rdma_cm_id.port_num).
func (id *ID) Port() int {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.agent == nil {
		return connector.DevicePort
	}
	if id.ib {
		return connector.PortOfGID(id.agent.dev, id.local.Addr())
	}
	return connector.PortOf(id.agent.dev, id.local.Addr())
}

// PD returns the PD that IDs of the device share unless they are given one (rdma_cm_id.pd). It is
// nil while the ID has no device.
func (id *ID) PD() *verbs.PD {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.agent == nil {
		return nil
	}
	pd, err := id.agent.dev.SharedPD()
	if err != nil {
		return nil
	}
	return pd
}

// QP returns the ID's QP, or nil.
func (id *ID) QP() *verbs.QP {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp
}

// useAgent gives the ID its device, and one of the device's addresses. It takes over the caller's
// use of the agent, which it releases after an error. The caller holds id.mu.
func (id *ID) useAgent(a *agent, from netip.Addr) (err error) {
	if id.conn, err = a.connector.NewConn(id.name(id.ps, from, id.local.Port()), id.handle); err != nil {
		a.release()
		return err
	}
	id.agent = a
	a.add(id)
	return nil
}

// report sends an event to the ID's channel. The caller holds id.mu.
func (id *ID) report(ev Event) {
	ev.ID = id
	id.ch.add(ev)
}

// Migrate moves the ID to another channel (rdma_migrate_id). Its events that nobody has fetched
// move along. With a listening ID's go the IDs of requests that nobody has fetched.
func (id *ID) Migrate(to *EventChannel) error {
	id.moving.Lock()
	defer id.moving.Unlock()
	from, err := id.migrate(to)
	if err != nil || from == to {
		return err
	}
	for _, child := range from.unseen(id) {
		if err := child.follow(from, to); err != nil {
			return err
		}
	}
	return nil
}

// migrate is Migrate without requests. It returns the channel that the ID had.
func (id *ID) migrate(to *EventChannel) (from *EventChannel, err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return nil, id.error("migrate", verbs.ErrClosed)
	}
	from = id.ch
	if to == from {
		return from, nil
	}
	if err := to.attach(); err != nil {
		return nil, id.error("migrate", err)
	}
	id.ch = to
	for _, ev := range from.take(func(ev *Event) bool { return ev.ID == id }) {
		to.add(ev)
	}
	from.detach()
	return from, nil
}

// follow moves the ID of a request to the channel that its listener has moved to, unless the program has
// fetched the request meanwhile. The ID's lock comes before its listener's: see unseen.
func (id *ID) follow(from, to *EventChannel) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed || id.ch != from {
		return nil
	}
	if err := to.attach(); err != nil {
		return id.error("migrate", err)
	}
	evs := from.takeRequest(id)
	if evs == nil {
		to.detach()
		return nil
	}
	id.ch = to
	for _, ev := range evs {
		to.add(ev)
	}
	from.detach()
	return nil
}

// Close ends the ID (rdma_destroy_id). A listening ID takes no more requests, and rejects those
// that nobody has fetched. A connected ID disconnects. The QP that CreateQP made is destroyed.
// Close does not wait for the peer. Events of the ID that nobody has fetched are lost.
func (id *ID) Close() error { return id.close(func() error { return nil }) }

// close is Close with a step more: between the end of the QP and that of the default PD it calls
// release, which must not call the ID, and whose error keeps the ID open.
func (id *ID) close(release func() error) error {
	id.moving.Lock()
	defer id.moving.Unlock()
	id.mu.Lock()
	if id.state == stateClosed {
		id.mu.Unlock()
		return nil
	}
	if err := id.leaveGroups(); err != nil {
		defer id.mu.Unlock()
		return id.error("close id", err)
	}
	if id.state == stateConnected || id.state == stateAccepting || id.state == stateConnecting {
		id.queuePair.fail()
	}
	err := id.queuePair.destroy()
	if err == nil {
		err = release()
	}
	if err != nil {
		defer id.mu.Unlock()
		return id.error("close id", err)
	}
	if id.state == stateRequested && id.lacks {
		_ = id.conn.RejectFor(wire.RejNoResources, nil) // it fails if the peer has given up
	}
	id.state = stateClosed
	a, ch, binding := id.agent, id.ch, id.binding
	id.binding = nil
	if binding != nil {
		for _, a := range binding.agents {
			a.remove(id)
		}
	}
	if a != nil {
		id.conn.Close()
		a.remove(id)
	}
	unfetched := ch.take(func(ev *Event) bool { return ev.ID == id || ev.ListenID == id })
	// The calls below may wait for the connector's goroutine, which in turn may wait for this lock.
	id.mu.Unlock()
	binding.release()
	for _, ev := range unfetched {
		if ev.ListenID == id { // nobody will answer the request
			ev.ID.Close()
		}
	}
	if a != nil {
		a.release()
	}
	ch.detach()
	return nil
}

// deviceGone tells the ID that a device has failed: its own or, for an ID that is bound to the addresses
// of several, the last of them. An ID that follows the host's devices waits for others.
func (id *ID) deviceGone(a *agent, err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch {
	case id.state == stateClosed:
		return
	case id.agent != nil && id.agent != a:
		return
	case id.agent == nil && (id.binding.follower.host || !id.binding.isLost()):
		return
	}
	id.end(stateFailed)
	if !errors.Is(err, ErrNoDevice) { // somebody has closed it under the ID
		err = verbs.Errorf(ErrNoDevice, "%w", err)
	}
	id.report(id.failed(EventDeviceRemoval, "use device", statusNoDevice, err))
}
