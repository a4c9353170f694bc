package connector

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// DevicePort is the port of software devices, which have no other.
const DevicePort = 1

const hopLimit = 64

// Unserved has the device log that requests are not served at one of its addresses, if it can.
func Unserved(dev *verbs.Device, at netip.AddrPort, cause error) {
	if p, ok := dev.Provider().(interface {
		Unserved(at netip.AddrPort, cause error)
	}); ok {
		p.Unserved(at, cause)
	}
}

// Addrs returns the addresses from which a device can connect: those of its RoCE v2 GIDs, or those of
// an iWARP device's network interface. Of a device of the kernel's they are those that the kernel connects from.
func Addrs(dev *verbs.Device) ([]netip.Addr, error) {
	if k, ok := kernelOf(dev); ok {
		return kernelAddrs(dev, k)
	}
	if c, ok := carrierOf(dev); ok {
		return c.Addrs(), nil
	}
	addrs, err := roceAddrs(dev, DevicePort)
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// roceAddrs returns the addresses of a port's RoCE v2 GIDs. After an error they are those of the GIDs that were read.
func roceAddrs(dev *verbs.Device, port int) (addrs []netip.Addr, err error) {
	es, err := dev.GIDs(port)
	for _, e := range es {
		if e.Type == verbs.GIDTypeRoCEv2 {
			addrs = append(addrs, e.GID.Addr())
		}
	}
	return addrs, err
}

// CheckAddr fails with ENODEV unless a device can connect from an address.
func CheckAddr(dev *verbs.Device, addr netip.Addr) error {
	if k, ok := kernelOf(dev); ok {
		_, err := portWith(dev, k, addr)
		return err
	}
	if c, ok := carrierOf(dev); ok {
		return checkAddr(dev, c, addr)
	}
	_, err := gidIndex(dev, addr)
	return err
}

// PortOf returns the port of a device that has an address.
func PortOf(dev *verbs.Device, addr netip.Addr) int {
	if k, ok := kernelOf(dev); ok {
		if port, err := portWith(dev, k, addr); err == nil {
			return port
		}
	}
	return DevicePort
}

// gidIndex returns where an address stands in a device's GID table, or ENODEV.
func gidIndex(dev *verbs.Device, addr netip.Addr) (int, error) { return gidAt(dev, DevicePort, addr) }

// gidAt is gidIndex for a port of the device.
func gidAt(dev *verbs.Device, port int, addr netip.Addr) (int, error) {
	attr, err := dev.QueryPort(port)
	if err != nil {
		return 0, err
	}
	gid := verbs.GIDFromAddr(addr)
	for i := range attr.GIDTableLen {
		e, err := dev.Provider().GID(port, i)
		if err != nil && !errors.Is(err, verbs.ErrNotFound) {
			return 0, verbs.Errorf(err, "read GID %d of device %s: %w", i, dev.Name(), err)
		}
		if err == nil && e.GID == gid && e.Type == verbs.GIDTypeRoCEv2 {
			return i, nil
		}
	}
	return 0, verbs.Errorf(syscall.ENODEV, "device %s has no RoCE v2 GID of %v", dev.Name(), addr)
}

// ahAttr describes the path from one of the device's addresses to another address.
func ahAttr(to netip.Addr, sgid int, tos uint8) verbs.AHAttr {
	return verbs.AHAttr{DGID: verbs.GIDFromAddr(to), SGIDIndex: sgid, TrafficClass: tos, HopLimit: hopLimit, Port: DevicePort}
}
