package recovery

import (
	"iter"
	"slices"
	"time"
)

// flight is the packets that were sent and are not acknowledged: the sequence numbers [una, max), as a list of
// ranges. The next packet to send is the first lost one, or else max, which is new. The names are TCP's: SND.UNA,
// SND.NXT and SND.MAX.
//
//	una <= nxt <= max
//
// flight alone moves the three.
type flight struct {
	una, nxt, max uint64
	ranges        []sentRange // of [una, max), in order: each begins where the one before it ends
	hasGaps       bool        // some ranges may be lost, or have arrived
}

// sentRange is a range of sequence numbers that were sent at the same time and have the same fate.
type sentRange struct {
	end      uint64
	at       time.Duration // when the range was sent the last time
	expected time.Duration // when the range should have arrived, since packets arrived that were sent later; 0 if none did
	lost     bool          // the range is to be sent again
	repeated bool          // the range was sent more than once
	path     uint8         // the path of the last time
	arrived  bool          // the peer has the range, or the responses have come; packets before it are missing
	held     bool          // the peer has the request, and waits for packets before it
}

// Una returns the oldest sequence number that is not acknowledged.
func (f *flight) Una() uint64 { return f.una }

// Nxt returns the sequence number of the next packet to send.
func (f *flight) Nxt() uint64 { return f.nxt }

// Max returns the sequence number after all that were sent.
func (f *flight) Max() uint64 { return f.max }

// ArrivedTo returns the end of the packets at una that have arrived, or una.
func (f *flight) ArrivedTo() uint64 {
	if len(f.ranges) > 0 && f.ranges[0].arrived {
		return f.ranges[0].end
	}
	return f.una
}

// ArrivedFrom returns the ranges that have arrived, from seq on.
func (f *flight) ArrivedFrom(seq uint64) iter.Seq2[uint64, uint64] {
	return func(yield func(from, to uint64) bool) {
		for i := f.index(seq); i < len(f.ranges); i++ {
			if f.ranges[i].arrived && !yield(max(seq, f.begin(i)), f.ranges[i].end) {
				return
			}
		}
	}
}

// LostRun returns how many packets from Nxt on are lost together.
func (f *flight) LostRun() uint64 { return f.ranges[f.index(f.nxt)].end - f.nxt }

// start forgets all packets. seq is the first to send.
func (f *flight) start(seq uint64) {
	f.una, f.nxt, f.max = seq, seq, seq
	f.ranges, f.hasGaps = f.ranges[:0], false
}

// send notes that the next n packets leave by a path. It reports whether they were sent before.
func (f *flight) send(now time.Duration, n uint64, path uint8) (repeated bool) {
	from, to := f.nxt, f.nxt+n
	if from < f.max {
		f.sendAgain(now, from, to, path)
		return true
	}
	if last := len(f.ranges) - 1; last >= 0 && f.ranges[last] == (sentRange{end: from, at: now, path: path}) {
		f.ranges[last].end = to
	} else {
		// Each field is stored in its place. A load of the whole range would wait for all stores before it, and stores
		// to a ring that the peer has read take long.
		f.ranges = append(f.ranges, sentRange{})
		r := &f.ranges[len(f.ranges)-1]
		r.end, r.at, r.path = to, now, path
	}
	f.max, f.nxt = to, to // a lost packet would be next
	return false
}

// sendAgain notes that [from, to) leaves, whose beginning was sent before.
func (f *flight) sendAgain(now time.Duration, from, to uint64, path uint8) {
	for from < to { // packets in between that have arrived are not needed again
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

// LoseMissing makes the packets of [from, to) that are in flight due to be sent again. All of them were sent before.
func (f *flight) LoseMissing(from, to uint64) {
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

// LostTo returns the end of the last lost packet before end. There is one.
func (f *flight) LostTo(end uint64) (to uint64) {
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

// repeatedLast makes the packets that were sent last count as repeated.
func (f *flight) repeatedLast() { f.ranges[len(f.ranges)-1].repeated = true }

// WasRepeated reports whether packet seq was sent more than once, or is about to be. It is not acknowledged.
func (f *flight) WasRepeated(seq uint64) bool {
	r := &f.ranges[f.index(seq)]
	return r.repeated || r.lost
}

// expect notes when the range should have arrived.
func (x *sentRange) expect(at time.Duration) { x.expected = at }

// resent makes the range count as sent again now.
func (x *sentRange) resent(now time.Duration) { x.at, x.expected, x.repeated = now, 0, true }

// set makes [from, to) a range with the properties of s. It begins before max.
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
	f.hasGaps = f.hasGaps || s.lost || s.arrived
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

// loseRange makes range i due to be sent again. The caller calls findNext after it.
func (f *flight) loseRange(i int) { f.ranges[i].lost, f.hasGaps = true, true }

// findNext makes the first lost range the next to send.
func (f *flight) findNext() { f.nxt = f.firstLost() }

// join merges the ranges at and behind i that differ in nothing but their place.
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

// acknowledge moves una to seq, which is not beyond max. If the packet before seq was sent once and not declared
// lost, acknowledge returns when it was sent.
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
		f.ranges, f.hasGaps = f.ranges[:0], false
	} else if i > 0 {
		f.ranges = f.ranges[:copy(f.ranges, f.ranges[i:])]
	}
	if f.nxt < seq { // packets that were about to be repeated have arrived after all
		f.findNext()
	}
	return sentAt, ok
}

// Lose makes [from, to), which is in flight, due to be sent again.
func (f *flight) Lose(from, to uint64) {
	if from >= to {
		return
	}
	f.set(from, to, sentRange{lost: true})
	f.findNext()
}

// arrive notes that the packets of [from, to) that are in flight have arrived, and that some before them have not. It
// returns how many had not arrived before.
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

// HasArrived reports whether packet seq has arrived. It is not acknowledged.
func (f *flight) HasArrived(seq uint64) bool {
	i := f.index(seq)
	return i < len(f.ranges) && f.ranges[i].arrived
}

// InFlight returns how many packets are in flight: neither lost nor arrived, as far as this end can know.
func (f *flight) InFlight() uint64 {
	if !f.hasGaps {
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
	f.hasGaps = n < f.max-f.una
	return n
}

// keep takes back all losses: the packets are in flight after all.
func (f *flight) keep() {
	for i := range f.ranges {
		if f.ranges[i].lost {
			f.ranges[i].lost, f.ranges[i].repeated = false, true // its acknowledgement is no RTT sample
		}
	}
	f.nxt = f.max
}

// loseAll makes all packets that are not acknowledged due to be sent again.
func (f *flight) loseAll() {
	if f.una == f.max {
		return
	}
	f.ranges = append(f.ranges[:0], sentRange{end: f.max, lost: true})
	f.nxt, f.hasGaps = f.una, true
}
