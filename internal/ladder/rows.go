package ladder

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// resolved is packets whose ends and marks are known.
type resolved struct {
	all      []record
	ladder   *Ladder // with all ends, and no rows
	followed *follower
	skipped  int // packets that a filter leaves out
}

// resolve finds out the ends of the packets that were read, and what became of the packets.
func (c *Collector) resolve() resolved {
	s := resolved{all: c.ordered(), ladder: &Ladder{}}
	for i := range s.all {
		r := &s.all[i]
		if r.At = time.Duration(r.time - s.all[0].time); r.At < 0 { // times of centuries apart
			r.At = math.MaxInt64
		}
	}
	c.pair(s.all)
	if c.files > 1 {
		number(s.all)
	}
	findEnds(s.ladder, s.all)
	s.followed = follow(s.all)
	return s
}

// Ladder makes the ladder of the packets that were read.
func (c *Collector) Ladder(o Options) *Ladder {
	s := c.resolve()
	l := s.ladder
	f := newFilter(s.all, s.followed, o)
	skipped := 0
	var last time.Duration
	for i := range s.all {
		r := &s.all[i]
		if r.twin {
			continue
		}
		l.Total++
		if !f.wants(r) {
			skipped++
			continue
		}
		silence := r.At - last
		if len(l.Rows) == 0 {
			silence = 0
		}
		last = r.At
		l.add(r, silence, o.All)
	}
	l.useOnly()
	l.useFirst(maxEnds)
	l.cut(o.Limit)
	l.Notes = append(l.Notes, c.allNotes(skipped, l.Total)...)
	l.silences()
	return l
}

// allNotes are those of the captures, and of the flags.
func (c *Collector) allNotes(skipped, total int) []string {
	list := c.notes()
	if c.files > 1 {
		list = append(list, "The packets of all captures are counted together, in the order of time.")
	}
	if skipped > 0 {
		list = append(list, fmt.Sprintf("The flags leave out %d of %s.", skipped, count(total, "packet")))
	}
	return list
}

// add adds a packet as a row, or to a run.
func (l *Ladder) add(r *record, silence time.Duration, alone bool) {
	if n := len(l.Rows); n > 0 && !alone && r.cm.attr == 0 && l.Rows[n-1].goesOn(r) {
		l.Rows[n-1].Count++
		l.Rows[n-1].LastPSN, l.Rows[n-1].LastAt = r.PSN, r.At
		return
	}
	l.Rows = append(l.Rows, Row{Packet: r.Packet, Count: 1, LastPSN: r.PSN, LastAt: r.At, Silence: silence})
}

// goesOn reports whether a packet is like those of the row, and the next of them.
func (r *Row) goesOn(p *record) bool {
	if r.From != p.From || r.To != p.To || r.Opcode != p.Opcode || r.Name != p.Name || r.QPN != p.QPN || r.Bytes != p.Bytes || r.AckReq != p.AckReq ||
		r.Fields != p.Fields || r.Fate != p.Fate || len(r.Marks) != len(p.Marks) {
		return false
	}
	if r.PSN == p.PSN && r.isRepeat() && p.isRepeat() && r.LastPSN == p.PSN {
		return len(r.Marks) == 1
	}
	if p.PSN != r.LastPSN.Add(1) {
		return false
	}
	for i := range p.Marks {
		a, b := r.Marks[i], p.Marks[i]
		if a.Kind != b.Kind || a.Text != b.Text && (a.Kind != MarkRepeat || !repeatsOn(b.Text)) {
			return false
		}
	}
	return true
}

func (p *Packet) isRepeat() bool { return len(p.Marks) > 0 && p.Marks[0].Kind == MarkRepeat }

// repeatsOn reports whether the mark of a repeat has no cause of its own: the repeat goes on from the one before.
func repeatsOn(text string) bool { return !strings.Contains(text, ":") }

// filter picks the packets that were asked for.
type filter struct {
	o       Options
	streams map[streamID]bool // of the QPs that were asked for, and of their peers
	comms   map[uint32]bool   // the communication IDs of their connections
}

func newFilter(all []record, followed *follower, o Options) *filter {
	f := &filter{o, map[streamID]bool{}, map[uint32]bool{}}
	wanted := func(qpn uint32) bool { return slices.Contains(o.QPN, qpn) }
	for _, s := range followed.order {
		if wanted(s.id.qpn) {
			f.streams[s.id] = true
		}
		if to := s.requests; to != nil && (wanted(s.id.qpn) || wanted(to.id.qpn)) {
			f.streams[s.id], f.streams[to.id] = true, true
		}
	}
	for i := range all {
		if cm := &all[i].cm; cm.qpn != 0 && wanted(cm.qpn) {
			f.comms[cm.local], f.comms[cm.remote] = true, true
		}
	}
	delete(f.comms, 0)
	return f
}

