//go:build !adverb_portable

package ether

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

const loopback = "lo"

// Link is a link.Link of RoCEv1.
type Link struct {
	addr     netip.Addr
	index    int // of the network interface
	loopback int // of the loopback interface
	mtu      int
	claim    int // a socket that holds the address

	kernel kernel
	rx     receiver
	tx     sender
	waiter
	groups groups

	closed atomic.Bool
}

var (
	_ link.OutsideLink = (*Link)(nil)
	_ link.Multicaster = (*Link)(nil)
)

// permitted returns why this process can have no packet sockets, or nil.
func permitted() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: RoCEv1 needs root or CAP_NET_RAW, RoCEv2 needs neither: %w", err)
	}
	return unix.Close(fd)
}

// open opens the link of an address.
func (n *Netdev) open(addr netip.Addr) (_ link.Link, err error) {
	l := &Link{addr: addr, claim: -1}
	l.rx.fd, l.tx.fd = -1, -1
	defer func() {
		if err != nil {
			l.release()
			err = fmt.Errorf("open RoCEv1 link on %v of %s: %w", link.GIDAddr(addr), n.Name(), err)
		}
	}()
	s, err := n.State()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.Addrs, addr) {
		return nil, errors.New("the network interface does not have this address")
	}
	l.index, l.mtu = s.Index, s.MTU
	lo, err := net.InterfaceByName(loopback)
	if err != nil {
		return nil, err
	}
	l.loopback = lo.Index
	if err := l.take(); err != nil {
		return nil, err
	}
	if err := l.kernel.open(l); err != nil {
		return nil, err
	}
	// The socket gets frames only once it is bound, when the filter is in place.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	l.rx.fd = fd
	if l.tx.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, err
	}
	filter := l.filter()
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return nil, fmt.Errorf("set socket option SO_ATTACH_FILTER: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer) // as far as the system permits
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol}); err != nil {
		return nil, err
	}
	if err := l.waiter.init(fd); err != nil {
		return nil, err
	}
	l.rx.init(netip.AddrPortFrom(addr, link.PortV1), &l.groups)
	l.tx.init(l)
	return l, nil
}

// protocol is the type of frames, in the byte order of the network.
var protocol = binary.NativeEndian.Uint16([]byte{link.EtherTypeV1 >> 8, link.EtherTypeV1 & 0xff})

// socketBuffer is the size in bytes of the socket's buffers.
const socketBuffer = 4 << 20

// take takes the address among all processes of the network namespace.
func (l *Link) take() (err error) {
	if l.claim, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	name := fmt.Sprintf("@adverb/rocev1/%d/%v", l.index, link.GIDAddr(l.addr))
	err = unix.Bind(l.claim, &unix.SockaddrUnix{Name: name})
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("another program, or another device of this one, has it, and RoCEv1's addresses are not shared: %w", err)
	}
	return err
}

// The classic BPF that a filter is made of, and the offsets of what a program loads besides the packet, which begins with
// the GRH.
const (
	bpfLoadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfLoadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	bpfEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfAnd      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	bpfReturn   = unix.BPF_RET | unix.BPF_K

	bpfPacketType = 0xfffff000 + 4
	bpfInterface  = 0xfffff000 + 8

	dgidAt = 24
)

// filter returns a program that lets frames pass which came by the interface or by loopback, for this host, and are for
// the address or a group.
func (l *Link) filter() []unix.SockFilter {
	gid := l.addr.As16()
	var f []unix.SockFilter
	var toDrop, toAccept []int // instructions that jump there if they compare equal, or unequal
	add := func(code uint16, k uint32) { f = append(f, unix.SockFilter{Code: code, K: k}) }
	unless := func(k uint32) { toDrop = append(toDrop, len(f)); add(bpfEqual, k) }
	when := func(k uint32) { toAccept = append(toAccept, len(f)); add(bpfEqual, k) }

	add(bpfLoadWord, bpfPacketType)
	for _, t := range []uint32{unix.PACKET_OTHERHOST, unix.PACKET_OUTGOING} {
		f = append(f, unix.SockFilter{Code: bpfEqual, Jf: 1, K: t}, unix.SockFilter{Code: bpfReturn})
	}
	add(bpfLoadWord, bpfInterface)
	f = append(f, unix.SockFilter{Code: bpfEqual, Jt: 1, K: uint32(l.index)})
	unless(uint32(l.loopback))
	add(bpfLoadByte, dgidAt)
	when(0xff) // a group of IPv6
	for i := 0; i < 16; i += 4 {
		word := binary.BigEndian.Uint32(gid[i:])
		add(bpfLoadWord, uint32(dgidAt+i))
		if i < 12 || !l.addr.Is4In6() {
			unless(word)
			continue
		}
		when(word)
		add(bpfAnd, 0xf0000000)
		unless(0xe0000000) // a group of IPv4
	}
	accept := len(f)
	add(bpfReturn, 1<<16)
	add(bpfReturn, 0)
	for _, i := range toAccept {
		f[i].Jt = uint8(accept - i - 1)
	}
	for _, i := range toDrop {
		f[i].Jf = uint8(accept + 1 - i - 1)
	}
	return f
}

