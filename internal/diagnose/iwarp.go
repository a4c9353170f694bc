package diagnose

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

// maxReads is how many READs and atomics of one direction are followed at a time.
const maxReads = 256

// parser finds the MPA frame and the FPDUs in a stream.
type parser struct {
	begun  bool   // the MPA frame has come
	lost   bool   // where an FPDU begins is not known
	unsure bool   // that has been guessed
	dead   bool   // no iWARP
	buf    []byte // of an MPA frame or FPDU that has not ended
	skip   int    // bytes of an FPDU that were not captured whole
	marks  mpa.Marks
	plain  []byte // space
	fpdus  int
	good   int // of them with a CRC that is right
	reads  []openRead
	begin  uint32 // where the frame or FPDU that is taken begins, as TCP counts
	resent bool   // the bytes that are fed were sent again
	gap    bool   // what is before the next FPDU was not captured
}

// openRead is a READ or an atomic that is not answered.
type openRead struct {
	atomic bool
	size   uint32
	stag   uint32
	to     uint64
	frame  int
	at     int64
}

// lose gives up to find FPDUs until one begins a segment.
func (a *Analyzer) lose(s *stream) {
	a.tcps.held -= len(s.buf)
	s.buf, s.lost, s.skip = nil, true, 0
	s.reads = s.reads[:0]
}

// feed takes bytes of a stream in order, behind which missing ones were not captured.
func (a *Analyzer) feed(s *stream, data []byte, missing, frame int, at int64) {
	if s.dead {
		return
	}
	if s.skip > 0 {
		n := min(s.skip, len(data))
		data, s.skip = data[n:], s.skip-n
		n = min(s.skip, missing)
		missing, s.skip = missing-n, s.skip-n
	}
	if s.lost && !s.find(data, missing) {
		return
	}
	buf, rest := s.buf, data
	a.tcps.held -= len(buf)
	s.buf = nil
	if len(buf) > 0 {
		buf = append(buf, data...)
		rest = buf
	}
	for len(rest) > 0 && !s.dead && !s.lost {
		s.begin = s.nxt - uint32(missing+len(rest))
		n := a.take(s, rest, &missing, frame, at)
		if n == 0 {
			break
		}
		rest = rest[n:]
	}
	switch {
	case s.dead:
	case s.lost, missing > 0:
		s.lost = true
		a.count.tcpUnseen++
	default:
		s.buf = append(buf[:0], rest...)
		a.tcps.held += len(s.buf)
		if a.tcps.held > maxHeld {
			a.lose(s)
		}
	}
}

// find looks for an FPDU at the beginning of a segment.
func (s *stream) find(data []byte, missing int) bool {
	if s.marked() || missing == 0 && !isFPDU(data) || !plausible(data) {
		return false
	}
	s.lost, s.unsure, s.gap = false, missing > 0, s.gap || s.fpdus > 0
	return true
}

// marked reports whether the stream has markers: if the other end has asked for them.
func (s *stream) marked() bool {
	c := s.conn
	if s == &c.a {
		return c.repFrame > 0 && c.reply.Markers
	}
	return c.reqFrame > 0 && c.request.Markers
}

