package meaning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// pathFields are those of a path in a REQ.
func pathFields(path string) []Field {
	return []Field{
		{path + " local LID", 16}, {path + " remote LID", 16}, {path + " local GID", 128}, {path + " remote GID", 128},
		{path + " flow label", 20}, {"reserved", 6}, {path + " rate", 6},
		{path + " traffic class", 8}, {path + " hop limit", 8}, {path + " SL", 4}, {"L", 1}, {"reserved", 3}, {path + " ACK timeout", 5}, {"reserved", 3},
	}
}

var commIDs = []Field{{"local communication ID", 32}, {"remote communication ID", 32}}

// cmLayouts are the fields of the connection manager's messages, behind the MAD header. All have wire.CMDataSize bytes.
var cmLayouts = map[wire.CMAttr][]Field{
	wire.CMREQ: slices.Concat([]Field{
		{"local communication ID", 32}, {"reserved", 32}, {"service ID", 64}, {"local CA GUID", 64}, {"reserved", 32}, {"local Q_Key", 32},
		{"local QPN", 24}, {"responder resources", 8}, {"local EECN", 24}, {"initiator depth", 8},
		{"remote EECN", 24}, {"remote CM timeout", 5}, {"transport", 2}, {"F", 1}, {"starting PSN", 24}, {"local CM timeout", 5}, {"retry count", 3},
		{"P_Key", 16}, {"path MTU", 4}, {"D", 1}, {"RNR retry", 3}, {"max CM retries", 4}, {"S", 1}, {"ext. transport", 3},
	}, pathFields("primary"), pathFields("alternate"), []Field{{"private data", 8 * wire.REQPrivateDataSize}}),
	wire.CMREP: slices.Concat(commIDs, []Field{
		{"local Q_Key", 32}, {"local QPN", 24}, {"reserved", 8}, {"local EECN", 24}, {"reserved", 8}, {"starting PSN", 24}, {"reserved", 8},
		{"responder resources", 8}, {"initiator depth", 8}, {"target ACK delay", 5}, {"failover", 2}, {"F", 1}, {"RNR retry", 3}, {"S", 1}, {"reserved", 4},
		{"local CA GUID", 64}, {"private data", 8 * wire.REPPrivateDataSize},
	}),
	wire.CMRTU:  slices.Concat(commIDs, []Field{{"private data", 8 * wire.RTUPrivateDataSize}}),
	wire.CMDREP: slices.Concat(commIDs, []Field{{"private data", 8 * wire.DREPPrivateDataSize}}),
	wire.CMDREQ: slices.Concat(commIDs, []Field{{"remote QPN", 24}, {"reserved", 8}, {"private data", 8 * wire.DREQPrivateDataSize}}),
	wire.CMREJ: slices.Concat(commIDs, []Field{
		{"message rejected", 2}, {"reserved", 6}, {"info length", 7}, {"reserved", 1}, {"reason", 16},
		{"additional reject information", 8 * wire.REJInfoSize}, {"private data", 8 * wire.REJPrivateDataSize},
	}),
	wire.CMMRA: slices.Concat(commIDs, []Field{
		{"message received", 2}, {"reserved", 6}, {"service timeout", 5}, {"reserved", 3}, {"private data", 8 * wire.MRAPrivateDataSize},
	}),
	wire.CMSIDRREQ: {
		{"request ID", 32}, {"P_Key", 16}, {"reserved", 16}, {"service ID", 64}, {"private data", 8 * wire.SIDRREQPrivateDataSize},
	},
	wire.CMSIDRREP: {
		{"request ID", 32}, {"status", 8}, {"info length", 8}, {"reserved", 16}, {"QPN", 24}, {"reserved", 8}, {"service ID", 64}, {"Q_Key", 32},
		{"additional information", 8 * wire.SIDRInfoSize}, {"private data", 8 * wire.SIDRREPPrivateDataSize},
	},
}

// ipHeader are the fields with which the private data of a REQ for a port of librdmacm begin.
var ipHeader = []Field{{"IP CM version", 8}, {"IP version", 4}, {"reserved", 4}, {"source port", 16}, {"source address", 128}, {"destination address", 128}}

