//go:build !adverb_portable

package udp

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// When the socket buffer is full, a datagram waits for room. It is lost after sendAttempts of
// sendPatience.
const (
	sendPatience = 5 // ms
	sendAttempts = 4
)

// controlMessage is the size of a control message. Each contains an int or less.
var controlMessage = unix.CmsgSpace(4)

// controlSize is the size of the three possible control messages: the traffic class, the size of a train's segments,
// and the number of datagrams that have overflowed the buffer. It is exact on a 64-bit system, and enough on others.
const controlSize = 3 * 24

// A sender is a socket to send from, with the arguments of its system calls.
type sender struct {
	*counters
	trains   *pauser // the link's
	labels   *pauser // the link's
	scope    uint32
	addr     netip.Addr
	tcLevel  int32 // of the control message that sets the traffic class
	tcOption int32
	single   bool // sendmmsg is denied

	mu       sync.Mutex
	fd       int // -1 when closed
	messages [maxBatch]unix.Mmsghdr
	iovecs   [maxBatch]unix.Iovec
	names    [maxBatch]sockaddr
	controls [maxBatch]control
}

type control struct {
	_    [0]uint64 // aligned as struct cmsghdr
	data [controlSize]byte
}

func (s *sender) init(fd int, addr netip.Addr, scope uint32, l *Link) {
	s.fd, s.addr, s.scope, s.counters, s.trains, s.labels = fd, addr, scope, &l.counters, &l.trains, &l.labels
	s.tcLevel, s.tcOption = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	if addr.Is4() {
		s.tcLevel, s.tcOption = unix.IPPROTO_IP, unix.IP_TOS
	}
	for i := range s.messages {
		h := &s.messages[i].Hdr
		h.Name = &s.names[i][0]
		h.Iov = &s.iovecs[i]
		h.SetIovlen(1)
		h.Control = &s.controls[i].data[0]
		h.SetControllen(0)
	}
}

func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	unix.Close(s.fd)
	s.fd = -1
}

// Send implements link.Link. It makes one system call for each run of datagrams with the same
// source.
func (l *Link) Send(batch []link.Datagram) error {
	if l.closed.Load() {
		return link.ErrClosed
	}
	for len(batch) > 0 {
		i := l.index(batch[0].Src)
		if i < 0 {
			l.lost(&batch[0], errSource)
			batch = batch[1:]
			continue
		}
		n := 1
		for n < len(batch) && batch[n].Src == batch[0].Src {
			n++
		}
		if !l.tx[i].send(batch[:n]) {
			return link.ErrClosed
		}
		batch = batch[n:]
	}
	return nil
}

// send sends a batch from the socket. It reports false if the socket is closed.
func (s *sender) send(batch []link.Datagram) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return false
	}
	for len(batch) > 0 {
		n := min(len(batch), maxBatch)
		s.sendSome(batch[:n])
		batch = batch[n:]
	}
	return true
}

// sendSome sends a batch of at most maxBatch.
func (s *sender) sendSome(batch []link.Datagram) {
	for len(batch) > 0 {
		n := 0
		var unfit error
		for n < len(batch) {
			if unfit = s.check(&batch[n]); unfit != nil {
				break
			}
			s.prepare(n, &batch[n])
			n++
		}
		s.flush(batch[:n])
		if unfit != nil {
			s.lost(&batch[n], unfit)
			n++
		}
		batch = batch[n:]
	}
}

// check returns why d cannot be sent at all, or nil.
func (s *sender) check(d *link.Datagram) error {
	if n := d.Segments(); n > 1 && (n > maxTrain || !s.trains.on.Load()) {
		return errTrain
	}
	if d.Dst.Addr().Is4() != s.addr.Is4() {
		return unix.EAFNOSUPPORT
	}
	return nil
}

