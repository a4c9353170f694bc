// Package probe does the work of any stack that carries RDMA over UDP sockets, and nothing else. So its speed on a
// machine is the limit for all of them. It sends trains of packets (UDP_SEGMENT) and receives them as such (UDP_GRO).
// Each packet has a BTH and an ICRC, which the sender computes and the receiver verifies. The receiver puts the
// payload into its place in memory. There is no protocol: no queue, key, state, acknowledgement or repeat. Only a
// window keeps the sender from overrunning the receiver.
//
// It is built for Linux.
package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// ErrUnsupported is the error of Open on other systems than Linux.
var ErrUnsupported = errors.New("the probe sends and receives trains by UDP_SEGMENT and UDP_GRO, which are Linux's: it is not built for " + runtime.GOOS)

// ErrStopped is the error of whatever was stopped.
var ErrStopped = errors.New("stopped")

// errICRC is a packet that arrived damaged, which on one machine it cannot.
var errICRC = errors.New("a packet's ICRC is wrong")

// Shape is the form of a stream.
type Shape struct {
	Size    int // bytes of a message
	PathMTU int // bytes of payload in a packet
	Region  int // bytes of memory that messages go to, one behind the other and then from the start
	Train   int // packets that a system call sends at most; 0: as many as it takes
}

func (s *Shape) check() error {
	if s.Size < 1 || s.PathMTU < 1 || s.Region%s.Size != 0 || s.Size > s.PathMTU && s.Size%s.PathMTU != 0 {
		return fmt.Errorf("messages of %d bytes by packets of %d into %d bytes do not fit each other", s.Size, s.PathMTU, s.Region)
	}
	return nil
}

// payload is the bytes of payload in each packet.
func (s *Shape) payload() int { return min(s.Size, s.PathMTU) }

// Socket is one end. Its methods are for one goroutine.
type Socket interface {
	// Addr is the address for the other end's Connect.
	Addr() netip.AddrPort

	Connect(peer netip.AddrPort) error

	// Stream sends messages until stopped reports true. It then fails with ErrStopped.
	Stream(s Shape, stopped func() bool) error

	// Receive receives the messages of Stream. It calls more with the number of messages that have come, and returns
	// when more reports false. If nothing comes Receive asks stopped, as Stream does.
	Receive(s Shape, more func(messages int64) bool, stopped func() bool) error

	// Bounce sends a message when one has come. first says that this end sends the first. It calls more
	// with the number of messages that have come, and returns when more reports false. If block is set it
	// sleeps until a message comes, otherwise it polls. A message is a train at most.
	Bounce(s Shape, first, block bool, more func(messages int64) bool, stopped func() bool) error

	Close() error
}
