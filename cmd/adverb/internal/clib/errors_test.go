package clib

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("bind: %w", rdmacm.ErrAddrInUse), "Address already in use"},
		{verbs.Errorf(verbs.ErrInvalid, "no"), "Invalid argument"},
		{verbs.Errorf(verbs.ErrQueueFull, "no"), "Cannot allocate memory"},
		{errors.New("what"), "what"},
	} {
		if got := Strerror(tt.err); got != tt.want {
			t.Errorf("Strerror(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{verbs.Errorf(verbs.ErrQueueFull, "no"), syscall.ENOMEM}, {fs.ErrNotExist, syscall.EINVAL},
		{&rdmacm.OpError{Op: "connect", Err: rdmacm.ErrRefused}, syscall.ECONNREFUSED}, // which has none in it
	} {
		if got := PostStatus(tt.err); got != int(tt.want) {
			t.Errorf("PostStatus(%v) = %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestSystemError(t *testing.T) {
	wrapped := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	if got := SystemError(wrapped); got != syscall.ECONNREFUSED {
		t.Errorf("SystemError(%v) = %v, want the errno in it", wrapped, got)
	}
	other := errors.New("what")
	if got := SystemError(other); got != other {
		t.Errorf("SystemError(%v) = %v, want the error itself", other, got)
	}
}

func TestWCStatus(t *testing.T) {
	for status, want := range map[verbs.WCStatus]string{
		verbs.WCSuccess: "success", verbs.WCRetryExceeded: "transport retry counter exceeded",
		verbs.WCTMRndvIncomplete: "TM software rendezvous", 24: "unknown",
	} {
		if got := WCStatus(status); got != want {
			t.Errorf("WCStatus(%d) = %q, want %q", status, got, want)
		}
	}
}
