package demo

import (
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/host"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/showpackets"
	"github.com/adverb-rdma/adverb/verbs"
)

// openDevice opens a software device on a loopback address, with its packets in view and captured, and shown as the
// environment asks.
func openDevice(addr netip.Addr, mw []link.Middleware, c *captures) (*verbs.Device, error) {
	ifname, err := loopback()
	if err != nil {
		return nil, err
	}
	name := "soft_" + ifname + "@" + addr.String()
	shown, err := showpackets.Device(name, showpackets.Zero())
	if err != nil {
		return nil, err
	}
	dev, err := udp.NetdevForAddr(ifname, addr)
	if err != nil {
		return nil, err
	}
	// Other programs of the user may use the address at the same time, such as 127.0.0.1.
	shared := host.Share(dev)
	if err := tryOpen(shared, addr); err != nil {
		return nil, errors.Join(err, shared.Close())
	}
	p, err := hca.Open(shared, hca.Config{
		Name: name, Ways: hca.Ways{Claim: shared.Claim}, Middleware: append(mw, shown.Middleware...), Closers: shown.Closers, Journal: c.recorder(shown.Journal),
	})
	if err != nil {
		return nil, err
	}
	return verbs.NewDevice(p), nil
}

// tryOpen fails if somebody else holds the address. A device opens it when its first QP needs it, and
// then it would be too late to choose another.
func tryOpen(n link.Netdev, addr netip.Addr) error {
	l, err := n.Open(addr)
	if err != nil {
		return err
	}
	return l.Close()
}
