package recovery

import (
	"slices"
	"time"
)

// MaxPaths is the most paths that a connection has.
const MaxPaths = 8

// Paths is the paths of a connection that has several (multipath). Where there are several equal routes to the peer,
// a switch chooses one by a packet's source port. A QP with several source ports uses as many routes. It uses several
// only with peers that acknowledge selectively, since several routes reorder packets. One path does not. So a packet
// that a later one of the same path has overtaken is lost, and a packet that others of other paths have overtaken is
// late, up to a few RTTs.
//
// The next few packets take the path with the least in flight, by its RTT. A path that loses more than others, or
// all, is left, and tried by a packet now and then. All paths share the window.
type Paths struct {
	n       int
	on      bool  // the peer knows of the paths
	current uint8 // the path of the packet that was written last
	request uint8 // the path of the requests' latest run
	run     int   // bytes that are left of the run

	lefts, probes uint64 // see Counts

	paths [MaxPaths + 1]path // the last is that of responses
}

// path is the state of a path.
type path struct {
	latest   uint64        // of the packets that have arrived by the path, the one that was sent last
	latestAt time.Duration // when that packet was sent; 0 before
	rtt      time.Duration // smoothed; 0 while unknown
	share    float64       // of the packets of a path as fast as the others, up to 1
	shareAt  time.Duration // when share changed
	roundAt  time.Duration // when the first packet arrived that was sent since; 0 before
	slowest  time.Duration // the longest RTT of packets that were sent since
	peak     time.Duration // that of the round before; 0 while unknown
	lost     uint32        // the part of packets that is lost lately, of lossScale
	left     bool
	came     uint64        // packets that have arrived since the path was taken up
	pause    time.Duration // until the next probe
	probeAt  time.Duration // when a packet is to try the path
	probe    uint64        // the packet that tries the path, plus 1; 0: none does
}

func newPaths(n int) *Paths {
	s := &Paths{n: n}
	for k := range s.paths {
		s.paths[k].share = 1
	}
	return s
}

// fresh returns as many paths, of which nothing is known but the counts.
func (s *Paths) fresh() *Paths {
	if s == nil {
		return nil
	}
	f := newPaths(s.n)
	f.lefts, f.probes = s.lefts, s.probes
	return f
}

// Enable notes that the peer knows of the paths. Until then all packets take path 0.
func (s *Paths) Enable() { s.on = true }

// IsOn reports whether packets take several paths.
func (s *Paths) IsOn() bool { return s.on }

// Take makes k the path of the next packet, unless the packet is a request.
func (s *Paths) Take(k uint8) { s.current = k }

// Current returns the path of the packet that was written last.
func (s *Paths) Current() uint8 { return s.current }

// HasLeft reports whether path k was left.
func (s *Paths) HasLeft(k uint8) bool { return s.paths[k].left }

// Turn returns the path behind k, also one that was left: where nothing comes by the others, that one may be better.
func (s *Paths) Turn(k uint8) uint8 { return uint8((int(k) + 1) % s.n) }

// After returns the next path behind k that was not left.
func (s *Paths) After(k uint8) uint8 {
	for range s.n {
		if k = s.Turn(k); !s.paths[k].left {
			break
		}
	}
	return k
}

// AfterForACK is After for an acknowledgement, which may try a path that was left: there may be no requests to do that.
func (s *Paths) AfterForACK(now, srtt time.Duration, k uint8) uint8 {
	next := s.Turn(k)
	if p := &s.paths[next]; p.left && now >= p.probeAt {
		s.rest(now, srtt, p)
		return next
	}
	return s.After(k)
}

// MissedACK notes that the peer seems to have missed an acknowledgement that took path k.
func (s *Paths) MissedACK(now, srtt time.Duration, k uint8) { s.missed(now, srtt, k, 0, pathAnswer) }

// choose chooses the path of the next n packets. It returns responsePath for packets that stand for responses: any
// path may bring the responses.
func (s *Paths) choose(now time.Duration, r *State, n uint64, responses bool) uint8 {
	switch {
	case !s.on:
		s.current = 0
	case r.IsProbe(): // nothing came for long: by another path, perhaps
		s.request = s.Turn(s.request)
		if p := &s.paths[s.request]; p.left {
			p.probe = r.nxt + 1
		}
		s.current, s.run = s.request, 0
	default:
		if s.run <= 0 {
			s.next(now, r)
		}
		s.run -= int(n) * int(r.rate.mtu)
		s.current = s.request
	}
	if responses {
		return responsePath
	}
	if p := &s.paths[s.current]; s.on {
		p.probeAt = max(p.probeAt, now+pathIdleTrips*r.srtt)
	}
	return s.current
}

