// Package udp carries RoCEv2 datagrams over the UDP sockets of the operating system, without privileges, over IPv4
// and over IPv6 (IBTA CA17-1).
//
// A link receives on port 4791 of its address. It sends from a few further sockets. Their source ports spread flows
// over the paths of a network, as those of a card do. The addresses of datagrams have no IPv6 zone: the link implies
// it.
//
// On Linux datagrams leave with the identification and the DF flag that [link.Link] promises, and with the traffic
// class and the IPv6 flow label that the sender chooses. While the kernel refuses labels, because somebody in the
// network namespace has leased one, the kernel chooses them. The kernel cuts trains as late as it can, and joins them
// as early as it can (UDP_SEGMENT and UDP_GRO). Send and Recv are one system call for a batch. A link is a
// [link.Multicaster].
//
// Elsewhere neither the identification nor DF can be controlled. So over IPv4 a peer that checks the whole ICRC drops
// the datagrams. Peers that solve for the identification accept them, and over IPv6 there is no such problem. Nor can
// the traffic class or the flow label be chosen, or seen.
//
// On no system do the sockets tell the identification of a received datagram.
package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Limits that this implementation chose.
const (
	sendSockets  = 4       // sockets that a link sends from, each with a source port
	socketBuffer = 4 << 20 // bytes of buffer to ask for; the system may grant less
	maxBatch     = 64      // datagrams or trains sent by one system call
	maxReceive   = 4608    // bytes of the largest datagram received: 4096 and all headers, rounded up
	bindAttempts = 64      // random source ports to try
)

// Source ports are chosen from the range that RoCEv2 cards use.
const (
	firstSourcePort = 0xc000
	lastSourcePort  = 0xffff
)

// errTrain is the error for a train that is longer than MaxTrain.
var errTrain = errors.New("a train of more datagrams than the link's MaxTrain")

var errSource = errors.New("the source is none of the link's: take it from Link.Source")

// counters are a link's Stats while it runs.
type counters struct {
	sent, sentBytes, sendErrors           atomic.Uint64
	received, receivedBytes, receiveDrops atomic.Uint64
	lastSendError                         atomic.Pointer[error]
}

func (c *counters) lost(d *link.Datagram, cause error) {
	err := fmt.Errorf("send %d bytes from %v to %v: %w", len(d.Payload), d.Src, d.Dst, cause)
	c.sendErrors.Add(uint64(d.Segments()))
	c.lastSendError.Store(&err)
}

// Stats implements link.Link.
func (c *counters) Stats() link.Stats {
	s := link.Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		SendErrors:   c.sendErrors.Load(),
		ReceiveDrops: c.receiveDrops.Load(),
	}
	if err := c.lastSendError.Load(); err != nil {
		s.LastSendError = *err
	}
	return s
}

// FromOutside implements link.OutsideLink.
func (l *Link) FromOutside() {}

// sources are the addresses that a link sends from.
type sources [sendSockets]netip.AddrPort

// Source implements link.Link.
func (s *sources) Source(flow uint32) netip.AddrPort {
	spread := flow * 0x9e3779b1 >> 16 // multiplicative hashing: the upper bits depend on all of flow
	return s[spread%sendSockets]
}

// index returns the index of the socket with a source address, or -1.
func (s *sources) index(src netip.AddrPort) int {
	for i := range s {
		if s[i].Port() == src.Port() && s[i].Addr() == src.Addr() {
			return i
		}
	}
	return -1
}

// bindSource calls bind with random source ports until one is free.
func bindSource(bind func(port uint16) error) (port uint16, err error) {
	for range bindAttempts {
		port = uint16(firstSourcePort + rand.IntN(lastSourcePort-firstSourcePort+1))
		if err = bind(port); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return port, err
}

// openError adds a remedy to an error of bind. A shared link is one that other processes of the same user may open
// too.
func openError(addr netip.Addr, shared bool, err error) error {
	at := netip.AddrPortFrom(addr, link.Port)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		other := "another address of this host"
		if addr.IsLoopback() && addr.Is4() {
			other = "another address of 127.0.0.0/8"
		}
		if shared {
			return fmt.Errorf("open link on %v: UDP port %d of this address is held by a process of another user, or by a program "+
				"that does not share it (such as the kernel's rdma_rxe in this network namespace); processes of one user share "+
				"an address: run as that user, use %s or a network namespace of your own, or remove rdma_rxe: %w",
				at, link.Port, other, err)
		}
		return fmt.Errorf("open link on %v: UDP port %d of this address is held by another process, or by the kernel's rdma_rxe. "+
			"On %s an address belongs to one process at a time, unless both share it, which is for Linux; use %s, or end the other: %w",
			at, link.Port, runtime.GOOS, other, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("open link on %v: no network interface of this host has the address (any more); "+
			"choose one that an interface has: %w", at, err)
	}
	return fmt.Errorf("open link on %v: %w", at, err)
}
