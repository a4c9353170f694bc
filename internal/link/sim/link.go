package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	firstSourcePort = 0xc000 // of the range that RoCEv2 cards send from
	sourcePorts     = 8

	ipv4Headers = 20 + 8 // bytes of the IP and UDP headers
	ipv6Headers = 40 + 8
)

// Link is a link.Link of a simulated network.
type Link struct {
	net     *Network
	addr    netip.Addr
	at      *station
	headers int
	port    uint16 // link.Port, or link.PortV1

	closed atomic.Bool
	done   chan struct{}
	woken  atomic.Bool
	signal chan struct{} // cap 1: look again
	timer  *time.Timer   // Wait's
	filled atomic.Bool   // the queue may hold datagrams, so that a Recv that finds none costs little; written under at.mu

	latest atomic.Pointer[way] // that Send has used
	ways   atomic.Pointer[map[netip.Addr]*way]

	toGroups                sent
	received, receivedBytes uint64 // guarded by at.mu
	sendErrors              atomic.Uint64
	lastSendError           atomic.Pointer[error]
	droppedBefore           uint64 // how many the queue had dropped when this link was opened
	drops                   uint64 // how many datagrams it dropped while this link was open; set by Close; guarded by at.mu

	groups map[netip.Addr]bool // that the link has joined; written under net.mu and at.mu
	left   bool                // the link has left a group, so the queue may hold datagrams of that group; guarded by at.mu
}

// A way is a path as a link uses it. to.mu, which Send holds in any case, guards the counts.
type way struct {
	*path
	sent, sentBytes uint64
}

// sent has the datagrams that a link has sent to multicast groups.
type sent struct{ datagrams, bytes atomic.Uint64 }

var _ link.Link = (*Link)(nil)

// Addr implements link.Link.
func (l *Link) Addr() netip.AddrPort { return netip.AddrPortFrom(l.addr, link.PortOf(l.addr)) }

// Source implements link.Link.
func (l *Link) Source(flow uint32) netip.AddrPort {
	if link.IsV1(l.addr) {
		return netip.AddrPortFrom(l.addr, link.PortV1)
	}
	spread := flow * 0x9e3779b1 >> 16 // multiplicative hashing: the upper bits depend on all of flow
	return netip.AddrPortFrom(l.addr, firstSourcePort+uint16(spread%sourcePorts))
}

// MaxTrain implements link.Link.
func (l *Link) MaxTrain() int { return l.net.maxTrain }

// Send implements link.Link. A train arrives as single datagrams.
func (l *Link) Send(batch []link.Datagram) error {
	if l.closed.Load() {
		return link.ErrClosed
	}
	faults := l.net.faults.Load()
	var w *way // its path is locked, if not nil
	for i := range batch {
		d := &batch[i]
		segments := d.Segments()
		if err := l.check(d, segments); err != nil {
			l.lost(err, segments)
			continue
		}
		if w == nil || w.dst != d.Dst.Addr() {
			if w != nil {
				w.unlock()
				w = nil
			}
			if w = l.latest.Load(); w == nil || w.dst != d.Dst.Addr() {
				if w = nil; d.Dst.Addr().IsMulticast() {
					l.toGroups.datagrams.Add(uint64(segments))
					l.toGroups.bytes.Add(uint64(len(d.Payload)))
					l.multicast(faults, d, segments)
					continue
				}
				w = l.way(d.Dst.Addr())
			}
			w.to.mu.Lock()
		}
		w.sent += uint64(segments)
		w.sentBytes += uint64(len(d.Payload))
		l.pass(w.path, faults, d, segments)
	}
	if w != nil {
		w.unlock()
	}
	return nil
}

// pass sends d, which may be a train, over p. The caller has locked p.
func (l *Link) pass(p *path, faults *Faults, d *link.Datagram, segments int) {
	switch {
	case p.cut.Load():
		p.Skip(segments)
		p.partitioned += uint64(segments)
		return
	case p.to.link == nil || !p.to.attached.Load() || d.Dst.Port() != l.port:
		p.Skip(segments)
		p.unreachable += uint64(segments)
		return
	}
	if own := p.own.Load(); own != nil {
		faults = own
	}
	visible := l.net.visible && l.addr.Is4()
	if segments == 1 && !visible && !l.net.noLabels && faults == nil && p.routes.Load() == nil && p.Clear() {
		p.Skip(1)
		p.to.queue.Push(d)
		return
	}
	one := link.Datagram{Src: d.Src, Dst: d.Dst, TrafficClass: d.TrafficClass, FlowLabel: d.FlowLabel}
	if l.net.noLabels {
		one.FlowLabel = 0
	}
	routes := p.routes.Load()
	for i := range segments {
		one.Payload = d.Segment(i)
		if visible {
			one.ID, one.IDKnown = uint16(i), true
		}
		switch {
		case faults != nil:
			p.PassRoutes(p.to.queue, routes, faults, l.net.now(), &one, &p.dice)
		case !p.Clear():
			p.PassRoutes(p.to.queue, routes, &noFaults, l.net.now(), &one, &p.dice)
		case routes != nil:
			p.Route(p.to.queue, routes, l.net.now(), &one)
		default:
			p.Skip(1)
			p.to.queue.Push(&one)
		}
	}
}

var noFaults Faults

