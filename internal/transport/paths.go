package transport

import (
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Where there are several equal ways to the peer, a switch chooses one by a packet's source port. A QP with several
// source ports uses as many ways, which are its paths. It does so with peers that tell what has come, since packets
// overtake one another by it. On one path they do not, so what a later packet of the same path has overtaken is lost,
// and what packets of other paths have overtaken is late, up to a few round trips.
//
// The next few packets take the path on which the least is on its way, by how long that takes. A path that loses more
// than others, or all, is left, and tried by a packet now and then. All paths share the QP's window.

// spread is the paths of a QP that has several.
type spread struct {
	n      int                           // paths
	ports  [verbs.MaxRoutingPaths]uint16 // the source ports, which the peer is told
	on     bool                          // the peer was told, and knows ranges
	toldAt uint64                        // what was sent next when it was told

	way     uint8 // the path of the packet that was written last
	request uint8 // that of the requests' latest run
	run     int   // bytes that are left of it
	reply   uint8 // that of the latest acknowledgement
	read    uint8 // that of READ responses

	regreet  bool // paths were left since the peer was told of the ports
	counters *Counters
	mtu      *uint32

	paths [verbs.MaxRoutingPaths + 1]pathState // the last is that of responses
}

// responsePath stands for the path of READ responses and atomics' results.
const responsePath = verbs.MaxRoutingPaths

// pathState is what is known of a path.
type pathState struct {
	latest   uint64        // of what has arrived by it, what was sent last
	latestAt time.Duration // when that was sent; 0 before
	trip     time.Duration // smoothed; 0 while unknown
	share    float64       // of what a path as fast as the others gets, up to 1
	shareAt  time.Duration // when that changed
	roundAt  time.Duration // when the first packet arrived that was sent since; 0 before
	slowest  time.Duration // of what was sent since
	peak     time.Duration // of the round trip before; 0 while unknown
	lost     uint32        // the part of packets that is lost lately, of lossScale
	left     bool
	came     uint64        // packets that have arrived since it was taken up
	pause    time.Duration // until the next probe
	probeAt  time.Duration // when a packet is to try it
	probe    uint64        // the packet that tries it, plus 1; 0: none does
}

// SetSources says from which UDP ports the QP may send. Path returns which of them the packet is to leave from that
// Transmit has written. A QP with fewer than two has one path, 0.
func (q *QP) SetSources(ports []uint16) {
	r, ok := q.service.(*rc)
	if !ok {
		return
	}
	if len(ports) < 2 {
		r.recovery.spread = nil
		return
	}
	s := spread{counters: &q.counters, mtu: &q.mtu}
	s.n = copy(s.ports[:], ports)
	r.recovery.spread = s.fresh()
	if g := &r.greeting; g.ours {
		g.due = true
	}
}

// fresh returns s, of which nothing is known but its ports.
func (s *spread) fresh() *spread {
	if s == nil {
		return nil
	}
	s = &spread{n: s.n, ports: s.ports, counters: s.counters, mtu: s.mtu}
	for k := range s.paths {
		s.paths[k].share = 1
	}
	return s
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
	if r, ok := q.service.(*rc); ok && r.recovery.spread != nil {
		return int(r.recovery.spread.way)
	}
	return 0
}

// PeerSends reports whether the peer has said that it sends from a port.
func (q *QP) PeerSends(port uint16) bool {
	r, ok := q.service.(*rc)
	return ok && port != 0 && r.responder.peerPorts != nil && slices.Contains(r.responder.peerPorts[:], port)
}

// transmitSpread is transmit of a QP with several paths. Acknowledgements go by all paths in turn: what one loses the
// next tells. READ responses keep to one, until the peer asks again.
func (r *rc) transmitSpread(now time.Duration, buf []byte) int {
	s := r.recovery.spread
	s.way = 0
	if s.on {
		missed := s.repeated(now, r)
		if s.way = s.read; r.responder.onlyReply() {
			if missed {
				s.reply = s.turn(s.reply)
			} else {
				s.reply = s.afterFor(now, &r.recovery, s.reply)
			}
			s.way = s.reply
		}
	} else if g := &r.greeting; g.sent > 0 && !g.due && r.repeatsParts() && r.recovery.una > s.toldAt {
		s.on = true
	}
	return r.transmitOne(now, buf)
}

// repeated takes note of what the peer has repeated, if it has. Then what answered it the last time may have been lost.
// It reports whether that was an acknowledgement.
func (s *spread) repeated(now time.Duration, r *rc) (missed bool) {
	repeated := &r.responder.repeated
	missed = repeated.request && !repeated.read
	if repeated.read {
		s.read = s.turn(s.read)
	} else if repeated.request {
		s.missed(now, &r.recovery, s.reply, 0, pathAnswer)
	}
	*repeated = repeatedSince{}
	return missed
}

// turn returns the next path, also one that was left: where nothing comes by the others, it may be the better one.
func (s *spread) turn(k uint8) uint8 { return uint8((int(k) + 1) % s.n) }

// afterFor is after for an acknowledgement, which may try a path that was left: there may be no requests to do that.
func (s *spread) afterFor(now time.Duration, r *recovery, k uint8) uint8 {
	next := s.turn(k)
	if p := &s.paths[next]; p.left && now >= p.probeAt {
		s.rest(now, r, p)
		return next
	}
	return s.after(k)
}

// after returns the next path that is not left.
func (s *spread) after(k uint8) uint8 {
	for range s.n {
		if k = s.turn(k); !s.paths[k].left {
			break
		}
	}
	return k
}

// choose chooses the path of the next n packets, of which the first has a sequence number, and returns under which path
// they are to be remembered.
func (s *spread) choose(now time.Duration, r *recovery, n uint64, responses bool) uint8 {
	switch {
	case !s.on:
		s.way = 0
	case r.asks(): // nothing came for long: by another path, perhaps
		s.request = s.turn(s.request)
		if p := &s.paths[s.request]; p.left {
			p.probe = r.nxt + 1
		}
		s.way, s.run = s.request, 0
	default:
		if s.run <= 0 {
			s.next(now, r)
		}
		s.run -= int(n) * int(*s.mtu)
		s.way = s.request
	}
	if responses {
		return responsePath
	}
	if p := &s.paths[s.way]; s.on {
		p.probeAt = max(p.probeAt, now+pathIdleTrips*r.roundTrip)
	}
	return s.way
}

// next chooses the path of the next run of requests.
func (s *spread) next(now time.Duration, r *recovery) {
	var flying [verbs.MaxRoutingPaths + 1]uint64
	begin := r.una
	for i := range r.ranges {
		x := &r.ranges[i]
		if !x.lost && !x.arrived {
			flying[x.path] += x.end - begin
		}
		begin = x.end
	}
	if r.nxt == r.max { // what is new may try a path
		for k := range s.n {
			p := &s.paths[k]
			if now < p.probeAt || p.latestAt == 0 && !p.left {
				continue
			}
			if p.probe != 0 && p.left { // the one before has come to nothing
				p.probe = 0
				s.rest(now, r, p)
				continue
			}
			s.request, s.run = uint8(k), 1
			p.probe = r.nxt + 1
			p.probeAt = now + max(p.pause, pathIdleTrips*r.roundTrip)
			s.counters.PathProbes++
			return
		}
	}
	best, lowest := s.request, -1.0
	k := s.request
	for range s.n {
		k = s.turn(k)
		p := &s.paths[k]
		if p.left {
			continue
		}
		if cost := float64(flying[k]+1) / p.share; lowest < 0 || cost < lowest {
			best, lowest = k, cost
		}
	}
	s.request, s.run = best, int(pathRun*s.paths[best].share)
}

// arrived takes note that n packets that were sent by a path at a time have arrived, up to last.
func (s *spread) arrived(now time.Duration, path uint8, at time.Duration, n, last uint64) {
	p := &s.paths[path]
	if at > p.latestAt || at == p.latestAt && last > p.latest {
		p.latest, p.latestAt = last, at
		if trip := tripSince(now, at); p.trip == 0 {
			p.trip = trip
		} else {
			p.trip += (trip - p.trip) / pathTripPart
		}
		s.weigh(now, p, at)
	}
	p.lost -= p.lost * uint32(min(n, pathMemory)) / pathMemory
	if p.came += n; p.came > pathTrust {
		p.pause = 0
	}
	if p.probe != 0 && last+1 >= p.probe && last+1-n < p.probe {
		p.probe = 0
		p.trip = tripSince(now, at)
		if p.left {
			p.left, p.lost, p.came = false, pathLossLimit/2, 0
		}
	}
}

// weigh finds what a path gets beside the others, by a packet that was sent by it at a time. Of each round trip the
// slowest packet counts. A path on which that takes longer than on others has less on its way, until it takes as long.
func (s *spread) weigh(now time.Duration, p *pathState, at time.Duration) {
	if at < p.shareAt { // it does not know yet
		return
	}
	p.slowest = max(p.slowest, tripSince(now, at))
	if p.roundAt == 0 {
		p.roundAt = now
	}
	if at < p.roundAt {
		return
	}
	p.peak = p.slowest
	p.shareAt, p.roundAt, p.slowest = now, 0, 0
	late := float64(p.peak) / (pathLate * float64(s.usualPeak()+pathNoise))
	p.share = min(max(p.share*min(max(1/late, pathShrink), pathGrowth), pathLeastShare), 1)
	most := 0.0
	for k := range s.n {
		if o := &s.paths[k]; !o.left {
			most = max(most, o.share)
		}
	}
	for k := range s.n {
		s.paths[k].share = min(s.paths[k].share/most, 1)
	}
}

// usualPeak returns how long the slowest packet takes on a path of middling speed.
func (s *spread) usualPeak() time.Duration {
	var peaks [verbs.MaxRoutingPaths]time.Duration
	n := 0
	for k := range s.n {
		if p := &s.paths[k]; !p.left && p.peak > 0 {
			peaks[n] = p.peak
			n++
		}
	}
	slices.Sort(peaks[:n])
	return peaks[max(n-1, 0)/2]
}

// missed takes note that of [from, to), which was sent by a path, nothing has arrived.
func (s *spread) missed(now time.Duration, r *recovery, path uint8, from, to uint64) {
	if path == responsePath || !s.on {
		return
	}
	p := &s.paths[path]
	if p.probe > from && p.probe <= to {
		p.probe = 0
		if p.left {
			s.rest(now, r, p)
		}
	}
	p.lost += (lossScale - p.lost) * uint32(min(to-from, pathMemory)) / pathMemory
	if p.left || p.lost < pathLossLimit {
		return
	}
	for k := range s.n { // unless all others are as bad
		if o := &s.paths[k]; o != p && !o.left && 2*o.lost < p.lost {
			p.left, s.regreet = true, true
			if s.request == path {
				s.run = 0
			}
			if s.read == path {
				s.read = s.after(path)
			}
			s.rest(now, r, p)
			s.counters.PathsLeft++
			return
		}
	}
}

// rest sets the time at which a path is tried that was left.
func (s *spread) rest(now time.Duration, r *recovery, p *pathState) {
	p.pause = min(max(2*p.pause, pathPauseTrips*r.roundTrip), pathPauseMost)
	p.probeAt = now + p.pause
}

// overtaken reports whether [from, x.end) was overtaken, and when that makes it lost. What went by the same path tells
// soon; what went by others may have been faster by far.
func (s *spread) overtaken(r *recovery, x *sentRange, from uint64) (at time.Duration, ok bool) {
	p := &s.paths[x.path]
	if x.at < p.latestAt || x.at == p.latestAt && from < p.latest {
		return x.at + p.trip, true
	}
	if x.at > r.latestAt || x.at == r.latestAt && from > r.latest {
		return 0, false
	}
	return x.at + 2*max(p.trip, r.latestTrip) + 4*r.deviation, true
}