// take takes an MPA frame or an FPDU from the beginning of b, and returns how many bytes of b it has: 0 if the end has not
// come. Of one that was not captured whole the headers are enough.
func (a *Analyzer) take(s *stream, b []byte, missing *int, frame int, at int64) int {
	if !s.begun {
		f, n, err := mpa.DecodeFrame(b)
		switch {
		case errors.Is(err, mpa.ErrShort):
			return 0
		case err != nil:
			a.notMPA(s, frame)
			return 0
		}
		s.begun = true
		f.PrivateData = slices.Clone(f.PrivateData)
		a.unit(s, Unit{MPA: &f}, frame, at)
		a.opened(s, f, frame, at)
		return n
	}
	lead, marked := 0, s.marked()
	if marked {
		lead = s.marks.Lead()
	}
	if len(b) < lead+mpa.LengthSize {
		return 0
	}
	plain := fpduSize(b[lead:])
	size := plain
	if marked {
		size = s.marks.Size(plain)
	}
	if size > len(b) {
		if *missing == 0 || marked || !plausible(b) {
			return 0
		}
		n := size - len(b)
		s.skip = max(0, n-*missing)
		*missing = max(0, *missing-n)
		a.count.uncheckedCRC++
		a.fpduUnit(s, b[mpa.LengthSize:], mpa.Length(b), true, false, frame, at)
		a.fpdu(s, b[mpa.LengthSize:], true, frame, at)
		return len(b)
	}
	good := mpa.Verify(b[:size])
	body := b[:size]
	if marked {
		var ok bool
		s.plain, ok = s.marks.Strip(s.plain[:0], body)
		if body = s.plain; !ok {
			a.framing(s, "a marker does not point to the beginning of its FPDU", frame)
			return 0
		}
	}
	if !a.checksum(s, good, frame) {
		if s.unsure || !plausible(body) {
			a.lose(s)
			return 0
		}
		a.fpduUnit(s, body[mpa.LengthSize:][:mpa.Length(body)], mpa.Length(body), false, true, frame, at)
		return size // the receiver takes nothing of it
	}
	a.fpduUnit(s, body[mpa.LengthSize:][:mpa.Length(body)], mpa.Length(body), false, false, frame, at)
	a.fpdu(s, body[mpa.LengthSize:][:mpa.Length(body)], false, frame, at)
	return size
}

// checksum judges the CRC of an FPDU, and reports whether to look at the FPDU.
func (a *Analyzer) checksum(s *stream, good bool, frame int) bool {
	c := s.conn
	switch {
	case good:
		s.good++
		s.unsure = false
		a.count.goodCRC++
		return true
	case s.unsure:
		return false
	case c.repFrame > 0 && c.reqFrame > 0 && !c.request.CRC && !c.reply.CRC, s.good+s.back.good == 0 && c.repFrame*c.reqFrame == 0:
		a.count.uncheckedCRC++ // none is used, or that is not known
		return true
	}
	a.count.badCRC++
	if x := a.markTCP(c, iwCRC, frame); x != nil {
		x.Words = words("%d FPDUs of this connection.", x.Count)
	}
	return false
}

// opened: an end has said how it wants to speak.
func (a *Analyzer) opened(s *stream, f mpa.Frame, frame int, at int64) {
	c := s.conn
	if !f.Reply {
		c.request, c.reqFrame, c.requestAt = f, frame, at
		return
	}
	c.reply, c.repFrame = f, frame
	if !f.Reject {
		return
	}
	c.refused = true
	if x := a.markTCP(c, iwReject, frame); x != nil {
		x.hit(c.reqFrame)
		x.Count = 1
		x.Words = words("%s sends an MPA reply with the reject bit. Private data: %s.", a.names.addr(s.key.src.Addr()), a.names.data(f.PrivateData))
	}
}

// notMPA: something else than an MPA frame begins a stream.
func (a *Analyzer) notMPA(s *stream, frame int) {
	c := s.conn
	s.dead = true
	c.refused = true
	if x := a.markTCP(c, iwNotMPA, frame); x != nil {
		x.hit(c.reqFrame)
		x.Count = 1
	}
}

// framing: the bytes are no FPDU.
func (a *Analyzer) framing(s *stream, what string, frame int) {
	if x := a.markTCP(s.conn, iwFrame, frame); x != nil {
		x.Words = words("%s sends it: %s.", a.names.addr(s.key.src.Addr()), what)
	}
	a.lose(s)
}

// fpdu takes the DDP segment of an FPDU. cut says that its end was not captured.
func (a *Analyzer) fpdu(s *stream, b []byte, cut bool, frame int, at int64) {
	c := s.conn
	s.fpdus++
	a.count.fpdus++
	if len(b) == 0 { // with one the initiator says that it is ready
		return
	}
	h, n, err := iwarp.DecodeHeader(b)
	if err != nil {
		if !cut {
			a.framing(s, err.Error(), frame)
		}
		return
	}
	body := b[n:]
	switch h.Op {
	case iwarp.ReadRequest:
		if r, err := iwarp.DecodeReadReq(body); err == nil {
			a.asked(s, openRead{size: r.Size, stag: r.SrcSTag, to: r.SrcTO, frame: frame, at: at})
		}
	case iwarp.AtomicRequest:
		if r, err := iwarp.DecodeAtomicReq(body); err == nil {
			a.asked(s, openRead{atomic: true, size: 8, stag: r.STag, to: r.TO, frame: frame, at: at})
		}
	case iwarp.ReadResponse:
		if h.Last {
			s.back.answered(false)
		}
	case iwarp.AtomicResponse:
		s.back.answered(true)
	case iwarp.Terminate:
		c.ended = true
		if m, err := iwarp.DecodeTermMsg(body); err == nil {
			a.terminated(s, &m, frame)
		}
	}
}

