//go:build !adverb_portable

package udp

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// neighborWait is for how long ResolveNeighbor waits, as Linux does for the AV of a QP.
const neighborWait = time.Second

// discardPort is where a datagram goes that is for nobody: RFC 863.
const discardPort = 9

var _ link.NeighborResolver = (*Netdev)(nil)

// ResolveNeighbor implements link.NeighborResolver. Programs without privileges cannot ask the kernel to resolve an
// address. So ResolveNeighbor sends an empty datagram to the discard port, and the kernel reports (SO_TIMESTAMPING)
// when that datagram leaves the queue for the address. Where the kernel cannot report ResolveNeighbor does not wait.
func (d *Netdev) ResolveNeighbor(src, dst netip.Addr) {
	fd, err := openSocket(src)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	scope := uint32(0)
	if src.Is6() && (src.IsLinkLocalUnicast() || dst.IsLinkLocalUnicast()) {
		state, err := d.State()
		if err != nil {
			return
		}
		scope = uint32(state.Index)
	}
	if bind(fd, netip.AddrPortFrom(src, 0), scope) != nil {
		return
	}
	reports := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_TX_SCHED) == nil
	if unix.Sendto(fd, nil, 0, unixSockaddr(netip.AddrPortFrom(dst, discardPort), scope)) != nil || !reports {
		return
	}
	deadline := time.Now().Add(neighborWait)
	fds := []unix.PollFd{{Fd: int32(fd)}} // a report is a POLLERR, which is always polled for
	for left := neighborWait; left > 0; left = time.Until(deadline) {
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != unix.EINTR { // a signal of Go's own
			return
		}
	}
}
