package ucma

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// ends returns the addresses of an ID and of its peer. A peer that is not known has the family of the ID's address, as
// on Linux.
func (c *cmID) ends() (local, remote netip.AddrPort) {
	local, remote = c.v.LocalAddr(), c.v.RemoteAddr()
	if !remote.IsValid() && local.IsValid() {
		remote = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		if local.Addr().Is6() {
			remote = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
		}
	}
	return local, remote
}

// gid returns the GID of an address.
func gid(a netip.AddrPort) verbs.GID {
	if !a.IsValid() || a.Addr().IsUnspecified() {
		return verbs.GID{}
	}
	return verbs.GIDFromAddr(a.Addr())
}

// device returns the device that answers to queries name. An ID that is bound to a loopback address has none before it
// has a peer, as on Linux, where any device may carry the connections of such an ID. libfabric looks for this.
func (c *cmID) device() *verbs.Device {
	if c.v.LocalAddr().Addr().IsLoopback() && !c.v.RemoteAddr().IsValid() {
		return nil
	}
	return c.v.Device()
}

// isIB reports whether the ID's addresses are of AF_IB.
func (c *cmID) isIB(m *Manager) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return c.ib
}

// What a path is made of on RoCE.
const (
	hopLimit       = 64
	packetLifetime = 18 // code; CMA_IBOE_PACKET_LIFETIME
	selectExactly  = 2  // IB_SA_EQ
)

// path is the route to the peer.
type path struct {
	from, to     verbs.GID
	flowLabel    uint32
	trafficClass uint8
	mtu          verbs.MTU
}

// path returns the ID's route. ok is false where it has none yet.
func (c *cmID) path(dev *verbs.Device, p phase) (r path, ok bool, err error) {
	local, remote := c.ends()
	r.from, r.to = gid(local), gid(remote)
	if !p.routed {
		return r, false, nil
	}
	port, err := dev.QueryPort(c.v.Port())
	if err != nil {
		return r, false, err
	}
	const factor, labels = 31, 1<<20 - 1 // as Linux makes it
	r.flowLabel = (uint32(local.Port())*factor + uint32(remote.Port())) & labels
	r.mtu = port.ActiveMTU
	if a, _, err := c.v.QPAttr(verbs.QPStateRTR); err == nil && a.PathMTU != 0 {
		r.mtu, r.trafficClass = a.PathMTU, a.AH.TrafficClass
	}
	return r, true, nil
}

// user is the path as QUERY_ROUTE has it.
func (r *path) user() uapi.UserPathRec {
	u := uapi.UserPathRec{DGID: r.to, SGID: r.from, Reversible: 1, MTU: uint32(r.mtu), HopLimit: hopLimit, TrafficClass: r.trafficClass,
		MTUSelector: selectExactly, RateSelector: selectExactly, PacketLifeTimeSelector: selectExactly, PacketLifeTime: packetLifetime}
	binary.BigEndian.PutUint32(u.FlowLabel[:], r.flowLabel)
	binary.BigEndian.PutUint16(u.PKey[:], wire.DefaultPKey)
	return u
}

// record is the path as the subnet administrator would write it (PathRecord).
func (r *path) record() uapi.PathRecord {
	return uapi.PathRecord{DGID: r.to, SGID: r.from, FlowLabel: r.flowLabel, HopLimit: hopLimit, TrafficClass: r.trafficClass,
		PKey: wire.DefaultPKey, MTU: uint8(r.mtu), PacketLifeTime: packetLifetime}
}

func (f *File) queryRoute(k *call) error {
	var (
		in   uapi.CMQueryArg
		resp uapi.CMQueryRouteResp
	)
	if err := k.needs(uapi.CMQueryRouteLeast); err != nil {
		return err
	}
	// The command is rdma_ucm_query without a meaning for option.
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.get(in.ID)
	if err != nil {
		return err
	}
	local, remote := c.ends()
	copy(resp.SrcAddr[:], sockaddr(local))
	copy(resp.DstAddr[:], sockaddr(remote))
	if dev := c.device(); dev != nil {
		id, err := f.m.identify(dev)
		if err != nil {
			return err
		}
		r, routed, err := c.path(dev, c.look(f.m))
		if err != nil {
			return err
		}
		resp.NodeGUID, resp.IBDevIndex, resp.PortNum = id.NodeGUID, id.Index, uint8(c.v.Port())
		if routed {
			resp.NumPaths, resp.IBRoute[0] = 1, r.user()
		} else {
			resp.IBRoute[0].SGID, resp.IBRoute[0].DGID = r.from, r.to
			binary.BigEndian.PutUint16(resp.IBRoute[0].PKey[:], wire.DefaultPKey)
		}
	}
	return k.out(in.Response, resp)
}

func (f *File) query(k *call) error {
	var in uapi.CMQueryArg
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.get(in.ID)
	if err != nil {
		return err
	}
	switch in.Option {
	case uapi.CMQueryAddr:
		if c.isIB(f.m) {
			return f.queryAddr(k, c, in.Response, func(a netip.AddrPort) []byte { return sockaddrIB(c, a) })
		}
		return f.queryAddr(k, c, in.Response, sockaddr)
	case uapi.CMQueryGID:
		return f.queryAddr(k, c, in.Response, func(a netip.AddrPort) []byte { return sockaddrIB(c, a) })
	case uapi.CMQueryPath:
		return f.queryPath(k, c, in.Response)
	}
	return syscall.ENOSYS
}

// queryAddr answers with addresses, written as form says.
func (f *File) queryAddr(k *call, c *cmID, response uint64, form func(netip.AddrPort) []byte) error {
	if err := k.needs(uapi.CMQueryAddrLeast); err != nil {
		return err
	}
	var resp uapi.CMQueryAddrResp
	if dev := c.device(); dev != nil {
		id, err := f.m.identify(dev)
		if err != nil {
			return err
		}
		resp.NodeGUID, resp.IBDevIndex, resp.PortNum, resp.PKey = id.NodeGUID, id.Index, uint8(c.v.Port()), wire.DefaultPKey
	}
	local, remote := c.ends()
	resp.SrcSize = uint16(copy(resp.SrcAddr[:], form(local)))
	resp.DstSize = uint16(copy(resp.DstAddr[:], form(remote)))
	return k.out(response, resp)
}

// sockaddrIB returns an address as a GID with the service that stands for the port.
func sockaddrIB(c *cmID, a netip.AddrPort) []byte {
	b := make([]byte, uapi.SockaddrIBSize)
	var g verbs.GID
	var pkey uint16
	if c.device() != nil {
		g, pkey = gid(a), wire.DefaultPKey
	}
	uapi.PutSockaddrIB(b, g, c.ps.Service(a.Port()), 0, pkey)
	return b
}

// queryPath answers with as many paths as the program has room for.
func (f *File) queryPath(k *call, c *cmID, response uint64) error {
	var resp uapi.CMQueryPathResp
	if err := k.needsAll(resp); err != nil {
		return err
	}
	dev := c.device()
	if dev == nil {
		return k.out(response, resp)
	}
	r, routed, err := c.path(dev, c.look(f.m))
	if err != nil {
		return err
	}
	if !routed {
		return k.out(response, resp)
	}
	resp.NumPaths = 1
	b := uapi.Append(nil, resp)
	record := r.record()
	data := record.Data()
	if k.room-len(b) >= binary.Size(data) {
		b = uapi.Append(b, data)
	}
	return k.put(response, b)
}