// Addr implements link.Link.
func (l *Link) Addr() netip.AddrPort { return netip.AddrPortFrom(l.addr, link.PortV1) }

// Source implements link.Link.
func (l *Link) Source(uint32) netip.AddrPort { return l.Addr() }

// MaxTrain implements link.Link.
func (l *Link) MaxTrain() int { return 1 }

// FromOutside implements link.OutsideLink.
func (l *Link) FromOutside() {}

// Stats implements link.Link.
func (l *Link) Stats() link.Stats {
	var s link.Stats
	l.tx.stats(&s)
	l.rx.stats(&s)
	return s
}

// Close implements link.Link.
func (l *Link) Close() error {
	if l.closed.Swap(true) {
		return link.ErrClosed
	}
	l.release()
	return nil
}

// release closes what is open.
func (l *Link) release() {
	l.waiter.close()
	l.rx.close()
	l.tx.close()
	l.kernel.close()
	if l.claim >= 0 {
		unix.Close(l.claim)
	}
}

// waiter waits for the socket.
type waiter struct {
	file  *os.File // the socket again
	raw   syscall.RawConn
	ready func(fd uintptr) bool
	woken atomic.Bool
	over  atomic.Bool
}

func (w *waiter) init(fd int) error {
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.file = os.NewFile(uintptr(again), "packet socket")
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return err
	}
	w.ready = func(fd uintptr) bool {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds[:], 0)
		return n > 0 || w.woken.Load() || w.over.Load()
	}
	return nil
}

// Wait implements link.Link.
func (w *waiter) Wait(d time.Duration) error {
	var deadline time.Time
	if d >= 0 {
		deadline = time.Now().Add(d)
	}
	if w.over.Load() || w.file.SetReadDeadline(deadline) != nil {
		return link.ErrClosed
	}
	_ = w.raw.Read(w.ready) // fails at the deadline and after close only
	w.woken.Store(false)
	if w.over.Load() {
		return link.ErrClosed
	}
	return nil
}

// Wake implements link.Link. The deadline ends a Wait that has looked already whether it was woken.
func (w *waiter) Wake() {
	w.woken.Store(true)
	_ = w.file.SetReadDeadline(time.Unix(1, 0))
}

func (w *waiter) close() {
	w.over.Store(true)
	if w.file != nil {
		w.file.Close()
	}
}

// groups are the multicast groups that a link has joined.
type groups struct {
	mu sync.RWMutex
	in map[netip.Addr]bool
}

func (g *groups) has(group netip.Addr) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.in[group]
}

// Join implements link.Multicaster.
func (l *Link) Join(group netip.Addr) error {
	if err := link.CheckGroup(l.addr, group); err != nil {
		return err
	}
	return l.member("join", group, unix.PACKET_ADD_MEMBERSHIP, false, link.ErrJoined)
}

// Leave implements link.Multicaster.
func (l *Link) Leave(group netip.Addr) error {
	return l.member("leave", group, unix.PACKET_DROP_MEMBERSHIP, true, link.ErrNotJoined)
}

// member changes the membership in a group, which must be as was says.
func (l *Link) member(verb string, group netip.Addr, option int, was bool, otherwise error) error {
	g := &l.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.closed.Load() {
		return link.ErrClosed
	}
	if g.in[group] != was {
		return link.GroupError(verb, l.addr, group, otherwise)
	}
	mac, _ := link.MACOf(group)
	m := unix.PacketMreq{Ifindex: int32(l.index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(m.Address[:], mac[:])
	l.tx.mu.Lock()
	err := unix.SetsockoptPacketMreq(l.tx.fd, unix.SOL_PACKET, option, &m)
	l.tx.mu.Unlock()
	if err != nil && !was {
		return link.GroupError(verb, l.addr, group, err)
	}
	if g.in == nil {
		g.in = map[netip.Addr]bool{}
	}
	if was {
		delete(g.in, group)
	} else {
		g.in[group] = true
	}
	return nil
}
