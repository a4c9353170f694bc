package connector

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Connector makes the connections of one device. Its methods, and those of its Ports and Conns, may
// be called from any goroutine. The Connector dispatches events on one goroutine, with no lock of
// its own held.
type Connector interface {
	// Serve opens an address for requests. Claim opens the address too, but takes no time for that after Serve.
	Serve(addr netip.Addr) error
	// Claim takes a port, alone or with others who share it too. It fails with EADDRINUSE while somebody else has it in
	// another way.
	Claim(name Name, shared bool) (Port, error)
	// NewConn makes an end of a connection from an address of the device, whatever the port. handle takes its events.
	NewConn(from Name, handle func(Event)) (Conn, error)
	// Limits returns the lengths of private data for which the device's transport has room.
	Limits() Limits
	// Random32 returns a random number.
	Random32() uint32
	// Close ends the connector. No Port and no Conn may be in use any more.
	Close()
}

// Port is a port of a port space on one of the device's addresses. It has one owner at a time among
// all programs of the host, or those who share it.
type Port interface {
	// Own makes a port that is shared this end's alone. It fails with EADDRINUSE while others share it. A port that is
	// this end's alone stays so.
	Own() error
	// Listen has onRequest called for requests that come to the port, on the connector's goroutine.
	// onRequest returns the function that takes the new connection's events, or nil to reject the
	// request. Up to backlog requests wait to be answered. A port that is shared must be owned first.
	Listen(backlog int, onRequest func(*Request) func(Event)) error
	// Release ends the listening and gives the port back. It rejects requests that were not handed out.
	Release()
}

// Conn is one end of a connection from before it is asked for until it is forgotten. Of UD QPs,
// which have no connections, it is one end of the exchange by which one end learns the other's QP.
type Conn interface {
	// Serve says on which device the QP is: on the connector's, as without the call, or on another Open
	// of the same device. Serve fails with ENODEV if the device does not have the address of this end.
	Serve(dev *verbs.Device, from netip.Addr) error
	// Route looks for the way to the peer. It returns true if the way is known by then. Otherwise Routed follows, or
	// Unreachable, after which Route may be called again. Without the call Connect looks for the way.
	Route(call *Call) (known bool, err error)
	// Path returns the path of Route, or of a request. It fails with ErrNoPeer while there is none.
	Path() (PathRecord, error)
	// Connect asks the peer for a connection. Replied, Established, Rejected or Unreachable follows.
	// For UD it asks which QP serves the peer's port. Then Found, NotFound or Unreachable follows.
	Connect(call *Call) error
	// Accept says yes to a request. The caller has brought its QP into service by QPAttr before.
	// Established, Rejected, Unreachable or Disconnected follows. Of a UD exchange nothing follows.
	Accept(p Params) error
	// Reject says no to a request or, until the connection is established, takes back this end's
	// yes. No event follows. Reject fails with [ErrState] if the connection is established by now,
	// or is over.
	Reject(privateData []byte) error
	// RejectFor is Reject with another reason than that the program says no, and with information for the peer's
	// rdmacm, of 72 bytes at most. iWARP has no room for either: if this end has no resources, it closes the
	// connection without an answer.
	RejectFor(reason wire.RejReason, info []byte) error
	// Ready answers Replied: this end's QP is in service, and the connection is established. It fails
	// with [ErrState] if the peer has ended it meanwhile. confirmation, or nil, is for the peer's rdmacm.
	Ready(confirmation []byte) error
	// Established tells the connector that the peer's first packet has come to the accepting end. The
	// peer is there, though the message that says so may be lost. The event Established follows.
	Established() error
	// Disconnect ends an established connection. Disconnected follows. If the peer has ended the
	// connection before, its event is on the way and Disconnect does nothing.
	Disconnect() error
	// Close gives the connection up in whatever state it is, and tells the peer. No event follows.
	Close()
	// LimitMTU takes note that the network loses larger packets than those of a path MTU on the way to the peer.
	// For some minutes this device's next connections to the peer's address ask for this path MTU. iWARP has
	// no use for it.
	LimitMTU(fits verbs.MTU)
	// Join makes this end a member of a multicast group, and says how datagrams go there from this end's address. If
	// it says nothing, with no error, Joined follows, or NotJoined.
	Join(group netip.Addr, tos uint8) (*Datagram, error)
	// Leave undoes Join. Joined and NotJoined may still come.
	Leave(group netip.Addr)
	// QPAttr returns the attributes with which a QP goes to INIT, RTR or RTS, as far as the ends have
	// agreed on them. An empty mask says that there is nothing to modify: the connector takes the QP
	// there itself. How many READs and atomics may be outstanding is in the mask, and left to the
	// caller to fill in.
	QPAttr(typ verbs.QPType, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
}

var (
	_ Connector = (*ibConnector)(nil)
	_ Port      = (*ibPort)(nil)
	_ Conn      = (*ibConn)(nil)
	_ Connector = (*tcpConnector)(nil)
	_ Port      = (*tcpPort)(nil)
	_ Conn      = (*tcpConn)(nil)
)

// Watcher is who hears of a device. The connector's goroutine calls.
type Watcher struct {
	Gone    func(error) // once, if the device fails before Close
	Changed func()      // after the device has looked at its addresses anew
}

// Open brings a connector for a device into service. It fails with [verbs.ErrUnsupported] if no connector can serve the
// device.
func Open(dev *verbs.Device, w Watcher) (Connector, error) {
	if k, ok := kernelOf(dev); ok {
		return openKernel(dev, k, w)
	}
	if c, ok := carrierOf(dev); ok {
		return openTCP(dev, c, w), nil
	}
	return openIB(dev, w)
}
