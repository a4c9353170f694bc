package rdmacm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// opened are the devices of registered providers that this package has opened. They stay open, as
// those of librdmacm do.
var opened = struct {
	mu     sync.Mutex
	byName map[string]*verbs.Device
}{byName: map[string]*verbs.Device{}}

// open returns a registered device. It opens the device at first use.
func open(name string) (*verbs.Device, error) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if d := opened.byName[name]; d != nil {
		return d, nil
	}
	d, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	// The agent stays as well, so that not every ID that comes and goes opens a connector.
	if _, err := acquireAgent(d); err != nil {
		d.Close()
		return nil, err
	}
	opened.byName[name] = d
	return d, nil
}

// openedWith returns an opened device that has a local address as GID, or nil.
func openedWith(addr netip.Addr) *verbs.Device {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	for _, d := range opened.byName {
		if connector.CheckAddr(d, addr) == nil {
			return d
		}
	}
	return nil
}

// forget lets go of a device that has failed.
func forget(d *verbs.Device) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if opened.byName[d.Name()] == d {
		delete(opened.byName, d.Name())
	}
}

// all returns those devices that IDs of the channel may use and that can be opened.
func (ch *EventChannel) all() ([]*verbs.Device, error) {
	if len(ch.devices) > 0 {
		return ch.devices, nil
	}
	infos, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	var devs []*verbs.Device
	var errs []error
	for _, info := range infos {
		d, err := open(info.Name)
		if err != nil {
			if !errors.Is(err, verbs.ErrUnsupported) { // no connector serves the device
				errs = append(errs, err)
			}
			continue
		}
		devs = append(devs, d)
	}
	if len(devs) == 0 {
		if len(errs) == 0 {
			return nil, verbs.Errorf(ErrNoDevice, "there is no RDMA device: import a provider for its side effect, such as github.com/adverb-rdma/adverb/provider/soft")
		}
		return nil, errors.Join(errs...)
	}
	return devs, nil
}

// deviceOf returns the device that has a local address as GID.
func (ch *EventChannel) deviceOf(addr netip.Addr) (*verbs.Device, error) {
	if len(ch.devices) > 0 {
		for _, d := range ch.devices {
			if connector.CheckAddr(d, addr) == nil {
				return d, nil
			}
		}
		return nil, noDevice(addr, ch.devices)
	}
	if d := openedWith(addr); d != nil {
		return d, nil
	}
	infos, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	// Only devices whose interface has the address need to be opened.
	var others []string
	var firstErr error
	for _, info := range infos {
		if !netdevHas(info.Netdev, addr) {
			others = append(others, info.Name)
			continue
		}
		d, err := open(info.Name)
		if err == nil {
			if err = connector.CheckAddr(d, addr); err == nil {
				return d, nil
			}
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	if firstErr != nil {
		return nil, firstErr
	}
	if len(infos) == 0 {
		_, err := ch.all()
		return nil, err
	}
	return nil, verbs.Errorf(ErrNoDevice, "no RDMA device has the address %v; there are %s", addr, strings.Join(others, ", "))
}

func noDevice(addr netip.Addr, devs []*verbs.Device) error {
	var have []string
	for _, d := range devs {
		addrs, _ := connector.Addrs(d)
		have = append(have, fmt.Sprintf("%s (%s)", d.Name(), strings.Trim(fmt.Sprint(addrs), "[]")))
	}
	return verbs.Errorf(ErrNoDevice, "no RDMA device has the address %v; there are %s", addr, strings.Join(have, ", "))
}

// netdevHas reports whether a network interface has an address.
func netdevHas(name string, addr netip.Addr) bool {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr.WithZone("") {
			return true
		}
	}
	return false
}

// sourceFor asks the host which of its addresses it would use to reach dst. Nothing is sent.
func sourceFor(dst netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, routeProbePort)))
	if err != nil {
		return netip.Addr{}, verbs.Errorf(ErrNoRoute, "no route to %v: %w", dst, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// routeProbePort can be any port. The route does not depend on it.
const routeProbePort = 4791
