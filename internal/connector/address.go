package connector

import (
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// DevicePort is the port of RoCE devices, which have no other.
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
// an iWARP device's network interface.
func Addrs(dev *verbs.Device) ([]netip.Addr, error) {
	if c, ok := carrierOf(dev); ok {
		return c.Addrs(), nil
	}
	es, err := dev.GIDs(DevicePort)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, e := range es {
		if e.Type == verbs.GIDTypeRoCEv2 {
			addrs = append(addrs, e.GID.Addr())
		}
	}
	return addrs, nil
}

// CheckAddr fails with ENODEV unless a device can connect from an address.
func CheckAddr(dev *verbs.Device, addr netip.Addr) error {
	if c, ok := carrierOf(dev); ok {
		return checkAddr(dev, c, addr)
	}
	_, err := gidIndex(dev, addr)
	return err
}

// gidIndex returns where an address stands in a device's GID table, or ENODEV.
func gidIndex(dev *verbs.Device, addr netip.Addr) (int, error) {
	attr, err := dev.QueryPort(DevicePort)
	if err != nil {
		return 0, err
	}
	gid := verbs.GIDFromAddr(addr)
	for i := range attr.GIDTableLen {
		if e, err := dev.Provider().GID(DevicePort, i); err == nil && e.GID == gid && e.Type == verbs.GIDTypeRoCEv2 {
			return i, nil
		}
	}
	return 0, verbs.Errorf(syscall.ENODEV, "device %s has no RoCE v2 GID of %v", dev.Name(), addr)
}

// ahAttr describes the path from one of the device's addresses to another address.
func ahAttr(to netip.Addr, sgid int, tos uint8) verbs.AHAttr {
	return verbs.AHAttr{DGID: verbs.GIDFromAddr(to), SGIDIndex: sgid, TrafficClass: tos, HopLimit: hopLimit, Port: DevicePort}
}
