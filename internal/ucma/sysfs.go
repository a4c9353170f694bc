package ucma

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/uapi"
)

// Sysfs returns the files by which programs find rdma_cm, a misc device with these numbers: their contents by their
// paths.
func Sysfs(major, minor uint32) map[string]string {
	const dir = "/sys/class/misc/rdma_cm/"
	return map[string]string{
		dir + "dev":         fmt.Sprintf("%d:%d\n", major, minor),
		dir + "abi_version": fmt.Sprintf("%d\n", uapi.CMABIVersion),
		dir + "uevent":      fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666\n", major, minor),
	}
}
