package transport

import (
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/verbs"
)

// multipath complements recovery's paths, for a QP with several source ports: how the peer learns of the ports, and
// which paths answers take.
type multipath struct {
	ports  [verbs.MaxRoutingPaths]uint16 // the source ports, which the hello tells the peer
	toldAt uint64                        // recovery's Max when the hello left
	lefts  uint64                        // recovery's count of paths that were left, when answers last took note of it
	reply  uint8                         // the path of the latest acknowledgement
	read   uint8                         // the path of READ responses
}

// SetSources says from which UDP ports the QP may send. Path returns the port of the packet that Transmit has written. A
// QP with fewer than two ports has one path, 0.
func (q *QP) SetSources(ports []uint16) {
	r, ok := q.service.(*rc)
	if !ok {
		return
	}
	m := new(multipath)
	n := copy(m.ports[:], ports)
	before := r.recovery.Counts()
	q.counters.PathsLeft += before.PathsLeft
	q.counters.PathProbes += before.PathProbes
	r.recovery.SetPaths(n)
	if r.multipath = nil; n < 2 {
		return
	}
	r.multipath = m
	r.hello.portsChanged()
}

// restart forgets all but the ports.
func (m *multipath) restart(rec *recovery.State) {
	if m == nil {
		return
	}
	*m = multipath{ports: m.ports, lefts: rec.Counts().PathsLeft}
}

// Paths returns how many source ports the QP asks for.
func (q *QP) Paths() int {
	if _, ok := q.service.(*rc); ok {
		return max(1, q.routing.Paths)
	}
	return 1
}

// Path returns the path of the packet that Transmit has written: an index of SetSources' ports.
func (q *QP) Path() int {
	if r, ok := q.service.(*rc); ok && r.recovery.Paths() != nil {
		return int(r.recovery.Paths().Current())
	}
	return 0
}

// PeerSends reports whether the peer has said that it sends from a port.
func (q *QP) PeerSends(port uint16) bool {
	r, ok := q.service.(*rc)
	return ok && port != 0 && r.responder.peerPorts != nil && slices.Contains(r.responder.peerPorts[:], port)
}

// transmitMultipath is transmit of a QP with several paths. Acknowledgements go by all paths in turn: if one is lost,
// the next tells the same. READ responses keep to one path, until the peer asks again.
func (r *rc) transmitMultipath(now time.Duration, buf []byte) int {
	m, p := r.multipath, r.recovery.Paths()
	p.Take(0)
	if p.IsOn() {
		missed := r.notePeerRepeats(now)
		p.Take(m.read)
		if r.responder.onlyReply() {
			p.Take(m.nextReply(now, &r.recovery, missed))
		}
	} else if g := &r.hello; g.sent > 0 && !g.due && r.peerSACKs() && r.recovery.Una() > m.toldAt {
		p.Enable()
	}
	return r.transmitOne(now, buf)
}

// notePeerRepeats takes note of a request that the peer has repeated, if any. The latest answer to that request may
// have been lost. missed says that this answer was an acknowledgement.
func (r *rc) notePeerRepeats(now time.Duration) (missed bool) {
	m, p, repeated := r.multipath, r.recovery.Paths(), &r.responder.repeated
	missed = repeated.request && !repeated.read
	if repeated.read {
		m.turnRead(p)
	} else if repeated.request {
		p.MissedACK(now, r.recovery.SRTT(), m.reply)
		m.noteLeft(&r.recovery)
	}
	*repeated = repeatedSince{}
	return missed
}

// nextReply returns the path of an acknowledgement. missed says that the peer seems to have missed the latest
// acknowledgement.
func (m *multipath) nextReply(now time.Duration, rec *recovery.State, missed bool) uint8 {
	if p := rec.Paths(); missed {
		m.reply = p.Turn(m.reply)
	} else {
		m.reply = p.AfterForACK(now, rec.SRTT(), m.reply)
	}
	return m.reply
}

// turnRead has READ responses take the next path.
func (m *multipath) turnRead(p *recovery.Paths) { m.read = p.Turn(m.read) }

// noteLeft reports whether paths were left since the latest call. READ responses leave such a path too.
func (m *multipath) noteLeft(rec *recovery.State) bool {
	n := rec.Counts().PathsLeft
	if n == m.lefts {
		return false
	}
	m.lefts = n
	if p := rec.Paths(); p.HasLeft(m.read) {
		m.read = p.After(m.read)
	}
	return true
}

// MaxRoutingPaths is recovery's MaxPaths: an array of another length would not compile.
var _ [recovery.MaxPaths]uint16 = multipath{}.ports
