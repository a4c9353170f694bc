// Package trace is middleware that shows the datagrams which a link sends and receives: to a
// function, or as lines of text.
package trace

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// An Event is one datagram that was sent or received. Each datagram of a train is an Event.
type Event struct {
	At   time.Duration // since the zero of New
	Sent bool          // else received

	Src, Dst     netip.AddrPort
	FlowLabel    uint32 // IPv6's, 0 where the system chooses it or the link cannot see it
	TrafficClass uint8
	ID           uint16 // IPv4 identification; of a sent datagram, the one that the link promises
	IDKnown      bool
	Payload      []byte // from the BTH to the ICRC; valid during the call
}

// New returns middleware that calls f for each datagram that is sent or received. Times count from zero: devices that
// share it can be compared. Several goroutines may call f at the same time. The call for a sent datagram comes before
// the sending, so it precedes the call for any answer. The link may still lose the datagram.
func New(zero time.Time, f func(Event)) link.Middleware {
	return func(inner link.Link) link.Link { return &traced{inner, f, zero} }
}

type traced struct {
	link.Link
	f    func(Event)
	zero time.Time
}

// Send implements link.Link.
func (l *traced) Send(batch []link.Datagram) error {
	at := time.Since(l.zero)
	for i := range batch {
		l.events(&batch[i], at, true)
	}
	return l.Link.Send(batch)
}

// Recv implements link.Link.
func (l *traced) Recv(batch []link.Datagram) (int, error) {
	n, err := l.Link.Recv(batch)
	if n == 0 {
		return n, err
	}
	at := time.Since(l.zero)
	for i := range batch[:n] {
		l.events(&batch[i], at, false)
	}
	return n, err
}

// Join implements link.Multicaster.
func (l *traced) Join(group netip.Addr) error { return link.Join(l.Link, group) }

// Leave implements link.Multicaster.
func (l *traced) Leave(group netip.Addr) error { return link.Leave(l.Link, group) }

func (l *traced) events(d *link.Datagram, at time.Duration, sent bool) {
	e := Event{At: at, Sent: sent, Src: d.Src, Dst: d.Dst, FlowLabel: d.FlowLabel, TrafficClass: d.TrafficClass, IDKnown: d.IDKnown}
	for i := range d.Segments() {
		e.Payload = d.Segment(i)
		switch {
		case sent:
			e.ID, e.IDKnown = uint16(i), d.Src.Addr().Is4()
		case d.IDKnown:
			e.ID = d.ID + uint16(i)
		}
		l.f(e)
	}
}

// AppendText appends the event on one line, without a newline:
//
//	0.001042 send 10.0.0.1:50113 > 10.0.0.2:4791 RC SEND_ONLY qp=0x000012 psn=0x000001 …
func (e *Event) AppendText(b []byte) ([]byte, error) {
	var p wire.Packet
	return e.append(b, "", &p), nil
}

// append appends the event, with the device's name if it has one.
func (e *Event) append(b []byte, device string, p *wire.Packet) []byte {
	b = fmt.Appendf(b, "%.6f ", e.At.Seconds())
	if device != "" {
		b = append(append(b, device...), ' ')
	}
	if e.Sent {
		b = append(b, "send "...)
	} else {
		b = append(b, "recv "...)
	}
	b = appendPeer(b, e.Src)
	b = append(b, " > "...)
	b = appendPeer(b, e.Dst)
	b = append(b, ' ')
	if err := p.Decode(e.Payload); err != nil {
		return fmt.Appendf(b, "undecodable, %d bytes: %v", len(e.Payload), err)
	}
	return p.AppendSummary(b)
}

// appendPeer appends an address. RoCEv1 has no ports.
func appendPeer(b []byte, a netip.AddrPort) []byte {
	if link.IsV1(a.Addr()) {
		return a.Addr().AppendTo(b)
	}
	return a.AppendTo(b)
}

// ToWriter returns a function for New that writes a line for each event of a device, which names the device. Lines
// are written one at a time. Errors of w are ignored, because a trace must not stop the traced device.
func ToWriter(w io.Writer, device string) func(Event) {
	var (
		mu   sync.Mutex
		line []byte
		p    wire.Packet
	)
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		line = append(e.append(line[:0], device, &p), '\n')
		_, _ = w.Write(line)
	}
}