// prepare makes d the i-th message of the system call.
func (s *sender) prepare(i int, d *link.Datagram) {
	h := &s.messages[i].Hdr
	h.Namelen = s.names[i].put(d.Dst, s.scope)
	if d.FlowLabel != 0 && s.labels.on.Load() {
		s.names[i].label(d.FlowLabel)
	}
	setIOVec(&s.iovecs[i], d.Payload)
	used := 0
	if d.TrafficClass != 0 { // IBTA CA17-4, CA17-5, CA17-13, CA17-14
		binary.NativeEndian.PutUint32(s.controls[i].put(&used, s.tcLevel, s.tcOption, 4), uint32(d.TrafficClass))
	}
	if d.Segments() > 1 {
		binary.NativeEndian.PutUint16(s.controls[i].put(&used, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), uint16(d.SegmentSize))
	}
	h.SetControllen(used)
}

// put appends a control message behind the used bytes, and returns its data, n bytes.
func (c *control) put(used *int, level, option int32, n int) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c.data[*used]))
	h.Level, h.Type = level, option
	h.SetLen(unix.CmsgLen(n))
	data := c.data[*used+unix.CmsgLen(0):][:n]
	*used += unix.CmsgSpace(n)
	return data
}

// flush sends the messages, which were prepared from batch.
func (s *sender) flush(batch []link.Datagram) {
	attempts := 0
	bare := -1 // the message that was refused with a flow label, and has none now
	var sent, bytes uint64
	for i := 0; i < len(batch); {
		n, errno := s.sendmmsg(i, len(batch)-i)
		switch errno {
		case 0:
			if bare == i { // the label was at fault
				s.labels.suspend()
				for k := i + n; k < len(batch); k++ {
					s.names[k].unlabel()
				}
			}
			for range n {
				bytes += uint64(len(batch[i].Payload))
				sent += uint64(batch[i].Segments())
				i++
			}
			attempts = 0
			continue
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			if attempts++; attempts <= sendAttempts {
				unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, sendPatience)
				continue
			}
		case unix.EINVAL: // somebody in this network namespace has a label for himself, or the kernel is older than 5.3
			if s.names[i].unlabel() {
				bare = i
				continue
			}
		}
		rest := batch[i]
		if rest.Segments() > 1 && mayEndTrains(errno) && s.trains.on.Load() && s.sendFirst(i, &batch[i]) {
			s.trains.suspend()
			sent++
			bytes += uint64(rest.SegmentSize)
			rest.Payload = rest.Payload[rest.SegmentSize:]
		}
		s.lost(&rest, multicastCause(rest.Dst.Addr(), errno))
		i++
		attempts = 0
	}
	s.sent.Add(sent)
	s.sentBytes.Add(bytes)
	for i := range batch {
		s.iovecs[i].Base = nil // the payload is the caller's, and may go
	}
}

// sendFirst sends the first datagram of a train alone, in place of the i-th message, and reports whether that
// succeeded. If it did, the train has failed because it was a train. Alone the datagram has the same identification
// as in the train, so the receiver sees no difference.
func (s *sender) sendFirst(i int, train *link.Datagram) bool {
	first := *train
	first.Payload, first.SegmentSize = train.Segment(0), 0
	s.prepare(i, &first)
	s.names[i].unlabel() // which may be refused too
	_, errno := s.sendmmsg(i, 1)
	return errno == 0
}

// sendmmsg sends up to n messages, beginning with the one of index first. It returns how many it
// has sent.
func (s *sender) sendmmsg(first, n int) (int, syscall.Errno) {
	// The calls do not block, and Go's scheduler does not know of them. A long train takes some 40 µs. If the
	// scheduler knew, it would start another thread for the rest of the program after that time, and look for such
	// calls every 70 µs from then on. sendto is cheaper than sendmsg by a few percent.
	h := &s.messages[first].Hdr
	switch {
	case n == 1 && h.Controllen == 0:
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(s.iovecs[first].Base)),
			uintptr(s.iovecs[first].Len), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
		return 1, errno
	case n == 1 || s.single:
		_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT)
		return 1, errno
	}
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[first])),
		uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	return int(r), errno
}
