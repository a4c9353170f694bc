package demo

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/verbs"
)

// openDevice opens a software device on a loopback address, with its packets in view.
func openDevice(addr netip.Addr, mw ...link.Middleware) (*verbs.Device, error) {
	name, err := loopback()
	if err != nil {
		return nil, err
	}
	dev, err := udp.NetdevForAddr(name, addr)
	if err != nil {
		return nil, err
	}
	p, err := hca.Open(dev, hca.Config{Name: "soft_" + name + "@" + addr.String(), Middleware: mw})
	if err != nil {
		return nil, err
	}
	return verbs.NewDevice(p), nil
}
