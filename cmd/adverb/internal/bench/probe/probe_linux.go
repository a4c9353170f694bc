package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	maxTrain     = 64    // packets of one train: every kernel that takes trains takes so many
	maxTrainSize = 65000 // bytes of one train
	bufferSize   = 1 << 16
	receiveSlots = 16 // trains per system call

	socketBuffer = 4 << 20
	maxWindow    = 1 << 20 // bytes under way
	minPacket    = 512     // the receiver's buffer has room for so many bytes with the smallest packet, and more
	creditSize   = 8

	// stopPatience is how long an end sleeps before it asks whether it was stopped.
	stopPatience = 100_000 // µs
	// idleTurns is how often an end looks in vain before it asks whether it was stopped.
	idleTurns = 1 << 10
	// lostTurns is how often a sender looks for a credit in vain before it takes the packets in flight for lost. That
	// is a second or so.
	lostTurns = 1 << 22
)

type socket struct {
	fd         int
	addr, peer netip.AddrPort
	out, in    wire.Flow // of the packets sent, and received
	name       unix.RawSockaddrInet4
	window     int

	train    []byte
	iovec    unix.Iovec
	header   unix.Msghdr
	control  [24]byte
	credit   [creditSize]byte
	slots    [receiveSlots]unix.Mmsghdr
	iovecs   [receiveSlots]unix.Iovec
	controls [receiveSlots][32]byte
	buffers  []byte
}

// Open opens an end at an IPv4 address. It is not connected in the system's sense: the kernel would
// count the IPv4 identification up, which the ICRC covers.
func Open(addr netip.Addr) (Socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd}
	if err := s.setUp(addr); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open the probe at %v: %w", addr, err)
	}
	return s, nil
}

func (s *socket) setUp(addr netip.Addr) error {
	if err := unix.Bind(s.fd, &unix.SockaddrInet4{Addr: addr.As4()}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.addr = netip.AddrPortFrom(addr, uint16(sa.(*unix.SockaddrInet4).Port))
	for _, o := range [][3]int{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}, // identification 0, or the place in the train
		{unix.IPPROTO_UDP, unix.UDP_GRO, 1},
		{unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer},
	} {
		if err := unix.SetsockoptInt(s.fd, o[0], o[1], o[2]); err != nil {
			return fmt.Errorf("set a socket option: %w", err)
		}
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: stopPatience}); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) // more, for those who may
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_RCVBUF", err)
	}
	s.window = min(maxWindow, n/4)

	s.train = make([]byte, bufferSize)
	s.iovec.Base = &s.train[0]
	s.header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&s.name)), Namelen: unix.SizeofSockaddrInet4, Iov: &s.iovec, Control: &s.control[0]}
	s.header.SetIovlen(1)
	s.buffers = make([]byte, receiveSlots*(bufferSize+128)) // not all at the same place in a page
	for i := range s.slots {
		s.iovecs[i].Base = &s.buffer(i)[0]
		s.iovecs[i].SetLen(bufferSize)
		s.slots[i].Hdr.Iov = &s.iovecs[i]
		s.slots[i].Hdr.SetIovlen(1)
		s.slots[i].Hdr.Control = &s.controls[i][0]
	}
	return nil
}

func (s *socket) buffer(i int) []byte { return s.buffers[i*(bufferSize+128):][:bufferSize] }

func (s *socket) Addr() netip.AddrPort { return s.addr }
func (s *socket) Close() error         { return unix.Close(s.fd) }

func (s *socket) Connect(peer netip.AddrPort) error {
	if !peer.Addr().Is4() {
		return fmt.Errorf("the probe's other end is at %v: the probe is built for IPv4", peer)
	}
	s.peer = peer
	s.out, s.in = wire.NewFlow(s.addr, peer), wire.NewFlow(peer, s.addr)
	s.name = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: peer.Addr().As4()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&s.name.Port))[:], peer.Port())
	return nil
}

// packetSize is the bytes of a packet with n bytes of payload.
func packetSize(n int) int { return wire.BTHSize + (n+3)&^3 + wire.ICRCSize }

// Stream copies the payload into the train. To have the kernel gather it from its place, by two iovecs
// a packet, was tried, and is dearer: as dear at 4096 bytes a packet, and by a third at 1024 (CPU time of
// both ends).
func (s *socket) Stream(sh Shape, stopped func() bool) error {
	if err := sh.check(); err != nil {
		return err
	}
	region := make([]byte, sh.Region)
	payload := sh.payload()
	size := packetSize(payload)
	train := min(maxTrain, maxTrainSize/size)
	if sh.Train > 0 {
		train = min(train, sh.Train)
	}
	cost := max(size, minPacket)
	place, places := 0, sh.Region/payload
	sent, taken := int64(0), int64(0)
	for idle := 0; ; idle++ {
		if int(sent-taken)*cost+train*cost <= s.window {
			for i := range train {
				b := s.train[i*size : (i+1)*size]
				binary.BigEndian.PutUint32(b[8:], uint32(place)) // in the BTH, where the PSN is
				copy(b[wire.BTHSize:], region[place*payload:(place+1)*payload])
				s.out.Seal(uint16(i), b)
				if place++; place == places {
					place = 0
				}
			}
			if err := s.send(train*size, size); err != nil {
				return err
			}
			sent += int64(train)
			idle = 0
		}
		for n := s.receive(unix.MSG_DONTWAIT, 1); n > 0; n = s.receive(unix.MSG_DONTWAIT, 1) {
			taken = max(taken, int64(binary.BigEndian.Uint64(s.buffer(0))))
			idle = 0
		}
		if idle%idleTurns == 0 && stopped() {
			return ErrStopped
		}
		if idle == lostTurns {
			taken = sent
		}
	}
}

