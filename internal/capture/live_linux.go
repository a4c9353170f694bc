package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Sizes of the ring that the kernel writes frames to.
const (
	liveBlock   = 1 << 20 // bytes: the kernel hands over frames by the block
	liveBlocks  = 64
	liveLeast   = 4  // blocks, where memory is short
	liveHold    = 20 // ms after which the kernel hands a block over that is not full
	liveQuiet   = 100
	liveReserve = vlanSize // bytes before each frame, for the tag that the kernel has taken out
)

// Live captures the frames of a network interface that concern RDMA: those of which a [Decoder] makes something. The
// kernel drops others before they cost a copy. It must not be used by several goroutines at a time.
type Live struct {
	fd     int
	ring   []byte
	blocks int
	block  int    // the next one
	left   int    // frames of the block that are not read
	at     int    // of the next of them in the ring
	held   bool   // the block is ours
	number int    // frames so far
	lost   uint64 // frames for which the ring had no room
	ports  []uint16
}

// OpenLive begins to capture at an interface, or at all of them: [AnyInterface].
func OpenLive(name string) (*Live, error) {
	index := 0
	if name != AnyInterface {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("capture %s: %w: adverb gids lists the interfaces that have devices", name, err)
		}
		index = i.Index
	}
	l, err := openLive(index)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("capture %s: %w: %s", name, err, tapsLimit)
	case err != nil:
		return nil, fmt.Errorf("capture %s: %w", name, err)
	}
	return l, nil
}

func openLive(index int) (l *Live, err error) {
	// Protocol 0 receives nothing until the socket is bound, when it has its filter and its ring.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l = &Live{fd: fd}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_RESERVE, liveReserve); err != nil {
		return nil, err
	}
	if err := l.attach(); err != nil {
		return nil, err
	}
	for l.blocks = liveBlocks; ; l.blocks /= 2 {
		req := unix.TpacketReq3{Block_size: liveBlock, Block_nr: uint32(l.blocks), Frame_size: liveBlock, Frame_nr: uint32(l.blocks), Retire_blk_tov: liveHold}
		err = unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req)
		if err == nil || !errors.Is(err, unix.ENOMEM) || l.blocks <= liveLeast {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if l.ring, err = unix.Mmap(fd, 0, liveBlock*l.blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	all := binary.BigEndian.Uint16([]byte{unix.ETH_P_ALL & 0xff, unix.ETH_P_ALL >> 8}) // in network order
	return l, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
}

// Follow has all TCP segments of some ports captured from now on: of those named first, if there are too many. Of others
// the beginnings of iWARP connections are captured alone.
func (l *Live) Follow(ports []uint16) error {
	ports = ports[:min(len(ports), maxFilterPorts)]
	if slices.Equal(ports, l.ports) {
		return nil
	}
	l.ports = slices.Clone(ports)
	return l.attach()
}

func (l *Live) attach() error {
	code, err := filter(liveView, l.ports)
	if err != nil {
		return err
	}
	f := make([]unix.SockFilter, len(code))
	for i, in := range code {
		f[i] = sockFilter(in)
	}
	err = unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]})
	runtime.KeepAlive(f)
	return err
}

func sockFilter(in bpf.RawInstruction) unix.SockFilter {
	return unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
}

// header returns the head of the block that is next. The kernel writes it.
func (l *Live) header() *unix.TpacketHdrV1 {
	desc := (*unix.TpacketBlockDesc)(unsafe.Pointer(&l.ring[l.block*liveBlock]))
	return (*unix.TpacketHdrV1)(unsafe.Pointer(&desc.Hdr))
}

// Next returns the next frame, whose data hold until the next call. The error is [ErrQuiet] if none comes for a while.
func (l *Live) Next() (Frame, error) {
	for {
		for l.left == 0 {
			if err := l.advance(); err != nil {
				return Frame{}, err
			}
		}
		if f, ok := l.frame(); ok {
			l.number++
			f.Number = l.number
			return f, nil
		}
	}
}

