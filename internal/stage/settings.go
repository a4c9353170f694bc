package stage

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Settings are all that a play depends on, beside the decisions.
type Settings struct {
	Lesson   string `json:"lesson"`
	Seed     int    `json:"seed"`     // of losses, delays, keys and numbers
	Bytes    int    `json:"bytes"`    // of the lesson's messages
	MTU      int    `json:"mtu"`      // path MTU: 256, 512, 1024, 2048 or 4096
	Depth    int    `json:"depth"`    // places of each send queue and receive queue
	Timeout  int    `json:"timeout"`  // code: 4.096 µs × 2^n; 0 waits without end
	Retry    int    `json:"retry"`    // retry_cnt
	RNRRetry int    `json:"rnrretry"` // rnr_retry; 7 has no end
	RNRTimer int    `json:"rnrtimer"` // min_rnr_timer, a code
	Latency  int    `json:"latency"`  // µs that a packet takes
	Jitter   int    `json:"jitter"`   // µs that a packet takes longer at most
	Loss     int    `json:"loss"`     // percent of the packets
	Adverb   int    `json:"adverb"`   // 1: both ends know that the other is an adverb, and repeat selectively; 0: as toward cards
	Routing  int    `json:"routing"`  // 1: adaptive routing, at both ends
}

// setting is one of the numbers: its name in a URL, and its limits.
type setting struct {
	key        string
	of         func(*Settings) *int
	least, top int
}

// The limits keep a play small enough for a page.
const (
	maxBytes   = 8 << 10
	maxDepth   = 64
	maxLatency = 100_000 // µs
	maxSeed    = 1<<31 - 1
)

var settings = []setting{
	{"s", func(s *Settings) *int { return &s.Seed }, 0, maxSeed},
	{"bytes", func(s *Settings) *int { return &s.Bytes }, 0, maxBytes},
	{"mtu", func(s *Settings) *int { return &s.MTU }, 256, 4096},
	{"depth", func(s *Settings) *int { return &s.Depth }, 1, maxDepth},
	{"timeout", func(s *Settings) *int { return &s.Timeout }, 0, 31},
	{"retry", func(s *Settings) *int { return &s.Retry }, 0, 7},
	{"rnrretry", func(s *Settings) *int { return &s.RNRRetry }, 0, 7},
	{"rnrtimer", func(s *Settings) *int { return &s.RNRTimer }, 1, 31},
	{"latency", func(s *Settings) *int { return &s.Latency }, 1, maxLatency},
	{"jitter", func(s *Settings) *int { return &s.Jitter }, 0, maxLatency},
	{"loss", func(s *Settings) *int { return &s.Loss }, 0, 90},
	{"adverb", func(s *Settings) *int { return &s.Adverb }, 0, 1},
	{"routing", func(s *Settings) *int { return &s.Routing }, 0, 1},
}

// Defaults returns the settings with which a lesson begins. The error is for a name that no lesson has.
func Defaults(name string) (Settings, error) {
	l, ok := lessonNamed(name)
	if !ok {
		return Settings{}, fmt.Errorf("play lesson %q: there is none; there are %s", name, strings.Join(Lessons(), ", "))
	}
	s := Settings{Lesson: name, Seed: 1, Bytes: 64, MTU: 1024, Depth: 8, Timeout: 14, Retry: 7, RNRRetry: 7, RNRTimer: 12, Latency: 10}
	if l.set != nil {
		l.set(&s)
	}
	return s, nil
}

// Check returns why a play cannot have the settings, or nil.
func (s Settings) Check() error {
	if _, err := Defaults(s.Lesson); err != nil {
		return err
	}
	for _, d := range settings {
		if v := *d.of(&s); v < d.least || v > d.top {
			return fmt.Errorf("set %s to %d: it is %d to %d", d.key, v, d.least, d.top)
		}
	}
	if s.MTU&(s.MTU-1) != 0 {
		return fmt.Errorf("set mtu to %d: it is 256, 512, 1024, 2048 or 4096", s.MTU)
	}
	return nil
}

// Play is settings, decisions and how far the play has come: what a URL says.
type Play struct {
	Settings
	Decisions Decisions
	Steps     int
	By        string // the [Version] of the engine that the URL was made with, if it says so; Encode leaves it out
}

// maxSteps bounds a play. A lesson has some dozens of steps.
const maxSteps = 20_000

// Encode returns the play as the fragment of a URL, without the settings that the lesson has anyway.
func (p *Play) Encode() string {
	s, err := Defaults(p.Lesson)
	if err != nil {
		return ""
	}
	parts := []string{"l=" + p.Lesson}
	for _, d := range settings {
		if v := *d.of(&p.Settings); v != *d.of(&s) {
			parts = append(parts, d.key+"="+strconv.Itoa(v))
		}
	}
	if len(p.Decisions) > 0 {
		parts = append(parts, "d="+p.Decisions.String())
	}
	if p.Steps > 0 {
		parts = append(parts, "at="+strconv.Itoa(p.Steps))
	}
	return strings.Join(parts, "&")
}

// Decode reads the fragment of a URL. What it does not know it takes for an error, so that no link shows something else
// than its author saw.
func Decode(fragment string) (p Play, err error) {
	values, err := url.ParseQuery(fragment)
	if err != nil {
		return p, fmt.Errorf("read the link: %w", err)
	}
	if p.Settings, err = Defaults(orFirst(values.Get("l"))); err != nil {
		return p, err
	}
	known := map[string]func(string) error{
		"l":  func(string) error { return nil },
		"v":  func(v string) error { p.By = v; return nil },
		"d":  func(v string) (err error) { p.Decisions, err = ParseDecisions(v); return err },
		"at": func(v string) (err error) { p.Steps, err = number(v, 0, maxSteps); return err },
	}
	for _, d := range settings {
		known[d.key] = func(v string) (err error) { *d.of(&p.Settings), err = number(v, d.least, d.top); return err }
	}
	for key, list := range values {
		read := known[key]
		if read == nil {
			return p, fmt.Errorf("read the link: %q is not known; the link is of another version, or cut", key)
		}
		if err := read(list[0]); err != nil {
			return p, fmt.Errorf("read the link: %s: %w", key, err)
		}
	}
	return p, p.Check()
}

func orFirst(lesson string) string {
	if lesson == "" {
		return lessons[0].name
	}
	return lesson
}

var errNumber = errors.New("want a number")

func number(s string, least, top int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", s, errNumber)
	}
	if n < least || n > top {
		return 0, fmt.Errorf("%d: %w from %d to %d", n, errNumber, least, top)
	}
	return n, nil
}
