package ladder

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/wire"
)

const atomicSize = 8 // bytes, of the memory that an atomic operation changes

// describe takes the fields of a packet that a ladder shows.
func (r *record) describe(p *wire.Packet) {
	r.Bytes = len(p.Payload)
	set := p.Opcode.Headers()
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if set&wire.HeaderDETH != 0 {
		r.srcQPN = p.DETH.SrcQP
		if p.DestQP == wire.GSIQPN && r.management(p.Payload) {
			return
		}
		if r.Fields = subnetManagement(p.DestQP, p.Payload); r.Fields != "" {
			return
		}
		add("from QP 0x%06x, Q_Key 0x%08x", p.DETH.SrcQP, p.DETH.QKey)
	}
	if set&wire.HeaderXRCETH != 0 {
		add("to SRQ 0x%06x", p.XRCETH.SRQN)
	}
	if set&wire.HeaderRETH != 0 {
		r.message = p.RETH.Length
		r.touches, r.va, r.rkey = true, p.RETH.VA, p.RETH.RKey
	}
	switch {
	case set&wire.HeaderFETH != 0:
		add("%s", flushed(p))
	case set&wire.HeaderRETH != 0:
		what := "to"
		if p.Opcode.IsRead() {
			what = "from"
		}
		if p.Opcode.IsRead() || p.Opcode.IsFirst() {
			add("%d bytes in all", p.RETH.Length)
		}
		add("%s 0x%x, rkey 0x%08x", what, p.RETH.VA, p.RETH.RKey)
	}
	if set&wire.HeaderAtomicETH != 0 {
		a := &p.AtomicETH
		r.touches, r.va, r.rkey, r.message = true, a.VA, a.RKey, atomicSize
		if p.Opcode&^wire.XRC == wire.RCFetchAdd {
			add("add %d", a.SwapAdd)
		} else {
			add("if it is %d, then %d", a.Compare, a.SwapAdd)
		}
		add("at 0x%x, rkey 0x%08x", a.VA, a.RKey)
	}
	if set&wire.HeaderImmDt != 0 {
		add("immediate 0x%08x", p.Imm)
	}
	if set&wire.HeaderIETH != 0 {
		add("invalidates rkey 0x%08x", p.InvalidateRKey)
	}
	if set&wire.HeaderAETH != 0 {
		r.syndrome = p.AETH.Syndrome
		add("%s", acknowledgement(p.AETH))
	}
	if set&wire.HeaderAtomicAckETH != 0 {
		add("it was %d", p.AtomicAckETH.Orig)
	}
	if p.Piggybacks {
		add("acknowledges PSN %d: %s", p.PiggybackPSN, acknowledgement(p.AETH))
	}
	if p.Solicited {
		add("solicited")
	}
	if p.BECN {
		add("BECN")
	}
	if p.Resv7&wire.ResvAdaptiveRouting != 0 {
		add("adaptive routing")
	}
	r.Fields = strings.Join(words, ", ")
}

// flushed says what a FLUSH asks for.
func flushed(p *wire.Packet) string {
	how := "to where all see it"
	if p.FETH.Placement&wire.FlushPersistent != 0 {
		how = "to where it outlasts a loss of power"
	}
	if p.FETH.Selectivity == wire.FlushMR {
		return fmt.Sprintf("the whole region of rkey 0x%08x, %s", p.RETH.RKey, how)
	}
	return fmt.Sprintf("%s at 0x%x, rkey 0x%08x, %s", count(int(p.RETH.Length), "byte"), p.RETH.VA, p.RETH.RKey, how)
}

// acknowledgement is an AETH in words.
func acknowledgement(a wire.AETH) string {
	switch a.Syndrome.Kind() {
	case wire.KindACK:
		if n, ok := wire.DecodeCredits(a.Syndrome.Value()); ok {
			return fmt.Sprintf("ACK, MSN %d, %s", a.MSN, count(n, "credit"))
		}
		return fmt.Sprintf("ACK, MSN %d", a.MSN)
	case wire.KindRNR:
		return fmt.Sprintf("RNR NAK, MSN %d, timer %s", a.MSN, span(wire.RNRTimer(a.Syndrome.Value())))
	}
	return fmt.Sprintf("%s, MSN %d", a.Syndrome, a.MSN)
}

