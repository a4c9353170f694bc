package cm

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// EventType is the kind of an Event.
type EventType uint8

const (
	// EventRequest: a REQ has come for a listener. Conn is new. Listener, Params and Request are set.
	EventRequest EventType = iota + 1

	// EventReply: a REP with Params has answered the active side's REQ. Ready is due.
	EventReply

	// EventEstablished: an RTU with PrivateData has answered the passive side's REP, or a DREQ without
	// one, so that PrivateData is empty. PrivateData is nil if Conn.Established was called.
	EventEstablished

	// EventRejected: a REJ has come, with Reason, ARI, Message and PrivateData. The connection is
	// over.
	EventRejected

	// EventUnreachable: a REQ, a REP or a SIDR_REQ has remained unanswered, or a peer's request that
	// this side has not answered came no more, or lost its place to another one. The matter is over.
	EventUnreachable

	// EventDisconnected: a DREQ has come and was answered, or a DREP has come. Either has
	// PrivateData. If TimedOut is set, this side's DREQ has remained unanswered instead. The
	// connection is in time-wait.
	EventDisconnected

	// EventTimeWaitExit follows EventDisconnected when no packet of the connection can be under
	// way any more. It is the last event.
	EventTimeWaitExit

	// EventSIDRRequest: a SIDR_REQ has come for a listener. SIDR is new. Listener, PrivateData and
	// Request.Service are set.
	EventSIDRRequest

	// EventSIDRReply: the answer to a SIDR_REQ has come, with Status, QPN, QKey and PrivateData. ARI
	// has the additional information. The matter is over.
	EventSIDRReply
)

var eventNames = [...]string{
	EventRequest:      "request",
	EventReply:        "reply",
	EventEstablished:  "established",
	EventRejected:     "rejected",
	EventUnreachable:  "unreachable",
	EventDisconnected: "disconnected",
	EventTimeWaitExit: "time-wait exit",
	EventSIDRRequest:  "SIDR request",
	EventSIDRReply:    "SIDR reply",
}

func (t EventType) String() string {
	if int(t) < len(eventNames) && eventNames[t] != "" {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// Event is something that has happened to a connection or a SIDR exchange. [EventType] says which
// fields are set. The receiver may keep its slices.
type Event struct {
	Type     EventType
	Conn     *Conn
	SIDR     *SIDR
	Listener *Listener
	Path     Path
	Params   Params // the peer's; PrivateData has the full length of the message's field
	Request  RequestParams

	Reason      wire.RejReason
	Message     uint8  // which message was rejected: wire.CMMessageREQ, …REP, …Other
	ARI         []byte // additional reject information
	PrivateData []byte // full length of the message's field
	TimedOut    bool

	Status wire.SIDRStatus
	QPN    uint32
	QKey   uint32
}

// interest says which events of a connection or SIDR exchange the user has had, and still wants.
type interest struct {
	delivered bool // the user knows of it: it has made it, or has had the event of the request
	closed    bool // the user wants no more events
	exitDue   bool // EventTimeWaitExit follows
}

// close has the user hear of no more events.
func (i *interest) close() { i.closed = true }

// closeUndelivered is close for a user that has not heard of the request yet, and so never hears of it.
func (i *interest) closeUndelivered() {
	if !i.delivered {
		i.closed = true
	}
}

// emit queues an event of a connection or a SIDR exchange along a path, unless the user has closed either.
func (m *Machine) emit(e Event, p Path) {
	if e.abandoned() {
		return
	}
	e.Path = p
	m.events = append(m.events, e)
}

func (e *Event) abandoned() bool {
	return e.Conn != nil && e.Conn.closed || e.SIDR != nil && e.SIDR.closed
}

// HasEvent reports whether Event may have something to return.
func (m *Machine) HasEvent() bool { return m.nextEvent < len(m.events) }

// Event returns the next event, if there is one.
func (m *Machine) Event() (Event, bool) {
	for m.nextEvent < len(m.events) {
		e := m.events[m.nextEvent]
		m.events[m.nextEvent] = Event{}
		m.nextEvent++
		if e.abandoned() {
			continue // the user has closed it since
		}
		switch e.Type {
		case EventRequest:
			e.Conn.delivered = true
		case EventSIDRRequest:
			e.SIDR.delivered = true
		}
		return e, true
	}
	m.events, m.nextEvent = m.events[:0], 0
	return Event{}, false
}

// clone copies a part of a received message, which belongs to the caller.
func clone(b []byte) []byte { return append([]byte(nil), b...) }
