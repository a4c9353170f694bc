package stage

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Action is what a watcher decides.
type Action byte

// The actions on a packet that is under way. Their letters stand in URLs.
const (
	Drop    Action = 'x'
	Delay   Action = 'l' // the packet takes LateBy longer
	Damage  Action = 'b' // a bit of it is turned over
	Copy    Action = 'c' // a second one follows it
	Deliver Action = 'n' // it arrives now, before others
)

// The actions of the programs and on the network, which name no packet.
const (
	PostSend    Action = 's' // A posts a SEND
	PostWrite   Action = 'w' // A posts a WRITE
	PostRead    Action = 'r' // A posts a READ
	PostAtomic  Action = 'f' // A posts a FETCH_ADD
	PostReceive Action = 'v' // B posts a receive
	Cut         Action = 'k' // the link loses all packets from now on, or carries them again
)

// LateBy is how much longer a delayed packet takes, in latencies of the link.
const LateBy = 4

const (
	onPackets  = "xlbcn"
	onPrograms = "swrfvk"
)

// Decision is an action before a step. Packet is the number of a packet, or 0.
type Decision struct {
	Step   int    `json:"step"`
	Action Action `json:"action"`
	Packet int    `json:"packet"`
}

// maxDecisions bounds a URL.
const maxDecisions = 500

// Decisions are those of a play, in their order.
type Decisions []Decision

// String returns the decisions as they stand in a URL: 12x7 drops packet 7 after step 12.
func (d Decisions) String() string {
	parts := make([]string, len(d))
	for i, x := range d {
		parts[i] = strconv.Itoa(x.Step) + string(rune(x.Action))
		if x.Packet > 0 {
			parts[i] += strconv.Itoa(x.Packet)
		}
	}
	return strings.Join(parts, ".")
}

// ParseDecisions reads what String has written.
func ParseDecisions(s string) (Decisions, error) {
	var list Decisions
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ".") {
		x, err := parseDecision(part)
		switch {
		case err != nil:
			return nil, err
		case len(list) == maxDecisions:
			return nil, fmt.Errorf("more than %d decisions", maxDecisions)
		case len(list) > 0 && x.Step < list[len(list)-1].Step:
			return nil, fmt.Errorf("decision %q comes before the one that stands before it", part)
		}
		list = append(list, x)
	}
	return list, nil
}

func parseDecision(s string) (d Decision, err error) {
	i := strings.IndexAny(s, onPackets+onPrograms)
	if i < 0 {
		return d, fmt.Errorf("decision %q has none of the letters %s", s, onPackets+onPrograms)
	}
	d.Action = Action(s[i])
	if d.Step, err = number(s[:i], 0, maxSteps); err != nil {
		return d, fmt.Errorf("decision %q: %w", s, err)
	}
	switch rest := s[i+1:]; {
	case strings.IndexByte(onPackets, s[i]) >= 0:
		if d.Packet, err = number(rest, 1, maxPackets); err != nil {
			return d, fmt.Errorf("decision %q: %w", s, err)
		}
	case rest != "":
		return d, fmt.Errorf("decision %q names a packet, and is about none", s)
	}
	return d, nil
}

// Decide does an action now, and notes it. A packet must be under way. The error says why nothing was done.
func (s *Stage) Decide(a Action, packet int) error {
	if len(s.play.Decisions) >= maxDecisions {
		return fmt.Errorf("decide: a play has %d decisions at most: begin again", maxDecisions)
	}
	if strings.IndexByte(onPackets, byte(a)) < 0 {
		packet = 0
	}
	mark := len(s.log)
	if err := s.act(a, packet); err != nil {
		return fmt.Errorf("decide: %w", err)
	}
	s.settle()
	s.observe()
	for i := mark; i < len(s.log); i++ {
		s.log[i].Decided = true
	}
	s.play.Decisions = append(s.play.Decisions, Decision{s.play.Steps, a, packet})
	s.over = false
	return nil
}

func (s *Stage) act(a Action, packet int) error {
	switch a {
	case PostSend, PostWrite, PostRead, PostAtomic:
		return s.postMore(a)
	case PostReceive:
		return s.b.postReceive(s.play.Bytes)
	case Cut:
		s.cut = !s.cut
		s.note(Entry{Kind: "cut", On: s.cut})
		return nil
	}
	if packet < 1 || packet > len(s.packets) {
		return fmt.Errorf("there is no packet %d", packet)
	}
	p := s.packets[packet-1]
	if p.Fate != Flying {
		return fmt.Errorf("packet %d is not under way any more", packet)
	}
	late := LateBy * time.Duration(s.play.Latency) * time.Microsecond
	switch a {
	case Drop:
		p.Fate, p.Ended = Dropped, s.now
		s.note(Entry{Kind: "drop", Packet: p.N})
	case Delay:
		p.Due += late
		p.Delayed = true
		s.note(Entry{Kind: "delay", Packet: p.N})
	case Damage:
		p.damage()
		s.note(Entry{Kind: "damage", Packet: p.N})
	case Copy:
		if len(s.packets) >= maxPackets {
			return errTooMany
		}
		c := *p
		c.N, c.CopyOf, c.Due, c.again = len(s.packets)+1, p.N, p.Due+late/4, false
		c.data = append([]byte(nil), p.data...)
		s.packets = append(s.packets, &c)
		s.note(Entry{Kind: "copy", Packet: p.N, Other: c.N})
	case Deliver:
		p.Due = s.now
		s.note(Entry{Kind: "deliver", Packet: p.N})
	default:
		return fmt.Errorf("action %q is not known", a)
	}
	return nil
}
