//go:build !adverb_portable

package lanes

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

	"github.com/adverb-rdma/adverb/internal/handover"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/user"
)

// The choices of this implementation.
const (
	// A device makes up to Max lanes, and each of its addresses takes as many. Up to maxConns connections wait for
	// their lanes, or have one.
	Max      = 64
	maxConns = 4 * Max
	// The process at the other end has answerTime to answer. A stopped process does not answer.
	answerTime = 250 * time.Millisecond
	// A process that took no lane is not asked again for askAgain.
	askAgain = time.Second
)

// The messages by which a lane is made.
const (
	// version changes with everything that both ends must know of a lane. Processes of different versions have no lanes.
	version = 7

	requestSize  = 1 + 16 + 16 // version, from, to
	requestFiles = 2           // the memory, the sender's bell
	receiverSize = 1 + 8       // version, the receiver's name
	answerSize   = 1           // version
)

// Config is the configuration of a device's lanes. All fields are needed.
type Config struct {
	// Name returns the name of the socket at which the owner of a block of QPNs takes lanes.
	Name func(block uint32) string
	// HasAddr reports whether an address is of this device's network interface.
	HasAddr func(netip.Addr) bool
	// Wake wakes the goroutine that waits for packets to, or from, an address of this device.
	Wake func(netip.Addr)
}

// Lanes are the lanes that begin or end at the addresses of a device.
type Lanes struct {
	// Patience is how long the other end may take to answer. A user changes it before the first lane, if at all.
	Patience time.Duration

	config  Config
	name    uint64     // at random: of this device's shard as a receiver
	dialing sync.Mutex // held while a lane is made; to answer the other end takes mu alone
	served  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	servers []*net.UnixListener
	conns   map[*net.UnixConn]struct{}
	outs    map[route]*shm.Out // several blocks may be of one receiver
	made    map[receiver]*shm.Out
	refused map[route]time.Time
	inboxes map[netip.Addr]*shm.Inbox
}

// route is the route of a QP's packets: from an address to the owner of a block at an address.
type route struct {
	from, to netip.Addr
	block    uint32
}

// receiver is where a lane leads, and from which address.
type receiver struct {
	from, to netip.Addr
	name     uint64
}

// New returns the lanes of a device that has none yet.
func New(c Config) *Lanes {
	s := &Lanes{
		Patience: answerTime, config: c, name: rand.Uint64(),
		conns: map[*net.UnixConn]struct{}{}, outs: map[route]*shm.Out{}, made: map[receiver]*shm.Out{},
		refused: map[route]time.Time{}, inboxes: map[netip.Addr]*shm.Inbox{},
	}
	here.Store(s.name, s)
	return s
}

// here are the lanes of this process that are not closed, by their names.
var here sync.Map

// Inbox returns where the lanes to an address of this device end. It returns nil once the lanes are closed.
func (s *Lanes) Inbox(at netip.Addr) *shm.Inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
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

// Lane returns a lane from an address of this device to the process that owns a block, at an address. It
// returns nil where that process takes none: the packets then go by the network. It takes Patience at
// most, for each caller. The lane has one user more, which gives it up by Use(-1).
func (s *Lanes) Lane(from, to netip.Addr, block uint32) *shm.Out {
	key := route{from.Unmap().WithZone(""), to.Unmap().WithZone(""), block}
	s.dialing.Lock()
	defer s.dialing.Unlock()
	o, try := s.find(key)
	if !try {
		return o
	}
	made, c, err := s.dial(key)
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
	if c == nil { // the lane was there
		return o
	}
	s.made[made.to] = o
	s.conns[c] = struct{}{}
	s.served.Go(func() {
		takeAnswers(c, o)
		s.mu.Lock()
		s.forget(o)
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
		o.Close()
		s.config.Wake(key.from) // packets that have waited for room go by the network
	})
	return o
}

// find returns the lane of a route, with one user more, or nil. It reports whether a lane should be made.
func (s *Lanes) find(key route) (o *shm.Out, try bool) {
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
		if time.Since(at) >= askAgain {
			delete(s.refused, k)
		}
	}
	_, refused := s.refused[key]
	return nil, !refused
}

// to returns the lane to a receiver, or nil. It reports whether a lane may be made.
func (s *Lanes) to(r receiver) (o *shm.Out, make bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.made[r]; o != nil && !o.Broken() {
		return o, false
	}
	return nil, len(s.made) < Max || s.evict()
}

// evict closes a lane that no QP uses. The caller holds s.mu.
func (s *Lanes) evict() bool {
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
func (s *Lanes) forget(o *shm.Out) {
	maps.DeleteFunc(s.outs, func(_ route, other *shm.Out) bool { return other == o })
	maps.DeleteFunc(s.made, func(_ receiver, other *shm.Out) bool { return other == o })
}

// outTo is a lane, and where it leads.
type outTo struct {
	*shm.Out
	to receiver
}

// dial finds the lane to the receiver that a block is of. It returns no connection if there is such a lane. Else it makes
// a lane and hands it over by the connection that it returns.
func (s *Lanes) dial(key route) (o outTo, c *net.UnixConn, err error) {
	c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.config.Name(key.block), Net: "unixpacket"})
	if err != nil {
		return o, nil, err
	}
	c.SetDeadline(time.Now().Add(s.Patience))
	o.to, err = askReceiver(c, key)
	make := false
	if err == nil {
		o.Out, make = s.to(o.to)
	}
	switch {
	case err != nil || o.Out != nil:
		c.Close()
		return o, nil, err
	case !make || !handover.Spares(c):
		err = errLanes
	default:
		o.Out, err = s.handOver(c, key, o.to)
	}
	if err != nil {
		c.Close()
		return o, nil, err
	}
	return o, c, nil
}

