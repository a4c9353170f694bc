package ladder

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Ladder is the packets of captures, between ends.
type Ladder struct {
	Ends  []End
	Rows  []Row
	Notes []string // for the reader: the packets that are left out, and the questions that the captures leave open
	Total int      // packets, before filters
}

// End is one line of a ladder.
type End struct {
	Addr netip.Addr
	QPN  uint32 // where several ends have one address; else 0
	Port uint16 // the same of iWARP
	Name string
}

// Row is an arrow: a packet, a run of equal packets with consecutive PSNs, or a packet that is sent again and again.
type Row struct {
	Packet      // the first of a run
	Count   int // packets
	LastPSN wire.PSN
	LastAt  time.Duration
	Silence time.Duration // before the row, if that is long; else 0
}

// Packet is a packet on its way.
type Packet struct {
	Frame    int           // the number in its capture, from 1
	At       time.Duration // since the first packet of the captures
	Took     time.Duration // until it was captured at the other end; -1 if it was not
	From, To int           // indices of Ends

	Opcode wire.Opcode
	Name   string   // of an MPA frame or a message of iWARP, which have no Opcode; else empty
	QPN    uint32   // the destination; of iWARP the TCP ports, the source in the upper half
	PSN    wire.PSN // of iWARP the number of the FPDU in its stream
	AckReq bool
	Bytes  int    // of payload
	Fields string // in words: further fields of its headers

	Fate  Fate
	Marks []Mark
}

// Fate is what became of a packet.
type Fate uint8

// The fates.
const (
	Unknown Fate = iota
	Arrived      // it was captured at the other end
	Lost         // it was not captured at the other end, or the receiver asked for it again
	Damaged      // its ICRC is wrong
)

// MarkKind is a class of marks.
type MarkKind uint8

// The marks.
const (
	MarkLost    MarkKind = iota // the packet was lost
	MarkDamaged                 // its ICRC is wrong
	MarkRepeat                  // it was sent before
	MarkLate                    // it was overtaken
	MarkGap                     // packets before it are not in the capture
	MarkRefusal                 // a NAK
	MarkWait                    // an RNR NAK
	MarkNote                    // congestion, cut packets
	MarkFailed                  // a work request that failed
)

// Mark is a remark about a packet, in words.
type Mark struct {
	Kind MarkKind
	Text string
}

// Options choose the packets of the captures that a ladder shows.
type Options struct {
	QPN      []uint32     // packets to these QPs, and between them and their peers; empty for all
	Addrs    []netip.Addr // packets from or to these addresses; empty for all
	From, To time.Duration
	Limit    int  // rows; 0 for all
	All      bool // runs are not drawn together
}
