//go:build !adverb_portable

package mem

import (
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

const canPersist = true

// persistent returns an error unless all of the memory is a shared mapping of files.
func persistent(b []byte) error {
	list, err := areas(uintptr(addrOf(b)), uintptr(addrOf(b))+uintptr(len(b)))
	if err != nil {
		return verbs.Errorf(verbs.ErrUnsupported, "%v: find out what is mapped: %w", verbs.AccessFlushPersistent, err)
	}
	for _, a := range list {
		if !strings.HasSuffix(a.rights, "s") || a.file == "" {
			return notPersistent(fmt.Sprintf("the memory at %#x is %v", a.from, &a))
		}
	}
	return nil
}

// syncFile stores memory in its file.
func syncFile(b []byte) error {
	// The whole pages, from the beginning of the first one.
	before := int(addrOf(b) % uint64(pageSize))
	pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -before)), before+len(b))
	for {
		switch err := unix.Msync(pages, unix.MS_SYNC); err {
		case unix.EINTR:
		case unix.ENOMEM:
			return faultError(addrOf(b), "stored")
		default:
			return err
		}
	}
}
