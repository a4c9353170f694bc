package rdmacm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const defaultPKey verbs.PKey = wire.DefaultPKey

// IBAddr is an address of the family AF_IB (struct sockaddr_ib): a port's GID, and the ID of a service there. Messages
// between such addresses say nothing of IP addresses, so hosts on InfiniBand need none. An ID with such an address
// connects only to one that listens with such an address.
type IBAddr struct {
	GID     verbs.GID  // at BindIB the zero GID stands for all
	Service uint64     // at BindIB 0, or a service ID whose low 16 bits are 0, asks for a free one: see [PortSpace.Service]
	PKey    verbs.PKey // at ResolveIB: the partition, or 0 for the default one; RoCE has no others
}

func (a IBAddr) String() string { return fmt.Sprintf("[%v]:0x%016x", a.GID, a.Service) }

// Service returns the service ID that stands for a port of the port space (RDMA_IB_IP_PS_TCP and its like). The kernel's
// devices have no other services. Software devices take any.
func (ps PortSpace) Service(port uint16) uint64 { return wire.RDMAServiceID(uint16(ps), port) }

// portMask has the bits of a service ID that stand for a port.
const portMask = 0xffff

// family says of which family the addresses of an ID are: of IP, unless ib is set.
type family struct {
	ib          bool
	service     uint64 // this end's
	peerService uint64
	pkey        verbs.PKey
}

// name returns the name of a port at an address of the family.
func (f *family) name(ps PortSpace, addr netip.Addr, port uint16) connector.Name {
	n := connector.Name{PS: ps.connector(), Addr: addr, Port: port}
	if f.ib {
		n.IB, n.Service = true, f.service&^portMask|uint64(port)
		if f.service == 0 {
			n.Service = ps.Service(port)
		}
	}
	return n
}

// addrs returns the addresses of a device that are of the family.
func (f *family) addrs(dev *verbs.Device) ([]netip.Addr, error) {
	if f.ib {
		return connector.GIDs(dev)
	}
	return connector.Addrs(dev)
}

// beIB makes the ID's addresses those of AF_IB. The caller holds id.mu.
func (id *ID) beIB(service uint64) { id.ib, id.service = true, service }

// meet takes note of the service to connect to. The caller holds id.mu.
func (id *ID) meet(to IBAddr) { id.peerService, id.pkey = to.Service, to.PKey }

// BindIB is BindAddr with a GID and a service ID.
func (id *ID) BindIB(addr IBAddr) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect("bind", "an ID is bound once", stateIdle); err != nil {
		return err
	}
	before := id.family
	id.beIB(addr.Service)
	if err := id.bind(netip.AddrPortFrom(gidAddr(addr.GID), uint16(addr.Service))); err != nil {
		id.family = before
		return opError("bind "+addr.String(), netip.AddrPort{}, netip.AddrPort{}, err)
	}
	id.state = stateBound
	return nil
}

// gidAddr returns the address that a GID stands for. All zeros stand for all addresses.
func gidAddr(g verbs.GID) netip.Addr { return g.Addr() }

// ResolveIB is ResolveAddr with GIDs and service IDs. A zero src leaves the choice to the devices: it is the GID itself if
// this host has it, and else the first whose port is on its subnet; on RoCE it is that from which the host's routes lead
// there. src may name a GID alone; a service ID in it is bound.
//
// Linux resolves such addresses on InfiniBand alone: its RoCE devices have no route for them.
func (id *ID) ResolveIB(src, dst IBAddr) error {
	const op = "resolve address"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "an address is resolved once, first or after BindIB", stateIdle, stateBound); err != nil {
		return err
	}
	switch {
	case dst.GID.IsZero():
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "the peer's GID is empty"))
	case id.state == stateBound && !id.ib:
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "the ID is bound to an IP address, %v: use ResolveAddr", id.local))
	case id.state == stateBound && src != (IBAddr{}):
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "a source address for an ID that is bound already"))
	}
	from, before := netip.AddrPort{}, id.family
	if id.state == stateIdle {
		defer func() {
			if id.state == stateIdle { // no way was found, and the program may look for another address
				id.family = before
			}
		}()
		id.beIB(src.Service)
		if src != (IBAddr{}) {
			from = netip.AddrPortFrom(gidAddr(src.GID), uint16(src.Service))
		}
	}
	id.meet(dst)
	return id.resolveAddr(op, from, netip.AddrPortFrom(gidAddr(dst.GID), uint16(dst.Service)))
}

