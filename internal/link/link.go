// Package link defines how a software device sends and receives RoCEv2 datagrams. A Link carries
// the datagrams of one local address. The packages below this one implement it over UDP and over a
// simulated network, and provide middleware that watches or disturbs the datagrams of a Link.
package link

import (
	"errors"
	"net/netip"
	"strings"
	"time"
)

// Port is the UDP port of RoCEv2, the destination port of every datagram: IBTA CA17-20.
const Port = 4791

// ErrClosed is the error of every method of a closed Link.
var ErrClosed = errors.New("link closed")

// ErrNoNetdev is what Netdev.State returns for a network interface that does not exist any more.
var ErrNoNetdev = errors.New("no such network interface")

// A Datagram is one UDP payload, from the BTH to the ICRC, or a train of them.
type Datagram struct {
	Src, Dst netip.AddrPort

	// Payload holds the datagram or, when SegmentSize is not 0, a train: datagrams of
	// SegmentSize bytes back to back, of which only the last may be shorter.
	Payload     []byte
	SegmentSize int

	// FlowLabel is the IPv6 flow label, of 20 bits, of every datagram of a train. On the way out 0 leaves the label
	// to the system, and a link that cannot set labels may ignore it. On the way in it is 0 where the link cannot see
	// labels. Datagrams of different labels are never joined to one train. On InfiniBand it is more: see IBPort.
	FlowLabel uint32

	// TrafficClass is the IPv4 TOS or the IPv6 traffic class, of every datagram of a train: DSCP in the upper six
	// bits, ECN in the lower two. On the way in, datagrams of different classes are never joined to one train, so no
	// mark of congestion is lost.
	TrafficClass uint8

	// HopLimit is that of the GRH, on InfiniBand alone.
	HopLimit uint8

	// ID is the IPv4 identification of the first datagram, and IDKnown says whether the link could see it. Links only
	// set them on datagrams that they receive: on the way out the identification is the position in the train (see
	// Link.Send).
	ID      uint16
	IDKnown bool
}

// The ECN bits of TrafficClass, by RFC 3168. A congested router turns ECT0 and ECT1 into CE. It can only drop a
// datagram with NotECT.
const (
	NotECT  = 0b00 // the transport takes no note of marks
	ECT1    = 0b01
	ECT0    = 0b10 // RoCEv2's choice
	CE      = 0b11 // congestion experienced
	ECNMask = 0b11
)

// Segments returns how many datagrams d holds, at least 1.
func (d *Datagram) Segments() int {
	if d.SegmentSize <= 0 || len(d.Payload) <= d.SegmentSize {
		return 1
	}
	return (len(d.Payload) + d.SegmentSize - 1) / d.SegmentSize
}

// Segment returns the payload of the i-th datagram of d.
func (d *Datagram) Segment(i int) []byte {
	if d.SegmentSize <= 0 || len(d.Payload) <= d.SegmentSize {
		return d.Payload
	}
	return d.Payload[i*d.SegmentSize : min((i+1)*d.SegmentSize, len(d.Payload))]
}

// A Link carries the datagrams of one local address. Send, Wake, Stats and Close may be called from
// any goroutine at any time. At most one goroutine at a time may call Recv, and at most one Wait.
// They may be different ones.
type Link interface {
	// Addr is the address and port at which peers reach this link.
	Addr() netip.AddrPort

	// Source returns the source address and port that datagrams of a flow must have in
	// Datagram.Src. A flow is any number, for example a QPN. Equal flows have equal sources: IBTA §A17.3.2.1.
	// Different flows are spread over a few sources, so that the routers' hashes spread them over
	// paths.
	Source(flow uint32) netip.AddrPort

	// MaxTrain is the number of datagrams that one Datagram may hold on the way out, at least 1. It may change at run
	// time: it is 1 for a while when the path has turned out not to take trains.
	MaxTrain() int

	// Send sends a batch in order and does not keep it. Over IPv4 the i-th datagram of each train, counted from 0,
	// leaves with identification i and with DF set. The ICRC covers both, so the sender can compute the ICRC. A
	// datagram that cannot be sent is lost, as on any network, and counted. Only a closed link is an error.
	Send(batch []Datagram) error

	// Recv fills batch with the datagrams that have arrived, without blocking. n is 0 if none has arrived. Payloads
	// are valid until the next call.
	Recv(batch []Datagram) (n int, err error)

	// Wait blocks until Recv may find something, Wake or Close is called, or d has passed. A
	// negative d sets no limit. Wait may return early.
	Wait(d time.Duration) error

	// Wake ends the current Wait or, when there is none, the next.
	Wake()

	Stats() Stats
	Close() error
}

