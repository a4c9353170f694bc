package rdmacm

import (
	"errors"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// handle brings an event of the connector to the ID. The connector's goroutine calls it.
func (id *ID) handle(ev connector.Event) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return
	}
	if id.state == stateRequested && (ev.Kind == connector.Rejected || ev.Kind == connector.Unreachable) && id.unseen() {
		return
	}
	switch ev.Kind {
	case connector.Replied:
		id.replied(&ev)
	case connector.Established:
		if !id.confirmed(ev.Confirmation) {
			id.unconfirmed()
			return
		}
		if id.state == stateAccepting || id.state == stateConnecting { // the latter where the connector moves the QP
			id.state = stateConnected
		}
		if ev.Port != 0 && ev.Port != id.local.Port() {
			id.agent.changePort(id, ev.Port)
		}
		id.tellQPOfPeer()
		id.report(Event{Type: EventEstablished, Param: ConnParam(ev.Params)})
		id.checkQP()
	case connector.Rejected:
		id.rejected(&ev)
	case connector.Routed:
		id.routed(&ev)
	case connector.Unreachable:
		if id.state == stateRouting {
			id.state = stateAddrResolved
			id.report(id.failed(EventRouteError, opRoute, statusIO, ev.Err))
			return
		}
		id.end(stateFailed)
		cause := errNoAnswer
		if ev.Err != nil {
			cause = ev.Err
		}
		id.report(id.failed(EventUnreachable, "connect", statusIO, cause))
	case connector.Disconnected:
		if id.state == stateDisconnected { // reported when the QP failed
			return
		}
		report := Event{Type: EventDisconnected, ours: id.state == stateDisconnecting}
		if ev.TimedOut {
			report = id.failed(EventDisconnected, "disconnect", statusIO, errNoAnswer)
			report.ours = id.state == stateDisconnecting
		}
		if ev.Err != nil && !report.ours {
			report = id.failed(EventDisconnected, "connection", statusIO, ev.Err)
		}
		id.ending = true
		id.drain(report, drainSteps)
	case connector.TimewaitExit:
		switch {
		case id.state == stateDisconnected:
			id.report(Event{Type: EventTimewaitExit})
		case id.ending: // a time-wait may be shorter than drain takes
			id.exited = true
		}
	case connector.Found:
		id.state = stateConnected
		id.report(Event{Type: EventEstablished, UD: UDParam(ev.Peer)})
	case connector.NotFound:
		id.notFound(&ev)
	case connector.Joined:
		id.joined(ev.Group, &ev.Peer)
	case connector.NotJoined:
		id.notJoined(ev.Group, ev.Err)
	}
}

// unseen closes the ID of a request that has ended before the program has fetched it: the program need
// not hear of it, and requests that nobody fetches must not pile up. It reports false if the program has
// fetched it. The caller holds id.mu. The listener's lock, taken second, keeps the listener from closing
// meanwhile. So the ID's resources are given back before the listener's Close returns, and the agent's
// last use, whose end would wait for this goroutine, the connector's, is never this one.
func (id *ID) unseen() bool {
	l := id.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateClosed || !id.ch.drop(id) {
		return false
	}
	id.state = stateClosed
	id.conn.Close()
	id.agent.remove(id)
	id.agent.release()
	id.ch.detach()
	return true
}

// errNoAnswer is why a connection cannot be made or ended in order.
var errNoAnswer = verbs.Errorf(ErrTimeout, "the peer's connection manager does not answer: "+
	"is the host up, does it run RDMA, and do firewalls let UDP port 4791 pass?")

// end takes the QP out of service. The caller holds id.mu.
func (id *ID) end(s idState) {
	id.queuePair.fail()
	id.state = s
}

// The peer's acknowledgements may come behind its request to disconnect, which has taken another
// way: another socket or, on a real network, another path. So sends that are under way have some
// time to complete.
const (
	drainStep  = time.Millisecond
	drainSteps = 20
)

// drain ends the connection once the QP's sends are complete, or after a number of steps. The caller
// holds id.mu.
func (id *ID) drain(report Event, steps int) {
	if id.state == stateClosed {
		return
	}
	if steps > 0 && (id.queuePair.draining(steps == drainSteps) || !report.ours && id.failing()) {
		time.AfterFunc(drainStep, func() {
			id.mu.Lock()
			defer id.mu.Unlock()
			id.drain(report, steps-1)
		})
		return
	}
	if id.failure != nil && !report.ours { // the peer has ended the connection for this failure
		id.explain(&report)
	}
	id.end(stateDisconnected)
	if id.unreported != nil {
		id.report(*id.unreported)
		id.unreported = nil
	}
	id.report(report)
	if id.exited {
		id.report(Event{Type: EventTimewaitExit})
	}
}

