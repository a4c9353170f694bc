package cm

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// EventType says what happened.
type EventType uint8

const (
	// EventRequest: a REQ came for a listener. Conn is new, Listener, Params and Request are set.
	EventRequest EventType = iota + 1

	// EventReply: the active side's REQ was answered by a REP with Params. Ready is due.
	EventReply

	// EventEstablished: the passive side's REP was answered by an RTU, with its PrivateData, or
	// Conn.Established was called.
	EventEstablished

	// EventRejected: a REJ came, with Reason, ARI, Message and PrivateData. The connection is over.
	EventRejected

	// EventUnreachable: a REQ, a REP or a SIDR_REQ remained unanswered. The matter is over.
	EventUnreachable

	// EventDisconnected: a DREQ came, and was answered, or a DREP, with PrivateData; or the own
	// DREQ remained unanswered: TimedOut. The connection is in time-wait.
	EventDisconnected

	// EventTimeWaitExit follows EventDisconnected when no packet of the connection can be under
	// way any more. Nothing follows it.
	EventTimeWaitExit

	// EventSIDRRequest: a SIDR_REQ came for a listener. SIDR is new, Listener, PrivateData and
	// Request.Service are set.
	EventSIDRRequest

	// EventSIDRReply: a SIDR_REQ was answered, with Status, QPN, QKey and PrivateData, and ARI
	// for the additional information. The matter is over.
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

// Event is something that happened to a connection or a SIDR exchange; see [EventType] for which
// fields are set. Its slices are the receiver's to keep.
type Event struct {
	Type     EventType
	Conn     *Conn
	SIDR     *SIDR
	Listener *Listener
	Path     Path
	Params   Params // what the peer gave; PrivateData has the full length of the message's field
	Request  RequestParams

	Reason      wire.RejReason
	Message     uint8  // which message was rejected: wire.CMMessageREQ, …REP, …Other
	ARI         []byte // additional reject information, as long as it says it is
	PrivateData []byte // full length of the message's field
	TimedOut    bool

	Status wire.SIDRStatus
	QPN    uint32
	QKey   uint32
}

// emit queues an event, unless it concerns what the user has closed.
func (m *Machine) emit(e Event) {
	if e.abandoned() {
		return
	}
	m.events = append(m.events, e)
}

func (e *Event) abandoned() bool {
	return e.Conn != nil && e.Conn.closed || e.SIDR != nil && e.SIDR.closed
}

// Event returns the next event, if there is one.
func (m *Machine) Event() (Event, bool) {
	for m.nextEvent < len(m.events) {
		e := m.events[m.nextEvent]
		m.events[m.nextEvent] = Event{}
		m.nextEvent++
		if e.abandoned() {
			continue // closed since
		}
		switch e.Type {
		case EventRequest:
			e.Conn.taken = true
		case EventSIDRRequest:
			e.SIDR.taken = true
		}
		return e, true
	}
	m.events, m.nextEvent = m.events[:0], 0
	return Event{}, false
}

// clone copies what stands in a received message, which is the caller's.
func clone(b []byte) []byte { return append([]byte(nil), b...) }
