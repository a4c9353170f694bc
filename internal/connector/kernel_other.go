//go:build !linux

package connector

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/verbs"
)

func openKernel(dev *verbs.Device, _ KernelManaged, _ Watcher) (Connector, error) {
	return nil, verbs.Errorf(verbs.ErrUnsupported, "connect by device %s: only Linux has a connection manager of the kernel's", dev.Name())
}

func askKernel(*verbs.Device, KernelManaged, netip.Addr) (place, error) {
	return place{}, verbs.ErrUnsupported
}
