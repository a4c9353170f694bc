package rdmacm

import (
	"errors"
	"slices"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// limitErrnos are the errnos of a process or a host that has no more of a resource.
var limitErrnos = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ENOSPC}

// isLimit reports whether an error says that the process, the host or the device has no more of something.
func isLimit(err error) bool {
	return errors.Is(err, verbs.ErrLimit) || slices.ContainsFunc(limitErrnos, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// lack has Close tell the peer of a request that this end has no resources for the connection.
func (id *ID) lack() {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.lacks = true
}
