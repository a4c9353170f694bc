package soft

import (
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/rnic"
	"github.com/adverb-rdma/adverb/internal/showpackets"
	"github.com/adverb-rdma/adverb/verbs"
)

// rnics lists a device that speaks iWARP for each network interface, those of loopback last.
func rnics(netdevs []*udp.Netdev) []verbs.DeviceInfo {
	var all, loopback []verbs.DeviceInfo
	for _, n := range netdevs {
		info, err := rnic.Describe(n, "")
		switch {
		case err != nil: // the interface has vanished since it was listed
		case isLoopback(n):
			loopback = append(loopback, info)
		default:
			all = append(all, info)
		}
	}
	return append(all, loopback...)
}

// rnicDevice is an open device that speaks iWARP.
type rnicDevice struct {
	*rnic.Device
	hide func()
}

// Close implements verbs.ProviderDevice.
func (d rnicDevice) Close() error {
	d.hide()
	return d.Device.Close()
}

// openRNIC opens a device that speaks iWARP on a network interface, perhaps with one of its addresses.
func openRNIC(name, ifname string, env *environment) (verbs.ProviderDevice, error) {
	netdev, err := openNetdev(ifname)
	if err != nil {
		return nil, err
	}
	config := rnic.Config{Name: name, CRC: env.crc, Spin: env.spin(), Yielder: yielder}
	if config.Wrap, config.Closers, err = showpackets.Streams(name, showpackets.Zero(), iwarp.Tracers); err != nil {
		netdev.Close()
		return nil, err
	}
	d, err := rnic.Open(netdev, config)
	if err != nil {
		return nil, err
	}
	return rnicDevice{d, env.listen()}, nil
}
