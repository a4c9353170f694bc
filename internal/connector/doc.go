// Package connector makes connections between queue pairs (QPs) for package rdmacm. It stands
// between rdmacm, which knows what programs may do and when, and the part that speaks the protocol of
// connecting on a device.
//
// A [Connector] serves one device. A [Port] of it takes requests from peers, and a [Conn] of it is
// one end of a connection. Changes of a Conn come as an [Event], on the connector's goroutine:
//
//	active end                                   passive end
//	NewConn                                      Claim, Listen
//	Route
//	Routed
//	Connect                                      Request, with a new Conn
//	Replied        QPAttr, Ready                 QPAttr, Accept
//	                                             Established
//	Disconnect                                   Disconnected
//	Disconnected
//
// # Three implementations
//
// Open chooses by the device's provider. One implementation serves devices whose QP1 programs may use, and runs the
// InfiniBand connection manager of package internal/cm there. One serves devices that speak
// iWARP: MPA frames over TCP open a connection, whose stream the device then has. The third is for devices of the
// kernel's, which has a connection manager itself: it speaks the ABI of /dev/infiniband/rdma_cm. No type of theirs
// shows on this package's surface, and no other package imports internal/cm. These are the calls on
// three transports:
//
//	here              kernel's manager (ucma)           iWARP, over TCP (MPA)
//	Addrs             its GIDs                          its network interface's addresses
//	Open              open /dev/infiniband/rdma_cm      a goroutine for the events
//	Addrs without IP  those that BIND takes for it
//	GIDs
//	Limits            those of its messages             508 bytes each way, beside the depths
//	Claim             CREATE_ID, BIND                   bind
//	Port.Listen       LISTEN                            listen, accept, read the MPA request
//	NewConn           nothing                           nothing
//	Route             CREATE_ID, RESOLVE_ADDR, and      nothing
//	                  RESOLVE_ROUTE or a path by
//	                  SET_OPTION
//	Path              QUERY                             ErrUnsupported
//	Connect           CONNECT                           connect, write the MPA request
//	QPAttr            INIT_QP_ATTR                      nothing: no attribute, since the connector
//	                                                    moves the QP when the stream is handed to it
//	Accept            ACCEPT                            write the MPA reply, move the QP
//	Ready             ACCEPT, without parameters        not called: Established follows Connect
//	Established       NOTIFY                            not called
//	Reject            REJECT                            write the MPA reply, with its reject bit
//	Disconnect        DISCONNECT                        shut the stream down
//	Close             DESTROY_ID                        close
//	Join, Leave       JOIN_MCAST, LEAVE_MCAST           nothing: the device has no groups
//	Event             GET_EVENT                         what the stream brings
//
// Three things are not here, on purpose. An ID moves to another event channel in rdmacm alone,
// since a Conn knows only the function that takes its events. A peer's address is resolved by
// Route, and a connector that finds no way to it reports Unreachable. A software device becomes a
// member of a multicast group when a QP is attached, which is a verb, and Join says only how to send
// to the group. The kernel joins for its devices.
package connector
