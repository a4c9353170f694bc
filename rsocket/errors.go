package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// netName is Net of the OpErrors, and the network that Dial and Listen know as their own.
const netName = "rsocket"

// errProtocol: the peer has broken the protocol.
var errProtocol = errors.New("the peer breaks the rsocket protocol")

// endError is a cause with the errno that programs test for.
type endError struct {
	errno syscall.Errno
	cause error
}

func (e *endError) Error() string   { return e.errno.Error() + ": " + e.cause.Error() }
func (e *endError) Unwrap() []error { return []error{e.errno, e.cause} }
func (e *endError) Timeout() bool   { return e.errno.Timeout() }
func (e *endError) Temporary() bool { return e.errno.Temporary() }

// bare takes the addresses off an error, which the OpErrors of this package have too.
func bare(err error) error {
	if e, ok := err.(*rdmacm.OpError); ok {
		return e.Err
	}
	return err
}

// withErrno gives the end of a connection its errno.
func withErrno(cause error) error {
	cause = bare(cause)
	switch {
	case errors.Is(cause, rdmacm.ErrTimeout), errors.Is(cause, verbs.WCRetryExceeded):
		return &endError{syscall.ETIMEDOUT, cause}
	case errors.Is(cause, net.ErrClosed):
		return cause
	}
	return &endError{syscall.ECONNRESET, cause}
}

// shortageError is the error of Accept for want of resources. It passes, as a net.Error that is temporary says.
type shortageError struct {
	errno syscall.Errno
	cause error
}

func (e *shortageError) Error() string   { return e.cause.Error() }
func (e *shortageError) Unwrap() []error { return []error{e.errno, e.cause} }
func (e *shortageError) Timeout() bool   { return false }
func (e *shortageError) Temporary() bool { return true }

// shortage returns the error of Accept if err says that the process, the host or the device had no resources for a
// connection, or nil.
func shortage(from netip.AddrPort, err error) error {
	errno := syscall.ENOMEM
	is := func(e syscall.Errno) bool { return errors.Is(err, e) }
	if i := slices.IndexFunc(shortages, is); i >= 0 {
		errno = shortages[i]
	} else if !errors.Is(err, verbs.ErrLimit) {
		return nil
	}
	return &shortageError{errno, fmt.Errorf("no connection with %v: %w", from, bare(err))}
}

// shortages are the errnos of a process or a host that has no more of a resource.
var shortages = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ENOSPC}

// Ends that have no deeper cause.
var (
	errPipe      error = &endError{syscall.EPIPE, errors.New("the peer has closed the connection")}
	errPipeLocal error = &endError{syscall.EPIPE, errors.New("this end has called CloseWrite")}
	errEnded           = errors.New("the connection has ended")
)

// opError makes the error of a call on the connection. io.EOF stays as it is. The caller does not hold c.mu, unless it
// knows the error.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if e, ok := err.(*ending); ok {
		err = c.ended(c.sideOf(op), e)
	}
	return &net.OpError{Op: op, Net: netName, Source: c.local, Addr: c.remote, Err: err}
}

// sideOf returns the side whose deadline holds for a call.
func (c *Conn) sideOf(op string) *side {
	switch op {
	case "read":
		return &c.r
	case "close":
		return &c.f
	}
	return &c.w
}

// dialError makes the error of an attempt to connect or to listen, with the errnos that programs look
// for in errors of package net.
func dialError(op string, source, addr net.Addr, err error) error {
	err = bare(err)
	if t, ok := err.(interface{ Timeout() bool }); !ok || !t.Timeout() {
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
			err = &endError{syscall.ETIMEDOUT, err}
		}
	}
	if errors.Is(err, verbs.ErrClosed) {
		err = net.ErrClosed
	}
	e := &net.OpError{Op: op, Net: netName, Addr: addr, Err: err}
	if source != nil {
		e.Source = source
	}
	return e
}
