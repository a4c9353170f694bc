package rdmacm

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/verbs"
)

// ID is one end of a connection, of a UD exchange or of a listening port (struct rdma_cm_id). Its
// methods may be called from any goroutine.
type ID struct {
	// Context is the program's own.
	Context any

	ps     PortSpace
	qpType verbs.QPType

	mu            sync.Mutex
	ch            *EventChannel
	state         idState
	options       options
	local, remote netip.AddrPort
	binding       *binding // the port that it has for itself, or nil

	// From the resolved address on.
	agent *agent
	sgid  int
	path  cm.Path

	listener  *ID // of an ID that a request has made
	listeners []listening

	conn    *cm.Conn
	sidr    *cm.SIDR
	param   ConnParam // this end's
	peer    ConnParam // the other end's, as this end sees it
	offered offer     // what the REQ has said, here or there

	qp     *verbs.QP
	ownCQs []*verbs.CQ // made by CreateQP
	psn    verbs.PSN   // the first that comes in
	late   *Event      // EventEstablished of a connection that has ended meanwhile
	groups []*group
}

// offer is what only the REQ says, and counts for both ends.
type offer struct {
	mtu        verbs.MTU
	retryCount uint8
	ackTimeout uint8 // code
	peerQPN    verbs.QPN
	peerPSN    verbs.PSN
	rnrRetry   uint8
}

// idState is how far an ID has come.
type idState uint8

const (
	stateIdle idState = iota
	stateBound
	stateAddrResolved
	stateRouteResolved
	stateConnecting
	stateResponded // the REP is here, and the program's QP not ready
	stateRequested // made by a request, not answered
	stateAccepting // the REP is under way
	stateConnected
	stateDisconnecting
	stateDisconnected
	stateFailed
	stateListening
	stateClosed
)

var stateNames = [...]string{
	stateIdle: "idle", stateBound: "bound", stateAddrResolved: "address resolved", stateRouteResolved: "route resolved",
	stateConnecting: "connecting", stateResponded: "answered by the peer", stateRequested: "requested", stateAccepting: "accepting",
	stateConnected: "connected", stateDisconnecting: "disconnecting", stateDisconnected: "disconnected", stateFailed: "failed",
	stateListening: "listening", stateClosed: "closed",
}

func (s idState) String() string { return stateNames[s] }

// NewID makes an ID (rdma_create_id). Its answers come over ch.
func NewID(ch *EventChannel, ps PortSpace) (*ID, error) {
	if !ps.known() {
		return nil, &OpError{Op: "create id", Err: verbs.Errorf(verbs.ErrUnsupported, "port space %v: use RDMA_PS_TCP, RDMA_PS_UDP or RDMA_PS_IB", ps)}
	}
	id := &ID{ps: ps, ch: ch, qpType: verbs.QPTypeRC, psn: newPSN()}
	if ps.datagram() {
		id.qpType = verbs.QPTypeUD
	}
	if err := ch.attach(); err != nil {
		return nil, &OpError{Op: "create id", Err: err}
	}
	return id, nil
}

// errorf returns the error of a call. The caller holds id.mu.
func (id *ID) error(op string, err error) error { return opError(op, id.local, id.remote, err) }

// expect fails unless the ID is in one of the states. hint says what to do. The caller holds id.mu.
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

// Device returns the ID's device, or nil while it has none: before its address is resolved, and on
// an ID bound to all addresses (rdma_cm_id.verbs).
func (id *ID) Device() *verbs.Device {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.agent == nil {
		return nil
	}
	return id.agent.dev
}

// Port returns the port of the device, from 1 on (rdma_cm_id.port_num).
func (id *ID) Port() int { return devicePort }

// PD returns the PD which all IDs of the device share that were given none (rdma_cm_id.pd), or nil
// while the ID has no device.
func (id *ID) PD() *verbs.PD {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.agent == nil {
		return nil
	}
	pd, err := id.agent.defaultPD()
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

// useAgent gives the ID its device. The caller holds id.mu.
func (id *ID) useAgent(a *agent) {
	id.agent = a
	a.add(id)
}

// report sends an event to the ID's channel. The caller holds id.mu.
func (id *ID) report(ev Event) {
	ev.ID = id
	id.ch.add(ev)
}

// Migrate moves the ID, with the events that nobody has fetched, to another channel
// (rdma_migrate_id).
func (id *ID) Migrate(to *EventChannel) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return id.error("migrate", verbs.ErrClosed)
	}
	if to == id.ch {
		return nil
	}
	if err := to.attach(); err != nil {
		return id.error("migrate", err)
	}
	from := id.ch
	id.ch = to
	for _, ev := range from.take(id) {
		to.add(ev)
	}
	from.detach()
	return nil
}

// Close ends the ID (rdma_destroy_id): a listener takes no more requests, and those that nobody has
// fetched are rejected; a connection is disconnected. The QP that CreateQP made goes with it. It
// does not wait for the peer. Events of the ID that nobody has fetched are lost.
func (id *ID) Close() error {
	id.mu.Lock()
	if id.state == stateClosed {
		id.mu.Unlock()
		return nil
	}
	if err := id.leaveAll(); err != nil {
		defer id.mu.Unlock()
		return id.error("close id", err)
	}
	if id.qp != nil && (id.state == stateConnected || id.state == stateAccepting || id.state == stateConnecting) {
		id.failQP()
	}
	if err := id.destroyQP(); err != nil {
		defer id.mu.Unlock()
		return id.error("close id", err)
	}
	id.state = stateClosed
	a := id.agent
	if a != nil {
		a.do(func(m *cm.Machine, now time.Duration) {
			if id.conn != nil {
				id.conn.Close(now)
			}
			if id.sidr != nil {
				id.sidr.Close(now)
			}
		})
		a.remove(id)
	}
	id.stopListening()
	binding := id.binding
	id.binding = nil
	ch := id.ch
	unfetched := ch.take(id)
	id.mu.Unlock() // an agent that ends waits for its goroutine, which may wait for this lock
	binding.release()
	for _, ev := range unfetched {
		if ev.ListenID == id { // nobody will answer it
			ev.ID.Close()
		}
	}
	if a != nil {
		a.release()
	}
	ch.detach()
	return nil
}

// deviceGone is called when the device under the ID has failed.
func (id *ID) deviceGone(err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateClosed {
		id.state = stateFailed
		id.report(Event{Type: EventDeviceRemoval, Err: id.error("use device", err), Status: statusNoDevice})
	}
}
