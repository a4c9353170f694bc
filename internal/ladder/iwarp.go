package ladder

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Names of what is no message of RDMAP.
const (
	nameRequest = "MPA request"
	nameReply   = "MPA reply"
	nameEmpty   = "empty FPDU"
)

const immediateSize = 8 // bytes, of RFC 7306

// connection returns the number that stands for the QP of a packet of iWARP: the TCP ports, which are no QPN.
func connection(src, dst uint16) uint32 { return uint32(src)<<16 | uint32(dst) }

// isIWARP reports whether the packet is an MPA frame or an FPDU.
func (p *Packet) isIWARP() bool { return p.Name != "" }

// queue names the QP that the packet is for, or its TCP connection.
func (p *Packet) queue() string {
	if p.isIWARP() {
		return fmt.Sprintf("TCP %d→%d", p.QPN>>16, p.QPN&0xffff)
	}
	return fmt.Sprintf("QP 0x%06x", p.QPN)
}

// isAnswer reports whether the packet answers a request.
func (p *Packet) isAnswer() bool {
	switch p.Name {
	case "":
		return p.Opcode.IsResponse()
	case nameReply, iwarp.ReadResponse.String(), iwarp.AtomicResponse.String(), iwarp.Terminate.String():
		return true
	}
	return false
}

// units takes the MPA frames and FPDUs of a capture.
type units struct {
	c       *Collector
	file    int
	streams map[unitsID]*unitStream
}

type unitsID struct{ src, dst netip.AddrPort }

// unitStream is one direction of a connection.
type unitStream struct {
	n    int          // units
	open bool         // the message of the latest FPDU goes on
	last iwarp.Header // of that FPDU
	next uint64       // the offset at which its message goes on
}

// take takes a unit.
func (t *units) take(u *diagnose.Unit) {
	c := t.c
	c.units++
	if len(c.records) >= maxPackets {
		c.left++
		return
	}
	id := unitsID{u.Src, u.Dst}
	s := t.streams[id]
	if s == nil {
		s = &unitStream{}
		t.streams[id] = s
	}
	r := record{
		time: u.Time, file: int32(t.file), source: c.source(t.file, 0), src: u.Src.Addr(), dst: u.Dst.Addr(), frame: u.Frame, decoded: true,
		srcPort: u.Src.Port(), dstPort: u.Dst.Port(), key: c.unitKey(u),
	}
	r.Packet = Packet{Frame: u.Frame, Took: -1, QPN: connection(u.Src.Port(), u.Dst.Port()), PSN: wire.PSN(s.n) & wire.PSNMask, Bytes: u.Size}
	s.n++
	switch {
	case u.MPA != nil:
		s.open = false
		r.opening(u.MPA)
	case u.Header == nil:
		r.Name, r.Fields = nameEmpty, "ready to receive"
	default:
		r.segment(u, s)
	}
	if u.Gap {
		r.Marks = append(r.Marks, Mark{MarkGap, "what TCP carried before it is not in the capture"})
	}
	if u.Damaged {
		r.Fate = Damaged
		r.Marks = append(r.Marks, Mark{MarkDamaged, "damaged: its CRC is wrong, and the receiver ends the connection"})
	}
	if u.Resent {
		r.Marks = append(r.Marks, Mark{MarkRepeat, "TCP has sent its segment again"})
	}
	if u.Cut {
		r.note("captured in part")
	}
	c.records = append(c.records, r)
}

// unitKey is equal for what the captures at both ends have of a unit.
func (c *Collector) unitKey(u *diagnose.Unit) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	for _, a := range [...]netip.AddrPort{u.Src, u.Dst} {
		b := a.Addr().As16()
		h.Write(b[:])
		_, _ = h.Write(binary.BigEndian.AppendUint16(nil, a.Port()))
	}
	damaged := uint32(0)
	if u.Damaged {
		damaged = 1
	}
	for _, n := range [...]uint32{u.Seq, uint32(u.Size), damaged} {
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, n))
	}
	return h.Sum64()
}

// opening describes an MPA frame.
func (r *record) opening(f *mpa.Frame) {
	r.Name = nameRequest
	if f.Reply {
		r.Name = nameReply
	}
	words := []string{fmt.Sprintf("revision %d", f.Revision)}
	for _, x := range []struct {
		on   bool
		text string
	}{
		{f.CRC, "CRC"}, {f.Markers, "markers"}, {f.Enhanced, fmt.Sprintf("IRD %d, ORD %d", f.IRD, f.ORD)}, {f.PeerToPeer, "peer to peer"},
		{f.RTR&mpa.RTRFPDU != 0, "RTR by an empty FPDU"}, {f.RTR&mpa.RTRWrite != 0, "RTR by a WRITE"}, {f.RTR&mpa.RTRRead != 0, "RTR by a READ"},
		{len(f.PrivateData) > 0, count(len(f.PrivateData), "byte") + " of private data"},
	} {
		if x.on {
			words = append(words, x.text)
		}
	}
	r.Fields = strings.Join(words, ", ")
	if f.Reject {
		r.Marks = append(r.Marks, Mark{MarkRefusal, "the program refuses the connection"})
	}
}

