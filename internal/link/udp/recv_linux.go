//go:build !adverb_portable

package udp

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A socket receives datagrams to port 4791 of one address, which is the link's or a multicast group's.
type socket struct {
	fd       int
	at       netip.AddrPort
	overflow uint32 // the latest count of SO_RXQ_OVFL
}

// A receiver is the sockets to receive from, with the arguments of their system call.
type receiver struct {
	*counters
	groups groups
	single bool // recvmmsg is denied

	mu       sync.Mutex
	own      socket // fd is -1 when closed
	used     int    // how many messages the latest call has written to
	asks     int    // how many the next call asks for: see receive
	most     int    // the most messages that a call may ask for: about receiveBytes, if they are as long as the latest
	found    bool   // the latest call asked for one message, and found it
	messages [receiveSlots]unix.Mmsghdr
	iovecs   [receiveSlots]unix.Iovec
	names    [receiveSlots]sockaddr
	controls [receiveSlots]control
	buffers  []byte // one for each message, bufferStride apart

	lastName sockaddr       // of the latest message
	lastSrc  netip.AddrPort // lastName decoded
}

// A buffer has room for the longest train that the kernel can make. Buffers do not all begin at the same offset in a
// page, because then their first lines would compete for the same places in the caches.
//
// Of long trains a call takes receiveBytes. They are still in the near cache when they are processed, and the peer,
// whose window they are, gets acknowledgements before it has nothing to send any more.
const (
	receiveSlots = 32 // datagrams or trains per system call, at most
	receiveBytes = 384 << 10
	bufferSize   = 1 << 16
	bufferStride = bufferSize + 128
)

func (r *receiver) init(fd int, at netip.AddrPort, c *counters) {
	r.own, r.counters = socket{fd: fd, at: at}, c
	r.groups.set = -1
	r.buffers = make([]byte, receiveSlots*bufferStride)
	for i := range r.messages {
		setIOVec(&r.iovecs[i], r.buffer(i))
		h := &r.messages[i].Hdr
		h.Name = &r.names[i][0]
		h.Iov = &r.iovecs[i]
		h.SetIovlen(1)
		h.Control = &r.controls[i].data[0]
	}
	r.used, r.asks, r.most = receiveSlots, receiveSlots, receiveSlots
}

func (r *receiver) buffer(i int) []byte { return r.buffers[i*bufferStride:][:bufferSize:bufferSize] }

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeOwn()
}

// closeOwn closes the socket of the link's address. The caller holds r.mu.
func (r *receiver) closeOwn() {
	if r.own.fd >= 0 {
		unix.Close(r.own.fd)
		r.own.fd = -1
	}
}

// CloseRecv has handle take the datagrams that have come to the link's address, and closes their socket as soon as it
// is empty, or after most batches. A datagram that comes between the last look and the close is lost.
func (l *Link) CloseRecv(batch []link.Datagram, most int, handle func([]link.Datagram)) {
	r := &l.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	for range most {
		if r.own.fd < 0 {
			return
		}
		n := r.receive(&r.own, batch)
		if r.used == 0 {
			break
		}
		handle(batch[:n])
	}
	r.closeOwn()
}

// Recv implements link.Link. It makes one system call or, for a member of multicast groups, up to
// three.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	r := &l.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.fd < 0 {
		return 0, link.ErrClosed
	}
	if len(batch) == 0 {
		return 0, nil
	}
	if len(r.groups.byFD) == 0 {
		return r.receive(&r.own, batch), nil
	}
	return r.receiveAny(batch), nil
}

// receiveAny receives from the link's own socket or from a group's. They take turns in coming
// first, so that neither waits until the other is empty.
func (r *receiver) receiveAny(batch []link.Datagram) int {
	r.groups.first = !r.groups.first
	if r.groups.first {
		if s := r.groups.ready(); s != nil {
			if n := r.receive(s, batch); n > 0 {
				return n
			}
		}
		return r.receive(&r.own, batch)
	}
	if n := r.receive(&r.own, batch); n > 0 {
		return n
	}
	if s := r.groups.ready(); s != nil {
		return r.receive(s, batch)
	}
	return 0
}

