//go:build !linux

package tcp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// hold is never made: the means of other systems to share a port are not used.
type hold struct{}

func holdShared(netip.AddrPort) (*hold, error) { return nil, errors.ErrUnsupported }

func shareSocket(_, _ string, _ syscall.RawConn) error { return nil }

func (h *hold) listen() (net.Listener, error) { return nil, errors.ErrUnsupported }

func (h *hold) close() {}
