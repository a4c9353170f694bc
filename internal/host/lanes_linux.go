//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/user"
)

// Between processes of one host packets need no network: they go by lanes, which are memory that two
// processes share (package shm). A lane leads one way, from an address of this process to an address of the
// process that owns a block of QPNs. The sender makes it when a QP is connected, before the QP's first
// packet. So the packets of a QP never change the way, and cannot overtake one another.
//
//	sender                                            receiver
//	connect to @adverb/lane/<block>    ---------->    accept
//	SO_PEERCRED: my user?                             SO_PEERCRED: my user?
//	addresses, the lane's memfd, bell  ---------->    is the address mine, the memfd sealed and right?
//	                                   <----------    yes, and the receiver's bell
//
// The socket stays open. By it the sender tells which files it lends (see package shm), and the receiver which
// of them it has mapped:
//
//	a file's name, size, memfd         ---------->    sealed? mapped
//	                                   <----------    the file's name
//	the name of one that is withdrawn  ---------->    unmapped
//
// By the same socket the sender asks for access to regions of the receiver's:
//
//	slot, QPNs, rkey                   ---------->    may it?
//	mapped                             <----------    slot, rights, bounds, memfd; or no rights
//	unmapped                           <----------    slot of one that is revoked
//
// It breaks when either process ends, however it ends: then the sender goes back to UDP, and the receiver
// gives the memory back. An abstract name is of one network namespace. A process without lanes, or of another
// user, does not answer with yes, and its packets go by UDP for as long as the QP is connected.

// What this implementation chose.
const (
	// A device makes up to maxLanes lanes, and each of its addresses takes as many.
	maxLanes = 64
	// The process at the other end has laneTime to answer. One that is stopped does not.
	laneTime = 250 * time.Millisecond
	// A process that took no lane is not asked again for laneAgain.
	laneAgain = time.Second
	// acceptAgain is the time until connections are taken again after it has failed.
	acceptAgain = 100 * time.Millisecond
	// Lanes are looked at once in bellless where the system denies the bell.
	bellless = time.Millisecond
)

const (
	// laneVersion is that of what both ends know of a lane. Processes of different versions have no lanes.
	laneVersion = 5

	laneRequest = 1 + 16 + 16 // version, from, to
	laneFiles   = 2           // the memory, the sender's bell
	laneAnswer  = 1           // version

	fileMessage = 1 + 8 + 8 // kind; name, size; or slot, QPNs, key
	fileAnswer  = 1 + 7*8   // kind; name; or slot and rights, generation, base, length, name, size, whether it may be changed

	fileLent      = 1
	fileWithdrawn = 2
	accessAsked   = 3

	fileMapped    = 1
	accessGranted = 2
	accessRevoked = 3
)

func laneName(block uint32) string {
	return laneBox + boxName{block: block}.String()[len("@adverb/qpn/"):]
}

const laneBox = "@adverb/lane/"

// lanes are those of a device.
type lanes struct {
	on      bool          // before the first Claim
	time    time.Duration // laneTime, but in tests
	dialing sync.Mutex    // held while a lane is made; answering one needs mu

	mu      sync.Mutex
	closed  bool
	servers []*net.UnixListener
	conns   map[*net.UnixConn]struct{}
	outs    map[laneKey]*shm.Out
	refused map[laneKey]time.Time
	inboxes map[netip.Addr]*shm.Inbox
}

type laneKey struct {
	from, to netip.Addr
	block    uint32
}

// ShareMemory lets packets between processes of this host go by shared memory. It is called before
// anything else is. A process that is alone has nobody to share it with.
func (n *Netdev) ShareMemory() {
	if n.alone != nil {
		return
	}
	n.lanes.on, n.lanes.time = true, laneTime
	n.lanes.conns = map[*net.UnixConn]struct{}{}
	n.lanes.outs = map[laneKey]*shm.Out{}
	n.lanes.refused = map[laneKey]time.Time{}
	n.lanes.inboxes = map[netip.Addr]*shm.Inbox{}
}

// Inbox returns where the lanes to an address of this device end, or nil if it has none.
func (n *Netdev) Inbox(at netip.Addr) *shm.Inbox {
	s := &n.lanes
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on || s.closed {
		return nil
	}
	at = at.Unmap().WithZone("")
	b := s.inboxes[at]
	if b == nil {
		b = new(shm.Inbox)
		s.inboxes[at] = b
	}
	return b
}

