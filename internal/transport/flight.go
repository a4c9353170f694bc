package transport

import (
	"slices"
	"time"
)

// flight is what was sent and is not acknowledged: the sequence numbers [una, max), as a list of
// ranges. The next to be sent is the first that is lost, or else max, which is new.
//
//	una <= nxt <= max
//
// flight alone moves the three.
type flight struct {
	una, nxt, max uint64
	ranges        []sentRange // of [una, max), in order: each begins where the one before it ends
	uneven        bool        // some ranges may be lost, or have arrived
}

// sentRange is a range of sequence numbers that were sent at the same time and have the same fate.
type sentRange struct {
	end      uint64
	at       time.Duration // when it was sent the last time
	expected time.Duration // when it should have arrived, which others have that were sent later; 0 if none have
	lost     bool          // and is to be sent again
	repeated bool          // sent more than once
	path     uint8         // that it took the last time
	arrived  bool          // the peer has it, or we have the response; what is before it is missing
	held     bool          // the peer has the request, which waits there for what is before it
}

// start forgets everything; seq is the first to be sent.
func (f *flight) start(seq uint64) {
	f.una, f.nxt, f.max = seq, seq, seq
	f.ranges, f.uneven = f.ranges[:0], false
}

// send takes note that the next n are being sent, by a path. It reports whether they were sent before.
func (f *flight) send(now time.Duration, n uint64, path uint8) (repeated bool) {
	from, to := f.nxt, f.nxt+n
	if from < f.max {
		f.sendAgain(now, from, to, path)
		return true
	}
	if last := len(f.ranges) - 1; last >= 0 && f.ranges[last] == (sentRange{end: from, at: now, path: path}) {
		f.ranges[last].end = to
	} else {
		// In its place, field by field: to load what was just stored otherwise waits for all stores before it, and
		// those to a ring that the peer has read take long.
		f.ranges = append(f.ranges, sentRange{})
		r := &f.ranges[len(f.ranges)-1]
		r.end, r.at, r.path = to, now, path
	}
	f.max, f.nxt = to, to // nothing is lost, or it would be next
	return false
}

// sendAgain takes note that [from, to), of which the beginning was sent before, is being sent.
func (f *flight) sendAgain(now time.Duration, from, to uint64, path uint8) {
	for from < to { // what has arrived in between is not needed again
		end := to
		if i := f.index(from); i < len(f.ranges) && f.ranges[i].end < to {
			if end = f.ranges[i].end; f.ranges[i].arrived {
				from = end
				continue
			}
		}
		f.set(from, end, sentRange{at: now, repeated: true, path: path})
		f.max = max(f.max, end)
		from = end
	}
	f.findNext()
}

// loseMissing makes what is on its way of [from, to), which was sent before, due to be sent again.
func (f *flight) loseMissing(from, to uint64) {
	for from < to {
		r := f.ranges[f.index(from)]
		end := min(r.end, to)
		if !r.arrived && !r.lost {
			f.set(from, end, sentRange{lost: true})
		}
		from = end
	}
	f.findNext()
}

// lostTo returns the end of the last that is lost before end, of which something is.
func (f *flight) lostTo(end uint64) (to uint64) {
	for i := range f.ranges {
		if f.begin(i) >= end {
			break
		}
		if f.ranges[i].lost {
			to = min(f.ranges[i].end, end)
		}
	}
	return to
}

// wasRepeated reports whether seq, which is not acknowledged, was sent more than once, or is about to be.
func (f *flight) wasRepeated(seq uint64) bool {
	r := &f.ranges[f.index(seq)]
	return r.repeated || r.lost
}

// set makes [from, to), which begins before max, a range with the properties of s.
func (f *flight) set(from, to uint64, s sentRange) {
	i := f.index(from)
	j := f.index(to - 1)
	var parts [3]sentRange
	n := 0
	if begin := f.begin(i); begin < from {
		parts[n] = f.ranges[i]
		parts[n].end = from
		n++
	}
	f.uneven = f.uneven || s.lost || s.arrived
	s.end = to
	parts[n] = s
	n++
	if j < len(f.ranges) {
		if f.ranges[j].end > to {
			parts[n] = f.ranges[j]
			n++
		}
		j++
	}
	f.ranges = slices.Replace(f.ranges, i, j, parts[:n]...)
	f.join(max(i-1, 0))
}

