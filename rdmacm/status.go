package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// Status values of events. They are those of the C library on Linux, on all platforms.
const (
	statusIO       = -5
	statusInvalid  = -22
	statusNoDevice = -19
)

// statuses are the kinds of causes with their status, and with the errno that errors.Is finds in an OpError of that
// kind. The first kind that a cause is of counts: the system's own error comes before an error that wraps it.
var statuses = []struct {
	kind   error
	errno  syscall.Errno
	status int
}{
	{syscall.EADDRINUSE, syscall.EADDRINUSE, -98},
	{syscall.EADDRNOTAVAIL, syscall.EADDRNOTAVAIL, -99},
	{syscall.EAFNOSUPPORT, syscall.EAFNOSUPPORT, -97},
	{syscall.EHOSTUNREACH, syscall.EHOSTUNREACH, -113},
	{syscall.ENETUNREACH, syscall.ENETUNREACH, -101},
	{syscall.ENETDOWN, syscall.ENETDOWN, -100},
	{syscall.EACCES, syscall.EACCES, -13},
	{syscall.EPERM, syscall.EPERM, -1},
	{syscall.EMFILE, syscall.EMFILE, -24},
	{syscall.ENFILE, syscall.ENFILE, -23},
	{syscall.ENOBUFS, syscall.ENOBUFS, -105},
	{syscall.ENOMEM, syscall.ENOMEM, -12},
	{syscall.ETIMEDOUT, syscall.ETIMEDOUT, -110},
	{context.DeadlineExceeded, syscall.ETIMEDOUT, -110},
	{verbs.WCRetryExceeded, syscall.ETIMEDOUT, -110},
	{syscall.ECONNREFUSED, syscall.ECONNREFUSED, -111},
	{syscall.ECONNRESET, syscall.ECONNRESET, -104},
	{syscall.ECONNABORTED, syscall.ECONNABORTED, -103},
	{syscall.EPIPE, syscall.EPIPE, -32},
	{syscall.EIO, syscall.EIO, statusIO},
	{syscall.ENODEV, syscall.ENODEV, statusNoDevice},
	{verbs.ErrUnsupported, syscall.EOPNOTSUPP, -95},
	{verbs.ErrQueueFull, syscall.ENOMEM, -12},
	{verbs.ErrLimit, syscall.ENOMEM, -12},
	{verbs.ErrBusy, syscall.EBUSY, -16},
	{verbs.ErrNotFound, syscall.ENODEV, statusNoDevice},
	{verbs.ErrInvalid, syscall.EINVAL, statusInvalid},
	{verbs.ErrState, syscall.EINVAL, statusInvalid},
	{syscall.EINVAL, syscall.EINVAL, statusInvalid},
}

// statusOf returns the status that the C library would report of a cause, and its errno; 0 if no kind is known.
func statusOf(err error) (status int, errno syscall.Errno) {
	for _, s := range statuses {
		if errors.Is(err, s.kind) {
			return s.status, s.errno
		}
	}
	return 0, 0
}

// failed is the event of something that has not succeeded. Its Status is that of the cause, or the usual one where the
// cause is of no known kind. The caller holds id.mu.
func (id *ID) failed(t EventType, op string, usual int, cause error) Event {
	status, _ := statusOf(cause)
	return Event{Type: t, Status: cmp.Or(status, usual), Err: id.error(op, cause)}
}
