package verbs

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of causes. errors.Is finds the kind in an error of this package; the error's text says more.
var (
	// ErrBusy: something else depends on the object, or has it already (EBUSY).
	ErrBusy = errors.New("busy")
	// ErrClosed: the object has been closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument is wrong or does not fit the object (EINVAL).
	ErrInvalid = errors.New("invalid")
	// ErrState: the QP is in a state that does not allow the verb (EINVAL).
	ErrState = errors.New("wrong state")
	// ErrQueueFull: the work queue has no room (ENOMEM from ibv_post_send and ibv_post_recv).
	ErrQueueFull = errors.New("queue full")
	// ErrLimit: more was asked for than the device, or the object, has (EINVAL or ENOMEM).
	ErrLimit = errors.New("limit exceeded")
	// ErrNotFound: there is no such device, port or table entry (ENODEV or EINVAL).
	ErrNotFound = errors.New("not found")
	// ErrUnsupported: the device, its transport or the QP's type does not have this (EOPNOTSUPP).
	ErrUnsupported = errors.New("not supported")
	// ErrCQOverrun: the CQ had no room for a completion, and completions were lost.
	ErrCQOverrun = errors.New("completion queue overrun")

	// The kinds of causes why a request of the peer is refused, in [AsyncEvent].Cause and [WC].Cause.

	// ErrPathMTU: the two QPs of the connection have different path MTUs.
	ErrPathMTU = errors.New("path MTU mismatch")
	// ErrQPAccess: the QP does not allow the operation, whatever the memory region allows.
	ErrQPAccess = errors.New("QP lacks the access right")
	// ErrMalformed: the request breaks the protocol.
	ErrMalformed = errors.New("malformed request")
)

// PathMTUError says that a network carries small packets of an RC QP and loses the large ones, so its MTU is
// smaller somewhere than the path MTU needs. errors.As finds it in the Cause of a completion with
// [WCRetryExceeded] and in [QP.Err]. The evidence: a packet was repeated in vain while smaller ones were
// answered.
type PathMTUError struct {
	PathMTU  MTU  // of the QP
	Lost     int  // bytes of data in the packet that does not arrive
	Fits     MTU  // the largest path MTU, below Lost, whose packets reach the peer: use it, at both ends
	Response bool // the packets that do not arrive are the peer's response to a READ
}

func (e *PathMTUError) Error() string {
	lost := fmt.Sprintf("packets with %d bytes of data do not reach the peer, and those with %d do", e.Lost, e.Fits.Bytes())
	if e.Response {
		lost = fmt.Sprintf("the peer's READ responses with %d bytes do not arrive here, and packets with %d reach it and are answered", e.Lost, e.Fits.Bytes())
	}
	return fmt.Sprintf("%s: the MTU of a link between is too small for the path MTU, %d: use path MTU %d at both ends (-m %d), or raise the MTU of the links",
		lost, e.PathMTU.Bytes(), e.Fits.Bytes(), e.Fits.Bytes())
}

// OpError is the error of a verb. It names the verb, the object and the cause, as in "modify qp
// 0x000011: INIT->RTR: missing PATH_MTU".
type OpError struct {
	Verb   string // such as "modify"
	Object string // such as "qp 0x000011"
	Err    error  // the cause
}

// Error returns the verb, the object and the cause.
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

// invalidf is Errorf with ErrInvalid.
func invalidf(format string, args ...any) error { return Errorf(ErrInvalid, format, args...) }

// Errorf is for implementers of providers: it makes an error of a kind, which is one of this
// package's Err variables. errors.Is finds the kind, but the text is that of the format alone.
// Providers make their causes with it.
func Errorf(kind error, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

// join makes one error of several, whose texts stand in one line. It returns nil where there is
// none, and a single error as it is.
func join(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return joinedError(errs)
}

type joinedError []error

func (e joinedError) Error() string {
	var texts []string
	for _, err := range e {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (e joinedError) Unwrap() []error { return e }
