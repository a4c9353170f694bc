package rdmacm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// Ports that are given out are from the range that Linux has by default.
const (
	firstPort = 32768
	lastPort  = 60999

	// portTries bounds the search for a free port.
	portTries = 256
)

// endpoints are the addresses and ports of an ID and of its peer.
type endpoints struct {
	local, remote netip.AddrPort
	binding       *binding // the port that the ID has for itself, or nil
	family                 // of the addresses
}

// binding is a port that an ID has, on one address or on all.
type binding struct {
	addr     netip.Addr // that the program has named
	family   family
	agents   []*agent // of the devices that it is on; the binding has a use of each
	claims   []claim
	shared   bool      // the port is others' as well, if they share it too
	follower *follower // of a binding to all addresses, or nil
}

// claim is a port on one address.
type claim struct {
	agent *agent
	addr  netip.Addr
	port  connector.Port // nil until it is taken, and where the address cannot be used
}

// release gives everything back. A nil binding has nothing.
func (b *binding) release() {
	if b == nil {
		return
	}
	b.follower.stop()
	b.releasePorts()
	for _, a := range b.agents {
		a.release()
	}
}

// isLost reports whether the devices of all agents have failed.
func (b *binding) isLost() bool {
	return !slices.ContainsFunc(b.agents, func(a *agent) bool { return !a.hasFailed() })
}

// releasePorts gives the port back on all addresses.
func (b *binding) releasePorts() {
	for i := range b.claims {
		b.claims[i].release()
	}
}

// release gives the port back.
func (c *claim) release() {
	if c.port != nil {
		c.port.Release()
		c.port = nil
	}
}

// take claims the port on all addresses, unless it is taken already. It fails with ErrAddrInUse, and then
// has the ports that it had before: the ID may be bound to them. Of several addresses it passes over those
// that cannot be used: one that has just been assigned may be so for a second, and others have been
// removed. So may be the addresses of a device that does not have the port space, as iWARP has no datagrams.
func (b *binding) take(ps PortSpace, number uint16) error {
	// A port that is claimed and not listened at refuses its clients. Opening an address may take long, so
	// all are opened before the first claim can be seen. An address that does not open has its error from
	// Claim.
	for _, c := range b.claims {
		if c.port == nil {
			_ = c.agent.connector.Serve(c.addr)
		}
	}
	var unusable error
	taken := 0
	var fresh []*claim // that this call has taken
	for i := range b.claims {
		c := &b.claims[i]
		if c.port == nil {
			port, err := c.agent.connector.Claim(b.family.name(ps, c.addr, number), b.shared)
			if isUnusable(err) {
				unusable = err
				continue
			}
			if err != nil {
				for _, c := range fresh {
					c.release()
				}
				return inUse(ps, number, c.addr, err)
			}
			c.port = port
			fresh = append(fresh, c)
		}
		taken++
	}
	if taken == 0 && !b.follows(unusable) {
		return unusable
	}
	return nil
}

// isUnusable reports whether an error of Claim is about the address, and not about the port. ErrNotFound and ENODEV are a
// device's that has lost the address since it was asked for its addresses.
func isUnusable(err error) bool {
	return isUnready(err) || errors.Is(err, syscall.ENODEV) || errors.Is(err, verbs.ErrUnsupported)
}