// segment describes the DDP segment of an FPDU. The headers of those behind the first of a message say where it goes on,
// and need no words.
func (r *record) segment(u *diagnose.Unit, s *unitStream) {
	h := u.Header
	r.Name = h.Op.String()
	goesOn := s.goesOn(h)
	s.last, s.next, s.open = *h, offset(h)+uint64(u.Size), !h.Last
	if h.Tagged {
		r.touches, r.va, r.rkey, r.message = u.Size > 0, h.TO, h.STag, uint32(u.Size)
	}
	switch {
	case goesOn && h.Last:
		r.Fields = "the message ends"
		return
	case goesOn:
		r.Fields = "the message goes on"
		return
	}
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if h.Tagged {
		add("to 0x%x, STag 0x%08x", h.TO, h.STag)
	} else {
		add("MSN %d", h.MSN)
	}
	switch h.Op {
	case iwarp.SendInvalidate, iwarp.SendSolicitedInvalidate:
		add("invalidates STag 0x%08x", h.STag)
	case iwarp.ReadRequest:
		r.Bytes = 0 // what follows the header is another one
		if q, err := iwarp.DecodeReadReq(u.Body); err == nil {
			r.touches, r.va, r.rkey, r.message = q.Size > 0, q.SrcTO, q.SrcSTag, q.Size
			add("%s from 0x%x, STag 0x%08x", count(int(q.Size), "byte"), q.SrcTO, q.SrcSTag)
			add("into 0x%x, STag 0x%08x", q.SinkTO, q.SinkSTag)
		}
	case iwarp.AtomicRequest:
		r.Bytes = 0
		if q, err := iwarp.DecodeAtomicReq(u.Body); err == nil {
			r.touches, r.va, r.rkey, r.message = true, q.TO, q.STag, atomicSize
			switch q.Op {
			case iwarp.FetchAdd:
				add("add %d", q.Data)
			case iwarp.Swap:
				add("swap for %d", q.Data)
			case iwarp.CompareSwap:
				add("if it is %d, then %d", q.Compare, q.Data)
			}
			add("at 0x%x, STag 0x%08x", q.TO, q.STag)
		}
	case iwarp.AtomicResponse:
		r.Bytes = 0
		if q, err := iwarp.DecodeAtomicResp(u.Body); err == nil {
			add("it was %d", q.Original)
		}
	case iwarp.Immediate, iwarp.ImmediateSolicited:
		r.Bytes = 0
		if len(u.Body) >= immediateSize {
			add("immediate 0x%016x", binary.BigEndian.Uint64(u.Body))
		}
	case iwarp.Terminate:
		r.Bytes = 0
		if m, err := iwarp.DecodeTermMsg(u.Body); err == nil {
			if m.Header != nil {
				add("about: %v", m.Header.Op)
			}
			r.Marks = append(r.Marks, Mark{MarkRefusal, fmt.Sprintf("the connection ends: %v", m.Code)})
		}
	}
	if !h.Last {
		add("of a longer message")
	}
	r.Fields = strings.Join(words, ", ")
}

// goesOn reports whether an FPDU has more of the message of the one before.
func (s *unitStream) goesOn(h *iwarp.Header) bool {
	l := &s.last
	return s.open && l.Op == h.Op && l.Tagged == h.Tagged && l.STag == h.STag && l.QN == h.QN && l.MSN == h.MSN && offset(h) == s.next
}

// offset is where in its message, or in memory, a segment begins.
func offset(h *iwarp.Header) uint64 {
	if h.Tagged {
		return h.TO
	}
	return uint64(h.MO)
}

// join has the two directions of each connection of iWARP name each other.
func (c *columns) join() {
	for id, i := range c.streamOf {
		if c.streams[i].Label == "" {
			continue
		}
		if back, ok := c.streamOf[streamID{id.to, id.from, id.qpn<<16 | id.qpn>>16}]; ok {
			c.streams[i].Answers = back
		}
	}
}

// keyName is what the key is called by which a packet names memory.
func (r *record) keyName() string {
	if r.isIWARP() {
		return "STag"
	}
	return "rkey"
}
