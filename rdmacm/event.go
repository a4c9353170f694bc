package rdmacm

import "fmt"

// EventType is the kind of an Event (enum rdma_cm_event_type).
type EventType uint8

// The events (RDMA_CM_EVENT_*).
const (
	EventAddrResolved    EventType = 0  // answers ResolveAddr: the ID has its device
	EventAddrError       EventType = 1  // the address cannot be reached from here
	EventRouteResolved   EventType = 2  // answers ResolveRoute
	EventRouteError      EventType = 3  // there is no route
	EventConnectRequest  EventType = 4  // a peer wants to connect, or looks the service up: Accept or Reject by the new ID
	EventConnectResponse EventType = 5  // the peer has accepted an ID without a QP: Establish it
	EventConnectError    EventType = 6  // the QP could not be brought into service
	EventUnreachable     EventType = 7  // the peer does not answer; UD: it has refused
	EventRejected        EventType = 8  // the peer has said no; Err is a RejectError
	EventEstablished     EventType = 9  // connected; UD: the peer is found
	EventDisconnected    EventType = 10 // the connection has ended: by the peer or Disconnect, or Err says why
	EventDeviceRemoval   EventType = 11 // the device, or the last of the channel's that the ID is bound to, is gone: close the ID
	EventMulticastJoin   EventType = 12 // the ID has joined the group
	EventMulticastError  EventType = 13 // the ID could not join the group
	EventAddrChange      EventType = 14 // an ID that listens on all addresses serves others than before: nothing is to be done
	EventTimewaitExit    EventType = 15 // no packet of the ended connection can come any more
)

var eventNames = [...]string{
	EventAddrResolved: "ADDR_RESOLVED", EventAddrError: "ADDR_ERROR", EventRouteResolved: "ROUTE_RESOLVED", EventRouteError: "ROUTE_ERROR",
	EventConnectRequest: "CONNECT_REQUEST", EventConnectResponse: "CONNECT_RESPONSE", EventConnectError: "CONNECT_ERROR",
	EventUnreachable: "UNREACHABLE", EventRejected: "REJECTED", EventEstablished: "ESTABLISHED", EventDisconnected: "DISCONNECTED",
	EventDeviceRemoval: "DEVICE_REMOVAL", EventMulticastJoin: "MULTICAST_JOIN", EventMulticastError: "MULTICAST_ERROR",
	EventAddrChange: "ADDR_CHANGE", EventTimewaitExit: "TIMEWAIT_EXIT",
}

// String returns the name as rdma_event_str does, such as RDMA_CM_EVENT_ADDR_RESOLVED.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return "RDMA_CM_EVENT_" + eventNames[t]
	}
	return fmt.Sprintf("UNKNOWN EVENT %d", uint8(t))
}

// Event is an event of an EventChannel (struct rdma_cm_event). It is a value and needs no
// acknowledgement.
type Event struct {
	Type     EventType
	ID       *ID // that the event is about; of EventConnectRequest the new one
	ListenID *ID // of EventConnectRequest, the listening one

	// Status is the C library's: 0, the peer's reason, or a negative errno of Linux. Err says the
	// same in words, and is nil if Status is 0.
	Status int
	Err    error

	// Param has the peer's parameters. EventConnectRequest, EventConnectResponse and, at the
	// connecting end, EventEstablished have it. The peer's resources are given as they are for this
	// end: InitiatorDepth is how many READs and atomics the peer answers at a time.
	Param ConnParam

	// UD is the peer or the group, for an ID of PortSpaceUDP.
	UD UDParam

	ours bool // of EventDisconnected: this end has called Disconnect
}
