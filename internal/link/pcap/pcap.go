// Package pcap is middleware that writes the datagrams of a link to a pcapng file, for Wireshark
// and tcpdump.
//
// A link handles UDP payloads only. The package makes up IP and UDP headers for the file, such that
// the ICRC fits. For what is sent they show the identification and DF that links promise. If a link
// cannot see the identification of what it receives, the file shows 0. The ICRC of a foreign sender
// may look wrong then.
package pcap

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	maxPayload = 1<<16 - 1 - 20 - 8 // bytes: what an IPv4 packet has room for behind its header and UDP's
	hopLimit   = 64                 // hop limit or TTL; the sender chooses it, and the ICRC does not cover it
)

// Options of New.
type Options struct {
	// OutgoingOnly leaves out what links receive. If one Writer records both ends of a
	// conversation, each datagram is then in the file once.
	OutgoingOnly bool
}

// Writer writes the datagrams of any number of links to one file.
type Writer struct {
	outgoingOnly bool

	mu     sync.Mutex
	ng     *pcapgo.NgWriter
	buffer gopacket.SerializeBuffer
	dirty  bool // something was written since the latest Flush
	closed bool
	err    error // the first error; nothing is written after it
}

// New returns a Writer that writes to w. It buffers until Flush or Close is called.
func New(w io.Writer, o Options) (*Writer, error) {
	// The NgWriter needs an interface at once. Those of the links come after it.
	first := linkInterface("adverb")
	options := pcapgo.DefaultNgWriterOptions
	options.SectionInfo.Application = "adverb"
	ng, err := pcapgo.NewNgWriterInterface(w, first, options)
	if err != nil {
		return nil, fmt.Errorf("begin pcapng file: %w", err)
	}
	return &Writer{outgoingOnly: o.OutgoingOnly, ng: ng, buffer: gopacket.NewSerializeBuffer(), dirty: true}, nil
}

func linkInterface(name string) pcapgo.NgInterface {
	i := pcapgo.DefaultNgInterface
	i.Name = name
	i.LinkType = layers.LinkTypeRaw // IPv4 or IPv6, without a header in front
	return i
}

// Middleware returns middleware that writes the datagrams of a link. Each link is an interface of
// the file, named after its address. Wait flushes what is written so far.
func (w *Writer) Middleware() link.Middleware {
	return func(inner link.Link) link.Link {
		w.mu.Lock()
		defer w.mu.Unlock()
		l := &recorded{Link: inner, w: w}
		if w.usable() {
			var err error
			l.iface, err = w.ng.AddInterface(linkInterface(inner.Addr().String()))
			w.fail(err)
		}
		return l
	}
}

// Flush writes what is buffered. It returns the first error of the Writer.
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
		w.fail(w.ng.Flush())
	}
}

// write writes the datagrams of batch.
func (w *Writer) write(iface int, batch []link.Datagram, outgoing bool) {
	now := time.Now()
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
		return nil // no link can send it either
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(d.Src.Port()), DstPort: layers.UDPPort(d.Dst.Port())}
	src, dst := d.Src.Addr(), d.Dst.Addr()
	var ip gopacket.SerializableLayer
	if src.Is4() && dst.Is4() {
		v4 := &layers.IPv4{Version: 4, TOS: d.TrafficClass, Id: id, Flags: layers.IPv4DontFragment, TTL: hopLimit,
			Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		src, dst := src.As16(), dst.As16()
		v6 := &layers.IPv6{Version: 6, TrafficClass: d.TrafficClass, FlowLabel: d.FlowLabel, HopLimit: hopLimit,
			NextHeader: layers.IPProtocolUDP, SrcIP: src[:], DstIP: dst[:]}
		_ = udp.SetNetworkLayerForChecksum(v6)
		ip = v6
	}
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(w.buffer, options, ip, udp, gopacket.Payload(payload)); err != nil {
		return err
	}
	direction := pcapgo.NgEpbFlagDirectionInbound
	if outgoing {
		direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	packet := w.buffer.Bytes()
	w.dirty = true
	return w.ng.WritePacketWithOptions(
		gopacket.CaptureInfo{Timestamp: now, CaptureLength: len(packet), Length: len(packet), InterfaceIndex: iface},
		packet,
		pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}})
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
