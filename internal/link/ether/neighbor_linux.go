//go:build !adverb_portable

package ether

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	// A neighbor's MAC address is asked for again after neighborTime.
	neighborTime = 5 * time.Second
	// A neighbor that does not answer is asked again after silentTime.
	silentTime = time.Second

	maxNeighbors = 4096 // that a link remembers
	maxAsked     = 64   // that are asked at a time
	maxWaiting   = 64   // frames that wait for a neighbor
)

// neighbors are the peers that a link sends to. The sender's lock guards them.
type neighbors struct {
	known  map[netip.Addr]*neighbor
	latest *neighbor
	asked  int
}

// neighbor says where frames to an address go.
type neighbor struct {
	addr    netip.Addr
	found   bool
	asking  bool
	index   int // of the network interface
	mac     [6]byte
	until   time.Time
	waiting []link.Datagram
}

// neighbor returns the neighbor at an address. It is nil if the frame is lost. If it is not found yet, the frame has to
// wait.
func (s *sender) neighbor(now time.Time, dst netip.Addr) *neighbor {
	ns := &s.neighbors
	n := ns.latest
	if n == nil || n.addr != dst {
		n = ns.known[dst]
	}
	if n != nil && (n.asking || now.Before(n.until)) {
		if ns.latest = n; n.found || n.asking {
			return n
		}
		s.lost(&link.Datagram{Dst: netip.AddrPortFrom(dst, link.PortV1)}, 1, errNoNeighbor)
		return nil
	}
	if n == nil {
		if len(ns.known) >= maxNeighbors {
			s.forget()
		}
		n = &neighbor{addr: dst}
		ns.known[dst] = n
	}
	ns.latest = n
	if n.index, n.mac, n.found = s.l.kernel.find(dst); n.found {
		n.until = now.Add(neighborTime)
		return n
	}
	if ns.asked >= maxAsked {
		s.lost(&link.Datagram{Dst: netip.AddrPortFrom(dst, link.PortV1)}, 1, errBusy)
		delete(ns.known, dst)
		ns.latest = nil
		return nil
	}
	ns.asked++
	n.asking = true
	go s.ask(n)
	return n
}

// forget forgets the neighbors, but for those that are being asked.
func (s *sender) forget() {
	for addr, n := range s.neighbors.known {
		if !n.asking {
			delete(s.neighbors.known, addr)
		}
	}
	s.neighbors.latest = nil
}

// ask has the kernel ask for a neighbor, and sends the frames that wait for the answer.
func (s *sender) ask(n *neighbor) {
	index, mac, found := s.l.kernel.ask(n.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.neighbors.asked--
	n.asking, n.index, n.mac, n.found = false, index, mac, found
	waiting := n.waiting
	n.waiting = nil
	n.until = time.Now().Add(silentTime)
	if found {
		n.until = time.Now().Add(neighborTime)
	}
	if s.fd < 0 {
		return
	}
	for i := range waiting {
		if found {
			s.prepare(&waiting[i], index, mac, false)
		} else {
			s.lost(&waiting[i], 1, errNoNeighbor)
		}
	}
	s.flush()
}

// kernel is what the kernel knows of neighbors and of this host's addresses. Its sockets belong to the network namespace
// in which the link was opened.
type kernel struct {
	index, loopback int // of the network interfaces
	own             netip.Addr

	mu    sync.Mutex
	conn  *netlink.Conn
	probe int // a UDP socket
}

func (k *kernel) open(l *Link) (err error) {
	k.index, k.loopback, k.own, k.probe = l.index, l.loopback, l.addr, -1
	if k.conn, err = netlink.Dial(unix.NETLINK_ROUTE, nil); err != nil {
		return err
	}
	family := unix.AF_INET6
	if link.GIDAddr(l.addr).Is4() {
		family = unix.AF_INET
	}
	if k.probe, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		k.probe = -1 // without IPv6 there are its addresses' neighbors no more
	}
	return nil
}

func (k *kernel) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return
	}
	k.conn.Close()
	if k.probe >= 0 {
		unix.Close(k.probe)
	}
	k.conn, k.probe = nil, -1
}

// find looks whether the network interface and the MAC address are known by which frames reach an address. Frames to this
// host go through its loopback interface.
func (k *kernel) find(dst netip.Addr) (index int, mac [6]byte, ok bool) {
	mac, byGID := link.MACOf(dst)
	if k.index == k.loopback || dst == k.own || byGID && k.hasMAC(mac) || !byGID && k.isLocal(link.GIDAddr(dst)) {
		return k.loopback, [6]byte{}, true
	}
	if byGID {
		return k.index, mac, true
	}
	mac, ok = k.neighborMAC(link.GIDAddr(dst))
	return k.index, mac, ok
}

