package stage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Fate is what has become of a packet.
type Fate string

// The fates.
const (
	Flying  Fate = "flying"
	Arrived Fate = "arrived" // and was handed to the device, which may refuse it
	Lost    Fate = "lost"    // by the link, which loses some, or is cut
	Dropped Fate = "dropped" // by a decision
)

// Packet is a packet that a device has sent: a UDP payload, from the BTH to the ICRC.
type Packet struct {
	N         int // from 1 on, in the order of sending
	From, To  *node
	Sent, Due time.Duration // Due: when it arrives
	Ended     time.Duration // when it arrived or was lost
	Fate      Fate
	CopyOf    int  // the number of the packet that a decision has copied, or 0
	Delayed   bool // by a decision
	Damaged   bool
	again     bool // its PSN was sent before
	data      []byte
	meta      link.Datagram // without the payload
}

const (
	maxPackets = 20_000
	etherMTU   = 9000
	linkRate   = 10_000_000_000 // bits a second
)

var errTooMany = errors.New("the play has too many packets: begin again")

// damage turns over a bit in the middle of what is behind the BTH.
func (p *Packet) damage() {
	at := wire.BTHSize + (len(p.data)-wire.BTHSize)/2
	p.data[at] ^= 0x10
	p.Damaged = true
}

// dice decides about packets that nobody has decided about.
type dice struct{ rng *rand.Rand }

// roll returns whether a packet is lost, and how much longer than the latency it takes. It takes two numbers whatever
// the settings, so that another loss or jitter leaves the rest of the play alike.
func (d *dice) roll(s *Settings) (lost bool, late time.Duration) {
	a, b := d.rng.IntN(100), d.rng.Float64()
	return a < s.Loss, time.Duration(b * float64(s.Jitter) * float64(time.Microsecond))
}

// launch puts a packet of an end on the link.
func (s *Stage) launch(from *node, d *link.Datagram) {
	if len(s.packets) >= maxPackets {
		return
	}
	p := &Packet{N: len(s.packets) + 1, From: from, To: from.peer, Fate: Flying, data: bytes.Clone(d.Payload), meta: *d}
	p.meta.Payload = nil
	lost, late := s.dice.roll(&s.play.Settings)
	p.Sent = from.depart(len(p.data))
	p.Due = p.Sent + time.Duration(s.play.Latency)*time.Microsecond + late
	if lost || s.cut || d.Dst.Addr() != from.peer.addr {
		p.Fate, p.Ended = Lost, p.Sent+time.Duration(s.play.Latency)*time.Microsecond/2
	}
	s.packets = append(s.packets, p)
	p.again = s.cameBefore(p)
	s.note(Entry{Kind: "sent", Who: from.name, Packet: p.N})
	if p.Fate == Lost {
		s.note(Entry{Kind: "lost", Packet: p.N})
	}
}

// depart returns when a packet of n bytes leaves: the link takes one after the other.
func (n *node) depart(size int) time.Duration {
	at := max(n.s.now, n.free)
	n.free = at + time.Duration(size*8)*time.Second/linkRate
	return at
}

// nextPacket returns the packet that arrives next, or nil.
func (s *Stage) nextPacket() (next *Packet) {
	for _, p := range s.packets[s.landed:] {
		if p.Fate == Flying && (next == nil || p.Due < next.Due) {
			next = p
		}
	}
	for s.landed < len(s.packets) && s.packets[s.landed].Fate != Flying {
		s.landed++
	}
	return next
}

// arrive hands a packet to the device that it is for.
func (s *Stage) arrive(p *Packet) {
	p.Fate, p.Ended = Arrived, s.now
	s.note(Entry{Kind: "arrived", Who: p.To.name, Packet: p.N})
	d := p.meta
	d.Payload = bytes.Clone(p.data)
	d.IDKnown = true // 0: each packet is the first of its train
	if l := p.To.link; l != nil {
		l.inbox = append(l.inbox, d)
	}
}

// netdev is the network interface of an end.
type netdev struct{ n *node }

func (d netdev) Name() string { return "lab" + d.n.name }

// State implements link.Netdev.
func (d netdev) State() (link.NetdevState, error) {
	return link.NetdevState{Index: d.n.index, HardwareAddr: []byte{2, 0, 0, 0, 0, byte(d.n.index)}, MTU: etherMTU, Up: true,
		SpeedMbps: linkRate / 1_000_000, Addrs: []netip.Addr{d.n.addr}}, nil
}

// Changed implements link.Netdev. Nothing changes.
func (netdev) Changed() <-chan struct{} { return nil }

// Open implements link.Netdev.
func (d netdev) Open(netip.Addr) (link.Link, error) {
	d.n.link = &wireEnd{n: d.n}
	return d.n.link, nil
}

func (netdev) Close() error { return nil }

// wireEnd is an end of the link. All its methods are called by the stage's goroutine.
type wireEnd struct {
	n     *node
	inbox []link.Datagram
	stats link.Stats
}

var _ link.Link = (*wireEnd)(nil)

// firstSourcePort is that of the range that RoCEv2 cards send from.
const firstSourcePort = 0xc000

func (l *wireEnd) Addr() netip.AddrPort { return netip.AddrPortFrom(l.n.addr, link.Port) }

// Source implements link.Link.
func (l *wireEnd) Source(flow uint32) netip.AddrPort {
	return netip.AddrPortFrom(l.n.addr, firstSourcePort+uint16(flow*0x9e3779b1>>16%8))
}

// MaxTrain implements link.Link: each packet is one datagram.
func (l *wireEnd) MaxTrain() int { return 1 }

// Send implements link.Link.
func (l *wireEnd) Send(batch []link.Datagram) error {
	for i := range batch {
		l.stats.Sent++
		l.stats.SentBytes += uint64(len(batch[i].Payload))
		l.n.s.launch(l.n, &batch[i])
	}
	return nil
}

// Recv implements link.Link.
func (l *wireEnd) Recv(batch []link.Datagram) (int, error) {
	n := copy(batch, l.inbox)
	l.inbox = l.inbox[:copy(l.inbox, l.inbox[n:])]
	for i := range n {
		l.stats.Received++
		l.stats.ReceivedBytes += uint64(len(batch[i].Payload))
	}
	return n, nil
}

// Wait implements link.Link. A driven device does not wait.
func (l *wireEnd) Wait(time.Duration) error { return nil }

func (l *wireEnd) Wake()             {}
func (l *wireEnd) Stats() link.Stats { return l.stats }
func (l *wireEnd) Close() error      { return nil }
