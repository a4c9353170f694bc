package connector

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// Carrier is implemented by a device's provider if its QPs speak iWARP: the provider takes over TCP
// connections once their ends have agreed on terms.
type Carrier interface {
	Addrs() []netip.Addr
	// Asks reports whether the device asks peers for CRCs, and for markers in the stream that they send.
	Asks() (crc, markers bool)
	// Claim takes a port, alone or with others who share it too.
	Claim(local netip.AddrPort, shared bool) (*tcp.Port, error)
	// Dial connects from an address or, if from is not nil, from that port.
	Dial(ctx context.Context, local, remote netip.AddrPort, from *tcp.Port) (net.Conn, error)
	Wrap(net.Conn) net.Conn
	Attach(qpn verbs.QPN, conn net.Conn, terms mpa.Terms, early []byte, ended func(error)) error
	Shutdown(qpn verbs.QPN)
	// Unaccepted logs that peers wait at a port whose connections cannot be taken.
	Unaccepted(at netip.AddrPort, cause error)
	Gone() <-chan struct{}
	// Changed receives a value when the device has looked at its addresses anew. It holds one value, for one reader.
	Changed() <-chan struct{}
}

func carrierOf(dev *verbs.Device) (Carrier, bool) {
	c, ok := dev.Provider().(Carrier)
	return c, ok
}

// checkAddr fails with ENODEV unless a device has an address.
func checkAddr(dev *verbs.Device, c Carrier, addr netip.Addr) error {
	if slices.Contains(c.Addrs(), addr.Unmap().WithZone("")) {
		return nil
	}
	return verbs.Errorf(syscall.ENODEV, "device %s does not have the address %v", dev.Name(), addr)
}

const (
	// A peer has answerTime to answer, as with the InfiniBand connection manager, and requestTime to ask once
	// TCP has connected.
	answerTime  = 17 * time.Second
	requestTime = 5 * time.Second
	// A listener has up to maxAsking connections whose request has not come yet, and maxWaiting whose request waits for
	// a place in the backlog, half of them of one source. Each kind takes up to one of portFiles parts of the files that
	// the process may have open, and minPlaces at least.
	maxAsking  = 1024
	maxWaiting = 2048
	minPlaces  = 16
	portFiles  = 4
	// Up to maxLeaving connections that were refused wait at a time for their peers to leave.
	maxLeaving = 64
	// A peer that says nothing of its READs is offered maxTCPDepth, the most that an event can say.
	maxTCPDepth = 128
)

// tcpConnector makes the connections of a device that speaks iWARP.
type tcpConnector struct {
	dev     *verbs.Device
	carrier Carrier
	watcher Watcher
	refused atomic.Uint64 // requests beyond a backlog
	leaving chan struct{} // a token for each connection that was refused and is the peer's to close

	mu     sync.Mutex
	claims map[netip.AddrPort][]*tcp.Port // several where they are shared
	conns  map[*tcpConn]bool              // that are asked for, or made, and not over
	ports  map[*tcpPort]bool              // that are listened on
	queue  []func()                       // the calls to dispatch
	over   bool                           // nobody dispatches any more
	wake   chan struct{}
	done   chan struct{}
	ended  chan struct{}
}

func openTCP(dev *verbs.Device, carrier Carrier, w Watcher) *tcpConnector {
	c := &tcpConnector{
		dev: dev, carrier: carrier, watcher: w, claims: map[netip.AddrPort][]*tcp.Port{}, conns: map[*tcpConn]bool{}, ports: map[*tcpPort]bool{},
		leaving: make(chan struct{}, maxLeaving), wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}),
	}
	dev.Report(c)
	go c.run()
	return c
}

// run dispatches.
func (c *tcpConnector) run() {
	defer close(c.ended)
	for {
		c.mu.Lock()
		queue := c.queue
		c.queue = nil
		c.mu.Unlock()
		for _, f := range queue {
			f()
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-c.wake:
		case <-c.carrier.Changed():
			c.watcher.Changed()
		case <-c.carrier.Gone():
			select {
			case <-c.done:
			default:
				c.watcher.Gone(verbs.Errorf(syscall.ENODEV, "device %s is gone", c.dev.Name()))
			}
			return
		case <-c.done:
			return
		}
	}
}

// dispatch has f called on the connector's goroutine. Once that has ended, f is called all the same: a request whose
// listener has closed is still to be refused.
func (c *tcpConnector) dispatch(f func()) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		go f()
		return
	}
	c.queue = append(c.queue, f)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Close implements Connector.
func (c *tcpConnector) Close() {
	close(c.done)
	<-c.ended
	c.mu.Lock()
	queue := c.queue
	c.queue, c.over = nil, true
	c.mu.Unlock()
	for _, f := range queue {
		f()
	}
	c.dev.Report(nil)
}

// Limits implements Connector. There are no UD QPs to look up.
func (c *tcpConnector) Limits() Limits {
	return Limits{Connect: mpa.MaxProgramData, Accept: mpa.MaxProgramData, Reject: mpa.MaxProgramData}
}

// Random32 implements Connector.
func (c *tcpConnector) Random32() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// errDatagrams is the error of all that needs datagrams.
var errDatagrams = verbs.Errorf(verbs.ErrUnsupported, "iWARP connects RC QPs only: it has no UD QPs, no lookup of them (SIDR) and no multicast; use PortSpaceTCP, or a device of RoCE")

// The port spaces that are served: those of RC.
const portSpaceUDP PortSpace = 0x0111

// Serve does nothing: TCP has its ports at all addresses.
func (c *tcpConnector) Serve(netip.Addr) error { return nil }

// Claim implements Connector. Ports are those of the host's TCP.
func (c *tcpConnector) Claim(name Name, shared bool) (Port, error) {
	switch {
	case name.IB:
		return nil, errNoGIDs
	case name.PS == portSpaceUDP:
		return nil, errDatagrams
	}
	if err := checkAddr(c.dev, c.carrier, name.Addr); err != nil {
		return nil, err
	}
	at := name.At()
	p, err := c.carrier.Claim(at, shared)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = verbs.Errorf(verbs.ErrBusy, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.claims[at] = append(c.claims[at], p)
	c.mu.Unlock()
	return &tcpPort{c: c, ps: name.PS, at: at, p: p}, nil
}

// claimed returns the port that is claimed at an address, or nil. Of those who share it, one is as good as another to
// connect from.
func (c *tcpConnector) claimed(at netip.AddrPort) *tcp.Port {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ports := c.claims[at]; len(ports) > 0 {
		return ports[0]
	}
	return nil
}

// unclaim undoes Claim.
func (c *tcpConnector) unclaim(at netip.AddrPort, p *tcp.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.claims[at], func(other *tcp.Port) bool { return other == p })
	if len(left) == 0 {
		delete(c.claims, at)
		return
	}
	c.claims[at] = left
}
