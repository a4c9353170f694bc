//go:build !adverb_portable

package ether

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	sendSlots = 64 // frames of a system call, at most

	// When the socket buffer is full, a frame waits for room. It is lost after sendAttempts of sendPatience.
	sendPatience = 5 // ms
	sendAttempts = 4
)

// A sender has the arguments of the system call that sends frames.
type sender struct {
	l *Link

	mu        sync.Mutex
	fd        int // -1 when closed
	n         int // messages that are prepared
	messages  [sendSlots]unix.Mmsghdr
	iovecs    [sendSlots][2]unix.Iovec
	names     [sendSlots]unix.RawSockaddrLinklayer
	headers   [sendSlots][link.GRHSize]byte
	second    [sendSlots]bool
	neighbors neighbors

	sent, bytes, errors uint64
	lastError           error
}

func (s *sender) init(l *Link) {
	s.l = l
	s.neighbors.known = map[netip.Addr]*neighbor{}
	for i := range s.messages {
		h := &s.messages[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&s.names[i]))
		h.Namelen = unix.SizeofSockaddrLinklayer
		h.Iov = &s.iovecs[i][0]
		h.SetIovlen(2)
		s.names[i] = unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Protocol: protocol, Halen: 6}
	}
}

func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.fd = -1
}

func (s *sender) stats(to *link.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Sent, to.SentBytes, to.SendErrors, to.LastSendError = s.sent, s.bytes, s.errors, s.lastError
}

// Send implements link.Link.
func (l *Link) Send(batch []link.Datagram) error {
	s := &l.tx
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return link.ErrClosed
	}
	now := time.Now()
	for i := range batch {
		d := &batch[i]
		if err := l.check(d); err != nil {
			s.lost(d, d.Segments(), err)
			continue
		}
		s.route(now, d)
	}
	s.flush()
	return nil
}

// check returns why d cannot be sent, or nil.
func (l *Link) check(d *link.Datagram) error {
	switch {
	case d.Segments() > 1:
		return errors.New("RoCEv1 has no trains")
	case d.Src.Addr() != l.addr:
		return errors.New("the source is not the link's: take it from Link.Source")
	case !link.IsV1(d.Dst.Addr()):
		return unix.EAFNOSUPPORT
	case len(d.Payload)+link.GRHSize > l.mtu:
		return unix.EMSGSIZE
	}
	return nil
}

// route prepares d for the network interfaces that it leaves by. A datagram to a group leaves by loopback too, for the
// group's members on this host.
func (s *sender) route(now time.Time, d *link.Datagram) {
	dst := d.Dst.Addr()
	if dst.IsMulticast() {
		mac, _ := link.MACOf(dst)
		s.prepare(d, s.l.index, mac, false)
		if s.l.index != s.l.loopback {
			s.prepare(d, s.l.loopback, mac, true)
		}
		return
	}
	n := s.neighbor(now, dst)
	if n == nil {
		return // it was lost, or waits for its neighbor
	}
	if n.found {
		s.prepare(d, n.index, n.mac, false)
		return
	}
	if len(n.waiting) >= maxWaiting {
		s.lost(d, 1, errBusy)
		return
	}
	waits := *d
	waits.Payload = slices.Clone(d.Payload)
	n.waiting = append(n.waiting, waits)
}

// prepare makes d the next message of the system call. A second message of one datagram does not count as sent.
func (s *sender) prepare(d *link.Datagram, index int, mac [6]byte, second bool) {
	if s.n == sendSlots {
		s.flush()
	}
	i := s.n
	link.AppendGRH(s.headers[i][:0], d, len(d.Payload))
	s.iovecs[i][0].Base = &s.headers[i][0]
	s.iovecs[i][0].SetLen(link.GRHSize)
	s.iovecs[i][1].Base = unsafe.SliceData(d.Payload)
	s.iovecs[i][1].SetLen(len(d.Payload))
	s.names[i].Ifindex = int32(index)
	copy(s.names[i].Addr[:], mac[:])
	s.second[i] = second
	s.n++
}

// flush sends the messages that are prepared.
func (s *sender) flush() {
	attempts := 0
	for i := 0; i < s.n; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[i])), uintptr(s.n-i), unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 && n > 0 {
			for range n {
				if !s.second[i] {
					s.sent++
					s.bytes += uint64(s.iovecs[i][1].Len)
				}
				i++
			}
			attempts = 0
			continue
		}
		if (errno == unix.EAGAIN || errno == unix.ENOBUFS || errno == unix.EINTR) && attempts < sendAttempts {
			attempts++
			fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
			_, _ = unix.Poll(fds[:], sendPatience)
			continue
		}
		s.errors++
		s.lastError = fmt.Errorf("send a RoCEv1 frame from %v: %w", link.GIDAddr(s.l.addr), errno)
		attempts = 0
		i++
	}
	s.n = 0
}

// lost counts datagrams that cannot be sent.
func (s *sender) lost(d *link.Datagram, n int, cause error) {
	s.errors += uint64(n)
	s.lastError = fmt.Errorf("send a RoCEv1 frame from %v to %v: %w", link.GIDAddr(s.l.addr), link.GIDAddr(d.Dst.Addr()), cause)
}

var (
	errBusy       = errors.New("too many frames wait until the neighbor's MAC address is known")
	errNoNeighbor = errors.New("no neighbor answers, and routers do not forward RoCEv1: use RoCEv2 to other networks")
)