// loseRange makes range i due to be sent again. findNext is to follow.
func (f *flight) loseRange(i int) { f.ranges[i].lost, f.uneven = true, true }

// findNext makes the first range that is lost the next to be sent.
func (f *flight) findNext() { f.nxt = f.firstLost() }

// join makes one of the neighbours at and behind i that differ in nothing but their place.
func (f *flight) join(i int) {
	for k := 0; k < 3 && i+1 < len(f.ranges); k++ {
		a, b := &f.ranges[i], f.ranges[i+1]
		if a.at != b.at || a.expected != b.expected || a.lost != b.lost || a.path != b.path || a.repeated != b.repeated || a.arrived != b.arrived || a.held != b.held {
			i++
			continue
		}
		a.end = b.end
		f.ranges = slices.Delete(f.ranges, i+1, i+2)
	}
}

// index returns the range that has seq, or the number of ranges.
func (f *flight) index(seq uint64) int {
	i := 0
	for i < len(f.ranges) && f.ranges[i].end <= seq {
		i++
	}
	return i
}

// begin returns where range i begins.
func (f *flight) begin(i int) uint64 {
	if i == 0 {
		return f.una
	}
	return f.ranges[i-1].end
}

func (f *flight) firstLost() uint64 {
	for i := range f.ranges {
		if f.ranges[i].lost {
			return f.begin(i)
		}
	}
	return f.max
}

// acknowledge moves una to seq, which is not beyond max. Where the packet before seq was sent once and
// not given up, it returns when that was.
func (f *flight) acknowledge(seq uint64) (sentAt time.Duration, ok bool) {
	i := f.index(seq - 1)
	if i < len(f.ranges) && seq > f.una {
		r := &f.ranges[i]
		sentAt, ok = r.at, !r.lost && !r.repeated && !r.arrived
		if r.end == seq {
			i++
		}
	}
	f.una = seq
	if i == len(f.ranges) {
		f.ranges, f.uneven = f.ranges[:0], false
	} else if i > 0 {
		f.ranges = f.ranges[:copy(f.ranges, f.ranges[i:])]
	}
	if f.nxt < seq { // what was about to be repeated has arrived after all
		f.findNext()
	}
	return sentAt, ok
}

// lose makes [from, to), which is on its way, due to be sent again.
func (f *flight) lose(from, to uint64) {
	if from >= to {
		return
	}
	f.set(from, to, sentRange{lost: true})
	f.findNext()
}

// arrive takes note that the part of [from, to) that is on its way has arrived, though not all before it.
// It returns how many of these had not arrived before.
func (f *flight) arrive(from, to uint64) (n uint64) {
	from, to = max(from, f.una), min(to, f.max)
	for from < to {
		r := f.ranges[f.index(from)]
		end := min(r.end, to)
		if !r.arrived {
			n += end - from
			r.lost, r.arrived = false, true
			f.set(from, end, r)
		}
		from = end
	}
	if n > 0 {
		f.findNext()
	}
	return n
}

// hasArrived reports whether seq, which is not acknowledged, has arrived.
func (f *flight) hasArrived(seq uint64) bool {
	i := f.index(seq)
	return i < len(f.ranges) && f.ranges[i].arrived
}

// flying returns how many are on their way, as far as one can know: neither lost nor arrived.
func (f *flight) flying() uint64 {
	if !f.uneven {
		return f.max - f.una
	}
	n, begin := uint64(0), f.una
	for i := range f.ranges {
		r := &f.ranges[i]
		if !r.lost && !r.arrived {
			n += r.end - begin
		}
		begin = r.end
	}
	f.uneven = n < f.max-f.una
	return n
}

// keep takes back that anything is due to be sent again: it is on its way after all.
func (f *flight) keep() {
	for i := range f.ranges {
		if f.ranges[i].lost {
			f.ranges[i].lost, f.ranges[i].repeated = false, true // its acknowledgement measures nothing
		}
	}
	f.nxt = f.max
}

// loseAll makes everything that is not acknowledged due to be sent again.
func (f *flight) loseAll() {
	if f.una == f.max {
		return
	}
	f.ranges = append(f.ranges[:0], sentRange{end: f.max, lost: true})
	f.nxt, f.uneven = f.una, true
}