// Lane returns a lane from an address of this device to the process that owns a QPN, at an address. It
// returns nil where that process takes none: the packets then go by the network. It takes laneTime at
// most, for each caller. The lane has one user more, which gives it up by Use(-1).
func (n *Netdev) Lane(from, to netip.Addr, qpn uint32) *shm.Out {
	s := &n.lanes
	key := laneKey{from.Unmap().WithZone(""), to.Unmap().WithZone(""), qpn >> blockBits}
	if !s.on {
		return nil
	}
	s.dialing.Lock()
	defer s.dialing.Unlock()
	o, try := s.find(key)
	if !try {
		return o
	}
	o, c, err := n.dialLane(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused[key] = time.Now()
		return nil
	}
	if s.closed {
		c.Close()
		o.Close()
		return nil
	}
	o.Use(1)
	s.outs[key] = o
	s.conns[c] = struct{}{}
	n.served.Go(func() {
		takeAnswers(c, o)
		s.mu.Lock()
		if s.outs[key] == o {
			delete(s.outs, key)
		}
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
		o.Close()
		n.wake(key.from) // what has waited for room goes by the network
	})
	return o
}

// wake wakes the link of an address, if there is one.
func (n *Netdev) wake(at netip.Addr) {
	n.mu.Lock()
	l := n.links[at]
	n.mu.Unlock()
	if l != nil {
		l.Wake()
	}
}

// find returns a lane that there is, with one user more. It reports whether one should be made.
func (s *lanes) find(key laneKey) (o *shm.Out, try bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	if o := s.outs[key]; o != nil && !o.Broken() {
		o.Use(1)
		return o, false
	}
	for k, at := range s.refused {
		if time.Since(at) >= laneAgain {
			delete(s.refused, k)
		}
	}
	if _, ok := s.refused[key]; ok {
		return nil, false
	}
	return nil, len(s.outs) < maxLanes || s.evict()
}

// evict closes a lane that no QP uses. The caller holds s.mu.
func (s *lanes) evict() bool {
	for key, o := range s.outs {
		if o.Users() == 0 {
			delete(s.outs, key)
			o.Hangup()
			return true
		}
	}
	return false
}

// takeAnswers takes note of the files that the receiver of a lane has mapped, and of the access that it grants. It
// returns when the process at the other end has ended or closed its device, or this one has.
func takeAnswers(c *net.UnixConn, o *shm.Out) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := receiveFiles(c, fileAnswer)
		if err != nil && err != errNoDescriptor { // without the memory a grant is none
			return
		}
		var words [7]uint64
		for i := range words {
			words[i] = binary.NativeEndian.Uint64(b[1+8*i:])
		}
		switch {
		case b[0] == fileMapped && len(fds) == 0:
			o.Mapped(words[0])
		case b[0] == accessGranted && len(fds) <= 1:
			g := shm.Granted{
				Slot: uint32(words[0]), Rights: uint32(words[0] >> 32), Gen: words[1], Base: words[2], Len: words[3],
				File: shm.File{ID: words[4], FD: -1, Size: int64(words[5])}, Write: words[6] != 0,
			}
			if len(fds) == 1 {
				g.File.FD = fds[0]
			} else {
				g.Rights = 0
			}
			o.Answered(g)
		case b[0] == accessRevoked && len(fds) == 0:
			o.Revoked(uint32(words[0]), words[1])
		default:
			closeAll(fds)
			return
		}
		closeAll(fds)
	}
}

// answerSender tells the sender of a lane words, and hands it a descriptor unless that is negative. It does not block.
func answerSender(c *net.UnixConn, kind byte, fd int, words ...uint64) error {
	b := []byte{kind}
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return sendNow(c, append(b, make([]byte, fileAnswer-len(b))...), rights)
}

// tellGrant tells the sender of a lane what it was granted, or that it was revoked.
func tellGrant(c *net.UnixConn, g shm.Granted, revoked bool) error {
	switch {
	case revoked:
		return answerSender(c, accessRevoked, -1, uint64(g.Slot), g.Gen)
	case g.Rights == 0:
		return answerSender(c, accessGranted, -1, uint64(g.Slot))
	}
	write := uint64(0)
	if g.Write {
		write = 1
	}
	return answerSender(c, accessGranted, g.File.FD, uint64(g.Rights)<<32|uint64(g.Slot), g.Gen, g.Base, g.Len, g.File.ID, uint64(g.File.Size), write)
}

