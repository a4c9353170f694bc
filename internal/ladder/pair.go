package ladder

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// pairWithin is how far apart the two records of a packet may be.
const pairWithin = int64(2 * time.Second)

// onceMore is how far apart a packet may stand twice in a capture of all interfaces (tcpdump -i any).
const onceMore = int64(100 * time.Microsecond)

// pair finds packets that were captured at several places, such as at both ends: the first record stands for the packet,
// and says how long it took to the last. Records are in order of time.
func (c *Collector) pair(all []record) {
	doubled := c.doubled(all)
	equal := map[uint64][]int{} // by key
	var keys []uint64
	for i := range all {
		r := &all[i]
		list := equal[r.key]
		if len(list) == 0 {
			keys = append(keys, r.key)
		}
		r.place = 2 * r.source
		switch {
		case r.way == capture.Inbound && !r.cooked:
			r.place++
		case r.way == capture.NoDirection && r.src == r.dst && doubled[r.file] && !r.isIWARP():
			r.place += int32(len(list) % 2) // out, in, out, in
		}
		if n := len(list); n > 0 && r.isOnceMore(&all[list[n-1]]) {
			r.isTwinOf(list[n-1])
			continue
		}
		equal[r.key] = append(list, i)
	}
	for _, key := range keys {
		if list := equal[key]; len(list) > 1 {
			pairEqual(all, list)
		}
	}
	c.findDamaged(all)
	findLost(all)
	findOvertaken(all)
}

// pairEqual pairs the records of equal packets: those at the place of the first are packets, and those at other places
// their arrivals. Where fewer arrived than were sent, the earlier ones were lost: each arrival, from the last one on, is
// that of the latest packet before it.
func pairEqual(all []record, list []int) {
	byPlace := map[int32][]int{}
	var places []int32
	for _, i := range list {
		at := all[i].place
		if len(byPlace[at]) == 0 {
			places = append(places, at)
		}
		byPlace[at] = append(byPlace[at], i)
	}
	sent := byPlace[places[0]]
	for _, at := range places[1:] {
		k := len(sent) - 1
		came := byPlace[at]
		for j := len(came) - 1; j >= 0; j-- {
			r := &all[came[j]]
			for k >= 0 && sent[k] > came[j] {
				k--
			}
			if k < 0 {
				break
			}
			p := &all[sent[k]]
			if r.time-p.time > pairWithin {
				continue
			}
			r.isTwinOf(sent[k])
			k--
			p.Took, p.Fate, p.arrival = max(p.Took, time.Duration(r.time-p.time)), Arrived, max(p.arrival, came[j])
		}
	}
}

// isTwinOf notes that another record stands for the packet.
func (r *record) isTwinOf(original int) { r.twin, r.original = true, original }

// isOnceMore reports whether a record is the same packet at another interface, in a capture of all interfaces. A packet
// that is sent again has another identification.
func (r *record) isOnceMore(p *record) bool {
	return r.cooked && p.cooked && r.source == p.source && r.id != 0 && r.id == p.id && r.time-p.time <= onceMore
}

// doubled reports which files that do not say the direction have each packet between two QPs of one address twice: a
// software device sees a packet to itself as sent and as received.
func (c *Collector) doubled(all []record) map[int32]bool {
	type fileKey struct {
		file int32
		key  uint64
	}
	times := map[fileKey]int{}
	for i := range all {
		if r := &all[i]; r.src == r.dst && !r.isIWARP() {
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
			if p.twin || p.Fate != Unknown || p.place == r.place || p.src != r.src || p.dst != r.dst || p.PSN != r.PSN || p.QPN != r.QPN {
				continue
			}
			p.Took, p.Fate, p.Marks = time.Duration(r.time-p.time), Damaged, append(p.Marks, r.Marks...)
			r.isTwinOf(k)
			break
		}
	}
}

// direction is from one address to another, and of an address to itself that to one QP.
type direction struct {
	src, dst netip.Addr
	qpn      uint32
}

func (r *record) direction() direction {
	d := direction{src: r.src, dst: r.dst}
	if r.src == r.dst {
		d.qpn = r.QPN
	}
	return d
}

// findLost marks the packets that were not captured at the other end, if packets sent later in the same direction were: the
// capture there was running.
func findLost(all []record) {
	last := map[direction]int{}
	for i := range all {
		if r := &all[i]; !r.twin && r.Fate == Arrived {
			last[r.direction()] = i
		}
	}
	for i := range all {
		r := &all[i]
		if r.isIWARP() {
			continue // TCP loses nothing: what is missing at the other end is so in the capture
		}
		if r.src == r.dst && r.QPN == wire.GSIQPN {
			continue // the processes of the address share QP 1: one sees what it sends there only if nobody else takes it
		}
		if at, some := last[r.direction()]; some && i < at && !r.twin && r.Fate == Unknown {
			r.Fate = Lost
			r.Marks = append(r.Marks, Mark{MarkLost, "lost: it never arrived"})
		}
	}
}

// maxOvertaking is how many of the packets behind one are looked at.
const maxOvertaking = 64

// findOvertaken marks packets that arrived after packets that were sent later.
func findOvertaken(all []record) {
	arrived := map[direction][]*record{}
	for i := range all {
		if r := &all[i]; !r.twin && r.Fate == Arrived && !r.isIWARP() {
			d := direction{r.src, r.dst, r.QPN} // QPs may take different ways
			arrived[d] = append(arrived[d], r)
		}
	}
	for _, list := range arrived {
		for i, r := range list {
			n := 0
			for _, later := range list[i+1 : min(len(list), i+1+maxOvertaking)] {
				if later.arrival < r.arrival {
					n++
				}
			}
			if n > 0 {
				r.Marks = append(r.Marks, Mark{MarkLate, fmt.Sprintf("overtaken: %s sent later arrived first", count(n, "packet"))})
			}
		}
	}
}
