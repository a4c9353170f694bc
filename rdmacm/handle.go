package rdmacm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// handle takes an event of the machine to the ID. The agent's goroutine calls it.
func (id *ID) handle(ev *cm.Event) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return
	}
	switch ev.Type {
	case cm.EventReply:
		id.replied(ev)
	case cm.EventEstablished:
		if id.state == stateAccepting {
			id.state = stateConnected
		}
		id.report(Event{Type: EventEstablished})
	case cm.EventRejected:
		id.rejected(ev)
	case cm.EventUnreachable:
		id.end(stateFailed)
		id.report(Event{Type: EventUnreachable, Status: statusTimedOut, Err: id.error("connect", errNoAnswer)})
	case cm.EventDisconnected:
		report := Event{Type: EventDisconnected}
		if ev.TimedOut {
			report.Status, report.Err = statusTimedOut, id.error("disconnect", errNoAnswer)
		}
		id.drain(report, drainSteps)
	case cm.EventTimeWaitExit:
		if id.state == stateDisconnected {
			id.report(Event{Type: EventTimewaitExit})
		}
	case cm.EventSIDRReply:
		id.found(ev)
	}
}

// errNoAnswer is why a connection cannot be made or ended in order.
var errNoAnswer = verbs.Errorf(ErrTimeout, "the peer's connection manager does not answer: "+
	"is the host up, does it run RDMA, and do firewalls let UDP port 4791 pass?")

// end takes the QP out of service. The caller holds id.mu.
func (id *ID) end(s idState) {
	id.failQP()
	id.state = s
}

// What the peer has acknowledged may be behind its DREQ, which came another way: over another socket or, on a
// real network, another path. So sends that are under way have some time to complete.
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
	if steps > 0 && id.draining(steps == drainSteps) {
		time.AfterFunc(drainStep, func() {
			id.mu.Lock()
			defer id.mu.Unlock()
			id.drain(report, steps-1)
		})
		return
	}
	id.end(stateDisconnected)
	if id.late != nil {
		id.report(*id.late)
		id.late = nil
	}
	id.report(report)
}

// draining reports whether the QP has sends under way. The first call has it begin no more.
func (id *ID) draining(first bool) bool {
	if id.qp == nil {
		return false
	}
	if first && (id.qp.State() != verbs.QPStateRTS || id.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState) != nil) {
		return false
	}
	a, _, err := id.qp.Query()
	return err == nil && a.State == verbs.QPStateSQD && a.SQDraining
}

// replied handles the peer's yes. The caller holds id.mu.
func (id *ID) replied(ev *cm.Event) {
	own := id.param
	id.peer = fromPeer(&ev.Params)
	id.offered.peerQPN, id.offered.peerPSN = verbs.QPN(ev.Params.QPN), verbs.PSN(ev.Params.PSN)
	id.offered.rnrRetry = ev.Params.RNRRetryCount
	id.offered.ackTimeout = id.conn.ACKTimeout()
	// The peer's word counts, as far as this end can go along.
	id.param.InitiatorDepth = min(own.InitiatorDepth, id.peer.InitiatorDepth)
	id.param.ResponderResources = min(id.agent.limits.responderResources, id.peer.ResponderResources)
	if id.qp == nil {
		id.state = stateResponded
		id.report(Event{Type: EventConnectResponse, Param: id.peer})
		return
	}
	err := id.serveQP()
	if err == nil {
		err = id.ready()
	}
	established := Event{Type: EventEstablished, Param: id.peer}
	if errors.Is(err, cm.ErrState) { // the peer has ended it meanwhile, and that event is next
		id.late = &established
		return
	}
	if err != nil {
		id.agent.do(func(_ *cm.Machine, now time.Duration) {
			_ = id.conn.Reject(now, wire.RejReason(RejectConsumerDefined), nil, nil)
		})
		id.end(stateFailed)
		id.report(Event{Type: EventConnectError, Status: statusInvalid, Err: id.error("connect", fmt.Errorf("bring the QP into service: %w", err))})
		return
	}
	id.report(established)
}

// rejected handles the peer's no. The caller holds id.mu.
func (id *ID) rejected(ev *cm.Event) {
	id.end(stateFailed)
	err := &RejectError{Reason: RejectReason(ev.Reason), PrivateData: slices.Clone(ev.PrivateData), Info: slices.Clone(ev.ARI)}
	op := "accept"
	if id.listener == nil {
		op, err.Port = "connect", id.remote.Port()
	}
	id.report(Event{
		Type: EventRejected, Status: int(ev.Reason), Err: id.error(op, err), Param: ConnParam{PrivateData: err.PrivateData},
	})
}

// found handles the answer about a UD service. The caller holds id.mu.
func (id *ID) found(ev *cm.Event) {
	if ev.Status != 0 {
		id.state = stateFailed
		err := &SIDRError{Status: uint8(ev.Status), Port: id.remote.Port(), PrivateData: ev.PrivateData}
		id.report(Event{
			Type: EventUnreachable, Status: int(ev.Status), Err: id.error("connect", err), UD: UDParam{PrivateData: ev.PrivateData},
		})
		return
	}
	id.state = stateConnected
	id.report(Event{Type: EventEstablished, UD: UDParam{
		PrivateData: ev.PrivateData, AH: ahAttr(id.path, id.sgid), QPN: verbs.QPN(ev.QPN), QKey: verbs.QKey(ev.QKey),
	}})
}
