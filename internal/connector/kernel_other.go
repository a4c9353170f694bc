//go:build !linux

package connector

import "github.com/adverb-rdma/adverb/verbs"

func openKernel(dev *verbs.Device, _ KernelManaged, _ Watcher) (Connector, error) {
	return nil, verbs.Errorf(verbs.ErrUnsupported, "connect by device %s: only Linux has a connection manager of the kernel's", dev.Name())
}
