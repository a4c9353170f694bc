package stage

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// PacketBytes is a packet, byte by byte and field by field.
type PacketBytes struct {
	PacketView
	Hex     string       `json:"hex"`
	Headers []HeaderView `json:"headers"`
	Brief   string       `json:"brief"` // what the opcode means
}

// HeaderView is a header, the payload, the pad or the ICRC.
type HeaderView struct {
	Name   string      `json:"name"`
	From   int         `json:"from"` // byte of the packet
	Len    int         `json:"len"`
	Brief  string      `json:"brief"`
	Fields []FieldView `json:"fields"`
}

// FieldView is a field of a header.
type FieldView struct {
	Name  string `json:"name"`
	Bit   int    `json:"bit"` // of the header
	Bits  int    `json:"bits"`
	Value string `json:"value"` // hexadecimal
	Text  string `json:"text,omitempty"`
}

// Packet returns a packet by its number.
func (s *Stage) Packet(n int) (PacketBytes, error) {
	if n < 1 || n > len(s.packets) {
		return PacketBytes{}, fmt.Errorf("show packet %d: there is none", n)
	}
	p := s.packets[n-1]
	v := PacketBytes{PacketView: viewPacket(p), Hex: fmt.Sprintf("%x", p.data), Headers: []HeaderView{}}
	var w wire.Packet
	if w.Decode(p.data) != nil {
		return v, nil
	}
	if e, ok := meaning.Lookup(meaning.KindOpcode, int(w.Opcode)); ok {
		v.Brief = e.Brief
	}
	at := 0
	add := func(h meaning.Header) {
		bits := 0
		for _, f := range h.Fields {
			bits += f.Bits
		}
		x := HeaderView{Name: h.Name, From: at, Len: bits / 8, Brief: briefOf(h.Name)}
		bit := 0
		for _, f := range h.Fields {
			value := bitsOf(p.data[at:], bit, f.Bits)
			text := textOf(h.Name, f.Name, &w)
			if strings.HasPrefix(h.Name, "CM ") {
				text = cmText(h.Name, f, p.data[at:], bit)
			}
			x.Fields = append(x.Fields, FieldView{f.Name, bit, f.Bits, value, text})
			bit += f.Bits
		}
		v.Headers = append(v.Headers, x)
		at += x.Len
	}
	for _, h := range meaning.HeadersOf(w.Opcode) {
		add(h)
	}
	rest := func(name string, n int) {
		if n > 0 {
			v.Headers = append(v.Headers, HeaderView{Name: name, From: at, Len: n, Brief: briefOf(name), Fields: []FieldView{}})
			at += n
		}
	}
	payload := len(w.Payload)
	if v.Kind == "manage" && payload >= wire.MADHeaderSize {
		add(meaning.MADHeader())
		payload -= wire.MADHeaderSize
		if h, ok := meaning.CMMessage(w.Payload); ok {
			add(h)
			payload -= wire.CMDataSize
		}
	}
	rest("payload", payload)
	rest("pad", int(w.PadCount))
	rest("ICRC", len(p.data)-at)
	return v, nil
}

func briefOf(header string) string {
	header = strings.TrimPrefix(header, "CM ")
	for _, e := range meaning.Of(meaning.KindHeader) {
		if e.Name == header {
			return e.Brief
		}
	}
	return ""
}

// bitsOf returns bits of b as a hexadecimal number.
func bitsOf(b []byte, from, n int) string {
	if n > 64 {
		return fmt.Sprintf("0x%x", b[from/8:(from+n)/8])
	}
	return fmt.Sprintf("0x%0*x", (n+3)/4, numberOf(b, from, n))
}

// numberOf returns up to 64 bits of b.
func numberOf(b []byte, from, n int) (v uint64) {
	for i := from; i < from+n; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8)&1)
	}
	return v
}

// cmText is what a field of a message of the connection manager says.
func cmText(header string, f meaning.Field, b []byte, bit int) string {
	const gidBits = 128
	if f.Bits == gidBits {
		return addressText(b[bit/8:][:gidBits/8])
	}
	if f.Bits > 64 {
		return fmt.Sprint(f.Bits/8, " bytes")
	}
	v := numberOf(b, bit, f.Bits)
	switch name := strings.TrimPrefix(strings.TrimPrefix(f.Name, "primary "), "alternate "); name {
	case "local QPN", "remote QPN", "QPN":
		return fmt.Sprintf("QP %v", verbs.QPN(v))
	case "starting PSN", "responder resources", "initiator depth", "retry count", "max CM retries", "hop limit", "source port":
		return fmt.Sprint(v)
	case "RNR retry":
		if v == 7 {
			return "7: without end"
		}
		return fmt.Sprint(v)
	case "service ID":
		if _, port, ok := wire.SplitRDMAServiceID(v); ok {
			return fmt.Sprintf("port %d", port)
		}
	case "remote CM timeout", "local CM timeout", "ACK timeout", "target ACK delay", "service timeout":
		d := wire.ACKTimeout(uint8(v))
		return (d - d%time.Microsecond).String()
	case "path MTU":
		return verbs.MTU(v).String()
	case "transport":
		return [...]string{"RC", "UC", "RD", "extended"}[v]
	case "message rejected", "message received":
		return [...]string{"REQ", "REP", "other", "other"}[v]
	case "reason":
		return wire.RejReason(v).String()
	case "status":
		return wire.SIDRStatus(v).String()
	}
	return ""
}

// addressText is a GID or an address of 16 bytes, of which an IPv4 address has the last 4 behind zeros.
func addressText(b []byte) string {
	a := netip.AddrFrom16([16]byte(b))
	if zeros := [12]byte{}; [12]byte(b) == zeros && !a.IsUnspecified() {
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a.Unmap().String()
}

// textOf is what a field says, where the number does not.
func textOf(header, field string, w *wire.Packet) string {
	switch header + " " + field {
	case "BTH opcode":
		return w.Opcode.String()
	case "BTH PSN":
		return fmt.Sprint(int(w.PSN))
	case "BTH Pad":
		return fmt.Sprint(w.PadCount, " bytes")
	case "BTH destination QP":
		return fmt.Sprintf("QP %v", verbs.QPN(w.DestQP))
	case "AETH syndrome":
		return w.AETH.Syndrome.String()
	case "AETH MSN":
		return fmt.Sprint(w.AETH.MSN)
	case "RETH DMA length: bytes of the whole message":
		return fmt.Sprint(w.RETH.Length, " bytes")
	case "AtomicAckETH original remote data":
		return fmt.Sprint(w.AtomicAckETH.Orig)
	case "AtomicETH swap or add":
		return fmt.Sprint(w.AtomicETH.SwapAdd)
	case "AtomicETH compare":
		return fmt.Sprint(w.AtomicETH.Compare)
	case "MAD attribute ID":
		if m, err := wire.DecodeMADHeader(w.Payload); err == nil {
			if attr, ok := m.CM(); ok {
				return attr.String()
			}
		}
	}
	return ""
}
