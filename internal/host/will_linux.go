//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A kernel tells the peers of a program that dies. Here other processes at the same address tell them. Each
// process writes the messages that are to be sent at its death, its last words, into memory that it shares with a few
// other processes, its heirs. This memory, a memfd, is the will. A unix connection to each heir, which carries nothing more,
// breaks when the process ends, however it ends, so that the heir knows of the end from the kernel. The heir then sends the
// last words.
//
// Nobody trusts another user: both ends ask the kernel who the other is. A process that only stands
// still keeps its connections, and so its heirs stay silent.

// The choices of this implementation.
const (
	// A will has room for maxWords messages. Further ones are not bequeathed.
	maxWords = 1 << 16

	// A process has heirsWanted heirs at an address, if there are so many other processes. An heir may die together with
	// the process.
	heirsWanted = 2

	// A process takes on up to maxWards wills.
	maxWards = 256

	// Up to maxCandidates processes that have sent probes are remembered as possible heirs.
	maxCandidates = 64

	// A process that wants an heir has willTime to hand its will over.
	willTime = time.Second

	// If the memory of a will cannot be made, the next attempt is willAgain later. A process may be short of
	// files or memory for a while.
	willAgain = time.Second

	// Messages are sent wordsBatch at a time, wordsPause apart.
	wordsBatch = 64
	wordsPause = time.Millisecond
)

// wordsAt are the times from the death on at which the last words are sent: several times, since messages may be
// lost, and nobody hears the answers.
var wordsAt = [...]time.Duration{0, 200 * time.Millisecond, time.Second, 3 * time.Second}

// A message of a will. It counts if its first word is 1.
const (
	wordsClass = 4 // traffic class, 1 byte
	wordsFrom  = 8
	wordsTo    = wordsFrom + 16
	wordsMAD   = wordsTo + 16
	wordsSize  = wordsMAD + wire.MADSize
	willSize   = maxWords * wordsSize
)

// heirName is the name of the socket at which the process with a block takes wills.
func heirName(block uint32) string { return fmt.Sprintf("@adverb/heir/%03x", block) }

// words is a message in a will.
type words []byte

func (w words) valid() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&w[0])) }

func (w words) set(from, to netip.Addr, class uint8, mad []byte) {
	a, b := from.As16(), to.As16()
	w[wordsClass] = class
	copy(w[wordsFrom:], a[:])
	copy(w[wordsTo:], b[:])
	clear(w[wordsMAD+copy(w[wordsMAD:wordsSize], mad) : wordsSize])
	w.valid().Store(1)
}

// will is the will of this process.
type will struct {
	mu     sync.Mutex
	closed bool
	fd     int
	mem    []byte    // nil before the first words, and where there is no memfd
	failed time.Time // when the latest attempt to make mem failed; zero if none did
	free   []int     // rows that were used before
	used   int       // rows that were ever used
	live   map[netip.Addr]int
	heirs  map[*Link][]heir
}

// heir is a process that has the will.
type heir struct {
	fd    int
	block uint32
}

