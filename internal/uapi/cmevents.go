package uapi

// Events of rdma_cm: RDMA_CM_EVENT_.
const (
	CMEventAddrResolved = iota
	CMEventAddrError
	CMEventRouteResolved
	CMEventRouteError
	CMEventConnectRequest
	CMEventConnectResponse
	CMEventConnectError
	CMEventUnreachable
	CMEventRejected
	CMEventEstablished
	CMEventDisconnected
	CMEventDeviceRemoval
	CMEventMulticastJoin
	CMEventMulticastError
	CMEventAddrChange
	CMEventTimewaitExit
)

// EventCommEst is the event of a QP that CMNotify passes on: IB_EVENT_COMM_EST.
const EventCommEst = 4