// LocalIB returns this end's GID and service ID, also of an ID with an IP address (rdma_get_local_addr). The service ID of
// an ID that has not been bound is a number without a meaning.
func (id *ID) LocalIB() IBAddr {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ibAddr(id.local, id.service)
}

// RemoteIB returns the peer's GID and service ID (rdma_get_peer_addr). In a request of AF_IB the latter is not told, and 0.
func (id *ID) RemoteIB() IBAddr {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.ib && id.listener != nil {
		return IBAddr{GID: verbs.GIDFromAddr(id.remote.Addr())}
	}
	return id.ibAddr(id.remote, id.peerService)
}

func (id *ID) ibAddr(at netip.AddrPort, service uint64) (a IBAddr) {
	if !at.IsValid() {
		return a
	}
	if !at.Addr().IsUnspecified() {
		a.GID = verbs.GIDFromAddr(at.Addr())
	}
	of := family{ib: id.ib, service: service}
	a.Service = of.name(id.ps, at.Addr(), at.Port()).Service
	if !id.ib {
		a.Service = id.ps.Service(at.Port())
	}
	return a
}

// DialIB is Dial to a GID and a service ID. Dialer.LocalAddr may name the GID to connect from, as the IP address that it is.
func (d *Dialer) DialIB(ctx context.Context, addr IBAddr, c *Config) (*Conn, error) {
	src := IBAddr{}
	if d.LocalAddr.IsValid() {
		src = IBAddr{GID: verbs.GIDFromAddr(d.LocalAddr.Addr())}
	}
	return d.dial(ctx, netip.AddrPortFrom(gidAddr(addr.GID), uint16(addr.Service)), c, func(id *ID) error { return id.ResolveIB(src, addr) })
}

// ListenIB is Listen at a GID and a service ID. Listener.ID tells which, where the program has left it open.
func (c *ListenConfig) ListenIB(addr IBAddr) (*Listener, error) {
	return c.listen(netip.AddrPortFrom(gidAddr(addr.GID), uint16(addr.Service)), func(id *ID) error { return id.BindIB(addr) })
}

// AddrIB returns the GID and the service ID that the listener listens on.
func (l *Listener) AddrIB() IBAddr { return l.id.LocalIB() }

// deviceWith returns the device that has a local address. The caller holds id.mu.
func (id *ID) deviceWith(addr netip.Addr) (*verbs.Device, error) {
	if !id.ib {
		return id.ch.deviceOf(addr)
	}
	devs, err := id.ch.all()
	if err != nil {
		return nil, err
	}
	for _, d := range devs {
		if connector.CheckGID(d, addr.WithZone("")) == nil && d.Info().Transport != verbs.TransportIWARP {
			return d, nil
		}
	}
	return nil, verbs.Errorf(ErrNoDevice, "no RDMA device has the GID %v: \"adverb gids\" lists those that there are", verbs.GIDFromAddr(addr))
}

// source returns the local address from which another is reached. The caller holds id.mu.
func (id *ID) source(to netip.Addr) (netip.Addr, error) {
	if !id.ib {
		return id.ch.source(to)
	}
	devs, err := id.ch.all()
	if err != nil {
		return netip.Addr{}, err
	}
	const prefix = 8 // bytes of a GID that are the subnet's
	gid := verbs.GIDFromAddr(to)
	var near netip.Addr
	for _, d := range devs {
		addrs, err := connector.GIDs(d)
		if err != nil && len(addrs) == 0 {
			continue
		}
		for _, a := range addrs {
			own := verbs.GIDFromAddr(a)
			if own == gid {
				return a, nil
			}
			if !near.IsValid() && bytes.Equal(own[:prefix], gid[:prefix]) {
				near = a
			}
		}
	}
	if from, err := id.ch.source(to); err == nil { // of RoCE: all of IPv4 has one prefix
		if _, err := id.deviceWith(from); err == nil {
			return from, nil
		}
	} else if !near.IsValid() {
		return from, errors.Join(verbs.Errorf(ErrNoRoute, "no GID of this host is on the subnet of %v", gid), err)
	}
	if !near.IsValid() {
		return near, verbs.Errorf(ErrNoRoute, "no GID of this host is on the subnet of %v", gid)
	}
	return near, nil
}
