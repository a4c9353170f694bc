//go:build !adverb_portable

package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Options of IPv6 sockets, from linux/in6.h. Neither needs privileges. Flow information is the lower 28
// bits of the IPv6 header's first word: the traffic class and, in the lowest 20, the flow label.
const (
	ipv6FlowInfo     = 11 // IPV6_FLOWINFO: a control message tells it of received datagrams
	ipv6FlowInfoSend = 33 // IPV6_FLOWINFO_SEND: the destination's sin6_flowinfo is the label of sent ones

	flowLabelMask = 1<<20 - 1
	flowClassBit  = 20
)

// receiveClass has a socket tell the traffic class of received datagrams and, over IPv6, the flow label. The kernel
// tells both in one message, which costs no more than the class alone.
func receiveClass(fd int, addr netip.Addr) {
	if addr.Is4() || takesOption(fd, ipv6FlowInfo) { // IP_RECVTOS is one of receiveOptions
		return
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
}

// takesOption switches an option of an IPv6 socket on, and reports whether the option is on. Systems that only look
// like Linux may say yes to options that they do not know.
func takesOption(fd, name int) bool {
	if unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, name, 1) != nil {
		return false
	}
	on, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, name)
	return err == nil && on == 1
}