const (
	askTime     = time.Second // for which ask waits, as Linux does for the AV of a QP
	firstLook   = time.Millisecond
	discardPort = 9 // where a datagram goes that is for nobody: RFC 863
)

// ask is find for an address of which nothing is known. Programs without privileges cannot ask the kernel to resolve an
// address, so ask sends an empty datagram to the discard port.
func (k *kernel) ask(dst netip.Addr) (index int, mac [6]byte, ok bool) {
	k.mu.Lock()
	switch ip := link.GIDAddr(dst); {
	case k.probe < 0:
	case ip.Is4():
		_ = unix.Sendto(k.probe, nil, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Port: discardPort, Addr: ip.As4()})
	default:
		to := &unix.SockaddrInet6{Port: discardPort, Addr: ip.As16()}
		if ip.IsLinkLocalUnicast() {
			to.ZoneId = uint32(k.index)
		}
		_ = unix.Sendto(k.probe, nil, unix.MSG_DONTWAIT, to)
	}
	k.mu.Unlock()
	for wait := firstLook; wait < askTime; wait *= 2 {
		time.Sleep(wait)
		if index, mac, ok = k.find(dst); ok {
			break
		}
	}
	return index, mac, ok
}

// Layout of the structures that begin messages of netlink.
const (
	ndmsgSize    = 12
	ndmsgIfindex = 4
	ndmsgState   = 8

	rtmsgSize   = 12
	rtmsgDstLen = 1
	rtmsgType   = 7

	ifinfomsgSize = 16
)

// request sends a request, and returns the answers.
func (k *kernel) request(typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte, attr uint16, ip netip.Addr) []netlink.Message {
	if ip.IsValid() {
		ae := netlink.NewAttributeEncoder()
		ae.Bytes(attr, ip.AsSlice())
		attrs, err := ae.Encode()
		if err != nil {
			return nil
		}
		data = append(data, attrs...)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	answers, err := k.conn.Execute(netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request | flags}, Data: data})
	if err != nil {
		return nil // the kernel knows nothing of the kind
	}
	return answers
}

// family is that of an address, in the first byte of a structure.
func family(ip netip.Addr, size int) []byte {
	b := make([]byte, size)
	b[0] = unix.AF_INET6
	if ip.Is4() {
		b[0] = unix.AF_INET
	}
	return b
}

// isLocal reports whether packets to an address stay on this host.
func (k *kernel) isLocal(ip netip.Addr) bool {
	b := family(ip, rtmsgSize)
	b[rtmsgDstLen] = uint8(ip.BitLen())
	for _, m := range k.request(unix.RTM_GETROUTE, 0, b, unix.RTA_DST, ip) {
		if len(m.Data) >= rtmsgSize && m.Data[rtmsgType] == unix.RTN_LOCAL {
			return true
		}
	}
	return false
}

// hasMAC reports whether a network interface of this host has a MAC address.
func (k *kernel) hasMAC(mac [6]byte) bool {
	for _, m := range k.request(unix.RTM_GETLINK, netlink.Dump, make([]byte, ifinfomsgSize), 0, netip.Addr{}) {
		if got, ok := macIn(m.Data, ifinfomsgSize, unix.IFLA_ADDRESS); ok && got == mac {
			return true
		}
	}
	return false
}

// States of a neighbor in which its MAC address is good for use.
const neighborValid = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// neighborMAC asks the kernel's table of neighbors.
func (k *kernel) neighborMAC(ip netip.Addr) (mac [6]byte, ok bool) {
	b := family(ip, ndmsgSize)
	binary.NativeEndian.PutUint32(b[ndmsgIfindex:], uint32(k.index))
	for _, m := range k.request(unix.RTM_GETNEIGH, 0, b, unix.NDA_DST, ip) {
		if len(m.Data) < ndmsgSize || binary.NativeEndian.Uint16(m.Data[ndmsgState:])&neighborValid == 0 {
			continue
		}
		if mac, ok = macIn(m.Data, ndmsgSize, unix.NDA_LLADDR); ok {
			return mac, true
		}
	}
	return mac, false
}

// macIn returns the MAC address in an attribute behind the first size bytes of a message.
func macIn(b []byte, size int, attr uint16) (mac [6]byte, ok bool) {
	if len(b) < size {
		return mac, false
	}
	ad, err := netlink.NewAttributeDecoder(b[size:])
	if err != nil {
		return mac, false
	}
	for ad.Next() {
		if ad.Type() == attr && len(ad.Bytes()) == len(mac) {
			return [6]byte(ad.Bytes()), true
		}
	}
	return mac, false
}
