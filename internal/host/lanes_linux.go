//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
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
//	addresses                          ---------->    is the address mine?
//	is there a lane to it?             <----------    yes, and the receiver's name
//	addresses, the lane's memfd, bell  ---------->    is the memfd sealed and right?
//	                                   <----------    yes, and the receiver's bell
//
// A process has several blocks. By the receiver's name, a random number, the sender knows that one more block is of a
// receiver to which it has a lane, and takes that.
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
	// A lane takes laneDescriptors descriptors at either end: the socket, and the other end's bell. Lanes, and the wills of
	// other processes, leave the program one part in sparePart of the descriptors that it may have.
	laneDescriptors = 2
	sparePart       = 4
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
	laneVersion = 6

	laneRequest  = 1 + 16 + 16 // version, from, to
	laneFiles    = 2           // the memory, the sender's bell
	laneReceiver = 1 + 8       // version, the receiver's name
	laneAnswer   = 1           // version

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
	name    uint64        // at random, of this device's shard as a receiver
	time    time.Duration // laneTime, but in tests
	dialing sync.Mutex    // held while a lane is made; answering one needs mu

	mu      sync.Mutex
	closed  bool
	servers []*net.UnixListener
	conns   map[*net.UnixConn]struct{}
	outs    map[laneKey]*shm.Out // several blocks may be of one receiver
	made    map[receiver]*shm.Out
	refused map[laneKey]time.Time
	inboxes map[netip.Addr]*shm.Inbox
}

type laneKey struct {
	from, to netip.Addr
	block    uint32
}

// receiver is where a lane leads, and from which address.
type receiver struct {
	from, to netip.Addr
	name     uint64
}

// ShareMemory lets packets between processes of this host go by shared memory. It is called before
// anything else is. A process that is alone has nobody to share it with.
func (n *Netdev) ShareMemory() {
	if n.alone != nil {
		return
	}
	n.lanes.on, n.lanes.time, n.lanes.name = true, laneTime, rand.Uint64()
	n.lanes.conns = map[*net.UnixConn]struct{}{}
	n.lanes.outs = map[laneKey]*shm.Out{}
	n.lanes.made = map[receiver]*shm.Out{}
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
	made, c, err := n.dialLane(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused[key] = time.Now()
		return nil
	}
	o = made.Out
	if s.closed {
		if c != nil {
			c.Close()
			o.Close()
		}
		return nil
	}
	o.Use(1)
	s.outs[key] = o
	if c == nil { // it was there
		return o
	}
	s.made[made.to] = o
	s.conns[c] = struct{}{}
	n.served.Go(func() {
		takeAnswers(c, o)
		s.mu.Lock()
		s.forget(o)
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
	_, refused := s.refused[key]
	return nil, !refused
}

// to returns the lane to a receiver, or nil. It reports whether one may be made.
func (s *lanes) to(r receiver) (o *shm.Out, make bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.made[r]; o != nil && !o.Broken() {
		return o, false
	}
	return nil, len(s.made) < maxLanes || s.evict()
}

// evict closes a lane that no QP uses. The caller holds s.mu.
func (s *lanes) evict() bool {
	for _, o := range s.made {
		if o.Users() == 0 {
			s.forget(o)
			o.Hangup()
			return true
		}
	}
	return false
}

// forget has a lane found no more. The caller holds s.mu.
func (s *lanes) forget(o *shm.Out) {
	maps.DeleteFunc(s.outs, func(_ laneKey, other *shm.Out) bool { return other == o })
	maps.DeleteFunc(s.made, func(_ receiver, other *shm.Out) bool { return other == o })
}

// outTo is a lane, and where it leads.
type outTo struct {
	*shm.Out
	to receiver
}

// dialLane finds the lane to the receiver that a block is of. It returns no connection if there is one, and else makes
// one and hands it over.
func (n *Netdev) dialLane(key laneKey) (o outTo, c *net.UnixConn, err error) {
	c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: laneName(key.block), Net: "unixpacket"})
	if err != nil {
		return o, nil, err
	}
	c.SetDeadline(time.Now().Add(n.lanes.time))
	o.to, err = askReceiver(c, key)
	make := false
	if err == nil {
		o.Out, make = n.lanes.to(o.to)
	}
	switch {
	case err != nil || o.Out != nil:
		c.Close()
		return o, nil, err
	case !make || !sparesDescriptors(c):
		err = errLanes
	default:
		o.Out, err = n.handLane(c, key)
	}
	if err != nil {
		c.Close()
		return o, nil, err
	}
	return o, c, nil
}

var errLanes = errors.New("there are so many lanes, or so few descriptors, that no more are made")

// sparesDescriptors reports whether a lane, or a will, by a connection leaves the program descriptors. The kernel gives out
// the lowest number that is free.
func sparesDescriptors(c *net.UnixConn) bool {
	var limit unix.Rlimit
	raw, err := c.SyscallConn()
	if err != nil || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return false
	}
	spares := false
	err = raw.Control(func(fd uintptr) { spares = uint64(fd)+laneDescriptors <= limit.Cur-limit.Cur/sparePart })
	return err == nil && spares
}

// askReceiver asks the process at the other end which receiver the block is of.
func askReceiver(c *net.UnixConn, key laneKey) (r receiver, err error) {
	if _, err := ourPeer(c); err != nil {
		return r, err
	}
	if _, err := c.Write(laneAddrs(key)); err != nil {
		return r, err
	}
	answer, fds, err := receiveFiles(c, laneReceiver)
	closeAll(fds)
	if err == nil && answer[0] != laneVersion {
		err = errMessage
	}
	if err != nil {
		return r, err
	}
	return receiver{key.from, key.to, binary.NativeEndian.Uint64(answer[1:])}, nil
}

// laneAddrs is the request for a lane or, without descriptors, the question for its receiver.
func laneAddrs(key laneKey) []byte {
	return appendAddr(appendAddr([]byte{laneVersion}, key.from), key.to)
}

// handLane makes a lane and hands it over.
func (n *Netdev) handLane(c *net.UnixConn, key laneKey) (*shm.Out, error) {
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
	if _, _, err = c.WriteMsgUnix(laneAddrs(key), unix.UnixRights(fd, bell), nil); err != nil {
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
			ok := !s.closed && len(s.conns) < 4*maxLanes && sparesDescriptors(c)
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
	if err == nil && b[0] == laneVersion && len(fds) == 0 { // the question
		if err = n.tellReceiver(c, addrAt(b[1+16:])); err == nil {
			b, fds, err = receiveFiles(c, laneRequest)
		}
	}
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
	if !n.hasAddr(to) {
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

// tellReceiver answers the question for the receiver of what goes to an address.
func (n *Netdev) tellReceiver(c *net.UnixConn, to netip.Addr) error {
	if !n.hasAddr(to) {
		return errMessage
	}
	_, err := c.Write(binary.NativeEndian.AppendUint64([]byte{laneVersion}, n.lanes.name))
	return err
}

// hasAddr reports whether the network interface has an address.
func (n *Netdev) hasAddr(addr netip.Addr) bool {
	state, err := n.State()
	return err == nil && slices.ContainsFunc(state.Addrs, func(a netip.Addr) bool { return a.Unmap().WithZone("") == addr })
}

// ourPeer returns the process at the other end, and fails unless it is of this user. It may be this one.
func ourPeer(c *net.UnixConn) (user.Process, error) {
	p, err := user.PeerOfConn(c)
	if err == nil {
		err = p.Check()
	}
	return p, err
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