// A Settler is a Link whose datagrams may come in disorder at first. Settle waits until they come
// in order, but only for a moment. Meanwhile somebody must call Recv.
type Settler interface {
	Settle()
}

// A SharedLink is a Link whose address other processes use too. Depart passes on the datagrams that have come for
// those processes and were not received yet, receives nothing more, and waits a moment until the processes have taken
// them. It is called once, from the same goroutine as Recv, right before Close or the end of the process.
type SharedLink interface {
	Link
	Depart()
}

// An OutsideLink is a Link that takes datagrams from the operating system. Go tells the goroutine that waits for them
// when a processor has nothing else to do or, at the latest, after 10 ms.
type OutsideLink interface {
	Link
	FromOutside() // does nothing
}

// Stats counts the datagrams of a link. Datagrams of a train count one by one.
type Stats struct {
	Sent, SentBytes         uint64
	Received, ReceivedBytes uint64

	SendErrors    uint64 // datagrams that could not be sent, and so were lost
	LastSendError error  // why the latest of them could not

	// ReceiveDrops is the number of datagrams lost on the way in, as far as the link can know. A
	// train that overflowed the buffer counts as one.
	ReceiveDrops uint64

	NoQP uint64 // datagrams received for QPs of no process at an address that several share, and dropped
}

// Refusal is something that the system denies to links, as a sandbox does, and that they do without.
type Refusal struct {
	Option string // of sockets
	Lost   string // the consequence of that
	Cause  error  // the system's
}

// Refusals puts refusals into words.
func Refusals(refused []Refusal) string {
	var words []string
	for _, r := range refused {
		words = append(words, r.Option+": "+r.Cause.Error()+": "+r.Lost)
	}
	return strings.Join(words, "; ")
}

// Middleware wraps a Link in another one, for example in one that traces.
type Middleware func(Link) Link

// Chain applies middleware to a Link. The first is nearest to the device, the last nearest to the
// network.
func Chain(l Link, mw ...Middleware) Link {
	for i := len(mw) - 1; i >= 0; i-- {
		l = mw[i](l)
	}
	return l
}

// A Netdev is a network interface. A software device takes its addresses from it, and opens its
// links on it.
type Netdev interface {
	Name() string

	// State returns the interface's present state.
	State() (NetdevState, error)

	// Changed receives a value some time after the state may have changed. One value may stand for
	// several changes. Close closes the channel.
	Changed() <-chan struct{}

	// Open opens the link of addr, which must be an address of the interface.
	Open(addr netip.Addr) (Link, error)

	// Close ends the watch for changes. Links stay open.
	Close() error
}

// A NeighborResolver is a Netdev that can have the system resolve the link-layer address for datagrams to dst. Until
// the system knows that address, it keeps few datagrams and drops the others. ResolveNeighbor waits for the answer,
// but no longer than a second: dst may not be there (yet).
type NeighborResolver interface {
	ResolveNeighbor(src, dst netip.Addr)
}

// NetdevState is the part of a network interface's state that a device shows.
type NetdevState struct {
	Index        int
	HardwareAddr []byte // empty or all zero where there is none, as on loopback
	MTU          int    // bytes of an IP packet
	Up           bool   // administratively up, with a carrier
	SpeedMbps    int    // 0 when unknown
	Addrs        []netip.Addr
	IB           *IBPort // of a port of InfiniBand, or nil
}