func (s *socket) Receive(sh Shape, more func(int64) bool, stopped func() bool) error {
	if err := sh.check(); err != nil {
		return err
	}
	region := make([]byte, sh.Region)
	payload := sh.payload()
	size := packetSize(payload)
	perMessage := int64(sh.Size / payload)
	creditEvery := int64(max(1, s.window/8/max(size, minPacket)))
	packets, credited := int64(0), int64(0)
	for idle := 0; ; idle++ {
		n := s.receive(unix.MSG_DONTWAIT, receiveSlots)
		if n == 0 {
			if idle%idleTurns == 0 && stopped() {
				return ErrStopped
			}
			continue
		}
		for slot := range n {
			got, err := s.place(region, s.buffer(slot)[:s.slots[slot].Len], payload)
			if err != nil {
				return err
			}
			packets += int64(got)
			if packets-credited >= creditEvery {
				credited = packets
				if err := s.giveCredit(packets); err != nil {
					return err
				}
			}
		}
		if idle = 0; !more(packets / perMessage) {
			return nil
		}
	}
}

// verify verifies the ICRC of the i-th packet of a train. A train that came in parts has other
// identifications than its places say.
func (s *socket) verify(i int, b []byte) bool {
	if s.in.Verify(uint16(i), b) {
		return true
	}
	_, _, ok := s.in.SolveID(b)
	return ok
}

// giveCredit tells the sender how many packets have come.
func (s *socket) giveCredit(packets int64) error {
	binary.BigEndian.PutUint64(s.credit[:], uint64(packets))
	return s.sendTo(s.credit[:])
}

func (s *socket) Bounce(sh Shape, first, block bool, more func(int64) bool, stopped func() bool) error {
	if err := sh.check(); err != nil {
		return err
	}
	payload := sh.payload()
	packets, n := sh.Size/payload, packetSize(payload)
	if packets > maxTrain || packets*n > maxTrainSize {
		return fmt.Errorf("a message of %d bytes by packets of %d is no train", sh.Size, payload)
	}
	region := make([]byte, sh.Size)
	reply := func() error {
		for i := range packets {
			b := s.train[i*n : (i+1)*n]
			binary.BigEndian.PutUint32(b[8:], uint32(i)) // in the BTH, where the PSN is
			copy(b[wire.BTHSize:], region[i*payload:(i+1)*payload])
			s.out.Seal(uint16(i), b)
		}
		if packets == 1 {
			return s.sendTo(s.train[:n])
		}
		return s.send(packets*n, n)
	}
	if first {
		if err := reply(); err != nil {
			return err
		}
	}
	flags := unix.MSG_DONTWAIT
	if block {
		flags = 0
	}
	for came := int64(0); first || !block || !stopped(); {
		if first && !more(came) {
			return nil
		}
		for left := packets; left > 0; {
			for idle := 1; s.receive(flags, 1) == 0; idle++ {
				if (block || idle%idleTurns == 0) && stopped() {
					return ErrStopped
				}
			}
			got, err := s.place(region, s.buffer(0)[:s.slots[0].Len], payload)
			if err != nil {
				return err
			}
			left -= got
		}
		came++
		if err := reply(); err != nil {
			return err
		}
	}
	return ErrStopped
}

// place verifies the packets of a datagram or a train, and puts their payload into the region. It returns how many
// there were.
func (s *socket) place(region, data []byte, payload int) (packets int, err error) {
	size, places := packetSize(payload), uint32(len(region)/payload)
	for len(data) > 0 {
		b := data[:min(size, len(data))]
		data = data[len(b):]
		if len(b) != size || !s.verify(packets, b) {
			return packets, errICRC
		}
		at := int(binary.BigEndian.Uint32(b[8:])%places) * payload
		copy(region[at:at+payload], b[wire.BTHSize:])
		packets++
	}
	return packets, nil
}

// send sends the first n bytes of the train, as packets of size bytes.
func (s *socket) send(n, size int) error {
	s.iovec.SetLen(n)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.control[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(s.control[unix.CmsgLen(0):], uint16(size))
	s.header.SetControllen(unix.CmsgSpace(2))
	for {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.header)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("sendmsg", errno)
		}
	}
}

// sendTo sends a single packet.
func (s *socket) sendTo(b []byte) error {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0,
			uintptr(unsafe.Pointer(&s.name)), unix.SizeofSockaddrInet4)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("sendto", errno)
		}
	}
}

// receive receives up to n packets or trains. It returns how many have come.
func (s *socket) receive(flags, n int) int {
	for i := range n {
		s.slots[i].Hdr.SetControllen(len(s.controls[i]))
	}
	call := unix.RawSyscall6
	if flags&unix.MSG_DONTWAIT == 0 {
		call = unix.Syscall6 // it may block
	}
	r, _, errno := call(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.slots[0])), uintptr(n), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(r)
}
