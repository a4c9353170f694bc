package connector

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// KernelManaged is implemented by a device's provider if the device is the kernel's. The kernel's connection manager makes its
// connections.
type KernelManaged interface {
	// OpenCM opens the kernel's connection manager, /dev/infiniband/rdma_cm. Its calls do not block.
	OpenCM() (*os.File, error)
}

// CheckKernel returns nil if the kernel's connection manager makes the connections of a device, and is there. Otherwise it fails with
// verbs.ErrUnsupported.
func CheckKernel(dev *verbs.Device) error {
	k, ok := kernelOf(dev)
	if !ok {
		return verbs.Errorf(verbs.ErrUnsupported, "device %s is not the kernel's", dev.Name())
	}
	f, err := k.OpenCM()
	if err != nil {
		return verbs.Errorf(verbs.ErrUnsupported, "the kernel has no connection manager: %w", err)
	}
	return f.Close()
}

// kernelMoved is implemented by a provider of iWARP devices, whose QPs the kernel takes to RTS as it connects them.
type kernelMoved interface {
	// Connected says that the kernel takes a QP to RTS.
	Connected(verbs.QPN)
}

func kernelOf(dev *verbs.Device) (KernelManaged, bool) {
	k, ok := dev.Provider().(KernelManaged)
	return k, ok
}

// kernelAddrs are the addresses of the RoCE v2 GIDs of a device's ports. A device that has none, of iWARP or InfiniBand,
// has those addresses of the host that the kernel's connection manager takes for it. Link-local addresses have a zone: the
// kernel binds to none without.
func kernelAddrs(dev *verbs.Device, k KernelManaged) (addrs []netip.Addr, err error) {
	err = eachPort(dev, func(port int) error {
		of, err := dev.GIDs(port)
		for _, e := range of {
			if e.Type != verbs.GIDTypeRoCEv2 {
				continue
			}
			addr := e.GID.Addr()
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(e.Netdev)
			}
			addrs = append(addrs, addr)
		}
		return err
	})
	if err != nil || len(addrs) > 0 {
		return addrs, err
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if _, err := askKernel(dev, k, p.Addr().Unmap()); err == nil {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	return addrs, nil
}

// place is a device's port, and the P_Key of an address there.
type place struct {
	guid verbs.GUID
	port int
	pkey verbs.PKey
}

// portWith returns the port of a kernel's device that has an address: by its RoCE v2 GIDs or, failing these, by the
// kernel's connection manager. It fails with ENODEV.
func portWith(dev *verbs.Device, k KernelManaged, addr netip.Addr) (found place, err error) {
	if found, err = portAt(dev, addr, verbs.GIDTypeRoCEv2); err != nil || found.port > 0 {
		return found, err
	}
	if found, err = askKernel(dev, k, addr); err != nil {
		return place{}, verbs.Errorf(syscall.ENODEV, "device %s has no address %v: %w", dev.Name(), addr, err)
	}
	return found, nil
}

// portAt returns the first port that has the GID of an address, of a type. It is 0 if there is none.
func portAt(dev *verbs.Device, addr netip.Addr, typ verbs.GIDType) (found place, err error) {
	key := spotKey{addr.WithZone(""), typ}
	if port := knownSpots.find(dev, key); port > 0 {
		return place{port: port, pkey: wire.DefaultPKey}, nil
	}
	err = eachPort(dev, func(port int) error {
		if found.port > 0 {
			return nil
		}
		switch index, err := gidOf(dev, port, addr, typ); {
		case err == nil:
			knownSpots.keep(dev, key, spot{port, index})
			found = place{port: port, pkey: wire.DefaultPKey}
		case !errors.Is(err, syscall.ENODEV): // the port cannot be asked, which says nothing of the address
			return err
		}
		return nil
	})
	return found, err
}

// eachPort calls f for the ports of a device, until it fails.
func eachPort(dev *verbs.Device, f func(port int) error) error {
	attr, err := dev.Query()
	for port := 1; err == nil && port <= attr.PhysPortCnt; port++ {
		err = f(port)
	}
	return err
}
