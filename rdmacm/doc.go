// Package rdmacm is the connection manager. By it RDMA programs find each other by IP address and
// port, and bring their queue pairs into service (librdmacm, rdma_cma.h).
//
// Most programs use Dial, Listen and Conn:
//
//	l, err := rdmacm.Listen(netip.MustParseAddrPort("0.0.0.0:7471"))
//	req, err := l.Accept(ctx)
//	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: postReceives})
//
//	conn, err := rdmacm.Dial(ctx, addr, &rdmacm.Config{Setup: postReceives})
//	conn.QP().PostSend(…)
//
// A Conn is a QP in RTS with its completion queues. The program uses it by the calls of package
// verbs. It posts receives in Config.Setup, which runs before the peer can send.
//
// Below are ID and EventChannel, with one method for each rdma_* call of the C library and
// one Event for each answer:
//
//	active                                     passive
//	NewID                                      NewID
//	ResolveAddr   > EventAddrResolved          BindAddr
//	ResolveRoute  > EventRouteResolved         Listen
//	CreateQP                                                > EventConnectRequest, with a new ID
//	Connect       ---------- REQ --------->    CreateQP on it
//	              <--------- REP ----------    Accept
//	EventEstablished ------- RTU --------->                 > EventEstablished
//	Disconnect    ---------- DREQ -------->                 > EventDisconnected
//	EventDisconnected <----- DREP ----------
//
// Connections are made by a connector, which depends on the device (package internal/connector).
// For software devices its messages are those of the InfiniBand connection manager over QP1, so the
// other end may be a Linux kernel with its librdmacm, or a card. Each process then has a connection
// manager of its own, and the processes of a host share QP1.
package rdmacm