var errLanes = errors.New("there are so many lanes, or so few descriptors, that no more are made")

// askReceiver asks the process at the other end which receiver the block is of.
func askReceiver(c *net.UnixConn, key route) (r receiver, err error) {
	if _, err := handover.Peer(c); err != nil {
		return r, err
	}
	if _, err := c.Write(key.request()); err != nil {
		return r, err
	}
	answer, fds, err := handover.Receive(c, receiverSize)
	handover.CloseAll(fds)
	if err == nil && answer[0] != version {
		err = handover.ErrMalformed
	}
	if err != nil {
		return r, err
	}
	return receiver{key.from, key.to, binary.NativeEndian.Uint64(answer[1:])}, nil
}

// request is the request for a lane or, without descriptors, the question for its receiver.
func (k route) request() []byte {
	from, to := k.from.As16(), k.to.As16()
	return slices.Concat([]byte{version}, from[:], to[:])
}

// addrAt decodes an address.
func addrAt(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

// handOver makes a lane and hands it over.
func (s *Lanes) handOver(c *net.UnixConn, key route, to receiver) (*shm.Out, error) {
	box := s.Inbox(key.from)
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
	if _, _, err = c.WriteMsgUnix(key.request(), unix.UnixRights(fd, bell), nil); err != nil {
		o.Close()
		return nil, err
	}
	answer, fds, err := handover.Receive(c, answerSize)
	var theirs shm.Bell
	switch {
	case err != nil:
	case answer[0] != version || len(fds) != 1:
		handover.CloseAll(fds)
		err = handover.ErrMalformed
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
	if r, ok := here.Load(to.name); ok {
		o.Beside(r.(*Lanes).Inbox(key.to))
	}
	return o, nil
}

// Listen begins to take the lanes of other processes that lead to QPs of a block.
func (s *Lanes) Listen(block uint32) error {
	server, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.config.Name(block), Net: "unixpacket"})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.servers = append(s.servers, server)
	s.mu.Unlock()
	s.served.Go(func() {
		handover.AcceptAll(server, func(c *net.UnixConn, _ user.Process) {
			s.mu.Lock()
			ok := !s.closed && len(s.conns) < maxConns && handover.Spares(c)
			if ok {
				s.conns[c] = struct{}{}
			}
			s.mu.Unlock()
			if !ok {
				c.Close()
				return
			}
			s.served.Go(func() { s.take(c) })
		})
	})
	return nil
}

// take takes a lane, and waits for the end of its sender.
func (s *Lanes) take(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	to, in, err := s.receive(c)
	if err != nil {
		return
	}
	takeFiles(c, in, func() { s.config.Wake(to) })
	in.Leave()
	s.config.Wake(to) // to drop the lane
}

// receive receives a lane, and returns the address to which it leads.
func (s *Lanes) receive(c *net.UnixConn) (netip.Addr, *shm.In, error) {
	c.SetDeadline(time.Now().Add(s.Patience))
	b, fds, err := handover.Receive(c, requestSize)
	if err == nil && b[0] == version && len(fds) == 0 { // the question
		if err = s.tellReceiver(c, addrAt(b[1+16:])); err == nil {
			b, fds, err = handover.Receive(c, requestSize)
		}
	}
	if err != nil {
		return netip.Addr{}, nil, err
	}
	if b[0] != version || len(fds) != requestFiles {
		handover.CloseAll(fds)
		return netip.Addr{}, nil, handover.ErrMalformed
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
	if !s.config.HasAddr(to) {
		return to, nil, handover.ErrMalformed
	}
	box := s.Inbox(to)
	if box == nil {
		return to, nil, net.ErrClosed
	}
	bell, err := box.ShareBell()
	if err != nil {
		return to, nil, err
	}
	defer unix.Close(bell)
	in, err := box.Add(fds[0], theirs, from, Max, func() { c.Close() },
		func(g shm.Granted, revoked bool) error { return tellGrant(c, g, revoked) })
	if err != nil {
		return to, nil, err
	}
	taken = true
	if _, _, err = c.WriteMsgUnix([]byte{version}, unix.UnixRights(bell), nil); err != nil {
		in.Leave()
		s.config.Wake(to) // to drop the lane
		return to, nil, err
	}
	s.config.Wake(to) // the goroutine does not know yet that it has to listen to the bell
	return to, in, nil
}

// tellReceiver answers the question for the receiver of packets to an address.
func (s *Lanes) tellReceiver(c *net.UnixConn, to netip.Addr) error {
	if !s.config.HasAddr(to) {
		return handover.ErrMalformed
	}
	_, err := c.Write(binary.NativeEndian.AppendUint64([]byte{version}, s.name))
	return err
}

// Close ends all lanes, but for the memory of the inboxes.
func (s *Lanes) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	here.Delete(s.name)
	for _, server := range s.servers {
		server.Close()
	}
	for c := range s.conns {
		c.Close()
	}
}

// Wait waits for the end of the lanes after Close.
func (s *Lanes) Wait() { s.served.Wait() }

// CloseInboxes closes the inboxes at the addresses of which inUse returns false. The users of the others close them.
func (s *Lanes) CloseInboxes(inUse func(netip.Addr) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, b := range s.inboxes {
		if !inUse(at) {
			b.Close()
		}
	}
}
