package connector

import (
	"cmp"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// PathRecord is a path from one port to another. It converts to rdmacm.PathRecord, which describes the fields.
type PathRecord struct {
	SGID, DGID     verbs.GID
	SLID, DLID     uint16
	FlowLabel      uint32
	HopLimit       uint8
	TrafficClass   uint8
	PKey           verbs.PKey
	SL             uint8
	MTU            verbs.MTU
	Rate           verbs.Rate
	PacketLifetime uint8
}

// Route implements Conn. Routers decide on the way, and nobody needs to be asked.
func (c *ibConn) Route(call *Call) (bool, error) {
	attr, err := c.c.dev.QueryPort(DevicePort)
	if err != nil {
		return false, err
	}
	c.route = PathRecord{
		SGID: verbs.GIDFromAddr(call.Local.Addr()), DGID: verbs.GIDFromAddr(call.Remote.Addr()), FlowLabel: flowLabel(call),
		HopLimit: hopLimit, TrafficClass: call.TOS, PKey: wire.DefaultPKey, PacketLifetime: lifetime(call),
		MTU: knownMTUs.limit(time.Now(), c.c.dev, call.Remote.Addr().WithZone("").Unmap(), call.mtu(attr.ActiveMTU)),
	}
	c.pkey = c.partition(call)
	p, err := ibPathTo(c.c.dev, call.Remote.Addr().WithZone(""), c.pkey)
	if err != nil {
		return false, err
	}
	if p.DLID != 0 {
		c.route.SLID, c.route.DLID, c.route.SL, c.route.PKey, c.route.Rate = p.SLID, p.DLID, p.SL, verbs.PKey(p.PKey), verbs.Rate(p.Rate)
		c.route.HopLimit = p.HopLimit
		c.route.MTU = min(c.route.MTU, verbs.MTU(p.MTU))
	}
	return true, nil
}

// Path implements Conn.
func (c *ibConn) Path() (PathRecord, error) {
	if c.route == (PathRecord{}) {
		return c.route, ErrNoPeer
	}
	return c.route, nil
}

// mtu is the path MTU to ask for, of a port with an active MTU.
func (c *Call) mtu(active verbs.MTU) verbs.MTU {
	if c.Path != nil && c.Path.MTU > 0 {
		return min(c.Path.MTU, active)
	}
	return cmp.Or(c.MTU, active)
}

// chosenPath is the path that the program has found, with what its options say besides.
func (c *Call) chosenPath() PathRecord {
	p := *c.Path
	if c.HasTOS {
		p.TrafficClass = c.TOS
	}
	if c.ACKTimeout > 0 {
		p.PacketLifetime = lifetime(c)
	}
	return p
}

// partition returns the P_Key of the path to ask for, or 0 for the default one. Other networks than InfiniBand have no
// partitions, whatever the call says.
func (c *ibConn) partition(call *Call) verbs.PKey {
	pkey := call.PKey
	if call.Path != nil {
		pkey = call.Path.PKey
	}
	if pkey == 0 {
		return 0
	}
	if attr, err := c.c.dev.QueryPort(DevicePort); err != nil || attr.LinkLayer != verbs.LinkLayerInfiniBand {
		return 0
	}
	return pkey
}

// flowLabel computes the flow label from the ports, as Linux does.
func flowLabel(call *Call) uint32 {
	const factor, mask = 31, 1<<20 - 1
	return (uint32(call.Local.Port())*factor + uint32(call.Remote.Port())) & mask
}

// lifetime is the code of how long a packet is under way, of which acknowledgement timeouts are made.
func lifetime(call *Call) uint8 {
	switch {
	case call.ACKTimeout > 0:
		return max(1, call.ACKTimeout-1)
	case call.Path != nil && call.Path.PacketLifetime > 0:
		return call.Path.PacketLifetime
	}
	return packetLifetime
}

// Route implements Conn. TCP finds its way.
func (c *tcpConn) Route(*Call) (bool, error) { return true, nil }

// Path implements Conn.
func (c *tcpConn) Path() (PathRecord, error) {
	return PathRecord{}, verbs.Errorf(verbs.ErrUnsupported, "iWARP has no path records: TCP finds its way")
}
