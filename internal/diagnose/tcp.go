package diagnose

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

// Limits of what is kept of TCP.
const (
	maxTCPConns   = 1024     // of iWARP
	maxSegments   = 128      // of one direction, behind a hole
	maxHeld       = 32 << 20 // bytes of all segments behind holes, and of FPDUs that have not ended
	maxTCPPorts   = 32       // that a live capture follows
	recentTCP     = 8        // segments of a direction among which copies are looked for
	keepAliveSize = 1        // bytes of a probe, which were sent before
)

type streamKey struct{ src, dst netip.AddrPort }

// A stream is one direction of a TCP connection that carries iWARP.
type stream struct {
	key  streamKey
	conn *tcpConn
	back *stream
	main vantage // where it was captured first: the segments of other points do not count

	known    bool // nxt is
	nxt      uint32
	acked    uint32 // by the other end
	ackKnown bool
	held     []segment // behind a hole, in order
	recent   [recentTCP]segmentID
	at       int // of recent
	lastAt   int64

	segments, again int
	lastAgain       int // of the segments since the latest progress: sent again
	wait            int64
	fin, rst        bool

	parser
}

// segment is one that has come before those ahead of it.
type segment struct {
	seq    uint32
	data   []byte
	length int // of all of it, captured or not
	frame  int
	time   int64
}

// segmentID is what a copy of a segment has too, and a repeat has not.
type segmentID struct {
	seq, ack uint32
	length   int
	id       uint16
	time     int64
}

// tcpConn is a TCP connection of iWARP. a is its initiator; of connections found midway that is not known.
type tcpConn struct {
	a, b      stream
	midway    bool
	lastAt    int64
	request   mpa.Frame
	reply     mpa.Frame
	requestAt int64
	reqFrame  int
	repFrame  int
	refused   bool // the answer was no, or not MPA
	ended     bool // by a Terminate message
	places    [numRules]*Finding
}

// tcpConns has the connections. The oldest make room.
type tcpConns struct {
	streams map[streamKey]*stream
	order   []*tcpConn
	held    int // bytes
	ports   []uint16
}

// tcp takes a TCP segment.
func (a *Analyzer) tcp(p *capture.Packet) {
	if !p.Src.IsValid() {
		return
	}
	k := streamKey{p.Src, p.Dst}
	s := a.tcps.streams[k]
	if s != nil && p.TCP.Flags&capture.TCPSyn != 0 { // the ports are used again
		a.finishTCP(s.conn)
		a.forgetTCP(s.conn)
		return
	}
	if s == nil {
		midway := !isMPA(p.Stream)
		if midway && !isFPDU(p.Stream) {
			return
		}
		s = a.newTCP(k, midway)
		s.main = vantageOf(p)
		s.back.main = s.main
		if p.Frame.Direction != capture.NoDirection { // the answers come the other way
			s.back.main ^= vantage(capture.Inbound ^ capture.Outbound)
		}
	}
	c := s.conn
	if v := vantageOf(p); v != s.main {
		if s.segments > 0 {
			return
		}
		s.main = v
	}
	c.lastAt = p.Frame.Time
	t := &p.TCP
	if t.Length > 0 && s.copy(p) {
		a.count.tcpCopies++
		return
	}
	if t.Flags&capture.TCPAck != 0 {
		a.acked(s.back, t.Ack)
	}
	if t.Flags&capture.TCPRst != 0 {
		a.reset(s, p)
		return
	}
	if t.Window == 0 && t.Flags&capture.TCPFin == 0 {
		a.markTCP(c, iwWindow, p.Frame.Number)
	}
	if t.Length > 0 {
		a.segment(s, p)
	}
	if t.Flags&capture.TCPFin != 0 {
		s.fin = true
	}
	s.lastAt = p.Frame.Time
}

// isMPA recognizes the frames by which iWARP begins a connection.
func isMPA(b []byte) bool {
	const request, reply = "MPA ID Req Frame", "MPA ID Rep Frame"
	return len(b) >= len(request) && (string(b[:len(request)]) == request || string(b[:len(reply)]) == reply)
}

// isFPDU recognizes an FPDU by its headers and its CRC, at the beginning of a segment: so most senders cut.
func isFPDU(b []byte) bool {
	if !plausible(b) {
		return false
	}
	n := fpduSize(b)
	return n <= len(b) && mpa.Verify(b[:n])
}

// fpduSize returns the size of the FPDU that begins with b, without markers.
func fpduSize(b []byte) int { return mpa.LengthSize + mpa.Length(b) + mpa.TrailerSize(mpa.Length(b)) }

// plausible reports whether b may begin with the headers of an FPDU.
func plausible(b []byte) bool {
	const (
		least    = 16 // bytes of the headers of a tagged message, with the FPDU's length
		versions = 0b11
		reserved = 0b00111100
	)
	if len(b) < least || mpa.Length(b) < least-mpa.LengthSize || b[2]&versions != 1 || b[2]&reserved != 0 || b[3]>>6 != 1 || b[3]&0x30 != 0 {
		return false
	}
	_, _, err := iwarp.DecodeHeader(b[mpa.LengthSize:])
	return err == nil
}

func (a *Analyzer) newTCP(k streamKey, midway bool) *stream {
	t := &a.tcps
	if t.streams == nil {
		t.streams = map[streamKey]*stream{}
	}
	if len(t.order) >= maxTCPConns {
		a.count.tcpEvicted++
		a.finishTCP(t.order[0])
		a.forgetTCP(t.order[0])
	}
	c := &tcpConn{midway: midway}
	c.a, c.b = stream{key: k, conn: c, back: &c.b}, stream{key: streamKey{k.dst, k.src}, conn: c, back: &c.a}
	c.a.begun, c.b.begun, c.a.lost, c.b.lost = midway, midway, midway, midway
	t.streams[c.a.key], t.streams[c.b.key] = &c.a, &c.b
	t.order = append(t.order, c)
	a.count.tcps++
	if port := min(k.src.Port(), k.dst.Port()); midway {
		a.count.midway++
		t.learn(port)
	} else {
		t.learn(k.dst.Port())
	}
	return &c.a
}

