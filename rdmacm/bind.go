package rdmacm

import (
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
}

// binding is a port that an ID has for itself, on one address or on all.
type binding struct {
	claims []claim
	gone   map[*agent]bool // agents whose devices have failed
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
	b.releasePorts()
	for _, c := range b.claims {
		c.agent.release()
	}
}

// lose takes note that an agent's device has failed, and reports whether no other is left.
func (b *binding) lose(a *agent) bool {
	if b.gone == nil {
		b.gone = map[*agent]bool{}
	}
	b.gone[a] = true
	return !slices.ContainsFunc(b.claims, func(c claim) bool { return !b.gone[c.agent] })
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
	// all are opened before the first claim can be seen. Claim says what is wrong with one.
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
			port, err := c.agent.connector.Claim(ps.connector(), c.addr, number)
			if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, verbs.ErrUnsupported) {
				unusable = err
				continue
			}
			if err != nil {
				for _, c := range fresh {
					c.release()
				}
				if errors.Is(err, ErrAddrInUse) {
					err = verbs.Errorf(ErrAddrInUse, "port %d of %v at %v: %w", number, ps, c.addr, err)
				}
				return err
			}
			c.port = port
			fresh = append(fresh, c)
		}
		taken++
	}
	if taken == 0 {
		return unusable
	}
	return nil
}

// takeFree takes any port that is free.
func (b *binding) takeFree(ps PortSpace) (number uint16, err error) {
	for range portTries {
		number = randomPort(b.claims[0].agent)
		if err = b.take(ps, number); !errors.Is(err, verbs.ErrBusy) {
			return number, err
		}
	}
	return 0, verbs.Errorf(ErrAddrInUse, "no free port found after %d tries: %w", portTries, err)
}

func randomPort(a *agent) uint16 {
	return firstPort + uint16(a.connector.Random32()%(lastPort-firstPort+1))
}

// bindTo returns the addresses that addr stands for, without a port on them yet.
func (id *ID) bindTo(addr netip.Addr) (*binding, error) {
	if !addr.IsUnspecified() {
		dev, err := id.ch.deviceOf(addr)
		if err != nil {
			return nil, err
		}
		b, err := bindDevice(&binding{}, dev, func(a netip.Addr) bool { return a == addr.WithZone("") })
		if err == nil && len(b.claims) == 0 { // it has lost the address meanwhile
			return nil, noDevice(addr, []*verbs.Device{dev})
		}
		return b, err
	}
	devs, err := id.ch.all()
	if err != nil {
		return nil, err
	}
	b := &binding{}
	for _, dev := range devs {
		if b, err = bindDevice(b, dev, func(a netip.Addr) bool { return addr.Is6() && !id.options.afOnly || a.Is4() == addr.Is4() }); err != nil {
			return nil, err
		}
	}
	if len(b.claims) == 0 {
		return nil, verbs.Errorf(ErrNoDevice, "no RDMA device has an address of the IP version of %v", addr)
	}
	return b, nil
}

// bindDevice adds those addresses of a device to b that are wanted. After an error nothing is left
// of b.
func bindDevice(b *binding, dev *verbs.Device, wanted func(netip.Addr) bool) (*binding, error) {
	addrs, err := connector.Addrs(dev)
	if err != nil {
		b.release()
		return nil, err
	}
	for _, addr := range addrs {
		if !wanted(addr) {
			continue
		}
		a, err := acquireAgent(dev)
		if err != nil {
			b.release()
			return nil, err
		}
		b.claims = append(b.claims, claim{agent: a, addr: addr})
	}
	return b, nil
}

// BindAddr gives the ID a local address and port (rdma_bind_addr). An unspecified address stands
// for those of all devices, and [::] for IPv4 too. Port 0 asks for a free one. BindAddr fails with
// ErrAddrInUse if another ID, of any program of this host, has the port in the port space, and if a
// program that shares with nobody holds UDP port 4791 of the address. It fails with ErrNoDevice if no
// device has the address.
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

// bind does what BindAddr does. The caller holds id.mu.
func (id *ID) bind(addr netip.AddrPort) error {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if !addr.Addr().IsValid() {
		return verbs.Errorf(verbs.ErrInvalid, "the address is empty: 0.0.0.0 or [::] stand for all")
	}
	b, err := id.bindTo(addr.Addr())
	if err != nil {
		return err
	}
	port := addr.Port()
	switch {
	case port == 0:
		port, err = b.takeFree(id.ps)
	case !id.options.reuseAddr: // otherwise Listen takes the port
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
	for _, c := range b.claims {
		c.agent.add(id)
	}
	id.binding = b
	id.local = netip.AddrPortFrom(addr.Addr(), port)
	return nil
}