// takeFiles maps the files that the sender of a lane lends, and passes on what it asks for. It returns when
// takeAnswers would.
func takeFiles(c *net.UnixConn, in *shm.In, wake func()) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := receiveFiles(c, fileMessage)
		if err == errNoDescriptor && b[0] == fileLent {
			continue // the sender goes on by copies
		}
		if err != nil {
			return
		}
		f := shm.File{ID: binary.NativeEndian.Uint64(b[1:]), FD: -1, Size: int64(binary.NativeEndian.Uint64(b[9:]))}
		switch {
		case b[0] == accessAsked && len(fds) == 0:
			word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[1+4*i:]) }
			in.Asked(shm.Ask{Slot: word(0), From: word(1), To: word(2), Key: word(3)})
		case b[0] == fileWithdrawn && len(fds) == 0:
			in.Withdrawn(f.ID)
			wake() // to unmap it
		case b[0] == fileLent && len(fds) == 1:
			f.FD = fds[0]
			if in.Map(f) == nil { // else the sender goes on by copies
				err = answerSender(c, fileMapped, -1, f.ID)
			}
			closeAll(fds)
		default:
			closeAll(fds)
			return
		}
		if err != nil {
			return
		}
	}
}

// tellFile tells the receiver of a lane of a file that is lent, or withdrawn. It does not block: a receiver that
// is stopped reads nothing.
func tellFile(c *net.UnixConn, f shm.File, withdrawn bool) error {
	b, rights := []byte{fileLent}, []byte(nil)
	if withdrawn {
		b[0] = fileWithdrawn
	} else {
		rights = unix.UnixRights(f.FD)
	}
	return sendNow(c, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, f.ID), uint64(f.Size)), rights)
}

// tellAsk asks the receiver of a lane for access. It does not block.
func tellAsk(c *net.UnixConn, a shm.Ask) error {
	b := []byte{accessAsked}
	for _, w := range []uint32{a.Slot, a.From, a.To, a.Key} {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return sendNow(c, b, nil)
}

// sendNow sends a message, unless it would have to wait.
func sendNow(c *net.UnixConn, b, rights []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, failed)
}

// dialLane makes a lane and hands it over.
func (n *Netdev) dialLane(key laneKey) (*shm.Out, *net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: laneName(key.block), Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	o, err := n.handLane(c, key)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return o, c, nil
}

func (n *Netdev) handLane(c *net.UnixConn, key laneKey) (*shm.Out, error) {
	if _, err := ourPeer(c); err != nil {
		return nil, err
	}
	box := n.Inbox(key.from)
	if box == nil {
		return nil, net.ErrClosed
	}
	bell, err := box.ShareBell()
	if err != nil {
		return nil, err
	}
	defer unix.Close(bell)
	o, fd, err := shm.NewOut()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	c.SetDeadline(time.Now().Add(n.lanes.time))
	request := appendAddr(appendAddr([]byte{laneVersion}, key.from), key.to)
	if _, _, err = c.WriteMsgUnix(request, unix.UnixRights(fd, bell), nil); err != nil {
		o.Close()
		return nil, err
	}
	answer, fds, err := receiveFiles(c, laneAnswer)
	var theirs shm.Bell
	switch {
	case err != nil:
	case answer[0] != laneVersion || len(fds) != 1:
		closeAll(fds)
		err = errMessage
	default:
		theirs, err = shm.NewBell(fds[0])
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	o.Connect(theirs, func() { c.Close() },
		func(f shm.File, withdrawn bool) error { return tellFile(c, f, withdrawn) },
		func(a shm.Ask) error { return tellAsk(c, a) })
	return o, nil
}

// takeLanes begins to take the lanes of other processes that lead to QPs of a block.
func (n *Netdev) takeLanes(block uint32) {
	s := &n.lanes
	if !s.on {
		return
	}
	server, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: laneName(block), Net: "unixpacket"})
	if err != nil {
		return // what comes for these QPs comes by UDP
	}
	s.mu.Lock()
	s.servers = append(s.servers, server)
	s.mu.Unlock()
	n.served.Go(func() {
		acceptAll(server, func(c *net.UnixConn, _ user.Process) {
			s.mu.Lock()
			ok := !s.closed && len(s.conns) < 4*maxLanes
			if ok {
				s.conns[c] = struct{}{}
			}
			s.mu.Unlock()
			if !ok {
				c.Close()
				return
			}
			n.served.Go(func() { n.takeLane(c) })
		})
	})
}

// acceptAll hands out the connections of processes of this user, and says who they are, until the server is closed. Those
// of others end here, before they count for anything.
func acceptAll(server *net.UnixListener, take func(*net.UnixConn, user.Process)) {
	acceptEach(server.AcceptUnix, func(c *net.UnixConn) {
		from, err := ourPeer(c)
		if err != nil {
			c.Close()
			return
		}
		take(c, from)
	})
}