// asked takes a request to read.
func (a *Analyzer) asked(s *stream, r openRead) {
	c := s.conn
	if len(s.reads) == maxReads {
		s.reads = slices.Delete(s.reads, 0, 1)
	}
	s.reads = append(s.reads, r)
	limit, known := c.reply.IRD, c.repFrame > 0 && c.reply.Enhanced
	if s == &c.b {
		limit, known = c.request.IRD, c.reqFrame > 0 && c.request.Enhanced
	}
	if known && r.size > 0 && len(s.reads) > int(limit) && s.again == 0 && s.back.again == 0 {
		if x := a.markTCP(c, iwDepth, r.frame); x != nil && x.Count == 1 {
			x.Words = words("%s answers %d at a time, and %d are open.", a.names.addr(s.key.dst.Addr()), limit, len(s.reads))
		}
	}
}

// answered: the oldest READ, or atomic, has its answer.
func (s *stream) answered(atomic bool) {
	if i := slices.IndexFunc(s.reads, func(r openRead) bool { return r.atomic == atomic }); i >= 0 {
		s.reads = slices.Delete(s.reads, i, i+1)
	}
}

// terminated takes the message by which one end tells the other of an error.
func (a *Analyzer) terminated(s *stream, m *iwarp.TermMsg, frame int) {
	x := a.markTCP(s.conn, iwTerminate, frame)
	if x == nil {
		return
	}
	x.Words = words("%s says: %v.", a.names.addr(s.key.src.Addr()), m.Code)
	if h := m.Header; h != nil {
		x.Words += words(" It is about %v", h.Op)
		switch {
		case m.Read != nil:
			x.Words += words(" of %d bytes at offset %s of STag %s", m.Read.Size, a.names.key("%#x", m.Read.SrcTO), a.names.key("%#08x", uint64(m.Read.SrcSTag)))
		case h.Tagged:
			x.Words += words(" to offset %s of STag %s", a.names.key("%#x", h.TO), a.names.key("%#08x", uint64(h.STag)))
		default:
			x.Words += words(", message %d of queue %d", h.MSN, h.QN)
		}
		x.Words += "."
	}
	if more, side, severity := remedyOf(m.Code); more != "" {
		x.Remedy, x.Side, x.Severity = append([]string{more}, rules[iwTerminate].remedy...), side, severity
	}
}

// remedyOf says what to do about the error of a Terminate message.
func remedyOf(c iwarp.Code) (string, Side, Severity) {
	const (
		protection = 0x01 // layer and type: RDMAP's, and DDP's of tagged messages
		tagged     = 0x11
		untagged   = 0x12
		mpaLayer   = 0x20
		noBuffer   = 0x1202
		tooLong    = 0x1205
		lost       = 0x2001
		crc        = 0x2002
	)
	switch {
	case c == noBuffer:
		return "A SEND came before its receive: post receives earlier and more of them. Or more READs came than the peer answers at a time: raise responder_resources there, or lower initiator_depth here.", OfProgram, Error
	case c == tooLong:
		return "The message is longer than the receive that it met: post larger receives.", OfProgram, Error
	case c == crc:
		return "Bytes were damaged that TCP's checksum let pass: memory of a switch, a card that offloads checksums, or a driver.", OfNetwork, Error
	case c == lost:
		return "The end that says so has closed the connection. If no program did so on purpose, ask why it ended.", OfProgram, Warning
	case c>>8 == protection || c>>8 == tagged:
		return "Does the region still exist, and is the whole range inside it? Does it allow the access (remote read, write), and is it of the queue pair's protection domain?", OfProgram, Error
	}
	return "", OfProgram, Error
}

// reset: TCP has ended a connection at once.
func (a *Analyzer) reset(s *stream, p *capture.Packet) {
	c := s.conn
	if c.a.rst || c.b.rst {
		return
	}
	s.rst = true
	if c.ended || c.refused || s.fin || s.back.fin || c.repFrame == 0 && !c.midway {
		return // it is the end of what has ended, or of an attempt
	}
	if x := a.markTCP(c, iwReset, p.Frame.Number); x != nil {
		x.Words = words("%s sends the reset.", a.names.addr(s.key.src.Addr()))
	}
}

