package ladder

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// minMTU is the least path MTU. A READ takes a PSN for each MTU of its data.
const minMTU = 256

const lacked = "the receiver's ranges lack it"

// patience is how long a requester has waited at least, where a repeat that nobody asked for is taken for a timeout.
const patience = 100 * time.Microsecond

// maxCandidates is how many QPs between two ends are looked at for the requests that a response answers.
const maxCandidates = 256

// streamID names the packets from an end to a QP.
type streamID struct {
	from, to int
	qpn      uint32
}

// stream is the packets from an end to a QP.
type stream struct {
	began bool
	next  wire.PSN         // behind the furthest request
	slack int              // how many more PSNs the latest READ may take
	sent  map[wire.PSN]int // the latest request with each PSN
	last  time.Duration    // of the latest packet in either direction
	asked string           // why a repeat comes, if the responder has said so
	at    wire.PSN         // where that repeat begins

	answered map[wire.PSN]int // READ responses: the latest with each PSN
	requests *streamRef       // that the responses of this stream answer, once found
	claimed  bool             // the responses of a stream answer the requests of this one
}

// follower goes through the packets in order of time.
type follower struct {
	all     []record
	streams map[streamID]*stream
	order   []*streamRef
	between map[[2]int][]*streamRef // by From and To: the first maxCandidates
	cm      map[message]int         // the latest of each message of the connection manager
}

type streamRef struct {
	id streamID
	*stream
}

// message names a message of the connection manager.
type message struct {
	from, to int
	ids      cmIDs
}

// follow marks gaps, repeats, refusals and waits.
func follow(all []record) *follower {
	f := &follower{all: all, streams: map[streamID]*stream{}, between: map[[2]int][]*streamRef{}, cm: map[message]int{}}
	for i := range all {
		if r := &all[i]; !r.twin && r.decoded && !r.isIWARP() {
			f.packet(i, r)
		}
	}
	return f
}

func (f *follower) stream(r *record) *stream {
	id := streamID{r.From, r.To, r.QPN}
	s := f.streams[id]
	if s == nil {
		s = &stream{sent: map[wire.PSN]int{}, answered: map[wire.PSN]int{}}
		f.streams[id] = s
		ref, ends := &streamRef{id, s}, [2]int{r.From, r.To}
		f.order = append(f.order, ref)
		if list := f.between[ends]; len(list) < maxCandidates {
			f.between[ends] = append(list, ref)
		}
	}
	return s
}

func (f *follower) packet(i int, r *record) {
	service := r.Opcode.Service()
	switch {
	case r.cm.attr != 0:
		m := message{r.From, r.To, r.cm}
		if before, seen := f.cm[m]; seen {
			r.Marks = append(r.Marks, Mark{MarkRepeat, fmt.Sprintf("sent again, after frame %d: no answer for %s", f.all[before].Frame, span(r.At-f.all[before].At))})
		}
		f.cm[m] = i
	case r.Opcode == wire.RCAckRanges:
		if s := f.answers(r); s != nil {
			s.asked, s.at, s.last = lacked, r.PSN, r.At
		}
	case service != wire.ServiceRC && service != wire.ServiceUC && service != wire.ServiceXRC:
	case r.Opcode.IsRequest():
		f.request(i, r, f.stream(r))
	case r.Opcode.IsResponse():
		f.response(i, r)
	}
}

// request looks at the PSN of a request.
func (f *follower) request(i int, r *record, s *stream) {
	defer func() { s.sent[r.PSN], s.last = i, r.At }()
	takes := 0 // PSNs beyond the first
	if r.Opcode.IsRead() && r.message > 0 {
		takes = int(r.message-1) / minMTU
	}
	ahead := r.PSN.Diff(s.next)
	switch {
	case !s.began:
		s.began = true
	case ahead < 0:
		f.again(r, s)
		return
	case ahead > s.slack:
		text := fmt.Sprintf("PSN %d is not in the capture", s.next)
		if ahead > 1 {
			text = fmt.Sprintf("PSN %d to %d are not in the capture", s.next, r.PSN.Add(-1))
		}
		r.Marks = append(r.Marks, Mark{MarkGap, text})
	}
	s.next, s.slack = r.PSN.Add(1), takes
}

