package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Causes that callers can tell apart with errors.Is. Those of package verbs come in addition:
// ErrInvalid, ErrState, ErrBusy, ErrClosed, ErrUnsupported.
var (
	// ErrRefused: no program listens on the peer's port, or the program there has said no or lacks the
	// resources: see RejectError (ECONNREFUSED).
	ErrRefused error = syscall.ECONNREFUSED
	// ErrTimeout: the peer does not answer (ETIMEDOUT).
	ErrTimeout error = syscall.ETIMEDOUT
	// ErrAddrInUse: another ID, perhaps of another program, has the port, or a program that does not
	// share it holds UDP port 4791 of the address (EADDRINUSE).
	ErrAddrInUse error = syscall.EADDRINUSE
	// ErrNoDevice: no RDMA device has the address (ENODEV).
	ErrNoDevice error = syscall.ENODEV
	// ErrNoRoute: the host has no route to the address (ENETUNREACH).
	ErrNoRoute error = syscall.ENETUNREACH
	// ErrReset: the peer has given up a connection while it was being made (ECONNRESET).
	ErrReset error = syscall.ECONNRESET
	// ErrDisconnected: the peer has ended the connection (RDMA_CM_EVENT_DISCONNECTED).
	ErrDisconnected = errors.New("disconnected")
)

// OpError is the error of a call or of an event. It names the operation, the addresses and the cause. errors.Is
// finds the errno that the C library would report, such as syscall.EINVAL where the cause is verbs.ErrInvalid. In an
// event the errno is that of Status.
type OpError struct {
	Op            string // such as "connect"
	Local, Remote netip.AddrPort
	Err           error // the cause
}

