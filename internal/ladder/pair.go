package ladder

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// pairWithin is how far apart the two records of a packet may be.
const pairWithin = int64(2 * time.Second)

const (
	maxSources = 64 // that a record can name
	maxWaiting = 64 // equal records that are looked at, so that a file full of them takes no longer than others
)

// onceMore is how far apart a packet may stand twice in a capture of all interfaces (tcpdump -i any).
const onceMore = int64(100 * time.Microsecond)

// pair finds packets that were captured at several places, such as at both ends: the first record stands for the packet,
// and says how long it took to the last. Records are in order of time.
func (c *Collector) pair(all []record) {
	doubled := c.doubled(all)
	waiting := map[uint64][]int{} // by key: records that may have a twin
	seen := map[uint64]int{}
	for i := range all {
		r := &all[i]
		source := 2 * r.source
		if r.src == r.dst && doubled[r.file] {
			source += int32(seen[r.key] % 2) // out, in, out, in
			seen[r.key]++
		}
		bit := uint64(1) << (uint(source) % maxSources)
		list := waiting[r.key]
		of := -1
		for k := len(list) - 1; k >= 0; k-- { // the latest, since of equal packets the earlier one was lost
			if p := &all[list[k]]; r.time-p.time <= pairWithin && (p.sources&bit == 0 || r.isOnceMore(p)) {
				of = list[k]
				break
			}
		}
		if of < 0 {
			r.sources = bit
			waiting[r.key] = append(list[max(0, len(list)-maxWaiting+1):], i)
			continue
		}
		p := &all[of]
		r.twin = true
		if p.sources&bit != 0 {
			continue
		}
		p.sources |= bit
		p.Took, p.Fate = time.Duration(r.time-p.time), Arrived
	}
	c.findDamaged(all)
	findLost(all)
}

// isOnceMore reports whether a record is the same packet at another interface, in a capture of all interfaces. A packet
// that is sent again has another identification.
func (r *record) isOnceMore(p *record) bool {
	return r.cooked && p.cooked && r.source == p.source && r.id != 0 && r.id == p.id && r.time-p.time <= onceMore
}

// doubled reports which files have each packet between two QPs of one address twice: a software device sees what it sends
// to itself as sent and as received.
func (c *Collector) doubled(all []record) map[int32]bool {
	type fileKey struct {
		file int32
		key  uint64
	}
	times := map[fileKey]int{}
	for i := range all {
		if r := &all[i]; r.src == r.dst {
			times[fileKey{r.file, r.key}]++
		}
	}
	even, odd := map[int32]int{}, map[int32]int{}
	for k, n := range times {
		if n%2 == 0 {
			even[k.file]++
		} else {
			odd[k.file]++
		}
	}
	list := map[int32]bool{}
	for file, n := range even {
		list[file] = n > 4*odd[file]
	}
	return list
}

// findDamaged joins a packet that was sent, and is not at the other end, with the damaged one that is.
func (c *Collector) findDamaged(all []record) {
	for i := range all {
		r := &all[i]
		if r.twin || r.verdict != capture.ICRCBad {
			continue
		}
		r.Fate = Damaged
		r.Marks = append(r.Marks, Mark{MarkDamaged, "damaged: its ICRC is wrong, and the receiver drops it"})
		for k := i - 1; k >= 0 && r.time-all[k].time <= pairWithin && i-k < 1000; k-- {
			p := &all[k]
			if p.twin || p.Fate != Unknown || p.sources&r.sources != 0 || p.src != r.src || p.dst != r.dst || p.PSN != r.PSN || p.QPN != r.QPN {
				continue
			}
			p.Took, p.Fate, p.Marks = time.Duration(r.time-p.time), Damaged, append(p.Marks, r.Marks...)
			r.twin = true
			break
		}
	}
}

// direction is from one address to another.
type direction struct{ src, dst netip.Addr }

// findLost marks the packets that were not captured at the other end, if packets sent later in the same direction were: the
// capture there was running.
func findLost(all []record) {
	last := map[direction]int{}
	for i := range all {
		if r := &all[i]; !r.twin && r.Fate == Arrived {
			last[direction{r.src, r.dst}] = i
		}
	}
	for i := range all {
		r := &all[i]
		if at, some := last[direction{r.src, r.dst}]; some && i < at && !r.twin && r.Fate == Unknown {
			r.Fate = Lost
			r.Marks = append(r.Marks, Mark{MarkLost, "lost: it never arrived"})
		}
	}
}