// gone reports whether the heir has ended.
func (h heir) gone() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(h.fd, b[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
}

// LastWords has a message to QP1 sent, from one of the addresses of this host to another, when this
// process ends without having called revoke. Another process that uses the address sends it. Where
// there is none, nobody does.
func (n *Netdev) LastWords(from, to netip.Addr, class uint8, mad []byte) (revoke func()) {
	from = from.Unmap().WithZone("")
	n.mu.Lock()
	l := n.links[from]
	n.mu.Unlock()
	w := &n.will
	w.mu.Lock()
	defer w.mu.Unlock()
	if l == nil || w.closed || !w.open(newWill) {
		return func() {}
	}
	row := w.used
	if k := len(w.free); k > 0 {
		row = w.free[k-1]
		w.free = w.free[:k-1]
	} else if row == maxWords {
		return func() {}
	} else {
		w.used++
	}
	w.row(row).set(from, to, class, mad)
	w.live[from]++
	if len(w.heirs[l]) == 0 {
		w.appoint(l)
	}
	return sync.OnceFunc(func() { w.revoke(row, from) })
}

func (w *will) row(i int) words { return w.mem[i*wordsSize:][:wordsSize] }

func (w *will) revoke(row int, from netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.row(row).valid().Store(0)
	w.free = append(w.free, row)
	w.live[from]--
}

// open has make make the memory, unless there is memory already. It reports false while the system gives none. The caller
// holds w.mu.
func (w *will) open(make func() (fd int, mem []byte, err error)) bool {
	if w.mem != nil {
		return true
	}
	if !w.failed.IsZero() && time.Since(w.failed) < willAgain {
		return false
	}
	fd, mem, err := make()
	if err != nil {
		w.failed = time.Now()
		return false
	}
	w.fd, w.mem = fd, mem
	w.live, w.heirs = map[netip.Addr]int{}, map[*Link][]heir{}
	return true
}

// newWill makes the memory of a will.
func newWill() (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate("adverb-will", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	if err = unix.Ftruncate(fd, willSize); err == nil {
		// An heir that reads the memory must not meet the end of a file that has shrunk.
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err == nil {
			mem, err = unix.Mmap(fd, 0, willSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, mem, err
}

// appoint is called from time to time: heirs may have ended, and others have come.
func (n *Netdev) appoint(l *Link) {
	w := &n.will
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && w.mem != nil && w.live[l.Addr().Addr()] > 0 {
		w.appoint(l)
	}
}

// appoint finds as many heirs as are wanted, among the processes at the link's address. The caller
// holds w.mu.
func (w *will) appoint(l *Link) {
	heirs := w.heirs[l]
	heirs = slices.DeleteFunc(heirs, func(h heir) bool {
		gone := h.gone()
		if gone {
			unix.Close(h.fd)
		}
		return gone
	})
	if len(heirs) < heirsWanted {
		for _, block := range l.steering.candidates() {
			if slices.ContainsFunc(heirs, func(h heir) bool { return h.block == block }) {
				continue
			}
			fd, err := w.handOver(block, l.Addr().Addr())
			if err != nil {
				l.steering.dismiss(block)
				continue
			}
			if heirs = append(heirs, heir{fd, block}); len(heirs) == heirsWanted {
				break
			}
		}
	}
	w.heirs[l] = heirs
}

// handOver hands the will to the process with a block, and returns the connection, which breaks at the death
// of either process. It does not block.
func (w *will) handOver(block uint32, addr netip.Addr) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: heirName(block)})
	if err == nil {
		err = checkPeer(fd)
	}
	if err == nil {
		b := appendAddr([]byte{messageVersion}, addr)
		err = unix.Sendmsg(fd, b, unix.UnixRights(w.fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// checkPeer fails unless the process at the other end is another one, of this user.
func checkPeer(fd int) error {
	p, err := user.PeerOf(fd)
	if err == nil {
		err = p.Check()
	}
	if err == nil && p.PID == os.Getpid() { // another device of this process, which dies with it
		err = unix.EINVAL
	}
	return err
}

// close has the heirs send the messages in the will when a device closes. These are of connections whose peers have
// not confirmed the end.
func (w *will) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, heirs := range w.heirs {
		for _, h := range heirs {
			unix.Close(h.fd)
		}
	}
	if w.mem != nil {
		unix.Munmap(w.mem)
		unix.Close(w.fd)
		w.mem = nil
	}
}

// wards are the processes whose heir this one is.
type wards struct {
	mu     sync.Mutex
	closed bool
	done   chan struct{} // closed with the device; nil before there is a server
	server *net.UnixListener
	conns  map[*net.UnixConn]struct{}
}

// takeWills begins to take the wills of other processes, under the name of this process's block.
func (n *Netdev) takeWills(block uint32) {
	server, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: heirName(block), Net: "unixpacket"})
	if err != nil {
		return // others have to do without this heir
	}
	s := &n.wards
	s.server, s.conns, s.done = server, map[*net.UnixConn]struct{}{}, make(chan struct{})
	n.served.Go(func() {
		handover.AcceptAll(server, func(c *net.UnixConn, from user.Process) {
			if from.PID == os.Getpid() || !handover.Spares(c) { // another device of this process dies with it
				c.Close()
			} else if s.add(c) {
				n.served.Go(func() { n.inherit(c) })
			}
		})
	})
}

// add takes note of a connection, unless there are too many or the end has come.
func (s *wards) add(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxWards {
		c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *wards) remove(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.Close()
}

func (s *wards) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.server != nil {
		s.server.Close()
		close(s.done)
	}
	for c := range s.conns {
		c.Close()
	}
}

// inherit takes a will of another process of this user, waits for its death, and sends the last words.
func (n *Netdev) inherit(c *net.UnixConn) {
	defer n.wards.remove(c)
	if l, all := n.awaitDeath(c, willTime); len(all) > 0 {
		l.sayLastWords(all)
	}
}

// awaitDeath takes a will, which must come within a time, and waits for the death of the will's owner. It
// returns the last words, and the link to send them by. It returns no words if the will is malformed, or
// if the device closes before.
func (n *Netdev) awaitDeath(c *net.UnixConn, within time.Duration) (*Link, []link.Datagram) {
	c.SetReadDeadline(time.Now().Add(within))
	addr, mem, err := receiveWill(c)
	if err != nil {
		return nil, nil
	}
	defer unix.Munmap(mem)
	n.mu.Lock()
	l := n.links[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, nil
	}
	c.SetReadDeadline(time.Time{})
	var b [1]byte
	if _, err := c.Read(b[:]); err != io.EOF { // this device is closing
		return nil, nil
	}
	return l, l.lastWords(mem)
}

// receiveWill receives the memory of a will, and the address from which its messages are to be sent.
func receiveWill(c *net.UnixConn) (addr netip.Addr, mem []byte, err error) {
	b, fds, err := handover.Receive(c, 1+16)
	if err != nil {
		return addr, nil, err
	}
	defer handover.CloseAll(fds)
	if b[0] != messageVersion || len(fds) != 1 {
		return addr, nil, errMessage
	}
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || unix.Fstat(fds[0], &st) != nil || st.Size != willSize {
		return addr, nil, errMessage // a file that shrinks while it is read kills the reader
	}
	mem, err = unix.Mmap(fds[0], 0, willSize, unix.PROT_READ, unix.MAP_SHARED)
	return addrAt(b[1:]), mem, err
}

// lastWords returns the messages in the will of a process that has ended, as far as they are from the link's address.
func (l *Link) lastWords(mem []byte) (all []link.Datagram) {
	// A process uses the rows of its will from the first on, and has never touched the memory behind them.
	for row := 0; row < maxWords; row++ {
		w := words(mem[row*wordsSize:][:wordsSize])
		if w.valid().Load() == 1 && addrAt(w[wordsFrom:]) == l.Addr().Addr() {
			all = append(all, l.datagram(addrAt(w[wordsTo:]), w[wordsClass], w[wordsMAD:wordsSize]))
		}
		if row%wordsChunk == wordsChunk-1 && neverUsed(mem[(row+1-wordsChunk)*wordsSize:][:wordsChunk*wordsSize]) {
			break
		}
	}
	return all
}

// sayLastWords sends last words, several times.
func (l *Link) sayLastWords(all []link.Datagram) {
	start := time.Now()
	for _, at := range wordsAt {
		if !l.pause(at - time.Since(start)) {
			return
		}
		for batch := range slices.Chunk(all, wordsBatch) {
			l.Send(batch)
			if !l.pause(wordsPause) {
				return
			}
		}
	}
}

// If wordsChunk rows in a row were never used, no row behind them was.
const wordsChunk = 64

// neverUsed reports whether no message of a part of a will was ever written.
func neverUsed(mem []byte) bool {
	for row := range slices.Chunk(mem, wordsSize) {
		if binary.NativeEndian.Uint64(row[wordsFrom+8:]) != 0 || binary.NativeEndian.Uint64(row[wordsFrom:]) != 0 {
			return false
		}
	}
	return true
}

// pause waits, and reports false if the device closes meanwhile.
func (l *Link) pause(d time.Duration) bool {
	t := time.NewTimer(max(0, d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.netdev.wards.done:
		return false
	}
}

// datagram makes the datagram that carries a MAD from QP1 to QP1.
func (l *Link) datagram(to netip.Addr, class uint8, mad []byte) link.Datagram {
	src, dst := l.Source(0), netip.AddrPortFrom(to, l.Addr().Port())
	p := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQP: wire.GSIQPN},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SrcQP: wire.GSIQPN},
		Payload: slices.Clone(mad),
	}
	b := p.AppendTo(nil)
	flow := wire.NewFlow(src, dst)
	flow.Seal(0, b)
	return link.Datagram{Src: src, Dst: dst, Payload: b, TrafficClass: class}
}
