package rdmacm

import (
	"errors"
	"math/rand/v2"
	"net/netip"

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
type binding struct{ claims []claim }

// claim is a port on one address.
type claim struct {
	agent *agent
	addr  netip.Addr
	port  *connector.Port // nil until it is taken
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

// releasePorts gives the port back on all addresses.
func (b *binding) releasePorts() {
	for i := range b.claims {
		if c := &b.claims[i]; c.port != nil {
			c.port.Release()
			c.port = nil
		}
	}
}

// take claims the port on all addresses, unless it is taken already. It fails with ErrAddrInUse,
// and then has no port.
func (b *binding) take(ps PortSpace, number uint16) error {
	for i := range b.claims {
		c := &b.claims[i]
		if c.port != nil {
			continue
		}
		port, err := c.agent.connector.Claim(ps.connector(), c.addr, number)
		if err != nil {
			b.releasePorts()
			if errors.Is(err, ErrAddrInUse) {
				err = verbs.Errorf(ErrAddrInUse, "address in use: another program, or another ID of this one, has port %d of %v at %v", number, ps, c.addr)
			}
			return err
		}
		c.port = port
	}
	return nil
}

// takeFree takes any port that is free.
func (b *binding) takeFree(ps PortSpace) (number uint16, err error) {
	for range portTries {
		number = randomPort()
		if err = b.take(ps, number); !errors.Is(err, ErrAddrInUse) {
			return number, err
		}
	}
	return 0, verbs.Errorf(ErrAddrInUse, "no free port found after %d tries: %w", portTries, err)
}

func randomPort() uint16 { return uint16(firstPort + rand.N(lastPort-firstPort+1)) }

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
// ErrAddrInUse if another ID, of any program of this host, has the port in the port space. It fails
// with ErrNoDevice if no device has the address.
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
	id.binding = b
	id.local = netip.AddrPortFrom(addr.Addr(), port)
	return nil
}
