package connector

import (
	"errors"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// packetLifetime is the code that acknowledgement timeouts are made of, unless the program chooses
// one: 17 ms one way. With the delay that software devices ask for, QPs then wait 0.13 s.
const packetLifetime = 12

// ibConn is one end of a connection from before it is asked for until it is forgotten. Of UD QPs,
// which have no connections, it is one end of the exchange by which one end learns the other's QP.
type ibConn struct {
	c      *ibConnector
	ps     PortSpace
	handle func(Event)

	// The way to the peer.
	sgid          int // of the QP's device; guarded by c.mu from Serve on
	local, remote netip.AddrPort
	path          cm.Path
	v1            bool       // the packets are those of RoCEv1
	route         PathRecord // of Route
	pkey          verbs.PKey // of the partition; 0 is the default one

	// In the machine: one of the two, from Connect or from the request on.
	ib     *cm.Conn
	lookup *cm.SIDR

	psn    verbs.PSN // at which the peer is to begin
	agreed agreement // guarded by c.mu
}

// agreement has the parameters on which the ends of a connection have agreed so far.
type agreement struct {
	mtu        verbs.MTU
	retryCount uint8
	ackTimeout uint8 // code
	peerQPN    verbs.QPN
	peerPSN    verbs.PSN
	rnrRetry   uint8
}

// Params are the parameters that one end of a connection tells the other about its QP. They convert
// to and from rdmacm.ConnParam, which describes the fields.
type Params struct {
	PrivateData        []byte
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	QPN                verbs.QPN
	SRQ                bool
}

// Datagram says where the other end of a UD exchange, or a multicast group, gets its datagrams. It
// converts to rdmacm.UDParam.
type Datagram struct {
	PrivateData []byte
	AH          verbs.AHAttr
	QPN         verbs.QPN
	QKey        verbs.QKey
}

// UDQKey is the Q_Key of UD QPs, at both ends.
const UDQKey = 0x01234567

// multicastQPN is the QPN that datagrams to a group are sent to.
const multicastQPN = 0xffffff

// NewConn makes an end of a connection from an address of the device. handle takes its events.
func (c *ibConnector) NewConn(from Name, handle func(Event)) (Conn, error) {
	sgid, local, err := chosen(c.dev, from.Addr)
	if err != nil {
		return nil, err
	}
	return &ibConn{c: c, ps: from.PS, handle: handle, sgid: sgid, psn: c.newPSN(), v1: link.IsV1(local)}, nil
}

// Serve says on which device the QP is. Without the call it is the connector's. Another Open of the same device
// may have the address of this end elsewhere in its GID table. Serve fails with ENODEV if that table does not
// have it.
func (c *ibConn) Serve(dev *verbs.Device, from netip.Addr) error {
	sgid, err := gidIndex(dev, c.like(from))
	if err != nil {
		return err
	}
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	c.sgid = sgid
	return nil
}

// like returns an address as the connection's packets have it.
func (c *ibConn) like(a netip.Addr) netip.Addr {
	if c.v1 {
		return link.V1(a)
	}
	return a.WithZone("")
}

// newPSN draws the PSN at which a peer is to begin.
func (c *ibConnector) newPSN() verbs.PSN { return verbs.PSN(c.Random32() & uint32(wire.PSNMask)) }

// Call has the parameters of Route and Connect.
type Call struct {
	Type          verbs.QPType
	Local, Remote netip.AddrPort
	Bound         bool      // the local port is claimed for this end
	TOS           uint8     // type of service or traffic class of the connection's packets
	HasTOS        bool      // the program has chosen TOS; a kernel has a default of its own
	MTU           verbs.MTU // the path MTU to ask for, unless less is known to get through; 0 stands for the port's active MTU
	ACKTimeout    uint8     // code for both ends; 0 leaves it to the connector
	Params        Params    // this end's; for UD only PrivateData counts

	IB      bool        // the family is AF_IB
	Service uint64      // of IB: the service ID that the peer is asked for
	PKey    verbs.PKey  // of IB: that the path is to have, or 0 for the default
	Path    *PathRecord // that the program has found itself, or nil
}

// Connect asks the peer for a connection. Replied, Established, Rejected or Unreachable follows.
// For UD it asks which QP serves the peer's port. Then Found, NotFound or Unreachable follows.
func (c *ibConn) Connect(call *Call) error {
	c.local, c.remote, c.pkey = call.Local, call.Remote, c.partition(call)
	c.path = cm.Path{Local: c.like(call.Local.Addr()), Remote: c.like(call.Remote.Addr()), TrafficClass: call.TOS}
	service, data := call.Service, call.Params.PrivateData
	if !call.IB {
		header := wire.IPCMHeader{Src: call.Local.Addr().WithZone(""), Dst: call.Remote.Addr().WithZone(""), SrcPort: call.Local.Port()}
		data = append(header.AppendTo(nil), data...)
		service = wire.RDMAServiceID(uint16(c.ps), c.remote.Port())
	}
	if call.Type == verbs.QPTypeUD {
		return c.c.do(func(now time.Duration) (err error) {
			if c.lookup, err = c.c.machine.Resolve(now, c.path, cm.SIDRParams{Service: service, PKey: uint16(c.pkey), PrivateData: data}); err == nil {
				c.lookup.User = c
			}
			return err
		})
	}
	attr, err := c.c.dev.QueryPort(DevicePort)
	if err != nil {
		return err
	}
	way, usual, err := wayTo(c.c.dev, c.path.Remote, c.pkey, call.mtu(attr.ActiveMTU))
	if err != nil {
		return err
	}
	mtu := knownMTUs.limit(time.Now(), c.c.dev, link.GIDAddr(c.path.Remote), usual)
	params := cm.ConnectParams{
		Service: service, PKey: uint16(c.pkey), Way: way,
		Params: c.params(call.Params),
		MTU:    uint8(mtu), RetryCount: call.Params.RetryCount,
		FlowLabel:      flowLabel(call),
		PacketLifetime: lifetime(call),
	}
	params.UC = call.Type == verbs.QPTypeUC
	params.PrivateData = data
	if call.ACKTimeout > 0 {
		params.ACKTimeout = call.ACKTimeout
	}
	return c.c.do(func(now time.Duration) (err error) {
		if mtu < usual {
			c.c.shrunk++
		}
		c.agreed = agreement{mtu: mtu, retryCount: call.Params.RetryCount}
		if c.ib, err = c.c.machine.Connect(now, c.path, params); err == nil {
			c.ib.User = c
		}
		return err
	})
}

// params turns this end's parameters into those of a REQ or REP.
func (c *ibConn) params(p Params) cm.Params {
	return cm.Params{
		QPN: uint32(p.QPN), PSN: uint32(c.psn),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, SRQ: p.SRQ, RNRRetryCount: p.RNRRetryCount,
		PrivateData: p.PrivateData,
	}
}

// paramsOf turns the peer's resources into those that this end may use.
func paramsOf(p *cm.Params) Params {
	return Params{
		PrivateData: p.PrivateData, ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
		FlowControl: p.FlowControl, RNRRetryCount: p.RNRRetryCount, QPN: verbs.QPN(p.QPN), SRQ: p.SRQ,
	}
}

// Accept says yes to a request. The caller has brought its QP into service by QPAttr before.
// Established, Rejected, Unreachable or Disconnected follows. Of a UD exchange nothing follows.
func (c *ibConn) Accept(p Params) error {
	return c.c.do(func(now time.Duration) error {
		if c.lookup != nil {
			return c.lookup.Reply(now, cm.SIDRReply{QPN: uint32(p.QPN), QKey: UDQKey, PrivateData: p.PrivateData})
		}
		return c.ib.Accept(now, c.params(p))
	})
}

// Reject says no to a request or, until the connection is established, takes back this end's yes.
// No event follows. Reject fails with [ErrState] if the connection is established by now, or is
// over.
func (c *ibConn) Reject(privateData []byte) error {
	return c.reject(wire.RejConsumerDefined, nil, privateData)
}

// RejectFor is Reject with another reason, and with information for the peer's rdmacm, of 72 bytes at most.
func (c *ibConn) RejectFor(reason wire.RejReason, info []byte) error {
	return c.reject(reason, info, nil)
}

func (c *ibConn) reject(reason wire.RejReason, info, privateData []byte) error {
	return c.c.do(func(now time.Duration) error {
		if c.lookup != nil {
			status := wire.SIDRRejected
			if reason == wire.RejNoResources {
				status = wire.SIDRNoQP
			}
			return c.lookup.Reply(now, cm.SIDRReply{Status: status, PrivateData: privateData})
		}
		return c.ib.Reject(now, reason, info, privateData)
	})
}

// Ready answers Replied: this end's QP is in service, and the connection is established. It fails
// with [ErrState] if the peer has ended it meanwhile. confirmation, or nil, is for the peer's rdmacm.
func (c *ibConn) Ready(confirmation []byte) error {
	return c.c.do(func(now time.Duration) error { return c.ib.ReadyWith(now, confirmation) })
}

// Established tells the connector that the peer's first packet has come to the accepting end. The
// peer is there, though the message that says so may be lost. The event Established follows.
func (c *ibConn) Established() error {
	return c.c.do(func(now time.Duration) error { return c.ib.Established(now) })
}

// Disconnect ends an established connection. Disconnected follows. If the peer has ended the
// connection before, its event is on the way and Disconnect does nothing.
func (c *ibConn) Disconnect() error {
	err := c.c.do(func(now time.Duration) error { return c.ib.Disconnect(now, nil) })
	if errors.Is(err, ErrState) {
		return nil
	}
	return err
}

// Close gives the connection up in whatever state it is, and tells the peer. No event follows.
func (c *ibConn) Close() {
	_ = c.c.do(func(now time.Duration) error {
		if c.ib != nil {
			c.ib.Close(now)
		}
		if c.lookup != nil {
			c.lookup.Close(now)
		}
		return nil
	})
}

// Join implements Conn. RoCE derives all of it from the group's address, and the device joins when a QP is attached.
// RoCEv1 has other GIDs for groups of IPv4, and cards wait for datagrams to these alone. On
// InfiniBand subnet administration gives the group a LID.
func (c *ibConn) Join(group netip.Addr, tos uint8) (*Datagram, error) {
	lid, err := ibJoin(c.c.dev, group, c.pkey)
	if err != nil {
		return nil, err
	}
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	if c.v1 {
		group = link.GroupV1(group)
	}
	attr := ahAttr(group, c.sgid, tos)
	attr.DLID = lid
	return &Datagram{AH: attr, QPN: multicastQPN, QKey: UDQKey}, nil
}

// Leave implements Conn.
func (c *ibConn) Leave(group netip.Addr) { ibLeave(c.c.dev, group) }
