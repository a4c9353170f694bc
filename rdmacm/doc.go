// Package rdmacm is the connection manager: how RDMA programs find each other by IP address and
// port and bring their queue pairs into service (librdmacm, rdma_cma.h).
//
// Dial, Listen and Conn are the way of most programs:
//
//	l, err := rdmacm.Listen(netip.MustParseAddrPort("0.0.0.0:7471"))
//	req, err := l.Accept(ctx)
//	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: postReceives})
//
//	conn, err := rdmacm.Dial(ctx, addr, &rdmacm.Config{Setup: postReceives})
//	conn.QP().PostSend(…)
//
// A Conn is a QP in RTS with its completion queues; what goes over it are the verbs of package
// verbs. Receives belong into Config.Setup: it runs before the peer can send.
//
// Underneath are ID and EventChannel, with one method for each rdma_* call of the C library and
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
// The messages are those of the InfiniBand connection manager over QP1, so the other end may be a
// Linux kernel with its librdmacm, or a card. On software devices this package is itself the
// node's connection manager, in each process; the processes of a host share QP1.
package rdmacm
