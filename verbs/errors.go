package verbs

import (
	"errors"
	"fmt"
)

// Causes which callers can tell apart with errors.Is. The error at hand says more.
var (
	// ErrBusy: other objects still depend on this one (EBUSY).
	ErrBusy = errors.New("busy")
	// ErrClosed: the object was closed before.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument is wrong or does not fit the object (EINVAL).
	ErrInvalid = errors.New("invalid")
	// ErrState: the QP's state does not allow the verb.
	ErrState = errors.New("wrong state")
	// ErrQueueFull: the work queue has no room (ENOMEM from ibv_post_send and ibv_post_recv).
	ErrQueueFull = errors.New("queue full")
	// ErrLimit: the device cannot give that much.
	ErrLimit = errors.New("limit exceeded")
	// ErrNotFound: there is no such device, port or table entry.
	ErrNotFound = errors.New("not found")
	// ErrUnsupported: the device does not offer this (EOPNOTSUPP).
	ErrUnsupported = errors.New("not supported")
	// ErrCQOverrun: the CQ had no room for a completion, and completions were lost.
	ErrCQOverrun = errors.New("completion queue overrun")
)

// OpError is the error of a verb: what was asked of which object, and why it failed, as in
// "modify qp 0x000011: INIT->RTS: missing SQ_PSN".
type OpError struct {
	Verb   string // such as "modify"
	Object string // such as "qp 0x000011"
	Err    error  // the cause
}

func (e *OpError) Error() string { return e.Verb + " " + e.Object + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// wrap makes err an OpError of verb and object, unless it is nil or already one.
func wrap(verb, object string, err error) error {
	if err == nil {
		return nil
	}
	if op, ok := errors.AsType[*OpError](err); ok {
		return op
	}
	return &OpError{Verb: verb, Object: object, Err: err}
}

// invalidf makes an ErrInvalid whose text is only the format's.
func invalidf(format string, args ...any) error { return Errorf(ErrInvalid, format, args...) }

// Errorf makes an error of the given kind, one of this package's Err variables. Its text is
// the format's alone; errors.Is finds the kind. Providers use it for their causes.
func Errorf(kind error, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }
