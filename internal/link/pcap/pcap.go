// Package pcap is middleware that writes the datagrams of a link to a pcapng file, for Wireshark and tcpdump.
//
// A link handles UDP payloads only. The package makes up IP and UDP headers for the file, such that the ICRC fits.
// For sent datagrams they show the identification and DF that links promise. If a link cannot see the identification
// of received datagrams, the file shows 0. The ICRC of a foreign sender may look wrong then.
//
// RoCEv1 has a GRH in their place, and the package makes up the Ethernet header: the MAC addresses are those that GIDs
// and groups tell, and for others locally administered ones that end in the IP address.
package pcap

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	maxPayload = 1<<16 - 1 - ipv4Size - udpSize // bytes: the room of an IPv4 packet behind its header and UDP's
	hopLimit   = 64                             // hop limit or TTL; the sender chooses it, and the ICRC does not cover it
)

// Options of New.
type Options struct {
	// OutgoingOnly leaves out the datagrams that links receive. If one Writer records both ends of a conversation,
	// each datagram is then in the file once.
	OutgoingOnly bool

	// Now is the time that packets are stamped with; nil is the system's. It is for simulations.
	Now func() time.Time
}

// Writer writes the datagrams of any number of links to one file.
type Writer struct {
	outgoingOnly bool
	now          func() time.Time

	mu     sync.Mutex
	file   *blocks
	dirty  bool // something was written since the latest Flush
	closed bool
	err    error // the first error; nothing is written after it
}

// New returns a Writer that writes to w. It buffers until Flush or Close is called.
func New(w io.Writer, o Options) (*Writer, error) {
	file, err := newBlocks(w, "adverb")
	if err == nil {
		_, err = file.addInterface("adverb", linkTypeRaw) // some readers want an interface even where no link follows
	}
	if err != nil {
		return nil, fmt.Errorf("begin pcapng file: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Writer{outgoingOnly: o.OutgoingOnly, now: o.Now, file: file, dirty: true}, nil
}

// Middleware returns middleware that writes the datagrams of a link. Each link is an interface of the file, named
// after its address. Wait flushes the file.
func (w *Writer) Middleware() link.Middleware {
	return func(inner link.Link) link.Link {
		w.mu.Lock()
		defer w.mu.Unlock()
		l := &recorded{Link: inner, w: w}
		if w.usable() {
			var err error
			if addr := inner.Addr(); link.IsV1(addr.Addr()) {
				l.iface, err = w.file.addInterface("rocev1 "+link.GIDAddr(addr.Addr()).String(), linkTypeEther)
			} else {
				l.iface, err = w.file.addInterface(addr.String(), linkTypeRaw)
			}
			w.fail(err)
		}
		return l
	}
}

// Journal writes what a device did, at the time that it is now. A change of a queue pair's state flushes the file.
func (w *Writer) Journal(e journal.Event) {
	e.Time = w.now().UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.usable() {
		w.dirty = true
		w.fail(w.file.journal(&e))
		if e.Kind == journal.KindState { // the program may end behind its connection, with the device open
			w.flush()
		}
	}
}

// Flush writes the buffered bytes. It returns the first error of the Writer.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return w.err
}

// Close flushes, and stops writing. The links go on without being recorded. Close does not close
// the io.Writer.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errors.New("close pcap writer: closed already")
	}
	w.flush()
	w.closed = true
	return w.err
}

func (w *Writer) usable() bool { return !w.closed && w.err == nil }

func (w *Writer) fail(err error) {
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("write pcapng file: %w", err)
	}
}

func (w *Writer) flush() {
	if w.dirty && w.usable() {
		w.dirty = false
		w.fail(w.file.flush())
	}
}

// write writes the datagrams of batch.
func (w *Writer) write(iface int, batch []link.Datagram, outgoing bool) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		for s := range d.Segments() {
			if !w.usable() {
				return
			}
			id := uint16(s)
			if !outgoing {
				id += d.ID
				if !d.IDKnown {
					id = 0
				}
			}
			w.fail(w.writeOne(iface, now, d, id, d.Segment(s), outgoing))
		}
	}
}

func (w *Writer) writeOne(iface int, now time.Time, d *link.Datagram, id uint16, payload []byte, outgoing bool) error {
	if len(payload) > maxPayload {
		return nil // no link can send such a datagram either
	}
	ip := ipHeader{src: d.Src.Addr(), dst: d.Dst.Addr(), trafficClass: d.TrafficClass, id: id, flowLabel: d.FlowLabel}
	way := inbound
	if outgoing {
		way = outbound
	}
	w.dirty = true
	if link.IsV1(ip.src) {
		return w.file.packet(iface, now, way, func(b []byte) []byte { return appendV1(b, d, payload) })
	}
	return w.file.packet(iface, now, way, func(b []byte) []byte {
		return appendUDP(b, &ip, d.Src.Port(), d.Dst.Port(), payload)
	})
}

// writeSegment writes a segment of a TCP connection.
func (w *Writer) writeSegment(iface int, way direction, ip *ipHeader, tcp *tcpHeader, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.usable() {
		w.dirty = true
		w.fail(w.file.packet(iface, w.now(), way, func(b []byte) []byte { return appendTCP(b, ip, tcp, payload) }))
	}
}

// recorded is the link that Middleware makes.
type recorded struct {
	link.Link
	w     *Writer
	iface int
}

// Send implements link.Link.
func (l *recorded) Send(batch []link.Datagram) error {
	l.w.write(l.iface, batch, true)
	return l.Link.Send(batch)
}

// Recv implements link.Link.
func (l *recorded) Recv(batch []link.Datagram) (int, error) {
	n, err := l.Link.Recv(batch)
	if n > 0 && !l.w.outgoingOnly {
		l.w.write(l.iface, batch[:n], false)
	}
	return n, err
}

// Wait implements link.Link.
func (l *recorded) Wait(d time.Duration) error {
	_ = l.w.Flush() // Close returns the error
	return l.Link.Wait(d)
}

// Join implements link.Multicaster.
func (l *recorded) Join(group netip.Addr) error { return link.Join(l.Link, group) }

// Leave implements link.Multicaster.
func (l *recorded) Leave(group netip.Addr) error { return link.Leave(l.Link, group) }
