package diagnose

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Certainty says how far packets prove a finding.
type Certainty uint8

const (
	Hint   Certainty = iota // worth a look
	Likely                  // other causes are rare
	Proven                  // the packets show it
)

func (c Certainty) String() string { return [...]string{"hint", "likely", "proven"}[c] }

// MarshalText implements encoding.TextMarshaler.
func (c Certainty) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Severity says what a finding means to the programs.
type Severity uint8

const (
	Info    Severity = iota // a fact about the capture
	Warning                 // costs time
	Error                   // something failed
)

func (s Severity) String() string { return [...]string{"info", "warning", "error"}[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Side is where to look for the cause of a finding.
type Side uint8

const (
	OfCapture Side = iota // how the packets were captured
	OfProgram             // the programs at the ends
	OfHost                // the hosts: cards, memory, CPU
	OfSetup               // addresses, MTU, keys: how it was set up
	OfNetwork             // cables and switches
)

func (s Side) String() string {
	return [...]string{"capture", "program", "host", "setup", "network"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s Side) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Finding is something that the capture shows.
type Finding struct {
	ID        string    `json:"id"`
	Severity  Severity  `json:"severity"`
	Certainty Certainty `json:"certainty"`
	Side      Side      `json:"look_at"`
	Title     string    `json:"title"`
	Where     string    `json:"where,omitempty"` // which connection, queue pair or hosts
	Words     string    `json:"words,omitempty"` // with the numbers of this capture
	Count     int       `json:"count"`
	Frames    []int     `json:"frames"` // the first of them
	Filter    string    `json:"filter,omitempty"`
	Remedy    []string  `json:"remedy"`
	WrongIf   string    `json:"would_be_wrong_if,omitempty"`

	rule    ruleID
	longest int64  // a wait
	dropped bool   // another finding explains it
	from    string // who has sent an ICMP message
	silent  bool   // requests are not answered for that
	flow    *flow  // of which the report says where and gives the filter
	paired  *flow  // whose packets the filter finds besides
	hosts   *hosts

	told         int // the count that News has told; 0 is not yet
	toldSeverity Severity
}

// note reports whether the finding is a fact or a hint, and no error or warning.
func (f *Finding) note() bool { return f.Severity == Info || f.Certainty == Hint }

const maxFrames = 10 // that a finding names

// hit counts one more occurrence.
func (f *Finding) hit(frame int) {
	if f == nil {
		return
	}
	f.Count++
	if len(f.Frames) < maxFrames && frame > 0 && !slices.Contains(f.Frames, frame) {
		f.Frames = append(f.Frames, frame)
	}
}

// maxPlaces is how many findings of one rule are kept. Further ones are counted.
const maxPlaces = 64

// collector keeps the findings.
type collector struct {
	all  []*Finding
	have [numRules]int
	more [numRules]int
	live bool // findings are told as they come, so that old ones can make room
}

// add returns a new finding of a rule, or nil if there are too many.
func (c *collector) add(r ruleID, where string) *Finding {
	if c.have[r] >= maxPlaces {
		c.more[r]++
		if !c.live || !c.makeRoom(r) {
			return nil
		}
	}
	c.have[r]++
	x := rules[r].finding()
	f := &x
	f.Where, f.rule = where, r
	c.all = append(c.all, f)
	return f
}

// makeRoom forgets a finding of a rule that has been told: the oldest, and rather one about a queue pair that is gone.
func (c *collector) makeRoom(r ruleID) bool {
	oldest := -1
	for i, f := range c.all {
		if f.rule != r || f.told == 0 && !f.dropped {
			continue
		}
		if f.flow == nil || f.flow.gone {
			oldest = i
			break
		}
		if oldest < 0 {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	c.all = slices.Delete(c.all, oldest, oldest+1)
	c.have[r]--
	return true
}

// sorted returns the findings, the worst first. Of equal ones the more certain comes first, and then the earlier.
func (c *collector) sorted() []*Finding {
	c.all = slices.DeleteFunc(c.all, func(f *Finding) bool { return f.dropped })
	slices.SortStableFunc(c.all, func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(b.Certainty, a.Certainty), cmp.Compare(a.rule, b.rule), cmp.Compare(a.first(), b.first()))
	})
	return c.all
}

func (f *Finding) first() int {
	if len(f.Frames) == 0 {
		return 0
	}
	return f.Frames[0]
}

// frameFilter is a display filter for frames by their numbers.
func frameFilter(frames []int) string {
	if len(frames) == 0 {
		return ""
	}
	var s []string
	for _, n := range frames {
		s = append(s, strconv.Itoa(n))
	}
	return "frame.number in {" + strings.Join(s, ", ") + "}"
}
