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

// A receiver is the socket of port 4791 and the arguments of its system call.
type receiver struct {
	*counters
	at netip.AddrPort

	mu       sync.Mutex
	fd       int // -1 when closed
	used     int // messages that the latest call has written to
	messages [maxBatch]unix.Mmsghdr
	iovecs   [maxBatch]unix.Iovec
	names    [maxBatch]sockaddr
	controls [maxBatch]control
	buffers  []byte // maxReceive each
	overflow uint32 // SO_RXQ_OVFL's latest count

	lastName sockaddr // and what it means
	lastSrc  netip.AddrPort
}

func (r *receiver) init(fd int, at netip.AddrPort, c *counters) {
	r.fd, r.at, r.counters = fd, at, c
	r.buffers = make([]byte, maxBatch*maxReceive)
	for i := range r.messages {
		setIOVec(&r.iovecs[i], r.buffer(i))
		h := &r.messages[i].Hdr
		h.Name = &r.names[i][0]
		h.Iov = &r.iovecs[i]
		h.SetIovlen(1)
		h.Control = &r.controls[i].data[0]
	}
	r.used = maxBatch
}

func (r *receiver) buffer(i int) []byte { return r.buffers[i*maxReceive : (i+1)*maxReceive] }

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	unix.Close(r.fd)
	r.fd = -1
}

// Recv implements link.Link: one system call.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	r := &l.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return 0, link.ErrClosed
	}
	if len(batch) == 0 {
		return 0, nil
	}
	for i := range r.used {
		h := &r.messages[i].Hdr
		h.Namelen = uint32(len(sockaddr{}))
		h.SetControllen(controlSize)
	}
	// It does not block, so the scheduler need not know of it.
	got, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.messages[0])),
		uintptr(min(len(batch), maxBatch)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		r.used = 0 // the call ends at the first message, without having touched it
		return 0, nil
	}
	r.used = int(got)
	return r.deliver(batch), nil
}

// deliver puts the messages into batch and returns how many of them were whole.
func (r *receiver) deliver(batch []link.Datagram) int {
	n := 0
	var bytes uint64
	for i := range r.used {
		m := &r.messages[i]
		if m.Hdr.Flags&unix.MSG_TRUNC != 0 {
			r.receiveDrops.Add(1) // longer than any RoCEv2 datagram
			continue
		}
		if r.names[i] != r.lastName {
			r.lastName = r.names[i]
			r.lastSrc = r.lastName.addrPort()
		}
		batch[n] = link.Datagram{Src: r.lastSrc, Dst: r.at, Payload: r.buffer(i)[:m.Len:m.Len]}
		bytes += uint64(m.Len)
		n++
	}
	r.received.Add(uint64(n))
	r.receivedBytes.Add(bytes)
	if r.messages[r.used-1].Hdr.Controllen != 0 {
		r.countOverflow(r.used - 1)
	}
	return n
}

// countOverflow reads from the i-th message how many datagrams the socket has dropped so far. The
// kernel says so only when there are any.
func (r *receiver) countOverflow(i int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&r.controls[i].data[0]))
	if h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL {
		total := binary.NativeEndian.Uint32(r.controls[i].data[unix.CmsgLen(0):])
		r.receiveDrops.Add(uint64(total - r.overflow)) // modulo 2^32
		r.overflow = total
	}
}