// isUnready reports whether an error of acquireAgent is that the device has no address, or none that can be used: all have
// just been assigned, for instance.
func isUnready(err error) bool {
	return errors.Is(err, verbs.ErrNotFound) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// inUse says of a port that is in use which one that is.
func inUse(ps PortSpace, number uint16, addr netip.Addr, err error) error {
	if errors.Is(err, ErrAddrInUse) {
		return verbs.Errorf(ErrAddrInUse, "port %d of %v at %v: %w", number, ps, addr, err)
	}
	return err
}

// follows reports whether the binding will have addresses, though it has none that can be used for a reason, or for
// none: it follows the host's.
func (b *binding) follows(unusable error) bool {
	return b.follower != nil && b.follower.host && !errors.Is(unusable, verbs.ErrUnsupported)
}

// own makes a port that is shared this binding's alone. It fails with ErrAddrInUse while others share it, and then it is
// shared still.
func (b *binding) own(ps PortSpace, number uint16) error {
	for i := range b.claims {
		c := &b.claims[i]
		if c.port == nil {
			continue
		}
		if err := c.port.Own(); err != nil {
			b.releasePorts()       // some may be owned by now
			_ = b.take(ps, number) // a port that somebody has got meanwhile is taken by the next Listen
			return inUse(ps, number, c.addr, err)
		}
	}
	b.shared = false
	return nil
}

// takeFree takes any port that is free.
func (b *binding) takeFree(ps PortSpace) (number uint16, err error) {
	for range portTries {
		number = b.randomPort()
		if err = b.takeUnused(ps, number); !errors.Is(err, verbs.ErrBusy) {
			return number, err
		}
	}
	return 0, verbs.Errorf(ErrAddrInUse, "no free port found after %d tries: %w", portTries, err)
}

// takeUnused takes a port that nobody has, not even to share it.
func (b *binding) takeUnused(ps PortSpace, number uint16) error {
	if !b.shared {
		return b.take(ps, number)
	}
	b.shared = false
	err := b.take(ps, number)
	b.shared = true
	if err != nil {
		return err
	}
	b.releasePorts()
	return b.take(ps, number)
}

// randomPort is one of those that are given out. It is the device's to choose, in a simulation.
func (b *binding) randomPort() uint16 {
	if len(b.agents) > 0 {
		return randomPort(b.agents[0])
	}
	var r [4]byte
	rand.Read(r[:]) // never fails
	return portOf(binary.NativeEndian.Uint32(r[:]))
}

func randomPort(a *agent) uint16 { return portOf(a.connector.Random32()) }

func portOf(random uint32) uint16 { return firstPort + uint16(random%(lastPort-firstPort+1)) }

// bindTo returns the addresses that addr stands for, without a port on them yet.
func (id *ID) bindTo(addr netip.Addr) (b *binding, err error) {
	b = &binding{addr: addr, family: id.family, shared: id.options.reuseAddr}
	defer func() {
		if err != nil {
			b.release()
			b = nil
		}
	}()
	if !addr.IsUnspecified() {
		dev, err := id.deviceWith(addr)
		if err != nil {
			return b, err
		}
		if err = b.add(dev, id.options.afOnly); err == nil && len(b.claims) == 0 { // it has lost the address meanwhile
			err = noDevice(addr, []*verbs.Device{dev})
		}
		return b, err
	}
	b.follower = newFollower(id, b) // before the first look, so that no change is missed
	devs, err := id.ch.all()
	if err != nil && !(b.follower.host && isNoneYet(err)) {
		return b, err
	}
	var unready error
	for _, dev := range devs {
		err := b.add(dev, id.options.afOnly)
		switch {
		case isUnready(err): // the follower tries again
			unready = err
		case err != nil:
			return b, err
		}
	}
	if len(b.claims) == 0 && !b.follower.host {
		if unready != nil {
			return b, unready
		}
		return b, verbs.Errorf(ErrNoDevice, "no RDMA device has an address of the IP version of %v", addr)
	}
	return b, nil
}

// wants reports whether the binding is to one of a device's addresses. afOnly has [::] leave out IPv4.
func (b *binding) wants(a netip.Addr, afOnly bool) bool {
	if !b.addr.IsUnspecified() {
		return a == b.addr.WithZone("")
	}
	return b.family.ib || b.addr.Is6() && !afOnly || a.Is4() == b.addr.Is4()
}

// add adds those addresses of a device that are wanted.
func (b *binding) add(dev *verbs.Device, afOnly bool) error {
	addrs, err := b.family.addrs(dev)
	if err != nil {
		return err
	}
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !b.wants(a, afOnly) })
	if len(addrs) == 0 && b.follower == nil {
		return nil
	}
	a, err := acquireAgent(dev)
	if err != nil {
		return err
	}
	b.addAgent(a)
	for _, addr := range addrs {
		b.claims = append(b.claims, claim{agent: a, addr: addr})
	}
	return nil
}

