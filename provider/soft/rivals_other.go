//go:build !linux

package soft

import "io/fs"

// kernelDevices is nil: where other kernels list their RDMA devices is not looked for.
func kernelDevices() fs.FS { return nil }
