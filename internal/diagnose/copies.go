package diagnose

import (
	"encoding/binary"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A capture can have a packet several times: at both ends in one process, at several interfaces, at both ports of a
// switch. Each pair of hosts has a main point, where its first packet was seen. Copies at other points are compared
// with that point's packets, which shows what the network did in between.

// A vantage is a point of the capture: interface and direction.
type vantage uint64

func vantageOf(p *capture.Packet) vantage {
	return vantage(p.Frame.Interface)<<2 | vantage(p.Frame.Direction)
}

const (
	maxCopies  = 1 << 14                          // packets in which copies are looked for: a power of 2
	copyWithin = int64(time.Millisecond)          // at one point; repeats take longer, or follow an answer
	pathWithin = int64(10 * time.Second)          // between two points
	fewCopies  = 20                               // percent of packets: above that they are the capture's
	copyBytes  = wire.BTHSize + wire.MaxHeaderLen // of a datagram that are compared, besides its ICRC
)

// copies has the latest packets.
type copies struct {
	ring  []copied
	index map[uint64]int32
	next  int
}

type copied struct {
	key    uint64
	at     int64
	frame  int
	lane   *lane
	serial int // of the lane's packets at the main point: the first that has not arrived
	last   int // the serial of the latest of them
	sends  int // packets with these bytes at the main point
	others int // at other points
	ipID   uint16
	main   bool
	marked bool // with congestion, or another point has shown it so
	missed bool // it was sent again before it had arrived
}

// lane counts the packets to one queue pair. Those to different ones may be captured in another order at two points.
type lane struct {
	serial  int // packets at the main point
	matched int // of these, how many were seen at another point
	latest  int // the latest of them: of a packet that was sent several times the latest sending
	order   int // the same, of such a packet the earliest sending that has not arrived
}

// pathCounts counts packets and losses on the way between two points of a capture.
type pathCounts struct {
	main          vantage
	known         bool
	other         vantage // the point whose packets are compared with those of main: the first one beside it
	otherKnown    bool
	lanes         map[uint32]*lane // by queue pair
	matched       int              // packets that were seen at another point too
	damaged       int              // packets of another point with a wrong ICRC
	twice         int              // copies at one point
	twiceAcks     int              // acknowledgements among them
	overtook, dup *Finding
	twiceFrames   []int
}

// isCopy reports whether a packet was seen before, or is damaged on the way from a point where it was seen.
func (a *Analyzer) isCopy(h *hosts, p *capture.Packet, bth *wire.BTH) bool {
	c, path := &a.copies, &h.path
	if c.index == nil {
		c.ring, c.index = make([]copied, maxCopies), make(map[uint64]int32, maxCopies)
	}
	v := vantageOf(p)
	if !path.known {
		path.known, path.main = true, v
	}
	if bth.Opcode == wire.CNP { // all of a queue pair are the same
		return v != path.main
	}
	key := copyKey(p)
	i, seen := c.index[key]
	e := &c.ring[i]
	if v != path.main {
		switch {
		case path.matched > 0 && p.ICRC() == capture.ICRCBad:
			path.damaged++
			a.count.bad++
			a.onHosts(h, icrcBad, &h.badFinding, p.Frame.Number)
			return true
		case seen && e.main && p.Frame.Time-e.at < pathWithin:
			a.arrived(h, p, e)
			return true
		case seen && p.Frame.Time-e.at < copyWithin:
			return true
		}
	} else if seen && e.main && p.Frame.Time-e.at < path.copyWithin() && e.ipID == p.ID && a.sameSending(h, p, bth, e) {
		path.twice++
		if isAck(bth.Opcode) {
			path.twiceAcks++
		} else if len(path.twiceFrames) < maxFrames {
			path.twiceFrames = append(path.twiceFrames, p.Frame.Number)
		}
		return true
	}
	again := seen && e.main && v == path.main && p.Frame.Time-e.at < pathWithin
	if again {
		e.at, e.frame, e.ipID, e.marked = p.Frame.Time, p.Frame.Number, p.ID, isMarked(p, bth)
		e.lane.serial++
		e.last = e.lane.serial
		if e.others >= e.sends {
			e.serial = e.lane.serial
		} else {
			e.missed = true
		}
		e.sends++
		return false
	}
	if !seen {
		i = int32(c.next)
		e = &c.ring[i]
		if e.frame != 0 {
			delete(c.index, e.key)
		}
		c.next = (c.next + 1) % maxCopies
		c.index[key] = i
	}
	*e = copied{key: key, at: p.Frame.Time, frame: p.Frame.Number, ipID: p.ID, main: v == path.main, sends: 1, marked: isMarked(p, bth)}
	if e.main {
		e.lane = path.lane(bth.DestQP)
		e.lane.serial++
		e.serial, e.last = e.lane.serial, e.lane.serial
	}
	return false
}

// copyWithin is how soon a copy at the main point follows its original. What other points show of it says more there, and
// some senders repeat what was lost within a millisecond.
func (p *pathCounts) copyWithin() int64 {
	if p.otherKnown {
		return copyWithin / 10
	}
	return copyWithin
}

// lane returns the counts of a queue pair. Those of queue pairs beyond a limit are not kept.
func (p *pathCounts) lane(qpn uint32) *lane {
	if l := p.lanes[qpn]; l != nil {
		return l
	}
	if p.lanes == nil {
		p.lanes = make(map[uint32]*lane)
	}
	l := new(lane)
	if len(p.lanes) >= maxPerHosts {
		return l // is not counted
	}
	p.lanes[qpn] = l
	return l
}

// arrived: a packet of the main point has been seen at another one.
func (a *Analyzer) arrived(h *hosts, p *capture.Packet, e *copied) {
	path := &h.path
	if !path.otherKnown {
		path.otherKnown, path.other = true, vantageOf(p)
	}
	if path.other != vantageOf(p) {
		return // a third one on the way: its copy is no second arrival
	}
	e.others++
	if !e.marked && isMarked(p, &p.Transport.BTH) { // on the way between the two points
		e.marked = true
		a.marked(h, p)
	}
	if h.key.dst.IsMulticast() {
		return // each member has a copy
	}
	if e.others > e.sends {
		if isAck(p.Transport.Opcode) {
			return
		}
		a.onHosts(h, netDup, &path.dup, p.Frame.Number)
		return
	}
	path.matched++
	l := e.lane
	l.matched++
	// Of several sendings it is not known which one has arrived, until all have.
	if e.serial < l.order && (e.sends == 1 || e.missed && e.others == e.sends) {
		a.onHosts(h, reorder, &path.overtook, p.Frame.Number)
	}
	l.order, l.latest = max(l.order, e.serial), max(l.latest, e.last)
}

// isAck reports whether a packet is an acknowledgement alone. Receivers send some twice.
func isAck(o wire.Opcode) bool { return o&^wire.XRC == wire.RCAcknowledge || o == wire.RCAckRanges }

// sameSending reports whether a packet with the same bytes as an earlier one is a copy, and not a repeat.
func (a *Analyzer) sameSending(h *hosts, p *capture.Packet, bth *wire.BTH, e *copied) bool {
	const (
		counting = 64 // identifications above it are those of senders that count their packets
		enough   = 50 // packets before the share of copies means something
	)
	if p.ID > counting || h.packets > enough && h.path.twice*100 > h.packets*fewCopies {
		return true
	}
	if h.back != nil && h.back.lastFrame > e.frame {
		return false // the peer may have asked for it
	}
	f := a.flows[flowKey{p.Src.Addr(), p.Dst.Addr(), bth.DestQP}]
	return f == nil || f.gapFrame <= e.frame && f.nakFrame <= e.frame && f.sackFrame <= e.frame && f.rnrFrame <= e.frame
}

// copyKey makes a number of all in a packet that is the same in its copies.
func copyKey(p *capture.Packet) uint64 {
	const factor = 0x9e3779b97f4a7c15
	mix := func(k, v uint64) uint64 {
		k = (k ^ v) * factor
		return k ^ k>>29
	}
	src, dst := p.Src.Addr().As16(), p.Dst.Addr().As16()
	k := uint64(p.Length)
	k = mix(k, binary.BigEndian.Uint64(src[8:])^binary.BigEndian.Uint64(src[:])<<1)
	k = mix(k, binary.BigEndian.Uint64(dst[8:])^binary.BigEndian.Uint64(dst[:])<<1)
	b := p.Datagram
	k = mix(k, uint64(binary.BigEndian.Uint32(b))) // the fifth byte has the marks of congestion
	k = mix(k, binary.BigEndian.Uint64(b[4:])&^(0xff<<56))
	if len(b) >= wire.ICRCSize+wire.BTHSize {
		k = mix(k, uint64(binary.BigEndian.Uint32(b[len(b)-wire.ICRCSize:])))
	}
	for b = b[min(len(b), wire.BTHSize):min(len(b), copyBytes)]; len(b) >= 8; b = b[8:] {
		k = mix(k, binary.BigEndian.Uint64(b))
	}
	return k
}

// lost returns how many packets were sent, and how many of them did not arrive. own is of packets that an address sends
// to itself.
func (p *pathCounts) lost(own bool) (sent, lost int) {
	lost = -p.damaged
	for qpn, l := range p.lanes {
		if own && qpn == wire.GSIQPN {
			continue // the processes of the address share QP 1: one sees what it sends there only if nobody else takes it
		}
		sent += l.latest
		lost += l.latest - l.matched
	}
	return sent, lost
}

// finishPath makes the findings about the way between two points of the capture.
func (a *Analyzer) finishPath(h *hosts) {
	path := &h.path
	sent, lost := path.lost(h.key.src == h.key.dst)
	if lost > 0 && path.matched > 0 {
		var x *Finding
		if a.onHosts(h, pathLoss, &x, 0); x != nil {
			x.Count = lost
			x.Words = words("%d of %d packets were seen where they were sent, and not where they should arrive.", lost, sent)
		}
	}
	if path.twice == 0 {
		return
	}
	if path.twice*100 > h.packets*fewCopies {
		a.copiesSame += path.twice
		for _, f := range path.twiceFrames {
			if len(a.copiesFrames) < maxFrames {
				a.copiesFrames = append(a.copiesFrames, f)
			}
		}
		return
	}
	for _, f := range path.twiceFrames {
		a.onHosts(h, netDup, &path.dup, f)
	}
	if path.dup != nil {
		path.dup.Count = max(path.dup.Count, path.twice-path.twiceAcks)
	}
}
