package rdmacm

import (
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// ResolveAddr finds the device and the local address from which dst is reached (rdma_resolve_addr),
// and binds the ID to them. A zero src leaves the choice to the host's routes. Otherwise the ID is
// bound to src, as by BindAddr. The answer is EventAddrResolved or EventAddrError. After the latter
// ResolveAddr may be called again; an ID that is bound by then stays so.
//
// An unspecified dst, 0.0.0.0 or [::], stands for this host: for its loopback address of that IP version or, if it
// has none, of the other one. It fails with verbs.ErrInvalid for a
// broadcast address and, but in PortSpaceUDP, for a multicast address.
//
// Whether the host dst exists shows when the ID connects, as nothing is sent before.
func (id *ID) ResolveAddr(src, dst netip.AddrPort) error {
	const op = "resolve address"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect(op, "an address is resolved once, first or after BindAddr", stateIdle, stateBound); err != nil {
		return err
	}
	if id.ib {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "the ID is bound to a GID and a service ID: use ResolveIB"))
	}
	return id.resolveAddr(op, src, dst)
}

// resolveAddr is ResolveAddr for either family of addresses. The caller holds id.mu.
func (id *ID) resolveAddr(op string, src, dst netip.AddrPort) error {
	if !dst.Addr().IsValid() {
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "the peer's address is empty"))
	}
	to := dst.Addr().Unmap()
	id.remote = netip.AddrPortFrom(to, dst.Port())
	switch {
	case id.ib:
	case to.IsMulticast() && !id.ps.datagram():
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "%v is a multicast address, and a connection has one peer: groups are for ID.JoinMulticast in %v", to, PortSpaceUDP))
	case to == broadcastAddr:
		return id.error(op, errBroadcast(to))
	}
	if src.IsValid() {
		if id.state != stateIdle && netip.AddrPortFrom(src.Addr().Unmap(), src.Port()) != id.local { // another try has the same one
			return id.error(op, verbs.Errorf(verbs.ErrInvalid, "a source address for an ID that is bound already, to %v", id.local))
		}
		if from := src.Addr().Unmap(); !id.ib && from.Is4() != to.Is4() && !to.IsUnspecified() {
			return id.error(op, verbs.Errorf(verbs.ErrInvalid, "source %v and destination %v are of different IP versions", from, to))
		}
	}
	if err := id.resolve(src, to); err != nil {
		id.report(id.failed(EventAddrError, op, statusInvalid, err))
		if id.binding != nil { // another binding would take the place of this one, which nobody would release
			id.state = stateBound
		} else {
			id.local = netip.AddrPort{}
		}
		return nil
	}
	id.state = stateAddrResolved
	id.report(Event{Type: EventAddrResolved})
	return nil
}

var broadcastAddr = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func errBroadcast(to netip.Addr) error {
	return verbs.Errorf(verbs.ErrInvalid, "%v is a broadcast address, and RDMA knows none: name one host, or join a multicast group in %v", to, PortSpaceUDP)
}

// thisHost returns the loopback address that an unspecified destination stands for. An ID that has an address, or is
// bound to all of IPv4, has its IP version. Otherwise it is that of the destination, unless the host or the ID's devices
// have only the other. The caller holds id.mu.
func (id *ID) thisHost(to netip.Addr) netip.Addr {
	if from := id.local.Addr(); from.IsValid() && from != netip.IPv6Unspecified() {
		return loopback(from.Is4())
	}
	for _, ipv4 := range []bool{to.Is4(), !to.Is4()} {
		if _, err := id.ch.source(loopback(ipv4)); err == nil {
			return loopback(ipv4)
		}
	}
	return loopback(to.Is4())
}

func loopback(ipv4 bool) netip.Addr {
	if ipv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// resolve finds the way to a peer. The caller holds id.mu.
func (id *ID) resolve(src netip.AddrPort, to netip.Addr) error {
	if src.IsValid() && (src.Port() != 0 || !src.Addr().IsUnspecified()) && id.binding == nil {
		if src.Port() != 0 {
			if err := id.bind(src); err != nil {
				return err
			}
		} else {
			id.local = netip.AddrPortFrom(src.Addr().Unmap(), 0)
		}
	}
	thisHost := to.IsUnspecified()
	if thisHost {
		to = id.thisHost(to)
	}
	from := id.local.Addr()
	if !from.IsValid() || from.IsUnspecified() {
		var err error
		if from, err = id.source(to); err != nil {
			return err
		}
	} else if id.ib {
	} else if to.Is4() && id.ch.onHost() {
		if _, err := sourceFor(to); errors.Is(err, verbs.ErrInvalid) {
			return err
		}
	}
	if thisHost {
		id.remote = netip.AddrPortFrom(from, id.remote.Port())
	} else if id.ib {
	} else if err := id.ch.checkWay(from, to); err != nil {
		return err
	}
	if id.agent == nil {
		dev, err := id.deviceWith(inZoneOf(from, to))
		if err != nil {
			return err
		}
		a, err := acquireAgent(dev)
		if err != nil {
			return err
		}
		if err := id.useAgent(a, from); err != nil {
			return err
		}
	}
	port := id.local.Port()
	if port == 0 {
		port = id.agent.portFrom(id, from)
	}
	id.local = netip.AddrPortFrom(from, port)
	return nil
}

// inZoneOf returns a local address in the zone of the address that it is to reach: several interfaces may have one
// link-local address.
func inZoneOf(from, to netip.Addr) netip.Addr {
	if isAmbiguous(from) && to.IsLinkLocalUnicast() {
		return from.WithZone(to.Zone())
	}
	return from
}

// source returns the local address from which another is reached.
func (ch *EventChannel) source(to netip.Addr) (netip.Addr, error) {
	from, err := sourceFor(to)
	if ch.onHost() {
		if len(ch.devices) == 0 || errors.Is(err, verbs.ErrInvalid) {
			return from, err
		}
	}
	// The devices need not be on the host's network. Devices of tests are not.
	best, score := netip.Addr{}, 0
	for _, d := range ch.devices {
		addrs, err := connector.Addrs(d)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, a := range addrs {
			if a.Is4() != to.Is4() {
				continue
			}
			s := 1
			if a.IsLinkLocalUnicast() == to.IsLinkLocalUnicast() {
				s = 2
			}
			if a == from {
				s = 3
			}
			if s > score {
				best, score = a, s
			}
		}
	}
	if score == 0 {
		return netip.Addr{}, noDevice(to, ch.devices)
	}
	return best, nil
}

// onHost reports whether the channel's devices are on the host's network.
func (ch *EventChannel) onHost() bool {
	for _, d := range ch.devices {
		if d.Info().Provider == "" {
			return false
		}
	}
	return true
}

// checkWay refuses a destination that no packet from an address of this host reaches.
func (ch *EventChannel) checkWay(from, to netip.Addr) error {
	if !from.IsLoopback() || to.IsLoopback() || to.IsMulticast() || !ch.onHost() {
		return nil
	}
	// Other addresses of this host are reached from a loopback address.
	if own, err := sourceFor(to); err == nil && own == to.WithZone("") {
		return nil
	}
	return verbs.Errorf(ErrNoRoute, "from the loopback address %v no other host is reached, such as %v: use the device of another network interface", from, to)
}