// addAgent adds an agent, of which the binding has a use.
func (b *binding) addAgent(a *agent) { b.agents = append(b.agents, a) }

// removeAgent removes the agent at an index. The caller gives its use back.
func (b *binding) removeAgent(i int) { b.agents = slices.Delete(b.agents, i, i+1) }

// addPort adds the port that was claimed at an address, or gives it to the address's claim.
func (b *binding) addPort(a *agent, addr netip.Addr, port connector.Port) {
	i := slices.IndexFunc(b.claims, func(c claim) bool { return c.agent == a && c.addr == addr })
	if i < 0 {
		i = len(b.claims)
		b.claims = append(b.claims, claim{agent: a, addr: addr})
	}
	b.claims[i].port = port
}

// removeClaims removes claims, and returns them. The caller releases them.
func (b *binding) removeClaims(unwanted func(*claim) bool) (removed []claim) {
	b.claims = slices.DeleteFunc(b.claims, func(c claim) bool {
		if !unwanted(&c) {
			return false
		}
		removed = append(removed, c)
		return true
	})
	return removed
}

// BindAddr gives the ID a local address and port (rdma_bind_addr). An unspecified address stands
// for those of all devices, and [::] for IPv4 too. Port 0 asks for a free one. BindAddr fails with
// ErrAddrInUse if another ID, of any program of this host, has the port in the port space, unless both have
// SetReuseAddr, and if a program that shares with nobody holds UDP port 4791 of the address. It fails with
// ErrNoDevice if no device has the address, and with verbs.ErrInvalid for a link-local address of IPv6 without
// a zone.
//
// An ID that is bound to all addresses follows them, until it has a device: to addresses and devices that come
// later, and away from those that go, so that no event tells it of the end of a device. Where the channel was given
// devices these are theirs, and the last of them ends the ID with EventDeviceRemoval. An ID that listens gets
// EventAddrChange. On Linux the kernel tells of changes, and elsewhere a look every two seconds finds them. An
// address at which another program has the port is left out, which the device's log says, and tried again at
// least once a minute. So is a device that has no address, or none that can be used yet, as long as another device can
// be used.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.expect("bind", "an ID is bound once", stateIdle); err != nil {
		return err
	}
	if err := id.bind(addr); err != nil {
		return opError("bind", addr, netip.AddrPort{}, err)
	}
	id.state = stateBound
	return nil
}

// bind is BindAddr under id.mu.
func (id *ID) bind(addr netip.AddrPort) error {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if err := id.ch.checkBind(addr.Addr()); err != nil && !id.ib {
		return err
	}
	b, err := id.bindTo(addr.Addr())
	if err != nil {
		return err
	}
	port := addr.Port()
	if port == 0 {
		port, err = b.takeFree(id.ps)
	} else {
		err = b.take(id.ps, port)
	}
	if err == nil && !addr.Addr().IsUnspecified() {
		c := b.claims[0]
		if !c.agent.retain() {
			err = verbs.ErrClosed
		} else {
			err = id.useAgent(c.agent, c.addr)
		}
	}
	if err != nil {
		b.release()
		return err
	}
	for _, a := range b.agents {
		a.add(id)
	}
	id.binding = b
	id.local = netip.AddrPortFrom(addr.Addr(), port)
	b.follower.start()
	return nil
}

// setPort gives the ID another local port. The caller holds id.mu.
func (id *ID) setPort(port uint16) { id.local = netip.AddrPortFrom(id.local.Addr(), port) }

// checkBind refuses an address to which no ID can be bound.
func (ch *EventChannel) checkBind(addr netip.Addr) error {
	switch {
	case !addr.IsValid():
		return verbs.Errorf(verbs.ErrInvalid, "the address is empty: 0.0.0.0 or [::] stand for all")
	case isAmbiguous(addr) && len(ch.devices) == 0:
		return verbs.Errorf(verbs.ErrInvalid, "%v may be an address on several networks: name the interface, as in %v%%%s", addr, addr, interfaceOf(addr))
	}
	return nil
}
