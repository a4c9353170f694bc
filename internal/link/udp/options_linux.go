//go:build !adverb_portable

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// option is an option of a socket.
type option struct {
	level, name, value int
	spelling           string
	lost               string // the loss without the option, for options that a link can do without
}

func setOptions(fd int, options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set socket option %s to %d: %w", o.spelling, o.value, err)
		}
	}
	return nil
}

// tryOptions sets options that a link can do without. Sandboxes refuse some, and so do systems that only look like Linux.
// Refused says which.
func tryOptions(fd int, options []option) {
	for _, o := range options {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
}

const (
	lostClass = "the ECN marks and the traffic class of received packets are not seen: senders that use dcqcn learn of no congestion"
	lostProbe = "the kernel may cut packets that a path has no room for, and choose their IPv4 identification: cards drop those"
	lostGroup = "datagrams to multicast groups leave by the system's settings: by another interface perhaps, and for one hop"
)

// receiveOptions are the options of a socket to receive from.
func receiveOptions(addr netip.Addr) []option {
	all := []option{
		{unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer, "SO_RCVBUF", "the receive buffer has net.core.rmem_default bytes: packets that come in bulk overflow it"},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "SO_RXQ_OVFL", "drop_overflow stays 0: packets that overflow the receive buffer are not counted"},
		// Kernels before 5.0 do not know the option. They deliver single datagrams.
		{unix.IPPROTO_UDP, unix.UDP_GRO, 1, "UDP_GRO", "trains come as single packets: receiving takes more CPU"},
	}
	if addr.Is4() {
		return append(all, option{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS", lostClass})
	}
	// RoCEv2 cards, and Linux's rxe, send UDP checksum 0 over IPv6 too.
	return append(all, option{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX", "over IPv6 packets of cards and rdma_rxe, which have no UDP checksum, do not arrive"})
}

// sendOptions are the options of a socket to send from. PROBE sets DF, and with DF an unconnected socket sends
// identification 0: IBTA CA17-7, CA17-8. Nothing is read from these sockets, so a small receive buffer keeps stray
// datagrams from costing memory.
func sendOptions(addr netip.Addr) []option {
	probe := option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER", lostProbe}
	if addr.Is4() {
		probe = option{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER", lostProbe}
	}
	return []option{
		probe,
		{unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer, "SO_SNDBUF", "the send buffer has net.core.wmem_default bytes: who sends in bulk waits for room"},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, 0, "SO_RCVBUF", "stray packets to sockets that only send may cost the system memory"},
	}
}

// refused reports whether an error is that of a sandbox, or of a system without the option.
func refused(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENOPROTOOPT, unix.EOPNOTSUPP}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// errSilent: the system said yes to an option, and did not set it.
var errSilent = errors.New("the system takes the option and ignores it")

// Refused returns which options of sockets the system denies to this process, and the loss by each. Links do without
// them. Refused asks once.
var Refused = sync.OnceValue(func() (refused []link.Refusal) {
	note := func(o option, err error) {
		if err != nil && !slices.ContainsFunc(refused, func(r link.Refusal) bool { return r.Option == o.spelling }) {
			refused = append(refused, link.Refusal{Option: o.spelling, Lost: o.lost, Cause: err})
		}
	}
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		fd, err := openSocket(addr)
		if err != nil {
			continue // a host without this version of IP has no address of that version
		}
		defer unix.Close(fd)
		for _, o := range slices.Concat(receiveOptions(addr), sendOptions(addr)) {
			note(o, unix.SetsockoptInt(fd, o.level, o.name, o.value))
		}
		_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		note(option{spelling: "UDP_SEGMENT", lost: "each packet is sent by itself: sending takes more CPU"}, err)
		if group := configureMulticastSending(fd, addr, 0); group != nil {
			note(option{spelling: "IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_MULTICAST_LOOP", lost: lostGroup}, group)
		}
		if addr.Is6() {
			labels := option{spelling: "IPV6_FLOWINFO, IPV6_FLOWINFO_SEND", lost: "the flow labels of IPv6 are neither chosen nor seen: adverbs do not know each other by them"}
			if !takesOption(fd, ipv6FlowInfo) {
				note(labels, errSilent)
				note(option{spelling: "IPV6_RECVTCLASS", lost: lostClass}, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1))
			} else if !takesOption(fd, ipv6FlowInfoSend) {
				note(labels, errSilent)
			}
		}
	}
	return refused
})

// Sharing returns nil where the system lets several sockets receive on one address. Otherwise it returns the reason.
func Sharing() error {
	fd, err := openSocket(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return nil // no option is in the way
	}
	defer unix.Close(fd)
	return setOptions(fd, sharedPort)
}

// sharedPort has several sockets of one user share an address and port.
var sharedPort = option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT", ""}
