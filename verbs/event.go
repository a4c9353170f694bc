package verbs

// EventType is the type of an asynchronous event (enum ibv_event_type).
type EventType uint8

// The asynchronous events (IBV_EVENT_*).
const (
	EventCQErr            EventType = 0
	EventQPFatal          EventType = 1
	EventQPReqErr         EventType = 2
	EventQPAccessErr      EventType = 3
	EventCommEst          EventType = 4
	EventSQDrained        EventType = 5
	EventPathMig          EventType = 6
	EventPathMigErr       EventType = 7
	EventDeviceFatal      EventType = 8
	EventPortActive       EventType = 9
	EventPortErr          EventType = 10
	EventLIDChange        EventType = 11
	EventPKeyChange       EventType = 12
	EventSMChange         EventType = 13
	EventSRQErr           EventType = 14
	EventSRQLimitReached  EventType = 15
	EventQPLastWQEReached EventType = 16
	EventClientReregister EventType = 17
	EventGIDChange        EventType = 18 // the port has other addresses; those of iWARP are no GIDs
	EventWQFatal          EventType = 19
)

var eventNames = names[EventType]{"EVENT", map[EventType]string{
	EventCQErr:            "EVENT_CQ_ERR",
	EventQPFatal:          "EVENT_QP_FATAL",
	EventQPReqErr:         "EVENT_QP_REQ_ERR",
	EventQPAccessErr:      "EVENT_QP_ACCESS_ERR",
	EventCommEst:          "EVENT_COMM_EST",
	EventSQDrained:        "EVENT_SQ_DRAINED",
	EventPathMig:          "EVENT_PATH_MIG",
	EventPathMigErr:       "EVENT_PATH_MIG_ERR",
	EventDeviceFatal:      "EVENT_DEVICE_FATAL",
	EventPortActive:       "EVENT_PORT_ACTIVE",
	EventPortErr:          "EVENT_PORT_ERR",
	EventLIDChange:        "EVENT_LID_CHANGE",
	EventPKeyChange:       "EVENT_PKEY_CHANGE",
	EventSMChange:         "EVENT_SM_CHANGE",
	EventSRQErr:           "EVENT_SRQ_ERR",
	EventSRQLimitReached:  "EVENT_SRQ_LIMIT_REACHED",
	EventQPLastWQEReached: "EVENT_QP_LAST_WQE_REACHED",
	EventClientReregister: "EVENT_CLIENT_REREGISTER",
	EventGIDChange:        "EVENT_GID_CHANGE",
	EventWQFatal:          "EVENT_WQ_FATAL",
}}

// String returns the C library's name without IBV_, such as EVENT_CQ_ERR.
func (t EventType) String() string { return eventNames.name(t) }

// AsyncEvent is an asynchronous event of a device (struct ibv_async_event). The field that belongs to
// the event's type says which object it is about; the others are nil or 0.
type AsyncEvent struct {
	Type EventType
	QP   *QP  // for EventQP…, EventCommEst, EventSQDrained, EventPathMig…
	CQ   *CQ  // for EventCQErr
	SRQ  *SRQ // for EventSRQ…
	Port int  // for EventPort…, …Change and EventClientReregister; counted from 1

	// Cause is the cause of a failure in words, and is nil where nothing failed or the provider does
	// not tell. Of EventQPReqErr and EventQPAccessErr it is why a request of the peer was refused,
	// which the peer does not learn: its completion has no more than WCRemInvReqErr or WCRemAccessErr.
	// errors.Is finds its kind: ErrPathMTU, ErrQPAccess, ErrMalformed and ErrLimit in a request that
	// is invalid, ErrNotFound in a key that no region or window has, and ErrInvalid in one that is
	// used wrongly.
	Cause error
}