// replied handles the peer's yes. The caller holds id.mu.
func (id *ID) replied(ev *connector.Event) {
	id.peer = ConnParam(ev.Params)
	// The peer's word counts, as far as this end can go along.
	id.own.InitiatorDepth = min(id.own.InitiatorDepth, id.peer.InitiatorDepth)
	id.own.ResponderResources = min(id.agent.limits.responderResources, id.peer.ResponderResources)
	if id.qp == nil {
		id.state = stateResponded
		id.report(Event{Type: EventConnectResponse, Param: id.peer})
		return
	}
	err := id.agree()
	if err == nil {
		err = id.serveQP()
	}
	if err == nil {
		err = id.ready()
	}
	established := Event{Type: EventEstablished, Param: id.peer}
	if errors.Is(err, connector.ErrState) { // the peer has ended the connection, and that event is next
		id.unreported = &established
		return
	}
	if err != nil {
		_ = id.conn.Reject(nil)
		id.end(stateFailed)
		id.report(id.failed(EventConnectError, "connect", statusInvalid, fmt.Errorf("bring the QP into service: %w", err)))
		return
	}
	id.tellQPOfPeer()
	id.report(established)
	id.checkQP()
}

// qpFailed is called by the QP when the QP goes to the error state.
func (id *ID) qpFailed(qp *verbs.QP, cause error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.qp == qp {
		id.failure = cause
		if hole, ok := errors.AsType[*verbs.PathMTUError](cause); ok {
			id.conn.LimitMTU(hole.Fits)
		}
		id.checkQP()
	}
}

// checkQP ends a connection whose QP has failed. The peer is told. Whether it answers makes no
// difference any more. The caller holds id.mu.
func (id *ID) checkQP() {
	if id.failure == nil || id.state != stateConnected || id.ending {
		return
	}
	report := Event{Type: EventDisconnected}
	id.explain(&report)
	_ = id.conn.Disconnect() // it fails where the device has gone
	id.state = stateDisconnected
	id.report(report)
}

// explain has an event say why the QP has failed. The caller holds id.mu.
func (id *ID) explain(report *Event) {
	cause := id.failure
	if errors.Is(cause, verbs.WCRetryExceeded) {
		cause = verbs.Errorf(ErrTimeout, "the peer does not answer any more: %w", cause)
	}
	failed := id.failed(report.Type, "connection", statusIO, cause)
	report.Status, report.Err = failed.Status, failed.Err
}

// failing reports whether the QP has failed, and the report of its failure is on the way. The
// caller holds id.mu.
func (id *ID) failing() bool {
	return id.tells && id.failure == nil && id.qp != nil && id.qp.State() == verbs.QPStateErr
}

// rejected handles the peer's no. The caller holds id.mu.
func (id *ID) rejected(ev *connector.Event) {
	switch id.state {
	case stateDisconnected: // the end was reported when the QP failed
		return
	case stateDisconnecting: // the no has met the wish to disconnect on the way, and is as good as its answer
		id.end(stateDisconnected)
		id.report(Event{Type: EventDisconnected, ours: true})
		return
	}
	id.end(stateFailed)
	err := &RejectError{Reason: RejectReason(ev.Reason), PrivateData: ev.Params.PrivateData, Info: ev.Info, Cause: ev.Err}
	op := "accept"
	if id.listener == nil {
		op, err.Port = "connect", id.remote.Port()
	}
	id.report(Event{
		Type: EventRejected, Status: int(ev.Reason), Err: id.error(op, err), Param: ConnParam{PrivateData: err.PrivateData},
	})
}

// notFound handles the answer that a UD service is not to be had. The caller holds id.mu.
func (id *ID) notFound(ev *connector.Event) {
	id.state = stateFailed
	err := &SIDRError{Status: uint8(ev.Reason), Port: id.remote.Port(), PrivateData: ev.Peer.PrivateData}
	id.report(Event{
		Type: EventUnreachable, Status: int(ev.Reason), Err: id.error("connect", err), UD: UDParam{PrivateData: err.PrivateData},
	})
}