// learn remembers a port of iWARP.
func (t *tcpConns) learn(port uint16) {
	if len(t.ports) < maxTCPPorts && !slices.Contains(t.ports, port) {
		t.ports = append(t.ports, port)
	}
}

// TCPPorts returns the TCP ports at which iWARP connections were made, or may have been.
func (a *Analyzer) TCPPorts() []uint16 { return a.tcps.ports }

func (a *Analyzer) forgetTCP(c *tcpConn) {
	for _, s := range [...]*stream{&c.a, &c.b} {
		a.release(s)
		delete(a.tcps.streams, s.key)
	}
	if i := slices.Index(a.tcps.order, c); i >= 0 {
		a.tcps.order = slices.Delete(a.tcps.order, i, i+1)
	}
}

// release gives up the bytes that are kept of a stream.
func (a *Analyzer) release(s *stream) {
	for _, g := range s.held {
		a.tcps.held -= len(g.data)
	}
	a.tcps.held -= len(s.buf)
	s.held, s.buf = nil, nil
}

// copy reports whether a segment is a copy that the capture has of another one.
func (s *stream) copy(p *capture.Packet) bool {
	id := segmentID{p.TCP.Seq, p.TCP.Ack, p.TCP.Length, p.ID, p.Frame.Time}
	for _, r := range s.recent {
		if r.seq == id.seq && r.ack == id.ack && r.length == id.length && r.id == id.id && id.time-r.time < copyWithin && r.length > 0 {
			return true
		}
	}
	s.recent[s.at] = id
	s.at = (s.at + 1) % recentTCP
	return false
}

// acked: the other end has what comes before a sequence number. A hole before it is the capture's.
func (a *Analyzer) acked(s *stream, ack uint32) {
	if !s.ackKnown || int32(ack-s.acked) > 0 {
		s.acked, s.ackKnown, s.lastAgain = ack, true, 0
	}
	for len(s.held) > 0 && int32(ack-s.held[0].seq) > 0 {
		a.skipHole(s)
	}
}

// skipHole goes on behind a hole.
func (a *Analyzer) skipHole(s *stream) {
	a.count.tcpHoles++
	a.lose(s)
	s.nxt = s.held[0].seq
	a.drain(s)
}

// segment takes the payload of a segment.
func (a *Analyzer) segment(s *stream, p *capture.Packet) {
	t := &p.TCP
	s.segments++
	a.count.tcpSegments++
	if !s.known {
		s.known, s.nxt = true, t.Seq
	}
	ahead, data, length, again := int(int32(t.Seq-s.nxt)), p.Stream, t.Length, s.again
	const far = 1 << 28 // bytes: no window has so many, so the number was used again
	switch {
	case ahead > far || ahead < -far:
		a.lose(s)
		s.nxt, ahead = t.Seq, 0
	case ahead+length <= 0:
		if length > keepAliveSize {
			a.sentAgain(s, p)
		}
		return
	case ahead < 0:
		a.sentAgain(s, p)
		data, length, ahead = data[min(len(data), -ahead):], length+ahead, 0
	}
	if ahead > 0 {
		a.hold(s, segment{t.Seq, data, length, p.Frame.Number, p.Frame.Time})
		return
	}
	if len(s.held) > 0 && p.Frame.Time-s.held[0].time > overtaken {
		a.sentAgain(s, p) // what was missing comes late
	}
	s.nxt += uint32(length)
	s.resent = s.again > again
	a.feed(s, data, length-len(data), p.Frame.Number, p.Frame.Time)
	s.resent = false
	a.drain(s)
}

// hold keeps a segment until what is missing before it has come.
func (a *Analyzer) hold(s *stream, g segment) {
	i, there := slices.BinarySearchFunc(s.held, g.seq, func(h segment, seq uint32) int { return int(int32(h.seq - seq)) })
	if there {
		return
	}
	g.data = slices.Clone(g.data)
	a.tcps.held += len(g.data)
	s.held = slices.Insert(s.held, i, g)
	if len(s.held) > maxSegments || a.tcps.held > maxHeld {
		a.skipHole(s)
	}
}

// drain takes the segments that follow now.
func (a *Analyzer) drain(s *stream) {
	for len(s.held) > 0 && int32(s.held[0].seq-s.nxt) <= 0 {
		g := s.held[0]
		s.held = s.held[1:]
		a.tcps.held -= len(g.data)
		old := int(int32(s.nxt - g.seq))
		if old >= g.length {
			continue
		}
		s.nxt = g.seq + uint32(g.length)
		data := g.data[min(old, len(g.data)):]
		a.feed(s, data, g.length-old-len(data), g.frame, g.time)
	}
	if len(s.held) == 0 {
		s.held = nil
	}
}

// sentAgain counts a segment that TCP has sent before.
func (a *Analyzer) sentAgain(s *stream, p *capture.Packet) {
	s.again++
	s.lastAgain++
	s.wait = max(s.wait, p.Frame.Time-s.lastAt)
	if x := a.markTCP(s.conn, iwLoss, p.Frame.Number); x != nil {
		n, of := s.conn.a.again+s.conn.b.again, s.conn.a.segments+s.conn.b.segments
		x.Words = words("%d of %d segments were sent again. The longest wait before one was %v.", n, of, round(max(s.conn.a.wait, s.conn.b.wait)))
	}
}
