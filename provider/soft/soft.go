// Package soft registers the software RDMA devices with package verbs. There is one for each
// network interface that has an address, named soft_lo, soft_eth0 and so on. Import the package for
// its side effect:
//
//	import _ "github.com/adverb-rdma/adverb/provider/soft"
//
// The devices speak RoCEv2 over UDP port 4791, without privileges. The GIDs of a device are the
// addresses of its interface. verbs.Open also takes a name with one address, such as
// "soft_lo@127.0.0.2". The GID table of that device contains only this address. On a loopback
// interface it may be any address of the interface's networks, so that each program on a host can
// have one of its own.
//
// Two environment variables show the packets of every device that a program opens:
//
//	ADVERB_TRACE=1              one line for each packet on standard error
//	ADVERB_PCAP=packets.pcapng  a capture for Wireshark, without privileges
package soft

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/host"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	namePrefix = "soft_"
	envTrace   = "ADVERB_TRACE"
	envPCAP    = "ADVERB_PCAP"
)

func init() { verbs.Register("soft", provider{}) }

type provider struct{}

// Devices lists a device for each network interface with an address. Those of loopback interfaces
// come last, so that a tool which takes the first device can reach other hosts.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	netdevs, err := udp.Netdevs()
	if err != nil {
		return nil, err
	}
	var all, loopback []verbs.DeviceInfo
	for _, n := range netdevs {
		info, err := hca.Describe(n, "")
		if err != nil {
			continue // the interface has vanished since it was listed
		}
		addRivals(&info, n)
		if isLoopback(n) {
			loopback = append(loopback, info)
		} else {
			all = append(all, info)
		}
	}
	return append(all, loopback...), nil
}

func isLoopback(n link.Netdev) bool {
	s, err := n.State()
	return err == nil && slices.ContainsFunc(s.Addrs, netip.Addr.IsLoopback)
}

// Open opens a device by a name that Devices lists, or by such a name with an address.
func (p provider) Open(name string) (verbs.ProviderDevice, error) {
	ifname, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return nil, verbs.ErrNotFound
	}
	ifname, only, one := strings.Cut(ifname, "@")
	devices, err := p.Devices()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(devices, func(d verbs.DeviceInfo) bool { return d.Netdev == ifname }) {
		return nil, verbs.ErrNotFound
	}
	var netdev *udp.Netdev
	if one {
		addr, err := netip.ParseAddr(only)
		if err != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "the address after @ does not parse: %w", err)
		}
		netdev, err = udp.NetdevForAddr(ifname, addr)
		if err != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "%w", err)
		}
	} else if netdev, err = udp.OpenNetdev(ifname); err != nil {
		return nil, err
	}
	shared := host.Share(netdev)
	config := hca.Config{Name: name, Claim: shared.Claim, ClaimService: shared.ClaimService, ServeGSI: shared.ServeGSI}
	if err := watchPackets(&config); err != nil {
		shared.Close()
		return nil, err
	}
	d, err := hca.Open(shared, config)
	if err != nil {
		return nil, err
	}
	return device{d, shared}, nil
}

// watchPackets sets up what the environment asks for.
func watchPackets(c *hca.Config) error {
	if v := os.Getenv(envTrace); v != "" && v != "0" {
		c.Middleware = append(c.Middleware, trace.New(trace.ToWriter(os.Stderr)))
	}
	if os.Getenv(envPCAP) == "" {
		return nil
	}
	w, err := capture()
	if err != nil {
		return fmt.Errorf("%s: %w", envPCAP, err)
	}
	c.Middleware = append(c.Middleware, w.Middleware())
	c.Closers = append(c.Closers, flusher{w})
	return nil
}

// capture returns the capture of all devices of the process. It stays open until the process ends.
var capture = sync.OnceValues(func() (*pcap.Writer, error) {
	f, err := os.Create(os.Getenv(envPCAP))
	if err != nil {
		return nil, err
	}
	return pcap.New(f, pcap.Options{})
})

// flusher flushes the capture when a device closes.
type flusher struct{ w *pcap.Writer }

func (f flusher) Close() error { return f.w.Flush() }
