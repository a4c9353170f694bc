//go:build !adverb_portable

package transport

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

const canStore = true

// storeInFile has the memory of an end be that of a file.
func (e *node) storeInFile() {
	e.t.Helper()
	fd, err := unix.MemfdCreate("transport-test", unix.MFD_CLOEXEC)
	if err != nil {
		e.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, memSize); err != nil {
		e.t.Fatal(err)
	}
	mr, err := e.pd.RegFileMR(fd, 0, memSize, e.mem.base, allAccess|verbs.AccessMWBind|verbs.AccessFlushPersistent)
	if err != nil {
		e.t.Fatal(err)
	}
	copy(mr.Bytes(), e.mem.data)
	e.mem = &region{mr: mr, key: uint32(mr.RKey()), base: mr.Addr(), data: mr.Bytes()}
	e.t.Cleanup(func() {
		for len(e.flushings) > 0 {
			e.stored()
		}
		if err := mr.Close(); err != nil && !errors.Is(err, verbs.ErrBusy) { // windows may be bound to it
			e.t.Errorf("%s: close: %v, want no error", e.name, err)
		}
	})
}
