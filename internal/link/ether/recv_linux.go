//go:build !adverb_portable

package ether

import (
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	receiveSlots = 32 // frames of a system call, at most
	bufferSize   = link.GRHSize + 4096 + 512
)

// A receiver has the arguments of the system call that receives frames.
type receiver struct {
	groups *groups

	mu       sync.Mutex
	fd       int // -1 when closed
	messages [receiveSlots]unix.Mmsghdr
	iovecs   [receiveSlots]unix.Iovec
	buffers  []byte
	to       netip.AddrPort

	received, bytes, drops uint64
}

func (r *receiver) init(at netip.AddrPort, g *groups) {
	r.to, r.groups = at, g
	r.buffers = make([]byte, receiveSlots*bufferSize)
	for i := range r.messages {
		b := r.buffer(i)
		r.iovecs[i].Base = unsafe.SliceData(b)
		r.iovecs[i].SetLen(len(b))
		r.messages[i].Hdr.Iov = &r.iovecs[i]
		r.messages[i].Hdr.SetIovlen(1)
	}
}

func (r *receiver) buffer(i int) []byte { return r.buffers[i*bufferSize:][:bufferSize:bufferSize] }

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		r.count()
		unix.Close(r.fd)
	}
	r.fd = -1
}

// Recv implements link.Link.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	r := &l.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return 0, link.ErrClosed
	}
	for len(batch) > 0 {
		// The call does not block, so the scheduler need not know of it.
		got, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.messages[0])),
			uintptr(min(len(batch), receiveSlots)), unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 || got == 0 {
			return 0, nil // an interface that went down is told of by its state
		}
		if n := r.deliver(int(got), batch); n > 0 {
			return n, nil
		}
	}
	return 0, nil
}

// deliver puts the first got messages that are datagrams for the link into batch, and returns how many.
func (r *receiver) deliver(got int, batch []link.Datagram) int {
	n := 0
	for i := range got {
		m := &r.messages[i]
		d := &batch[n]
		*d = link.Datagram{}
		payload, ok := link.CutGRH(r.buffer(i)[:min(m.Len, bufferSize)], d)
		if !ok || m.Hdr.Flags&unix.MSG_TRUNC != 0 || d.Dst != r.to && !r.groups.has(d.Dst.Addr()) {
			if m.Hdr.Flags&unix.MSG_TRUNC != 0 {
				r.drops++
			}
			continue
		}
		d.Payload = payload
		r.received++
		r.bytes += uint64(len(payload))
		n++
	}
	return n
}

// count adds the frames that the socket had no room for. The kernel forgets them when it has told.
func (r *receiver) count() {
	if s, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		r.drops += uint64(s.Drops)
	}
}

func (r *receiver) stats(s *link.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		r.count()
	}
	s.Received, s.ReceivedBytes, s.ReceiveDrops = r.received, r.bytes, r.drops
}