func (e *OpError) Error() string {
	s := e.Op
	if e.Local.IsValid() {
		s += " " + e.Local.String()
	}
	if e.Remote.IsValid() {
		if e.Local.IsValid() {
			s += "->"
		} else {
			s += " "
		}
		s += e.Remote.String()
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Is makes the error its cause's errno.
func (e *OpError) Is(target error) bool {
	want, ok := target.(syscall.Errno)
	if !ok || want == 0 {
		return false
	}
	_, errno := statusOf(e.Err)
	return errno == want
}

// Timeout reports whether the cause is that the peer did not answer. It makes OpError a net.Error.
func (e *OpError) Timeout() bool {
	if errors.Is(e.Err, ErrTimeout) {
		return true
	}
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Temporary is the same as Timeout. It makes OpError a net.Error.
func (e *OpError) Temporary() bool { return e.Timeout() }

// RejectReason says why a peer's connection manager has rejected a connection (REJ messages; enum
// ib_cm_rej_reason).
type RejectReason uint16

// The reasons that arise between IP addresses. Peers may give others, and String knows all.
const (
	RejectNoResources         RejectReason = 3 // the peer lacks memory, descriptors or QPs for it
	RejectTimeout             RejectReason = 4
	RejectInvalidCommID       RejectReason = 6
	RejectInvalidServiceID    RejectReason = 8 // nobody listens
	RejectInvalidTransport    RejectReason = 9
	RejectStaleConn           RejectReason = 10
	RejectInvalidGID          RejectReason = 12
	RejectInvalidMTU          RejectReason = 26
	RejectConsumerDefined     RejectReason = 28 // the program has said no
	RejectInvalidClassVersion RejectReason = 31
)

// rejectNoQP is like RejectNoResources. Other connection managers may say it.
const rejectNoQP RejectReason = RejectReason(wire.RejNoQP)

const rejectInvalidAltGID RejectReason = RejectReason(wire.RejInvalidAltGID)

func (r RejectReason) String() string { return wire.RejReason(r).String() }

// RejectError is the peer's no.
type RejectError struct {
	Reason      RejectReason
	Port        uint16 // the peer's, 0 if this end is the accepting one
	PrivateData []byte // of the peer's program
	Info        []byte // depends on the reason, such as the peer's MTU

	// Cause is not nil if nobody has said no: an iWARP peer has closed the connection without an answer. Linux reports
	// that as a rejection, too.
	Cause error
}

// Unwrap returns the cause, or nil.
func (e *RejectError) Unwrap() error { return e.Cause }

func (e *RejectError) Error() string {
	if e.Cause != nil {
		return e.Cause.Error()
	}
	if r := securityRefusalOf(e.Info); r != 0 {
		return r.String()
	}
	switch e.Reason {
	case RejectInvalidServiceID:
		return fmt.Sprintf("connection refused: no listener for port %d", e.Port)
	case RejectConsumerDefined:
		return "the peer's program has rejected the connection (consumer defined)"
	case RejectNoResources, rejectNoQP:
		return fmt.Sprintf("the peer has no resources for the connection (%v): its program or its log says which limit it has met", e.Reason)
	case RejectTimeout:
		return "the peer has given up waiting (timeout)"
	case RejectStaleConn:
		return "the peer believes in an older connection of this QP (stale connection): try again with a new QP"
	case RejectInvalidMTU:
		if len(e.Info) > 0 {
			return fmt.Sprintf("the path MTU is above the peer's, %d: make the MTUs of the two network interfaces equal", verbs.MTU(e.Info[0]).Bytes())
		}
	}
	if brief := meaning.RejectBrief(uint16(e.Reason)); brief != "" {
		return fmt.Sprintf("rejected by the peer: %s (%v, reason %d)%s", brief, e.Reason, uint16(e.Reason), e.accepted())
	}
	return fmt.Sprintf("rejected by the peer: %v", e.Reason)
}

// accepted names the GID or the version that the peer would accept, if the peer tells, or is "".
func (e *RejectError) accepted() string {
	switch e.Reason {
	case RejectInvalidGID, rejectInvalidAltGID:
		if gid := (verbs.GID{}); copy(gid[:], e.Info) == len(gid) && !gid.IsZero() {
			return fmt.Sprintf(": it would accept the GID %v", gid)
		}
	case RejectInvalidClassVersion:
		if len(e.Info) > 0 {
			return fmt.Sprintf(": it would accept version %d", e.Info[0])
		}
	}
	return ""
}

// Is makes a rejection ErrRefused if nobody listens, a program has said no or the peer has no resources, ErrReset if the peer has
// given up or has closed an iWARP connection without an answer, and ErrSecurity as well if a listener demands packet
// security and this end has not its key.
func (e *RejectError) Is(target error) bool {
	switch target {
	case ErrSecurity:
		return securityRefusalOf(e.Info) != 0
	case ErrRefused:
		return e.Reason == RejectInvalidServiceID || e.Reason == RejectNoResources || e.Reason == rejectNoQP || e.Reason == RejectConsumerDefined && e.Cause == nil
	case ErrReset:
		return e.Reason == RejectTimeout || e.Reason == RejectStaleConn
	}
	return false
}

// SIDRError is the answer that a UD service is not available (SIDR_REP).
type SIDRError struct {
	Status      uint8  // of the SIDR_REP: 1 nobody listens, 2 the program has said no
	Port        uint16 // the peer's
	PrivateData []byte // of the peer's program
}

func (e *SIDRError) Error() string {
	switch wire.SIDRStatus(e.Status) {
	case 1:
		return fmt.Sprintf("service refused: no listener for port %d", e.Port)
	case 2:
		return "the peer's program has rejected the request"
	}
	return fmt.Sprintf("the peer does not offer the service: %v (status %d)", wire.SIDRStatus(e.Status), e.Status)
}

// Is makes any SIDRError an ErrRefused.
func (e *SIDRError) Is(target error) bool { return target == ErrRefused }

// opError makes err an OpError, unless it is nil or already one.
func opError(op string, local, remote netip.AddrPort, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*OpError](err); ok {
		return e
	}
	return &OpError{Op: op, Local: local, Remote: remote, Err: err}
}