// check returns why d cannot be sent, as a network interface would, or nil.
func (l *Link) check(d *link.Datagram, segments int) error {
	longest := len(d.Payload)
	if segments > 1 {
		longest = d.SegmentSize
	}
	var cause string
	switch {
	case !l.at.attached.Load():
		cause = "the network interface is down, or lost the address"
	case d.Src.Addr() != l.addr || l.port == link.Port && (d.Src.Port() < firstSourcePort || d.Src.Port() >= firstSourcePort+sourcePorts) ||
		l.port == link.PortV1 && d.Src.Port() != link.PortV1:
		cause = fmt.Sprintf("source %v is none of this link's, take it from Link.Source", d.Src)
	case d.Dst.Addr().Is4() != l.addr.Is4():
		cause = "source and destination are of different IP versions"
	case segments > l.net.maxTrain:
		cause = fmt.Sprintf("a train of %d datagrams exceeds %d, the link's MaxTrain", segments, l.net.maxTrain)
	case longest+l.headers > l.net.mtu:
		cause = fmt.Sprintf("%d bytes of payload and %d of headers exceed the MTU of %d", longest, l.headers, l.net.mtu)
	default:
		return nil
	}
	return fmt.Errorf("send from %v to %v: %s", d.Src, d.Dst, cause)
}

func (l *Link) lost(err error, datagrams int) {
	l.sendErrors.Add(uint64(datagrams))
	l.lastSendError.Store(&err)
}

// way returns the way to dst. The link remembers its ways, so that it need not take the network's lock.
func (l *Link) way(dst netip.Addr) *way {
	for {
		known := l.ways.Load()
		w := (*known)[dst]
		if w == nil {
			w = &way{path: l.net.path(l.addr, dst)}
			more := maps.Clone(*known)
			more[dst] = w
			if !l.ways.CompareAndSwap(known, &more) {
				continue // another goroutine was faster, perhaps with this very way
			}
		}
		l.latest.Store(w)
		return w
	}
}

// unlock unlocks a path after datagrams were put on it.
func (p *path) unlock() {
	s := p.to
	if s.link != nil && s.queue.Len() > 0 {
		if !s.link.filled.Load() { // to store costs more
			s.link.filled.Store(true)
		}
		s.wake()
	}
	s.mu.Unlock()
}

// look makes a goroutine that is in Wait look at the queue again.
func (l *Link) look() {
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

// Recv implements link.Link.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	if l.closed.Load() {
		return 0, link.ErrClosed
	}
	if !l.filled.Load() {
		return 0, nil
	}
	s := l.at
	s.mu.Lock()
	if s.link != l {
		s.mu.Unlock()
		return 0, link.ErrClosed
	}
	if s.queue.Late() {
		s.queue.Arrive(l.net.now())
	}
	n := s.queue.Pop(batch)
	if l.left {
		n = l.popKept(batch, n)
	}
	if n == 0 && s.queue.Len() == 0 { // only now, so that while each Recv finds something nobody stores
		l.filled.Store(false)
	}
	l.received += uint64(n)
	for i := range n {
		l.receivedBytes += uint64(len(batch[i].Payload))
	}
	s.mu.Unlock()
	return n, nil
}

// popKept is Pop, which has returned n, without the datagrams for groups that the link has left. The caller holds
// at.mu.
func (l *Link) popKept(batch []link.Datagram, n int) int {
	for n > 0 {
		if kept := l.keep(batch[:n]); kept > 0 {
			return kept
		}
		n = l.at.queue.Pop(batch)
	}
	return 0
}

// Wait implements link.Link.
func (l *Link) Wait(d time.Duration) error {
	var deadline time.Time
	if d >= 0 {
		deadline = time.Now().Add(d)
	}
	for {
		if l.closed.Load() {
			return link.ErrClosed
		}
		if l.woken.Swap(false) {
			return nil
		}
		sleep, ready := l.at.next(l)
		if ready {
			return nil
		}
		if d >= 0 {
			left := time.Until(deadline)
			if left <= 0 {
				return nil
			}
			if sleep < 0 || left < sleep {
				sleep = left
			}
		}
		if err := l.sleep(sleep); err != nil {
			return err
		}
	}
}

// sleep returns when there is a reason to look again, or when d has passed. A negative d sets no
// limit.
func (l *Link) sleep(d time.Duration) error {
	var expired <-chan time.Time
	if d >= 0 {
		if l.timer == nil {
			l.timer = time.NewTimer(d)
		} else {
			l.timer.Reset(d)
		}
		defer l.timer.Stop()
		expired = l.timer.C
	}
	select {
	case <-l.signal:
	case <-expired:
	case <-l.done:
		return link.ErrClosed
	}
	return nil
}

// Wake implements link.Link.
func (l *Link) Wake() {
	l.woken.Store(true)
	l.look()
}

// Stats implements link.Link.
func (l *Link) Stats() link.Stats {
	s := link.Stats{Sent: l.toGroups.datagrams.Load(), SentBytes: l.toGroups.bytes.Load(), SendErrors: l.sendErrors.Load()}
	for _, w := range *l.ways.Load() {
		w.to.mu.Lock()
		s.Sent += w.sent
		s.SentBytes += w.sentBytes
		w.to.mu.Unlock()
	}
	if err := l.lastSendError.Load(); err != nil {
		s.LastSendError = *err
	}
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	s.Received, s.ReceivedBytes = l.received, l.receivedBytes
	s.ReceiveDrops = l.drops
	if l.at.link == l {
		s.ReceiveDrops = l.at.queue.Dropped() - l.droppedBefore
	}
	return s
}

// began takes note of how many datagrams the station's queue had dropped when the link opened. The caller holds l.at.mu.
func (l *Link) began(dropped uint64) { l.droppedBefore = dropped }

// ended takes note of how many datagrams the station's queue has dropped by the end. The caller holds l.at.mu.
func (l *Link) ended(dropped uint64) { l.drops = dropped - l.droppedBefore }

// Close implements link.Link.
func (l *Link) Close() error {
	if l.closed.Swap(true) {
		return link.ErrClosed
	}
	close(l.done)
	defer l.net.leaveAll(l)
	l.at.close(l)
	return nil
}