func (f *filter) wants(r *record) bool {
	o := &f.o
	switch {
	case o.From > 0 && r.At < o.From, o.To > 0 && r.At > o.To:
		return false
	case len(o.Addrs) > 0 && !slices.Contains(o.Addrs, r.src.Unmap()) && !slices.Contains(o.Addrs, r.dst.Unmap()):
		return false
	case len(o.QPN) == 0 || slices.Contains(o.QPN, r.QPN) || slices.Contains(o.QPN, r.srcQPN):
		return true
	}
	return f.streams[streamID{r.From, r.To, r.QPN}] || f.comms[r.cm.local] || f.comms[r.cm.remote]
}

// events picks the events of the QPs, ends and times that were asked for.
func (f *filter) events(list []*record) []*record {
	o := &f.o
	return slices.DeleteFunc(list, func(r *record) bool {
		return o.From > 0 && r.At < o.From || o.To > 0 && r.At > o.To || len(o.QPN) > 0 && !slices.Contains(o.QPN, r.QPN) ||
			len(o.Addrs) > 0 && !slices.Contains(o.Addrs, r.src.Unmap())
	})
}

// useOnly leaves out the ends that no row needs.
func (l *Ladder) useOnly() {
	place := make([]int, len(l.Ends))
	for i := range place {
		place[i] = -1
	}
	var kept []End
	for i := range l.Rows {
		for _, p := range []*int{&l.Rows[i].From, &l.Rows[i].To} {
			if place[*p] < 0 {
				place[*p] = len(kept)
				kept = append(kept, l.Ends[*p])
			}
			*p = place[*p]
		}
	}
	l.Ends = kept
}

// maxEnds is how many lines a ladder has at most: for more there is no room.
const maxEnds = 10

// useFirst leaves out the rows from and to ends beyond the first most.
func (l *Ladder) useFirst(most int) {
	if len(l.Ends) <= most {
		return
	}
	left := 0
	l.Rows = slices.DeleteFunc(l.Rows, func(r Row) bool {
		if r.From < most && r.To < most {
			return false
		}
		left += r.Count
		return true
	})
	l.Notes = append(l.Notes, fmt.Sprintf("%d ends are too many to draw: %s of others than the first %d %s left out; choose by --addr and --qp.",
		len(l.Ends), count(left, "packet"), most, are(left)))
	l.Ends = l.Ends[:most]
}

// number counts the packets of several captures together, since a number of one of them would be ambiguous.
func number(all []record) {
	n := 0
	for i := range all {
		if !all[i].twin {
			n++
			all[i].Frame = n
		}
	}
}

// cut leaves out the rows beyond a limit.
func (l *Ladder) cut(limit int) {
	if limit <= 0 || len(l.Rows) <= limit {
		return
	}
	left := 0
	for i := range l.Rows[limit:] {
		left += l.Rows[limit+i].Count
	}
	at := l.Rows[limit].At
	l.Rows = l.Rows[:limit]
	l.Notes = append(l.Notes, fmt.Sprintf("%s from %s on %s left out: --limit shows more, and --from %s goes on there.", count(left, "packet"), stamp(at), are(left), floor(at)))
}

// A silence is shown if it is silenceLeast, and silenceTimes as long as the median.
const (
	silenceLeast = 100 * time.Microsecond
	silenceTimes = 10
)

// silences keeps the long ones.
func (l *Ladder) silences() {
	var list []time.Duration
	for i := range l.Rows {
		list = append(list, l.Rows[i].Silence)
	}
	slices.Sort(list)
	if len(list) == 0 {
		return
	}
	least := max(silenceLeast, silenceTimes*list[len(list)/2])
	for i := range l.Rows {
		if l.Rows[i].Silence < least {
			l.Rows[i].Silence = 0
		}
	}
}

// stamp is a time of a row in words.
func stamp(d time.Duration) string { return clock(d) + " s" }

// clock is a time as the rows have it, of timeWidth columns at most.
func clock(d time.Duration) string {
	decimals := 6
	for limit := 1000 * time.Second; d >= limit && decimals > 0; limit *= 1000 {
		decimals -= 3
	}
	return fmt.Sprintf("%.*f", decimals, d.Seconds())
}

// floor cuts off less than a microsecond.
func floor(d time.Duration) time.Duration { return d / time.Microsecond * time.Microsecond }
