package mem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve returns n addresses, from a page on, behind which there is no memory.
func reserve(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
}

// unreserve gives the addresses back that b is the end of.
func unreserve(b []byte) error {
	at := int(addrOf(b) % uint64(pageSize))
	return unix.MunmapPtr(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -at), uintptr(at+len(b)))
}
