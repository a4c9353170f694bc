package capture

import (
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Version is how a packet of InfiniBand's transport travels.
type Version uint8

// The versions.
const (
	RoCEv1     Version = 1 // Ethernet type 0x8915
	RoCEv2     Version = 2 // UDP port 4791
	InfiniBand Version = 3 // an InfiniBand link
)

// Tunnel is the encapsulation of a packet.
type Tunnel uint8

// The tunnels.
const (
	NoTunnel Tunnel = iota
	VXLAN
	Geneve
	GRE
	ERSPAN
	IPinIP
)

var tunnelNames = [...]string{NoTunnel: "", VXLAN: "VXLAN", Geneve: "Geneve", GRE: "GRE", ERSPAN: "ERSPAN", IPinIP: "IP in IP"}

// String returns the tunnel's name, and "" for none.
func (t Tunnel) String() string { return tunnelNames[t] }

// Packet is a RoCE packet of a frame. Its slices of the frame's bytes hold as long as these.
type Packet struct {
	Frame   Frame
	Version Version
	Tunnel  Tunnel // the innermost

	SrcMAC, DstMAC [6]byte // of the innermost Ethernet header, if any
	VLAN           uint16  // of the innermost tag: its priority and number
	Tagged         bool

	Src, Dst netip.AddrPort // of RoCE v1 and InfiniBand the GIDs, with port 0; without a GRH LIDs, see [LIDAddr]; of [KindFragment] with port 0
	SLID     uint16         // InfiniBand
	DLID     uint16

	TrafficClass uint8 // type of service
	HopLimit     uint8 // time to live
	FlowLabel    uint32
	ID           uint16 // the IPv4 identification
	DontFragment bool

	Transport wire.Packet // its payload has the captured bytes
	Datagram  []byte      // from the BTH to the ICRC, as far as captured
	Length    int         // of the whole datagram
	Err       error       // a [wire.DecodeError] if Transport could not be decoded: then its BTH alone holds, if there is one

	Pause  Pause  // of [KindPause]
	ICMP   ICMP   // of [KindICMP]
	TCP    TCP    // of [KindTCP]
	Stream []byte // of [KindTCP]: the payload, as far as captured

	part  bool                           // of a train: its bytes are those of one packet
	ip    []byte                         // from the IP header, GRH or LRH to the BTH
	front [maxMasked + wire.BTHSize]byte // space for ICRC

	verdict Verdict // of ICRC
	checked bool    // that has been called
	asLinux bool    // see SealedAsLinux
}

// lidZone tells the addresses that stand for LIDs from those of packets, which have no zone.
const lidZone = "lid"

// LIDAddr returns the address that stands for a LID, as that of a packet of InfiniBand without a GRH.
func LIDAddr(lid uint16) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: byte(lid >> 8), 15: byte(lid)}).WithZone(lidZone)
}

// LID returns the LID that an address stands for, if it does.
func LID(a netip.Addr) (lid uint16, ok bool) {
	if a.Zone() != lidZone {
		return 0, false
	}
	b := a.As16()
	return uint16(b[14])<<8 | uint16(b[15]), true
}

// AddrString is an address as text: "LID 5" for one of [LIDAddr].
func AddrString(a netip.Addr) string {
	if lid, ok := LID(a); ok {
		return fmt.Sprintf("LID %d", lid)
	}
	return a.Unmap().String()
}

// Pause is a frame of Ethernet's flow control.
type Pause struct {
	Classes uint8     // a bit for each priority; all of a frame that stops the whole link
	Quanta  [8]uint16 // for how long, in times of 512 bits; 0 lets the priority go on
}

// ICMP is an error message. Src, Dst and Port are of the packet that the message quotes; Port is 0 unless that was a UDP
// datagram.
type ICMP struct {
	From       netip.Addr
	Type, Code uint8
	TooLong    bool // the packet did not fit into a link, and must not be fragmented
	MTU        int  // of that link, in bytes; 0 if the message does not say it
	Src, Dst   netip.Addr
	Port       uint16 // the destination's
}

// Cut reports whether a part of the packet was not captured.
func (p *Packet) Cut() bool { return len(p.Datagram) < p.Length }

// Flags of TCP.
const (
	TCPFin = 0x01
	TCPSyn = 0x02
	TCPRst = 0x04
	TCPAck = 0x10
)

// TCP is the header of a TCP segment.
type TCP struct {
	Seq, Ack uint32
	Flags    uint8
	Window   uint16 // as it stands in the header, without the scale
	Length   int    // of the payload, on the wire
}

// Kind is the kind of a frame, by its contents.
type Kind uint8

// The kinds of frames.
const (
	KindOther    Kind = iota // nothing that the package knows
	KindRoCE                 // a packet of InfiniBand's transport
	KindTCP                  // of an IP packet
	KindUDP                  // to other ports
	KindICMP                 // ICMP and ICMPv6
	KindARP                  //
	KindPause                // Ethernet's pause frames, of PFC too
	KindFragment             // a fragment of an IP packet
	KindCut                  // cut before anything could be told
	kinds
)

// Decoder finds the RoCE packets in frames. The zero value is ready to use. It must not be used by several goroutines at
// a time.
type Decoder struct {
	p       Packet
	train   train
	scratch []byte // a cut packet, filled up with zeros
}

// Decode decodes a frame. The packet holds until the next call, and only if kind is [KindRoCE]. Of
// other kinds the fields hold that name them.
func (d *Decoder) Decode(f Frame) (p *Packet, kind Kind) {
	d.p = Packet{Frame: f, Transport: wire.Packet{}}
	kind = d.link(f.Link, f.Data, f.Length)
	return &d.p, kind
}

// transport decodes a datagram, from the BTH to the ICRC. b has its captured bytes.
func (d *Decoder) transport(version Version, b []byte, length int) Kind {
	p := &d.p
	p.Version, p.Datagram, p.Length = version, b[:min(len(b), max(length, 0))], max(length, 0)
	b = p.Datagram
	if len(b) < wire.BTHSize {
		if p.Cut() {
			return KindCut
		}
		p.Err = wire.ErrShort
		return KindRoCE
	}
	p.Transport.BTH, _ = wire.DecodeBTH(b)
	if !p.Cut() {
		p.Err = p.Transport.Decode(b)
		return KindRoCE
	}
	if h := p.Transport.HeaderLen(); len(b) < h || length > maxDatagram {
		p.Err = wire.ErrShort
		return KindRoCE
	}
	d.scratch = append(append(d.scratch[:0], b...), zeros[:length-len(b)]...)
	if p.Err = p.Transport.Decode(d.scratch); p.Err == nil {
		at := p.Transport.HeaderLen()
		end := min(at+len(p.Transport.Payload), len(b))
		p.Transport.Payload = b[at:max(at, end):max(at, end)]
	}
	return KindRoCE
}

const maxDatagram = 1<<16 - 1

var zeros [maxDatagram]byte
