package ladder

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
)

// event is what a software device has written into a capture beside packets.
type event struct {
	journal.Event
	file int
}

// Bounds on the memory of events.
const (
	maxEvents     = 2 * maxPackets
	maxEventWords = 128 << 20 // bytes of the words of all
)

func (c *Collector) addEvent(file int, e journal.Event) {
	if len(c.events) == maxEvents || c.eventWords+len(e.Words) > maxEventWords {
		c.eventsLeft++
		return
	}
	c.eventWords += len(e.Words)
	c.events = append(c.events, event{e, file})
}

// homes finds the ends of queue pairs by their numbers.
type homes struct {
	addrs map[[2]int]netip.Addr // by file and QPN
	ends  map[endID]int
	self  map[netip.Addr]bool // addresses that stand for several ends
}

func (c *Collector) newHomes(s *resolved) *homes {
	h := &homes{map[[2]int]netip.Addr{}, map[endID]int{}, map[netip.Addr]bool{}}
	for i := range s.all { // a QP whose address is not recorded has that to which its packets go
		r := &s.all[i]
		h.addrs[[2]int{int(r.file), int(r.QPN)}] = r.dst
	}
	for i := range c.events {
		if e := &c.events[i]; e.Addr.IsValid() {
			h.addrs[[2]int{e.file, int(e.QPN)}] = e.Addr
		}
	}
	for i := range s.ladder.Ends {
		end := &s.ladder.Ends[i]
		h.ends[endID{end.Addr.Unmap(), end.QPN, end.Port}] = i
		if end.QPN != 0 {
			h.self[end.Addr.Unmap()] = true
		}
	}
	return h
}

// end returns the end that has a QP.
func (h *homes) end(file int, qpn uint32) (int, bool) {
	addr, ok := h.addrs[[2]int{file, int(qpn)}]
	if !ok {
		return 0, false
	}
	id := endID{addr: addr.Unmap()}
	if h.self[id.addr] {
		id.qpn = qpn
	}
	i, ok := h.ends[id]
	return i, ok
}

// eventRecords returns the events of queue pairs and regions that packets name, in the order of time. Their times
// count as those of the packets do, so that some are below 0.
func (c *Collector) eventRecords(s *resolved, regions []packedRegion) (list []*record) {
	if len(c.events) == 0 || len(s.all) == 0 {
		return nil
	}
	h := c.newHomes(s)
	regionEnds := map[uint32]int{} // by rkey
	for i := range slices.Backward(regions) {
		regionEnds[regions[i].rkey] = regions[i].End
	}
	for i := range c.events {
		e := &c.events[i]
		var end int
		var ok bool
		if e.Kind == journal.KindRegion {
			end, ok = regionEnds[e.Key]
		} else {
			end, ok = h.end(e.file, e.QPN)
		}
		if !ok {
			continue
		}
		r := &record{src: s.ladder.Ends[end].Addr, time: e.Time, file: int32(e.file), event: e.Kind, eventID: e.ID, decoded: true}
		r.Packet = Packet{At: time.Duration(e.Time - s.all[0].time), Took: -1, From: end, To: end, QPN: e.QPN, Fields: e.Words}
		if (e.Kind == journal.KindDone || e.Kind == journal.KindReceived) && e.Key != 0 {
			r.Marks = append(r.Marks, Mark{MarkFailed, fmt.Sprintf("it failed: adverb explain status %d", e.Key)})
		}
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b *record) int { return cmp.Compare(a.time, b.time) })
	return list
}

// maxRegistrations is how many regions of one rkey are looked at. Devices choose rkeys by chance, so more are few.
const maxRegistrations = 64

// extend gives the regions that were registered their whole range.
func (c *Collector) extend(regions []packedRegion) {
	registered := map[uint32][]*event{} // by rkey
	for i := range c.events {
		if e := &c.events[i]; e.Kind == journal.KindRegion && len(registered[e.Key]) < maxRegistrations {
			registered[e.Key] = append(registered[e.Key], e)
		}
	}
	for i := range regions {
		r := &regions[i]
		for _, e := range registered[r.rkey] {
			if e.ID <= r.base && r.base-e.ID < e.Len {
				r.base, r.Size = e.ID, e.Len
			}
		}
		r.Base = fmt.Sprintf("0x%x", r.base)
	}
}

// merge puts events between packets, both in the order of time. What a device does at the time of a packet comes first:
// it posts before it sends.
func merge(packets, events []*record) []*record {
	all := make([]*record, 0, len(packets)+len(events))
	for _, p := range packets {
		for len(events) > 0 && events[0].time <= p.time {
			all, events = append(all, events[0]), events[1:]
		}
		all = append(all, p)
	}
	return append(all, events...)
}