// CMMessage returns the fields of a message of the connection manager, behind its MAD header. mad is the whole datagram.
// ok is false if it is none, or one of which no drawing exists.
func CMMessage(mad []byte) (h Header, ok bool) {
	m, err := wire.DecodeMADHeader(mad)
	if err != nil || len(mad) < wire.MADHeaderSize+wire.CMDataSize {
		return h, false
	}
	attr, ok := m.CM()
	fields := cmLayouts[attr]
	if !ok || fields == nil {
		return h, false
	}
	h = Header{"CM " + attr.String(), slices.Clone(fields)}
	if _, addressed := portOf(attr, mad[wire.MADHeaderSize:]); addressed {
		last := &h.Fields[len(h.Fields)-1]
		last.Bits -= 8 * wire.IPCMHeaderSize
		h.Fields = slices.Insert(h.Fields, len(h.Fields)-1, ipHeader...)
	}
	return h, true
}

// portOf returns the port of a REQ or SIDR_REQ whose service ID is made of one.
func portOf(attr wire.CMAttr, data []byte) (port uint16, ok bool) {
	var id uint64
	switch attr {
	case wire.CMREQ:
		m, err := wire.DecodeREQ(data)
		if err != nil {
			return 0, false
		}
		id = m.ServiceID
	case wire.CMSIDRREQ:
		m, err := wire.DecodeSIDRREQ(data)
		if err != nil {
			return 0, false
		}
		id = m.ServiceID
	}
	_, port, ok = wire.SplitRDMAServiceID(id)
	return port, ok
}

// cmBriefs are what the messages say.
var cmBriefs = []struct {
	attr        wire.CMAttr
	brief, more string
}{
	{wire.CMREQ, "the connection manager's request for a connection: the sender's QP, its first PSN, and the path", "The two timeouts and the path's ACK timeout are codes: 4.096 µs × 2^code. F: end-to-end flow control. D: an RD channel exists. S: the QP has an SRQ. L: the path stays in the subnet. LIDs are 0xffff on RoCE. For a port of librdmacm the private data begin with 36 bytes of IP addresses."},
	{wire.CMREP, "the answer to a REQ: the accepting QP, its first PSN, and how many READs it takes", "F: end-to-end flow control. S: the QP has an SRQ."},
	{wire.CMRTU, "ready to use: the REP has come, and the connection stands", ""},
	{wire.CMREJ, "a connection is refused; the reason is a number", "The additional information depends on the reason: with 26 it has the path MTU that would do."},
	{wire.CMMRA, "a message has come, and its answer takes longer: wait so long", ""},
	{wire.CMDREQ, "a connection is to end; the remote QPN is the receiver's", ""},
	{wire.CMDREP, "the answer to a DREQ: the connection has ended", ""},
	{wire.CMSIDRREQ, "UD: which QP and Q_Key has a service?", ""},
	{wire.CMSIDRREP, "the answer to a SIDR_REQ", ""},
}

func cmHeaders() (list []Entry) {
	for _, c := range cmBriefs {
		e := Entry{Name: c.attr.String(), Also: []string{"CM " + c.attr.String()}, Brief: c.brief, More: c.more, Drawing: draw(shortened(cmLayouts[c.attr])...), See: []string{"MAD"}}
		if c.attr == wire.CMREJ {
			e.See = append(e.See, "reject 8", "reject 28")
		}
		list = append(list, e)
	}
	return list
}

// shortened leaves one row of fields that fill several rows, and of the paths of a REQ the primary one.
func shortened(fields []Field) (list []Field) {
	alternate := 0
	for _, f := range fields {
		if strings.HasPrefix(f.Name, "alternate ") || alternate > 0 && f.Name != "private data" {
			alternate += f.Bits
			continue
		}
		if alternate > 0 {
			list, alternate = append(list, Field{fmt.Sprintf("alternate path, as the primary one: %d bytes", alternate/8), rowBits}), 0
		}
		f.Name = strings.TrimPrefix(f.Name, "primary ")
		if f.Bits > 4*rowBits {
			f = Field{fmt.Sprintf("%s, %d bytes", f.Name, f.Bits/8), rowBits - offset(list)%rowBits}
		}
		list = append(list, f)
	}
	return list
}

// offset is where the bits behind some fields begin.
func offset(fields []Field) (bits int) {
	for _, f := range fields {
		bits += f.Bits
	}
	return bits
}