// again marks a request whose PSN lies before others.
func (f *follower) again(r *record, s *stream) {
	before, seen := s.sent[r.PSN]
	if !seen {
		r.Marks = append(r.Marks, Mark{MarkLate, "late: packets behind it came first"})
		return
	}
	p := &f.all[before]
	text := fmt.Sprintf("repeats frame %d", p.Frame)
	switch waited := r.At - s.last; {
	case s.asked != "" && (s.at == r.PSN || s.asked == lacked):
		text += ": " + s.asked
		s.asked = ""
	case waited >= patience:
		text += fmt.Sprintf(": timeout, no answer for %s", span(waited))
	}
	r.Marks = append(r.Marks, Mark{MarkRepeat, text})
}

// answers returns the requests that a response is about, or nil.
func (f *follower) answers(r *record) *stream {
	own := f.stream(r)
	if own.requests != nil {
		return own.requests.stream
	}
	var only *stream
	var found *streamRef // with the latest packet of this PSN: QPs may have the same PSNs
	latest := -1
	for _, s := range f.between[[2]int{r.To, r.From}] {
		if len(s.sent) == 0 {
			continue
		}
		if i, ok := s.sent[r.PSN]; ok && (found == nil || !s.claimed && (found.claimed || i > latest)) {
			found, latest = s, i
		}
		if s.began && r.PSN.Diff(s.next) >= -1 && r.PSN.Diff(s.next) <= s.slack && only == nil {
			only = s.stream // a READ's later responses
		}
	}
	if found == nil {
		return only
	}
	own.requests, found.claimed = found, true
	return found.stream
}

// response looks at a response.
func (f *follower) response(i int, r *record) {
	s := f.answers(r)
	own := f.stream(r)
	if r.Opcode.IsRead() && r.Opcode.HasPayload() {
		if before, seen := own.answered[r.PSN]; seen {
			r.Marks = append(r.Marks, Mark{MarkRepeat, fmt.Sprintf("repeats frame %d", f.all[before].Frame)})
		}
		own.answered[r.PSN] = i
	}
	if s == nil {
		return
	}
	s.last = r.At
	if r.Opcode.Headers()&wire.HeaderAETH == 0 {
		return
	}
	switch r.syndrome.Kind() {
	case wire.KindRNR:
		wait := wire.RNRTimer(r.syndrome.Value())
		r.Marks = append(r.Marks, Mark{MarkWait, fmt.Sprintf("no receive was posted: come again after %s", span(wait))})
		s.asked, s.at = "its wait after the RNR NAK is over", r.PSN
	case wire.KindNAK:
		switch code := r.syndrome.NAKCode(); code {
		case wire.NAKSequenceError:
			r.Marks = append(r.Marks, Mark{MarkRefusal, fmt.Sprintf("PSN %d is missing: send again from there", r.PSN)})
			s.asked, s.at = fmt.Sprintf("the NAK asks for PSN %d", r.PSN), r.PSN
			f.missing(r, s)
		default:
			r.Marks = append(r.Marks, Mark{MarkRefusal, refusals[code]})
		}
	}
}

var refusals = map[wire.NAKCode]string{
	wire.NAKInvalidRequest:         "the request is refused as invalid: its QP fails with status 9",
	wire.NAKRemoteAccessError:      "access is refused, by key, range or permission: its QP fails with status 10",
	wire.NAKRemoteOperationalError: "the responder cannot do it: its QP fails with status 11",
}

// missing marks the packet that a NAK misses. A capture at one end does not show the loss itself.
func (f *follower) missing(r *record, s *stream) {
	i, ok := s.sent[r.PSN]
	if !ok || f.all[i].Fate != Unknown {
		return
	}
	p := &f.all[i]
	p.Fate = Lost
	p.Marks = append(p.Marks, Mark{MarkLost, fmt.Sprintf("lost: frame %d asks for it again", r.Frame)})
}

// span writes a time with three digits, and one of many hours in seconds.
func span(d time.Duration) string {
	for unit := time.Duration(1); unit < time.Hour; unit *= 10 {
		if d < 1000*unit {
			return ((d + unit/2) / unit * unit).String()
		}
	}
	return (d / time.Second * time.Second).String()
}