// advance gives the block back that has been read, and waits for the next one.
func (l *Live) advance() error {
	h := l.header()
	if l.held {
		l.held = false
		atomic.StoreUint32(&h.Block_status, unix.TP_STATUS_KERNEL)
		l.block = (l.block + 1) % l.blocks
		h = l.header()
	}
	if atomic.LoadUint32(&h.Block_status)&unix.TP_STATUS_USER == 0 {
		fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN | unix.POLLERR}}
		if _, err := unix.Poll(fds, liveQuiet); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("capture: wait for frames: %w", err)
		}
		if fds[0].Revents&unix.POLLERR != 0 {
			if errno, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
				return fmt.Errorf("capture: the interface is gone: %w", errors.Join(err, unix.Errno(errno)))
			}
		}
		if atomic.LoadUint32(&h.Block_status)&unix.TP_STATUS_USER == 0 {
			return ErrQuiet
		}
	}
	l.held, l.left, l.at = true, int(h.Num_pkts), l.block*liveBlock+int(h.Offset_to_first_pkt)
	return nil
}

const sockaddrOffset = (unix.SizeofTpacket3Hdr + 15) &^ 15 // where the address of the link stands behind a frame's head

// frame reads a frame of the block. ok is false for one that is another's copy.
func (l *Live) frame() (f Frame, ok bool) {
	h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&l.ring[l.at]))
	from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&l.ring[l.at+sockaddrOffset]))
	begin := l.at + int(h.Mac)
	f = Frame{
		Time: int64(h.Sec)*nanosecondsPerSecond + int64(h.Nsec), Interface: int(from.Ifindex), Direction: Inbound,
		Length: int(h.Len), Data: l.ring[begin : begin+int(h.Snaplen)],
	}
	if from.Pkttype == unix.PACKET_OUTGOING {
		f.Direction = Outbound
	}
	switch from.Hatype {
	case unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		f.Link = LinkEthernet
		if h.Status&unix.TP_STATUS_VLAN_VALID != 0 && len(f.Data) >= ethernetSize {
			f.Data = l.tagged(begin, len(f.Data), &h.Hv1)
			f.Length += vlanSize
		}
	case unix.ARPHRD_NONE, unix.ARPHRD_PPP, unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6, unix.ARPHRD_SIT, unix.ARPHRD_IPGRE, unix.ARPHRD_RAWIP:
		f.Link = LinkRaw
	default: // what comes before the IP header is not known
		f.Link = LinkRaw
		f.Data = l.ring[l.at+int(h.Net) : begin+max(int(h.Snaplen), int(h.Net)-int(h.Mac))]
		f.Length -= int(h.Net) - int(h.Mac)
	}
	l.at += int(h.Next_offset)
	l.left--
	return f, from.Hatype != unix.ARPHRD_LOOPBACK || f.Direction == Inbound // loopback shows each frame twice
}

// tagged puts the tag back that the kernel has taken out of a frame, before which is room.
func (l *Live) tagged(begin, n int, tag *unix.TpacketHdrVariant1) []byte {
	const addresses = 12
	b := l.ring[begin-vlanSize : begin+n]
	copy(b, b[vlanSize:][:addresses])
	kind := uint16(typeVLAN)
	if tag.Vlan_tpid != 0 {
		kind = tag.Vlan_tpid
	}
	binary.BigEndian.PutUint16(b[addresses:], kind)
	binary.BigEndian.PutUint16(b[addresses+2:], uint16(tag.Vlan_tci))
	return b
}

// Lost returns how many frames the kernel had no room for, since the beginning.
func (l *Live) Lost() int {
	if s, err := unix.GetsockoptTpacketStatsV3(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		l.lost += uint64(s.Drops) // since the last call
	}
	return int(l.lost)
}

// Close ends the capture.
func (l *Live) Close() error {
	if l.ring != nil {
		unix.Munmap(l.ring)
		l.ring = nil
	}
	return unix.Close(l.fd)
}