// management describes a message of the connection manager. It returns false for other payloads.
func (r *record) management(mad []byte) bool {
	route, ok := wire.CMRoute(mad)
	if !ok {
		return false
	}
	data := mad[wire.MADHeaderSize:]
	r.cm = cmIDs{attr: route.Attr, remote: route.CommID}
	words := []string{"CM " + route.Attr.String()}
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	switch route.Attr {
	case wire.CMREQ:
		m, _ := wire.DecodeREQ(data)
		r.cm.local, r.cm.remote, r.cm.qpn = m.LocalCommID, 0, m.LocalQPN
		add("asks for a connection%s: QP 0x%06x, first PSN %d", service(m.ServiceID, m.PrivateData[:]), m.LocalQPN, m.StartingPSN)
	case wire.CMREP:
		m, _ := wire.DecodeREP(data)
		r.cm.local, r.cm.qpn = m.LocalCommID, m.LocalQPN
		add("agrees: QP 0x%06x, first PSN %d", m.LocalQPN, m.StartingPSN)
	case wire.CMRTU:
		m, _ := wire.DecodeRTU(data)
		r.cm.local = m.LocalCommID
		add("ready to use")
	case wire.CMREJ:
		m, _ := wire.DecodeREJ(data)
		r.cm.local = m.LocalCommID
		add("refuses: reason %d, %s", m.Reason, m.Reason)
	case wire.CMMRA:
		m, _ := wire.DecodeMRA(data)
		r.cm.local = m.LocalCommID
		add("has the message, and needs time")
	case wire.CMDREQ:
		m, _ := wire.DecodeDREQ(data)
		r.cm.local = m.LocalCommID
		add("disconnects QP 0x%06x", m.RemoteQPN)
	case wire.CMDREP:
		m, _ := wire.DecodeDREP(data)
		r.cm.local = m.LocalCommID
		add("is disconnected")
	case wire.CMSIDRREQ:
		m, _ := wire.DecodeSIDRREQ(data)
		r.cm.local, r.cm.remote = m.RequestID, 0
		add("asks for the QP of a service%s", service(m.ServiceID, m.PrivateData[:]))
	case wire.CMSIDRREP:
		m, _ := wire.DecodeSIDRREP(data)
		r.cm.remote = m.RequestID
		if m.Status != wire.SIDRSuccess {
			add("refuses: status %d, %s", m.Status, m.Status)
		} else {
			add("QP 0x%06x, Q_Key 0x%08x", m.QPN, m.QKey)
		}
	}
	r.Fields = strings.Join(words, ", ")
	return true
}

// service names where a connection is asked for.
func service(id uint64, private []byte) string {
	_, port, ok := wire.SplitRDMAServiceID(id)
	if !ok {
		return fmt.Sprintf(" with service 0x%016x", id)
	}
	h, err := wire.DecodeIPCMHeader(private)
	if err != nil {
		return fmt.Sprintf(" with port %d", port)
	}
	return fmt.Sprintf(" with %v", netip.AddrPortFrom(h.Dst.Unmap(), port))
}

// Label is the name of the packet's operation, without the service where that is RC.
func (p *Packet) Label() string {
	if p.isIWARP() {
		return p.Name
	}
	return strings.TrimPrefix(p.Opcode.String(), "RC ")
}

// Words is the row in words: how many packets, their operation, and the fields of their headers.
func (r *Row) Words() string {
	var b strings.Builder
	if isManagement(r.Fields) {
		return r.Fields
	}
	if r.Count > 1 {
		fmt.Fprintf(&b, "… %d × ", r.Count)
	}
	fmt.Fprintf(&b, "%s, %s", r.Label(), r.queue())
	switch {
	case r.isIWARP():
	case r.Count > 1 && r.LastPSN != r.PSN:
		fmt.Fprintf(&b, ", PSN %d–%d", r.PSN, r.LastPSN)
	default:
		fmt.Fprintf(&b, ", PSN %d", r.PSN)
	}
	if r.Bytes > 0 {
		fmt.Fprintf(&b, ", %s", count(r.Bytes, "byte"))
		if r.Count > 1 {
			b.WriteString(" each")
		}
	}
	if r.Fields != "" {
		b.WriteString(", " + r.Fields)
	}
	if r.AckReq {
		b.WriteString(", asks for an ACK")
	}
	if r.Count > 1 && r.LastPSN == r.PSN {
		fmt.Fprintf(&b, ", the last after %s", stamp(r.LastAt))
	}
	return b.String()
}
