// Package native registers the RDMA devices of the kernel with package verbs: cards, and Linux's rdma_rxe and siw. It drives
// them through libibverbs.so.1, as programs in C do. Import the package for its side effect, beside that of the software
// devices, which serve hosts without a card:
//
//	import (
//		_ "github.com/adverb-rdma/adverb/provider/native"
//		_ "github.com/adverb-rdma/adverb/provider/soft"
//	)
//
// The devices have the kernel's names, such as mlx5_0 or rxe0. verbs.Devices lists them before the software devices, so a
// program that takes the first device gets a card where there is one; the variable ADVERB_DEVICES chooses otherwise.
//
// Nothing of rdma-core is needed to build, and there is no cgo. The library is loaded when a device is asked for and the
// kernel has one. Where the kernel has none, there is no device and no error. Where the kernel has one and the library is
// missing, the error names the packages to install.
//
// A program that imports this package is linked dynamically, and needs glibc to start: use another build for containers
// without it. The package has devices on Linux, on amd64 and arm64. Elsewhere it builds, and has none.
//
// The memory of [verbs.PD.AllocMR] lies outside Go's heap, in huge pages if the kernel has some to give. That of
// [verbs.PD.RegMR] stays pinned until Close: Go's collector neither frees nor reuses it, and a region of a part of an
// object keeps the whole object. Both count against RLIMIT_MEMLOCK.
//
// The devices have no QP1, which is the kernel's. So the kernel makes the connections of package rdmacm, which needs its
// module rdma_ucm, and /dev/infiniband/rdma_cm.
package native