// next chooses the path of the next run of requests.
func (s *Paths) next(now time.Duration, r *State) {
	var inFlight [MaxPaths + 1]uint64
	begin := r.una
	for i := range r.ranges {
		x := &r.ranges[i]
		if !x.lost && !x.arrived {
			inFlight[x.path] += x.end - begin
		}
		begin = x.end
	}
	if r.nxt == r.max { // new packets may try a path
		for k := range s.n {
			p := &s.paths[k]
			if now < p.probeAt || p.latestAt == 0 && !p.left {
				continue
			}
			if p.probe != 0 && p.left { // the probe before was lost
				p.probe = 0
				s.rest(now, r.srtt, p)
				continue
			}
			s.request, s.run = uint8(k), 1
			p.probe = r.nxt + 1
			p.probeAt = now + max(p.pause, pathIdleTrips*r.srtt)
			s.probes++
			return
		}
	}
	best, lowest := s.request, -1.0
	k := s.request
	for range s.n {
		k = s.Turn(k)
		p := &s.paths[k]
		if p.left {
			continue
		}
		if cost := float64(inFlight[k]+1) / p.share; lowest < 0 || cost < lowest {
			best, lowest = k, cost
		}
	}
	s.request, s.run = best, int(pathRun*s.paths[best].share)
}

// arrived notes that n packets have arrived, up to last, that were sent by a path at a time.
func (s *Paths) arrived(now time.Duration, path uint8, at time.Duration, n, last uint64) {
	p := &s.paths[path]
	if at > p.latestAt || at == p.latestAt && last > p.latest {
		p.latest, p.latestAt = last, at
		if rtt := rttSince(now, at); p.rtt == 0 {
			p.rtt = rtt
		} else {
			p.rtt += (rtt - p.rtt) / pathRTTPart
		}
		s.weigh(now, p, at)
	}
	p.lost -= p.lost * uint32(min(n, pathMemory)) / pathMemory
	if p.came += n; p.came > pathTrust {
		p.pause = 0
	}
	if p.probe != 0 && last+1 >= p.probe && last+1-n < p.probe {
		p.probe = 0
		p.rtt = rttSince(now, at)
		if p.left {
			p.left, p.lost, p.came = false, pathLossLimit/2, 0
		}
	}
}

// weigh finds the share of a path, by a packet that was sent by that path at a time. Of each round trip the slowest
// packet counts. A path whose slowest packets take longer than those of others gets less, until they take as long.
func (s *Paths) weigh(now time.Duration, p *path, at time.Duration) {
	if at < p.shareAt { // the packet does not know the share yet
		return
	}
	p.slowest = max(p.slowest, rttSince(now, at))
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

// usualPeak returns the longest RTT on a path of middling speed.
func (s *Paths) usualPeak() time.Duration {
	var peaks [MaxPaths]time.Duration
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

// missed notes that no packet of [from, to) has arrived, which was sent by a path.
func (s *Paths) missed(now, srtt time.Duration, path uint8, from, to uint64) {
	if path == responsePath || !s.on {
		return
	}
	p := &s.paths[path]
	if p.probe > from && p.probe <= to {
		p.probe = 0
		if p.left {
			s.rest(now, srtt, p)
		}
	}
	p.lost += (lossScale - p.lost) * uint32(min(to-from, pathMemory)) / pathMemory
	if p.left || p.lost < pathLossLimit {
		return
	}
	for k := range s.n { // unless all others are as bad
		if o := &s.paths[k]; o != p && !o.left && 2*o.lost < p.lost {
			p.left = true
			if s.request == path {
				s.run = 0
			}
			s.rest(now, srtt, p)
			s.lefts++
			return
		}
	}
}

// rest sets the time at which a packet tries a path that was left.
func (s *Paths) rest(now, srtt time.Duration, p *path) {
	p.pause = min(max(2*p.pause, pathPauseTrips*srtt), pathPauseMost)
	p.probeAt = now + p.pause
}

// expectedAt reports whether [from, x.end) was overtaken, and when it should have arrived. Packets of the same path tell soon.
// Those of others may have been faster by far.
func (s *Paths) expectedAt(r *State, x *sentRange, from uint64) (at time.Duration, ok bool) {
	p := &s.paths[x.path]
	if x.at < p.latestAt || x.at == p.latestAt && from < p.latest {
		return x.at + p.rtt, true
	}
	if x.at > r.latestAt || x.at == r.latestAt && from > r.latest {
		return 0, false
	}
	return x.at + 2*max(p.rtt, r.latestRTT) + 4*r.rttvar, true
}
