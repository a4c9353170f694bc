package diagnose

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A mark or a pause now and then is how congestion control works. It is a warning where it is a share of the packets, or of
// the time.
const (
	fewMarks  = 3 // that may be chance
	markShare = 1 // percent of packets that are marked, or of the time that is paused: from here on it costs throughput

	// cnpShare is the packets of data for each CNP, below which CNPs are many. A card sends one for all marks of some
	// microseconds.
	cnpShare = 1000
)

// The codepoints of ECN in the traffic class.
const notECT, ce, ecnMask = 0, 3, 3

// isMarked reports whether a packet bears a mark of congestion.
func isMarked(p *capture.Packet, bth *wire.BTH) bool {
	if p.Version == capture.RoCEv2 {
		return p.TrafficClass&ecnMask == ce
	}
	return bth.FECN
}

// marked counts a packet with a mark.
func (a *Analyzer) marked(h *hosts, p *capture.Packet) {
	a.count.ce++
	if h.ce == 0 {
		h.firstCE = p.Frame.Time
	}
	h.ce++
	a.congestion(h, p.Frame.Number)
}

// congestion counts a mark on a packet from one host to another, or a CNP that came back.
func (a *Analyzer) congestion(h *hosts, frame int) {
	x := a.onHosts(h, cnp, &h.congested, frame)
	if x == nil || x.Count > 1 && x.Severity == Warning {
		return
	}
	if x.Severity = Info; h.cnpsBack() > 0 && h.congestedMuch() {
		x.Severity = Warning
	}
}

// cnpsBack is the CNPs that tell of the packets of h.
func (h *hosts) cnpsBack() int {
	if h.back == nil {
		return 0
	}
	return h.back.cnps
}

// congestedMuch reports whether marks, or CNPs, are so many that they mean something.
func (h *hosts) congestedMuch() bool {
	told := h.cnpsBack()
	sent := h.packets
	if sent == 0 && h.back != nil { // of which the capture has the other direction alone
		sent = h.back.packets
	}
	return h.ce >= fewMarks && h.ce*100 >= sent*markShare || told >= fewMarks && told*cnpShare >= sent
}

// judgeCongestion judges the marks of one direction, and the CNPs that came back.
func (a *Analyzer) judgeCongestion(h *hosts) {
	const soon = int64(time.Second)
	x, told := h.congested, h.cnpsBack()
	if h.ce >= fewMarks && h.back != nil && h.back.packets > 0 && told == 0 && a.last-h.firstCE > soon {
		x.dropped = true
		var y *Finding
		if a.onHosts(h, ecnNoCNP, &y, 0); y != nil {
			y.Count, y.Frames = h.ce, x.Frames
			y.Words = words("%d of %d packets are marked (CE), and no CNP came back in the %v after the first.", h.ce, h.packets, round(a.last-h.firstCE))
		}
		return
	}
	x.Severity = Info
	if h.congestedMuch() {
		x.Severity = Warning
	}
	x.Words = words("%d of %d packets are marked (CE), and %s came back.", h.ce, h.packets, counted(told, "CNP"))
	if h.packets == 0 {
		x.Words = words("%s came back. The packets that they tell of are not in the capture.", counted(told, "CNP"))
	} else if x.Severity == Info {
		x.Title = "Packets were marked as congested now and then"
		x.Words += " So few are how congestion control works, and cost little."
	}
	if there, back := a.names.filterHosts(h.kind, h.key.src, h.key.dst), a.names.filterHosts(h.kind, h.key.dst, h.key.src); there != "" {
		x.Filter = "(" + there + ") || (" + back + ")"
	}
}

// pause counts the pause frames of one priority, and the time for which they stop it.
type pause struct {
	frames  []int
	count   int
	longest uint16 // in quanta
	until   int64  // when the latest one ends
	stopped int64  // nanoseconds in all, up to then
}

// quantum is how long one quantum of 512 bits takes, in picoseconds, on a link of 100 Gbit/s.
const quantum = 5120

func (a *Analyzer) pause(p *capture.Packet) {
	for i := range a.paused {
		if p.Pause.Classes>>i&1 == 0 {
			continue
		}
		c, now, quanta := &a.paused[i], p.Frame.Time, p.Pause.Quanta[i]
		c.end(now)
		if quanta == 0 {
			continue
		}
		n := int64(quanta) * quantum / 1000
		c.until, c.stopped = now+n, c.stopped+n
		c.count++
		c.longest = max(c.longest, quanta)
		if len(c.frames) < maxFrames {
			c.frames = append(c.frames, p.Frame.Number)
		}
	}
}

// end ends the latest pause at some time, if it would last longer.
func (c *pause) end(now int64) {
	if c.until > now {
		c.stopped -= c.until - now
		c.until = now
	}
}

func (a *Analyzer) finishPauses() {
	for i, c := range a.paused {
		if c.count == 0 {
			continue
		}
		x := a.found.add(pfc, words("priority %d", i))
		if x == nil {
			continue
		}
		c.end(a.last)
		span := max(1, a.last-a.first)
		x.Count, x.Frames = c.count, c.frames
		x.Filter = "macc.opcode == 0x0101 || macc.opcode == 0x0001"
		x.Words = words("On a link of 100 Gbit/s %s it for %v, %.1f %% of the time; on a slower one for longer. The longest asks for %d quanta of 512 bits.", counted(c.count, "frame")+stop(c.count), round(c.stopped), 100*float64(c.stopped)/float64(span), c.longest)
		if c.count < fewMarks || c.stopped*100 < span*markShare {
			x.Severity, x.Title = Info, "Pause frames stopped the traffic now and then"
		}
	}
}

func stop(n int) string {
	if n == 1 {
		return " stops"
	}
	return " stop"
}
