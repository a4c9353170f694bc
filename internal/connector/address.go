package connector

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/link"
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

// Addrs returns the addresses from which a device can connect: those of its RoCE v2 GIDs, those that its GIDs are on
// InfiniBand, where they stand for IPoIB's link-local ones, or those of an iWARP device's network interface. Of a device of the kernel's they are those that the kernel connects from.
func Addrs(dev *verbs.Device) ([]netip.Addr, error) {
	if k, ok := kernelOf(dev); ok {
		return kernelAddrs(dev, k)
	}
	if c, ok := carrierOf(dev); ok {
		return c.Addrs(), nil
	}
	addrs, err := portAddrs(dev, DevicePort)
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// portAddrs returns the addresses of those GIDs of a port that name it to peers. After an error they are those of the GIDs that were read.
func portAddrs(dev *verbs.Device, port int) (addrs []netip.Addr, err error) {
	es, err := dev.GIDs(port)
	typ := gidType(dev, port)
	for _, e := range es {
		if e.Type == typ {
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
	_, _, err := chosen(dev, addr)
	return err
}

// PortOf returns the port of a device that has an address.
func PortOf(dev *verbs.Device, addr netip.Addr) int {
	if k, ok := kernelOf(dev); ok {
		if at, err := portWith(dev, k, addr); err == nil {
			return at.port
		}
	}
	return DevicePort
}

// GIDs returns the addresses that the GIDs of a device stand for from which it can connect by AF_IB: those of InfiniBand,
// or of RoCE.
func GIDs(dev *verbs.Device) (addrs []netip.Addr, err error) {
	err = eachPort(dev, func(port int) error {
		es, err := dev.GIDs(port)
		usual := gidType(dev, port)
		for _, e := range es {
			if addr := e.GID.Addr(); e.Type == usual || usual == verbs.GIDTypeRoCEv2 && e.Type == verbs.GIDTypeRoCEv1 && !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
		return err
	})
	return addrs, err
}

// gidType is the type of those GIDs of a port that name it to peers.
func gidType(dev *verbs.Device, port int) verbs.GIDType {
	if attr, err := dev.QueryPort(port); err == nil && attr.LinkLayer == verbs.LinkLayerInfiniBand {
		return verbs.GIDTypeIB
	}
	return verbs.GIDTypeRoCEv2
}

// portWithGID returns the port of a device that has the GID of an address. It fails with ENODEV.
func portWithGID(dev *verbs.Device, addr netip.Addr) (place, error) {
	for _, typ := range []verbs.GIDType{verbs.GIDTypeRoCEv2, verbs.GIDTypeIB, verbs.GIDTypeRoCEv1} {
		if at, err := portAt(dev, addr, typ); err != nil || at.port > 0 {
			return at, err
		}
	}
	return place{}, verbs.Errorf(syscall.ENODEV, "device %s has no GID %v", dev.Name(), verbs.GIDFromAddr(addr))
}

// PortOfGID returns the port of a device that has the GID of an address.
func PortOfGID(dev *verbs.Device, addr netip.Addr) int {
	at, _ := portWithGID(dev, addr)
	return max(at.port, DevicePort)
}

// CheckGID fails with ENODEV unless a device has the GID of an address.
func CheckGID(dev *verbs.Device, addr netip.Addr) error {
	_, err := portWithGID(dev, addr)
	return err
}

// gidIndex returns where an address stands in a device's GID table, or ENODEV: the address of a connection or its MADs,
// which tells RoCEv1 from RoCEv2.
func gidIndex(dev *verbs.Device, addr netip.Addr) (int, error) {
	typ := gidType(dev, DevicePort)
	if link.IsV1(addr) {
		typ = verbs.GIDTypeRoCEv1
	}
	return gidOf(dev, DevicePort, addr, typ)
}

// chosen returns where a device's GID table first has an address, and the address as connections from there have it: of
// RoCEv1 if that entry is. So the order of the table chooses how a device connects, as default_roce_mode does on Linux.
func chosen(dev *verbs.Device, addr netip.Addr) (int, netip.Addr, error) {
	v2, err := gidOf(dev, DevicePort, addr, gidType(dev, DevicePort))
	if v1, errV1 := gidOf(dev, DevicePort, addr, verbs.GIDTypeRoCEv1); errV1 == nil && (err != nil || v1 < v2) {
		return v1, link.V1(addr), nil
	}
	return v2, addr, err
}

// gidOf returns where an address stands in the GID table of a device's port with a type, or ENODEV.
func gidOf(dev *verbs.Device, port int, addr netip.Addr, typ verbs.GIDType) (int, error) {
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
		if err == nil && e.GID == gid && e.Type == typ {
			return i, nil
		}
	}
	return 0, verbs.Errorf(syscall.ENODEV, "device %s has no %v GID of %v", dev.Name(), typ, addr)
}

// ahAttr describes the path from one of the device's addresses to another address.
func ahAttr(to netip.Addr, sgid int, tos uint8) verbs.AHAttr {
	return verbs.AHAttr{DGID: verbs.GIDFromAddr(to), SGIDIndex: sgid, TrafficClass: tos, HopLimit: hopLimit, Port: DevicePort}
}