// markTCP counts an occurrence of a rule on a connection.
func (a *Analyzer) markTCP(c *tcpConn, r ruleID, frame int) *Finding {
	if c.places[r] == nil {
		x := a.found.add(r, fmt.Sprintf("%s → %s", a.names.endpoint(c.a.key.src), a.names.endpoint(c.a.key.dst)))
		if x == nil {
			return nil
		}
		x.Filter = a.names.filterTCP(c.a.key.src, c.a.key.dst)
		c.places[r] = x
	}
	c.places[r].hit(frame)
	return c.places[r]
}

// endpoint writes an address with its port.
func (n *names) endpoint(a netip.AddrPort) string {
	if !n.redact {
		return a.String()
	}
	return fmt.Sprintf("%s port %d", n.addr(a.Addr()), a.Port())
}

// filterTCP is a display filter for the segments of a connection, or "" if addresses are to be hidden.
func (n *names) filterTCP(one, other netip.AddrPort) string {
	if n.redact {
		return ""
	}
	field := "ipv6.addr"
	if one.Addr().Is4() {
		field = "ip.addr"
	}
	return fmt.Sprintf("%s == %s && %s == %s && tcp.port == %d && tcp.port == %d", field, one.Addr(), field, other.Addr(), one.Port(), other.Port())
}

// finishTCP judges a connection at its end.
func (a *Analyzer) finishTCP(c *tcpConn) {
	const soon = int64(time.Second)
	over := c.a.rst || c.b.rst || c.a.fin || c.b.fin
	if c.reqFrame > 0 && c.repFrame == 0 && !c.refused && (over || a.last-c.requestAt > 2*soon) {
		if x := a.markTCP(c, iwNoAnswer, c.reqFrame); x != nil {
			x.Words = words("Nothing came in %v.", round(a.last-c.requestAt))
			if c.b.rst || c.b.fin {
				x.Words = "The peer has closed the connection instead."
			}
			if c.b.segments == 0 && !c.b.ackKnown && !c.a.ackKnown {
				x.Certainty = Likely // perhaps one direction was captured
			}
		}
	}
	for _, s := range [...]*stream{&c.a, &c.b} {
		const repeats = 2
		if s.lastAgain >= repeats && !over && !s.lost && s.ackKnown && int32(s.nxt-s.acked) > 0 {
			if x := a.markTCP(c, iwSilent, 0); x != nil {
				x.Count = s.lastAgain
				x.Words = words("%d bytes of %s are not acknowledged, which TCP has sent again %d times.", s.nxt-s.acked, a.names.addr(s.key.src.Addr()), s.lastAgain)
				if loss := c.places[iwLoss]; loss != nil {
					x.Frames = slices.Clone(loss.Frames)
				}
			}
		}
		if c.ended || s.lost || s.back.lost || len(s.reads) == 0 || len(s.back.held) > 0 || s.back.segments == 0 {
			continue
		}
		if r := s.reads[0]; over || a.last-r.at > soon {
			if x := a.markTCP(c, iwRead, r.frame); x != nil && c.places[iwSilent] == nil && c.places[iwReset] == nil {
				x.Count = len(s.reads)
				x.Words = words("%d READs or atomics of %s have no whole answer. The first asks for %d bytes at offset %s of STag %s.",
					len(s.reads), a.names.addr(s.key.src.Addr()), r.size, a.names.key("%#x", r.to), a.names.key("%#08x", uint64(r.stag)))
				if over {
					x.Words += " The connection was closed before."
				}
			} else if x != nil {
				x.dropped = true
			}
		}
	}
}

// over reports whether nothing more is to come of a connection that has been quiet for some time.
func (c *tcpConn) over(quiet int64) bool {
	switch {
	case c.a.rst || c.b.rst || c.a.fin && c.b.fin, c.reqFrame > 0 && c.repFrame == 0:
		return quiet >= quietEnded
	case c.a.lastAgain+c.b.lastAgain >= 2:
		return quiet >= quietEnded+4*max(c.a.wait, c.b.wait)
	}
	return quiet >= quietIdle
}