// receiveSingly receives up to n messages by a system call for each, and returns how many came.
func (r *receiver) receiveSingly(s *socket, n int) int {
	for i := range n {
		m := &r.messages[i]
		got, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.Hdr)), unix.MSG_DONTWAIT)
		if errno != 0 {
			return i
		}
		m.Len = uint32(got)
	}
	return n
}

// receive makes one system call. The payloads of the call before become invalid. A call that asks for more messages
// than there are looks for one in vain. So where messages come one by one, receive asks for one, until two calls in a
// row have found theirs.
func (r *receiver) receive(s *socket, batch []link.Datagram) int {
	for i := range r.used {
		h := &r.messages[i].Hdr
		h.Namelen = uint32(len(sockaddr{}))
		h.SetControllen(controlSize)
	}
	asks := min(len(batch), r.asks)
	if asks == 1 || r.single {
		r.used = r.receiveSingly(s, asks)
	} else {
		r.used = r.receiveMany(s, asks)
	}
	n := 0
	if r.used > 0 {
		n = r.deliver(s, batch)
	}
	switch {
	case asks == 1 && r.used == 1 && !r.found:
		r.found = true
	case r.used < asks && r.used <= 1:
		r.asks, r.found = 1, false
	default:
		r.asks, r.found = r.most, false
	}
	return n
}

// receiveMany receives up to n messages, and returns how many came.
func (r *receiver) receiveMany(s *socket, n int) int {
	// The call does not block, so the scheduler need not know of it.
	got, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&r.messages[0])),
		uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0 // the call has failed at the first message and not touched it
	}
	return int(got)
}

// deliver puts the messages from s into batch, but for those that are too long. It returns how many it has put there.
func (r *receiver) deliver(s *socket, batch []link.Datagram) int {
	n := 0
	var received, bytes, all uint64
	for i := range r.used {
		m := &r.messages[i]
		all += uint64(m.Len)
		if r.names[i] != r.lastName {
			r.lastName = r.names[i]
			r.lastSrc = r.lastName.addrPort()
		}
		d := &batch[n]
		*d = link.Datagram{Src: r.lastSrc, Dst: s.at, Payload: r.buffer(i)[:m.Len:m.Len]}
		if m.Hdr.Controllen != 0 {
			r.control(s, i, d)
		}
		if d.SegmentSize > maxReceive || d.SegmentSize == 0 && m.Len > maxReceive || m.Hdr.Flags&unix.MSG_TRUNC != 0 {
			r.receiveDrops.Add(uint64(d.Segments())) // longer than any RoCEv2 datagram
			continue
		}
		received += uint64(d.Segments())
		bytes += uint64(m.Len)
		n++
	}
	r.received.Add(received)
	r.receivedBytes.Add(bytes)
	r.most = int(min(receiveSlots, receiveBytes*uint64(r.used)/max(1, all))) // 4 at least: a datagram has less than 64 KiB
	return n
}

// control reads the control messages of the i-th message, and sets their values in d.
func (r *receiver) control(s *socket, i int, d *link.Datagram) {
	b := r.controls[i].data[:min(r.messages[i].Hdr.Controllen, controlSize)]
	for len(b) >= controlMessage { // each holds an int or less
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		data := b[unix.CmsgLen(0):]
		value := binary.NativeEndian.Uint32(data)
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS:
			d.TrafficClass = data[0]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == ipv6FlowInfo:
			info := binary.BigEndian.Uint32(data)
			d.TrafficClass, d.FlowLabel = uint8(info>>flowClassBit), info&flowLabelMask
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			d.TrafficClass = uint8(value)
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO: // the size of the datagrams that were joined
			d.SegmentSize = int(value)
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL: // how many the socket has dropped so far
			r.receiveDrops.Add(uint64(value - s.overflow)) // modulo 2^32
			s.overflow = value
		}
		b = b[controlMessage:]
	}
}
