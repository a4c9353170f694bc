package connector

import (
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// KernelManaged is implemented by a device's provider if the device is the kernel's. The kernel's connection manager makes its
// connections.
type KernelManaged interface {
	// OpenCM opens the kernel's connection manager, /dev/infiniband/rdma_cm. Its calls do not block.
	OpenCM() (*os.File, error)
}

func kernelOf(dev *verbs.Device) (KernelManaged, bool) {
	k, ok := dev.Provider().(KernelManaged)
	return k, ok
}