// acceptEach hands out what is accepted until the server is closed. Other errors pass: no descriptor to spare, mostly.
func acceptEach(accept func() (*net.UnixConn, error), take func(*net.UnixConn)) {
	for {
		c, err := accept()
		switch {
		case err == nil:
			take(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// takeLane takes a lane, and waits for the end of its sender.
func (n *Netdev) takeLane(c *net.UnixConn) {
	defer func() {
		n.lanes.mu.Lock()
		delete(n.lanes.conns, c)
		n.lanes.mu.Unlock()
		c.Close()
	}()
	to, in, err := n.receiveLane(c)
	if err != nil {
		return
	}
	takeFiles(c, in, func() { n.wake(to) })
	in.Leave()
	n.wake(to) // to drop the lane
}

func (n *Netdev) receiveLane(c *net.UnixConn) (netip.Addr, *shm.In, error) {
	c.SetDeadline(time.Now().Add(n.lanes.time))
	b, fds, err := receiveFiles(c, laneRequest)
	if err != nil {
		return netip.Addr{}, nil, err
	}
	if b[0] != laneVersion || len(fds) != laneFiles {
		closeAll(fds)
		return netip.Addr{}, nil, errMessage
	}
	defer unix.Close(fds[0])
	theirs, err := shm.NewBell(fds[1])
	if err != nil {
		return netip.Addr{}, nil, err
	}
	taken := false
	defer func() {
		if !taken {
			theirs.Close()
		}
	}()
	from, to := addrAt(b[1:]), addrAt(b[1+16:])
	isTo := func(a netip.Addr) bool { return a.Unmap().WithZone("") == to }
	if state, err := n.State(); err != nil || !slices.ContainsFunc(state.Addrs, isTo) {
		return to, nil, errMessage
	}
	box := n.Inbox(to)
	if box == nil {
		return to, nil, net.ErrClosed
	}
	bell, err := box.ShareBell()
	if err != nil {
		return to, nil, err
	}
	defer unix.Close(bell)
	in, err := box.Add(fds[0], theirs, from, maxLanes, func() { c.Close() },
		func(g shm.Granted, revoked bool) error { return tellGrant(c, g, revoked) })
	if err != nil {
		return to, nil, err
	}
	taken = true
	if _, _, err = c.WriteMsgUnix([]byte{laneVersion}, unix.UnixRights(bell), nil); err != nil {
		in.Leave()
		n.wake(to) // to drop the lane
		return to, nil, err
	}
	n.wake(to) // it does not know yet that it has to listen to the bell
	return to, in, nil
}

// ourPeer returns the process at the other end, and fails unless it is of this user. It may be this one.
func ourPeer(c *net.UnixConn) (user.Process, error) {
	p, err := user.PeerOfConn(c)
	if err == nil {
		err = p.Check()
	}
	return p, err
}

// errNoDescriptor says that descriptors came, and that this process has none to spare for them.
var errNoDescriptor = errors.New("too many open files to receive another one")

// receiveFiles receives a message of size bytes, and the descriptors that come with it. With errNoDescriptor the message
// is there, and none of them.
func receiveFiles(c *net.UnixConn, size int) (b []byte, fds []int, err error) {
	b = make([]byte, size+1)
	oob := make([]byte, unix.CmsgSpace(4*(laneFiles+1))) // to see that there are too many
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, nil, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range cmsgs {
		if got, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if n != size {
		closeAll(fds)
		return nil, nil, errMessage
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeAll(fds)
		return b[:n], nil, errNoDescriptor
	}
	return b[:n], fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// close ends all lanes.
func (s *lanes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, server := range s.servers {
		server.Close()
	}
	for c := range s.conns {
		c.Close()
	}
}

// closeUnused gives the memory of lanes back that lead to addresses without a link. The device closes the
// inboxes of the others.
func (n *Netdev) closeUnused() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lanes.mu.Lock()
	defer n.lanes.mu.Unlock()
	for at, b := range n.lanes.inboxes {
		if n.links[at] == nil {
			b.Close()
		}
	}
}

// Wait implements link.Link. The bell of the lanes ends it too.
func (l *Link) Wait(d time.Duration) error {
	b := l.netdev.Inbox(l.Addr().Addr())
	if b == nil || !b.Rings() {
		return l.Link.Wait(d)
	}
	if !l.hearsBell {
		fd, err := b.Bell()
		if err == nil {
			err = l.Watch(fd)
		}
		if err != nil {
			return l.Link.Wait(bellless)
		}
		l.hearsBell = true
	}
	defer b.Awake()
	if !b.Sleep() {
		return nil
	}
	return l.Link.Wait(d)
}
