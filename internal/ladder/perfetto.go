package ladder

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
)

// traceEvent is an event of Chrome's trace format, which Perfetto reads. Times are microseconds.
type traceEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Cat   string         `json:"cat,omitempty"`
	TS    json.Number    `json:"ts,omitempty"`
	Dur   json.Number    `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid,omitempty"`
	ID    string         `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// Perfetto writes the packets as JSON for ui.perfetto.dev and chrome://tracing. Each end is a process. Its tracks are
// the packets that it sends to a QP, those that it receives where the capture says when, what its device has recorded,
// and counters of the payload. Arrows join the two ends of a packet.
func (c *Collector) Perfetto(w io.Writer, o Options) error {
	t := tracer{w: bufio.NewWriter(w), tracks: map[track]*trackState{}, open: map[workRequest]bool{}}
	s, items := c.items(o, newColumns())
	_, _ = t.w.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`) // Flush has the error
	if len(items) > 0 {
		t.zero = min(0, items[0].At)
	}
	for i := range s.ladder.Ends {
		t.write(traceEvent{Name: "process_name", Phase: "M", PID: i + 1, Args: map[string]any{"name": Letter(i) + " " + s.ladder.Ends[i].Name}})
	}
	for _, r := range items {
		if r.event != 0 {
			t.event(r)
		} else {
			t.packet(r)
		}
	}
	for _, state := range t.order {
		state.end(&t)
	}
	_, _ = t.w.WriteString("\n]}\n")
	return t.w.Flush()
}

// track names a track: of an end, what goes to a QP, what comes for it, or what its device does.
type track struct {
	end  int
	kind byte
	qpn  uint32
}

const (
	trackSends    = 's'
	trackReceives = 'r'
	trackDevice   = 'd'
)

// trackState is a track with its latest packet, whose slice ends where the next begins.
type trackState struct {
	id      int
	pending *traceEvent
	at      time.Duration
	length  time.Duration
}

// tracer writes the events of a trace.
type tracer struct {
	w      *bufio.Writer
	tracks map[track]*trackState
	order  []*trackState
	open   map[workRequest]bool
	zero   time.Duration
	count  int
	flows  int
}

func (t *tracer) write(e traceEvent) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // of numbers and texts
	}
	if t.count > 0 {
		_ = t.w.WriteByte(',')
	}
	t.count++
	_ = t.w.WriteByte('\n')
	_, _ = t.w.Write(b)
}

// since is a time since the first, as the format has it.
func (t *tracer) since(d time.Duration) json.Number { return micros(d - t.zero) }

func micros(d time.Duration) json.Number {
	return json.Number(fmt.Sprintf("%d.%03d", d/time.Microsecond, d%time.Microsecond))
}

// track returns a track, and names it at its first use.
func (t *tracer) track(k track, name string) *trackState {
	state := t.tracks[k]
	if state == nil {
		state = &trackState{id: len(t.tracks) + 1}
		t.tracks[k], t.order = state, append(t.order, state)
		t.write(traceEvent{Name: "thread_name", Phase: "M", PID: k.end + 1, TID: state.id, Args: map[string]any{"name": name}})
	}
	return state
}

// Slices of a track must not overlap. One without a packet behind it, or with one far behind, is as long as usual.
const usualSlice = time.Microsecond

// slice puts a slice on a track.
func (s *trackState) slice(t *tracer, e traceEvent, at, length time.Duration) {
	if s.pending != nil && at-s.at < s.length {
		s.length = max(0, at-s.at)
	}
	s.end(t)
	s.pending, s.at, s.length = &e, at, length
}

func (s *trackState) end(t *tracer) {
	if s.pending == nil {
		return
	}
	s.pending.TS, s.pending.Dur = t.since(s.at), micros(s.length)
	t.write(*s.pending)
	s.pending = nil
}

// packet writes a packet.
func (t *tracer) packet(r *record) {
	row := Row{Packet: r.Packet, Count: 1, LastPSN: r.PSN, LastAt: r.At}
	args := map[string]any{"frame": r.Frame, "says": row.Words()}
	cat := "packet"
	for i, m := range r.Marks {
		args[fmt.Sprintf("mark %d", i+1)] = m.Text
		cat = "packet,marked"
	}
	if r.isIWARP() {
		args["bytes"] = r.Bytes
	} else if r.cm.attr == 0 {
		args["psn"], args["bytes"] = r.PSN, r.Bytes
	}
	name := r.class().Name
	if r.Fate == Lost || r.Fate == Damaged {
		name += " (lost)"
	}
	from := t.track(track{r.From, trackSends, r.QPN}, "sends to "+r.queue())
	from.slice(t, traceEvent{Name: name, Phase: "X", Cat: cat, PID: r.From + 1, TID: from.id, Args: args}, r.At, usualSlice)
	if r.Bytes > 0 {
		t.write(traceEvent{Name: "payload to " + r.queue(), Phase: "C", TS: t.since(r.At), PID: r.From + 1, Args: map[string]any{"bytes": r.Bytes}})
	}
	if r.Fate != Arrived || r.From == r.To {
		return
	}
	to := t.track(track{r.To, trackReceives, r.QPN}, "receives for "+r.queue())
	at := max(r.At+r.Took, to.at)
	to.slice(t, traceEvent{Name: name, Phase: "X", Cat: cat, PID: r.To + 1, TID: to.id, Args: args}, at, usualSlice)
	t.flows++
	id := fmt.Sprint(t.flows)
	t.write(traceEvent{Name: "packet", Phase: "s", Cat: "way", ID: id, TS: t.since(r.At), PID: r.From + 1, TID: from.id})
	t.write(traceEvent{Name: "packet", Phase: "f", Bind: "e", Cat: "way", ID: id, TS: t.since(at), PID: r.To + 1, TID: to.id})
}

// workRequest names a work request that is under way.
type workRequest struct {
	end  int
	qpn  uint32
	id   uint64
	recv bool
}

// event writes what a device has recorded. A work request lasts from its post to its completion.
func (t *tracer) event(r *record) {
	k := workRequest{r.From, r.QPN, r.eventID, r.event == journal.KindReceive || r.event == journal.KindReceived}
	asyncID := fmt.Sprintf("%d-%x-%x-%t", k.end, k.qpn, k.id, k.recv)
	async := func(phase string) {
		t.write(traceEvent{Name: fmt.Sprintf("wr_id %d", k.id), Phase: phase, Cat: "work request", ID: asyncID, TS: t.since(r.At), PID: r.From + 1,
			Args: map[string]any{"QP": fmt.Sprintf("0x%06x", r.QPN), "says": r.Fields}})
	}
	switch {
	case r.event == journal.KindSend || r.event == journal.KindReceive:
		if !t.open[k] {
			t.open[k] = true
			async("b")
		}
		return
	case t.open[k] && (r.event == journal.KindDone || r.event == journal.KindReceived):
		delete(t.open, k)
		async("e")
		return
	}
	to := t.track(track{r.From, trackDevice, r.QPN}, fmt.Sprintf("device, QP 0x%06x", r.QPN))
	t.write(traceEvent{Name: r.event.String() + ": " + r.Fields, Phase: "i", Scope: "t", TS: t.since(r.At), PID: r.From + 1, TID: to.id})
}
