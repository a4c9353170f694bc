package clib

import (
	"errors"
	"strings"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// SystemError is the error number in err, for lines of C programs that end in its text. It is err
// itself if there is no number in it.
func SystemError(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// Errno is the errno of Linux that a C library would have given for err, or 0.
func Errno(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	for _, k := range []struct {
		kind  error
		errno syscall.Errno
	}{
		{verbs.ErrInvalid, syscall.EINVAL}, {verbs.ErrState, syscall.EINVAL}, {verbs.ErrQueueFull, syscall.ENOMEM},
		{verbs.ErrLimit, syscall.EINVAL}, {verbs.ErrUnsupported, syscall.EOPNOTSUPP}, {verbs.ErrBusy, syscall.EBUSY},
		{verbs.ErrNotFound, syscall.ENODEV}, {verbs.ErrClosed, syscall.EBADF}, {syscall.ECONNREFUSED, syscall.ECONNREFUSED},
	} {
		if errors.Is(err, k.kind) {
			return k.errno
		}
	}
	return 0
}

// Strerror is strerror. Its texts start with a capital letter where Go's do not.
func Strerror(err error) string {
	e := Errno(err)
	if e == 0 {
		return err.Error()
	}
	s := e.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}

// PostStatus is the result of ibv_post_send and ibv_post_recv for err: a positive errno.
func PostStatus(err error) int {
	if e := Errno(err); e != 0 {
		return int(e)
	}
	return int(syscall.EINVAL)
}

// WCStatus is ibv_wc_status_str.
func WCStatus(s verbs.WCStatus) string {
	if int(s) < len(wcStatusTexts) {
		return wcStatusTexts[s]
	}
	return "unknown"
}

var wcStatusTexts = [...]string{
	"success",
	"local length error",
	"local QP operation error",
	"local EE context operation error",
	"local protection error",
	"Work Request Flushed Error",
	"memory management operation error",
	"bad response error",
	"local access error",
	"remote invalid request error",
	"remote access error",
	"remote operation error",
	"transport retry counter exceeded",
	"RNR retry counter exceeded",
	"local RDD violation error",
	"remote invalid RD request",
	"aborted error",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout error",
	"general error",
	"TM error",
	"TM software rendezvous",
}
