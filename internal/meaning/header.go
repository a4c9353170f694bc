package meaning

import (
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Field is a part of a header, or the rest of a packet.
type Field struct {
	Name string
	Bits int
}

const rowBits = 32

// draw draws fields as rows of 32 bits, of which each takes two characters. A field may go on in the next row.
func draw(fields ...Field) string {
	var b strings.Builder
	b.WriteString(" 0               8               16              24            31\n")
	rule := "+" + strings.Repeat("-", 2*rowBits-1) + "+\n"
	b.WriteString(rule)
	used := 0
	for _, f := range fields {
		for left := f.Bits; left > 0; {
			n := min(left, rowBits-used)
			if used == 0 {
				b.WriteByte('|')
			}
			width := 2*n - 1
			name := f.Name
			if left < f.Bits {
				name = ""
			}
			if len(name) > width {
				name = name[:width]
			}
			pad := width - len(name)
			b.WriteString(strings.Repeat(" ", pad/2) + name + strings.Repeat(" ", pad-pad/2) + "|")
			used, left = used+n, left-n
			if used == rowBits {
				b.WriteString("\n" + rule)
				used = 0
			}
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// layouts are the fields of headers, in their order.
var layouts = map[string][]Field{
	"BTH":          {{"opcode", 8}, {"S", 1}, {"M", 1}, {"Pad", 2}, {"TVer", 4}, {"P_Key", 16}, {"F", 1}, {"B", 1}, {"reserved", 6}, {"destination QP", 24}, {"A", 1}, {"reserved", 7}, {"PSN", 24}},
	"DETH":         {{"Q_Key", 32}, {"reserved", 8}, {"source QP", 24}},
	"XRCETH":       {{"reserved", 8}, {"XRC SRQ", 24}},
	"FETH":         {{"reserved", 26}, {"select", 2}, {"place", 4}},
	"RETH":         {{"virtual address", 64}, {"R_Key", 32}, {"DMA length: bytes of the whole message", 32}},
	"AtomicETH":    {{"virtual address, a multiple of 8", 64}, {"R_Key", 32}, {"swap or add", 64}, {"compare", 64}},
	"ImmDt":        {{"immediate data", 32}},
	"IETH":         {{"R_Key", 32}},
	"AETH":         {{"syndrome", 8}, {"MSN", 24}},
	"AtomicAckETH": {{"original remote data", 64}},
	"ICRC":         {{"ICRC", 32}},
	"GRH":          {{"version", 4}, {"traffic class", 8}, {"flow label", 20}, {"payload length", 16}, {"next header", 8}, {"hop limit", 8}, {"source GID", 128}, {"destination GID", 128}},
	"MAD":          {{"base version", 8}, {"class", 8}, {"class version", 8}, {"method", 8}, {"status", 16}, {"class specific", 16}, {"transaction ID", 64}, {"attribute ID", 16}, {"reserved", 16}, {"attribute modifier", 32}},
}

// headers returns the headers of packets, in the order in which they stand.
func headers() []Entry {
	return append(packetHeaders(), cmHeaders()...)
}

func packetHeaders() []Entry {
	return []Entry{
		{Name: "BTH", Also: []string{"base transport header"},
			Brief:   "base transport header: the first 12 bytes of each packet, behind UDP or, on InfiniBand, LRH and GRH",
			Drawing: draw(layouts["BTH"]...),
			More:    "S: solicited event. M: migration state. Pad: bytes of pad behind the payload, 0 to 3. F and B: FECN and BECN. A: the responder is to acknowledge this packet.", See: []string{"opcode 0x04"}},
		{Name: "XRCETH", Also: []string{"XRC extended transport header", "XRC"},
			Brief: "XRC: the SRQ of the peer whose receive the request takes, and whose protection domain it uses", Drawing: draw(layouts["XRCETH"]...), See: []string{"status 13"}},
		{Name: "DETH", Also: []string{"datagram extended transport header"},
			Brief: "UD: the sender's QP, and the Q_Key that the receiver's QP must have", Drawing: draw(layouts["DETH"]...), See: []string{"qkey"}},
		{Name: "FETH", Also: []string{"flush extended transport header"},
			Brief: "FLUSH: how far it must reach, and how much it is about", Drawing: draw(layouts["FETH"]...), See: []string{"opcode 0x1c"}},
		{Name: "RETH", Also: []string{"RDMA extended transport header"},
			Brief:   "the remote memory that a READ or a WRITE is about",
			Drawing: draw(layouts["RETH"]...), More: "Only the first packet of a message has it.", See: []string{"status 10"}},
		{Name: "AtomicETH", Also: []string{"atomic extended transport header"},
			Brief:   "the remote 8 bytes of an atomic, and its operands",
			Drawing: draw(layouts["AtomicETH"]...)},
		{Name: "ImmDt", Also: []string{"immediate data"}, Brief: "immediate data: 4 bytes for the receiver's completion", Drawing: draw(layouts["ImmDt"]...)},
		{Name: "IETH", Also: []string{"invalidate extended transport header"}, Brief: "SEND with invalidation: the R_Key that the receiver's device invalidates", Drawing: draw(layouts["IETH"]...)},
		{Name: "AETH", Also: []string{"ACK extended transport header"},
			Brief: "an acknowledgement: its kind, and the number of messages that are complete", Drawing: draw(layouts["AETH"]...), See: []string{"aeth 0x1f", "aeth 0x20", "aeth 0x60"}},
		{Name: "AtomicAckETH", Brief: "the value that the 8 bytes had before the atomic", Drawing: draw(layouts["AtomicAckETH"]...)},
		{Name: "ICRC", Also: []string{"invariant CRC"},
			Brief:   "the last 4 bytes of each packet: a CRC over all that no router changes",
			More:    "On RoCE v2 it covers IP, UDP, BTH and what follows, with TTL, DSCP and ECN, the checksums and the BTH's FECN, BECN and six reserved bits taken as ones. Whatever else is changed on the way, such as by NAT, makes it wrong.",
			Drawing: draw(layouts["ICRC"]...), See: []string{"rx_icrc_encapsulated"}},
		{Name: "GRH", Also: []string{"global route header"},
			Brief:   "InfiniBand's and RoCE v1's network header, with the form of IPv6; a UD receive has 40 bytes for it",
			Drawing: draw(layouts["GRH"]...),
			More:    "On RoCE v2 over IPv4 the last 20 of the 40 bytes of a UD receive hold the IPv4 header.", See: []string{"gid 1"}},
		{Name: "MAD", Also: []string{"management datagram"},
			Brief:   "the header of a management datagram to QP1: the connection manager's messages",
			Drawing: draw(layouts["MAD"]...),
			More:    "The attribute ID names the message: 0x10 REQ, 0x11 MRA, 0x12 REJ, 0x13 REP, 0x14 RTU, 0x15 DREQ, 0x16 DREP, 0x17 SIDR_REQ, 0x18 SIDR_REP.", See: []string{"reject 8"}},
	}
}

// headerNames are the names of the extended headers, in the order of their bits in a wire.HeaderSet.
var headerNames = []struct {
	set  wire.HeaderSet
	name string
}{
	{wire.HeaderDETH, "DETH"}, {wire.HeaderXRCETH, "XRCETH"}, {wire.HeaderFETH, "FETH"}, {wire.HeaderRETH, "RETH"}, {wire.HeaderAtomicETH, "AtomicETH"}, {wire.HeaderImmDt, "ImmDt"},
	{wire.HeaderIETH, "IETH"}, {wire.HeaderAETH, "AETH"}, {wire.HeaderAtomicAckETH, "AtomicAckETH"}, {wire.HeaderCNP, "reserved"}, {wire.HeaderSETH, "SETH"},
}

// layout returns the parts of an opcode's packets: "BTH 12 | RETH 16 | payload | pad | ICRC 4".
func layout(o wire.Opcode) string {
	parts := []string{fmt.Sprint("BTH ", wire.BTHSize)}
	for _, h := range headerNames {
		if o.Headers()&h.set != 0 {
			parts = append(parts, fmt.Sprint(h.name, " ", h.set.Len()))
		}
	}
	if o.HasPayload() {
		parts = append(parts, "payload", "pad")
	}
	return strings.Join(append(parts, fmt.Sprint("ICRC ", wire.ICRCSize)), " | ")
}

// roles are the operations of packets, by the flags of their opcodes.
var roles = []struct {
	flag wire.OpcodeFlags
	text string
}{
	{wire.FlagSend, "SEND"}, {wire.FlagWrite, "RDMA WRITE"}, {wire.FlagAtomicWrite, "ATOMIC WRITE"}, {wire.FlagFlush, "FLUSH"}, {wire.FlagAtomic, "atomic"}, {wire.FlagRead, "RDMA READ"},
}

var positions = []struct {
	flag wire.OpcodeFlags
	text string
}{
	{wire.FlagFirst, "the first packet"}, {wire.FlagMiddle, "a packet in the middle"}, {wire.FlagLast, "the last packet"}, {wire.FlagOnly, "the only packet"},
}

func withArticle(operation string) string {
	if strings.HasPrefix(operation, "R") || strings.HasPrefix(lower(operation), "a") { // "an RDMA WRITE"
		return "an " + operation
	}
	return "a " + operation
}

func briefOfOpcode(o wire.Opcode) string {
	switch {
	case o == wire.CNP:
		return "congestion notification packet: a packet of the other direction came with ECN's mark of congestion"
	case o.Flags()&wire.FlagAck != 0:
		return "an acknowledgement or a NAK, as its AETH says"
	case o.Flags()&wire.FlagOwn != 0 || o.Service() >= wire.ServiceSecured:
		return "of adverb's own, from the range that is left to manufacturers: others drop it"
	}
	s := ""
	for _, p := range positions {
		if o.Flags()&p.flag != 0 {
			s = p.text
		}
	}
	for _, r := range roles {
		if o.Flags()&r.flag != 0 {
			if o.IsResponse() {
				return s + " of the response to " + withArticle(r.text)
			}
			s += " of " + withArticle(r.text)
			break
		}
	}
	if o.HasImm() {
		s += ", with immediate data"
	}
	if o.HasInvalidate() {
		s += ", with an R_Key to invalidate"
	}
	return s
}

func opcodeEntries() (list []Entry) {
	for n := range 256 {
		o := wire.Opcode(n)
		if !o.Valid() {
			continue
		}
		e := Entry{Number: n, Name: o.String(), Brief: briefOfOpcode(o), Drawing: layout(o), Tools: []string{"ADVERB_TRACE=1 prints each packet by this name"}}
		if _, name, ok := strings.Cut(o.String(), " "); ok {
			e.Also = []string{name}
		}
		for _, h := range headerNames {
			if o.Headers()&h.set != 0 && h.name != "reserved" && h.name != "SETH" {
				e.See = append(e.See, h.name)
			}
		}
		list = append(list, e)
	}
	return list
}

// Header is a header of a packet, with its fields.
type Header struct {
	Name   string
	Fields []Field
}

// HeadersOf returns the headers of an opcode's packets, in their order, from the BTH on and without the ICRC. Those of
// which no drawing exists have one field.
func HeadersOf(o wire.Opcode) []Header {
	list := []Header{{"BTH", layouts["BTH"]}}
	for _, h := range headerNames {
		if o.Headers()&h.set == 0 {
			continue
		}
		fields := layouts[h.name]
		if fields == nil {
			fields = []Field{{h.name, 8 * h.set.Len()}}
		}
		list = append(list, Header{h.name, fields})
	}
	return list
}

// MADHeader returns the fields before a management datagram's content.
func MADHeader() Header { return Header{"MAD", layouts["MAD"]} }
