//go:build !linux || adverb_portable

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Link is a link.Link over the net package's sockets. A goroutine reads, so that Recv does not
// block.
type Link struct {
	counters
	sources
	addr netip.AddrPort
	zone string
	rx   *net.UDPConn
	tx   [sendSockets]*net.UDPConn

	*link.Waiter
	reader sync.WaitGroup

	mu    sync.Mutex
	queue queue
}

var _ link.Link = (*Link)(nil)

// errMulticast is the error for datagrams to groups. The net package's sockets for multicast do not
// serve: those that receive take the port on all addresses, and those that send leave the choice of
// the interface to the system.
var errMulticast = errors.New("this link has no multicast; the one on Linux has")

// Refused returns which options of sockets the system denies. Here a link needs none.
func Refused() []link.Refusal { return nil }

// openLink opens the link of addr, which has no zone, on the interface of an index.
func openLink(addr netip.Addr, index int) (link.Link, error) {
	l := &Link{
		addr:   netip.AddrPortFrom(addr, link.Port),
		Waiter: link.NewWaiter(),
	}
	if addr.Is6() { // addr may be global, and a peer's link-local
		ifi, err := net.InterfaceByIndex(index)
		if err != nil {
			return nil, openError(addr, false, err)
		}
		l.zone = ifi.Name
	}
	var err error
	if l.rx, err = l.listen(link.Port); err != nil {
		return nil, openError(addr, false, err)
	}
	for i := range l.tx {
		port, err := bindSource(func(port uint16) (err error) {
			l.tx[i], err = l.listen(port)
			return err
		})
		if err != nil {
			l.closeSockets()
			return nil, openError(addr, false, fmt.Errorf("bind a socket to send from: %w", err))
		}
		l.sources[i] = netip.AddrPortFrom(addr, port)
	}
	// The system may grant less; that is no error.
	_ = l.rx.SetReadBuffer(socketBuffer)
	for _, c := range l.tx {
		_ = c.SetWriteBuffer(socketBuffer)
	}
	l.reader.Go(l.read)
	return l, nil
}

func (l *Link) listen(port uint16) (*net.UDPConn, error) {
	network := "udp6"
	if l.addr.Addr().Is4() {
		network = "udp4"
	}
	at := netip.AddrPortFrom(l.addr.Addr(), port)
	if at.Addr().Is6() && at.Addr().IsLinkLocalUnicast() {
		at = netip.AddrPortFrom(at.Addr().WithZone(l.zone), port)
	}
	return net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
}

func (l *Link) closeSockets() {
	for _, c := range append(l.tx[:], l.rx) {
		if c != nil {
			c.Close()
		}
	}
}

// read moves datagrams from the socket into the queue.
func (l *Link) read() {
	buf := make([]byte, maxReceive+1)
	for {
		n, src, err := l.rx.ReadFromUDPAddrPort(buf)
		switch {
		case l.Closed() || errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // for example an ICMP error, which Windows reports here
		case n > maxReceive:
			l.receiveDrops.Add(1) // longer than any RoCEv2 datagram
			continue
		}
		src = netip.AddrPortFrom(src.Addr().Unmap().WithZone(""), src.Port())
		l.mu.Lock()
		if !l.queue.push(src, buf[:n]) {
			l.receiveDrops.Add(1)
		}
		l.Fill(true)
		l.mu.Unlock()
	}
}

// Addr implements link.Link.
func (l *Link) Addr() netip.AddrPort { return l.addr }

// MaxTrain implements link.Link.
func (l *Link) MaxTrain() int { return 1 }

// Send implements link.Link. It ignores the traffic class.
func (l *Link) Send(batch []link.Datagram) error {
	if l.Closed() {
		return link.ErrClosed
	}
	for i := range batch {
		d := &batch[i]
		s := l.index(d.Src)
		switch {
		case s < 0:
			l.lost(d, errSource)
			continue
		case d.Segments() > l.MaxTrain():
			l.lost(d, errTrain)
			continue
		case d.Dst.Addr().IsMulticast():
			l.lost(d, errMulticast)
			continue
		}
		dst := d.Dst
		if l.zone != "" && dst.Addr().IsLinkLocalUnicast() {
			dst = netip.AddrPortFrom(dst.Addr().WithZone(l.zone), dst.Port())
		}
		if _, err := l.tx[s].WriteToUDPAddrPort(d.Payload, dst); err != nil {
			if errors.Is(err, net.ErrClosed) {
				return link.ErrClosed
			}
			l.lost(d, err)
			continue
		}
		l.sent.Add(1)
		l.sentBytes.Add(uint64(len(d.Payload)))
	}
	return nil
}

// Recv implements link.Link.
func (l *Link) Recv(batch []link.Datagram) (int, error) {
	if l.Closed() {
		return 0, link.ErrClosed
	}
	if !l.Filled() {
		return 0, nil
	}
	l.mu.Lock()
	n := l.queue.pop(batch, l.addr)
	l.Fill(l.queue.count > l.queue.lent)
	l.mu.Unlock()
	for i := range n {
		l.receivedBytes.Add(uint64(len(batch[i].Payload)))
	}
	l.received.Add(uint64(n))
	return n, nil
}

// Close implements link.Link.
func (l *Link) Close() error {
	if err := l.Shut(); err != nil {
		return err
	}
	l.closeSockets()
	l.reader.Wait()
	return nil
}
