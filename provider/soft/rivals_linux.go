package soft

import (
	"io/fs"
	"os"
)

// kernelDevices is the directory in which the kernel lists its RDMA devices.
func kernelDevices() fs.FS { return os.DirFS("/sys/class/infiniband") }
