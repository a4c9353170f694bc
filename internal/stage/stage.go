package stage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/transport"
)

const never = transport.Never

// Stage is a play: two hosts, A and B, the link between them, and how far they have come.
type Stage struct {
	play Play
	now  time.Duration
	rng  *rand.Rand // of the devices: keys and numbers
	dice dice
	a, b *node

	packets []*Packet
	landed  int // the packets before it are not under way
	cut     bool
	over    bool

	lesson *lesson
	acts   []act         // what the programs will do, in this order
	actDue time.Duration // when the first of them comes, or never
	log    []Entry
}

// act is something that a program does: when it can, and after a while.
type act struct {
	when  func() bool // nil: at once
	after time.Duration
	do    func() error
}

// The programs' times. A poll or a post takes programs some such time after its cause.
const (
	pollDelay = time.Microsecond
	actDelay  = time.Microsecond
)

// Bounds on loops: a stage that reaches one has a defect.
const (
	maxTurns  = 1 << 12 // of the devices at one time
	maxSilent = 1 << 12 // events in a row that nobody can see
	maxLog    = 1 << 16
)

// New sets a lesson up, without a step.
func New(s Settings) (*Stage, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	seed := uint64(s.Seed)
	st := &Stage{play: Play{Settings: s}, rng: rand.New(rand.NewPCG(seed, 1)), dice: dice{rand.New(rand.NewPCG(seed, 2))}, actDue: never}
	st.lesson, _ = lessonNamed(s.Lesson)
	for i, n := range []**node{&st.a, &st.b} {
		*n = &node{s: st, name: string(rune('A' + i)), index: i + 1, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), iova: uint64(0xa+i) << 28, pollAt: never}
	}
	st.a.peer, st.b.peer = st.b, st.a
	err := st.setUp()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set the stage for %s: %w", s.Lesson, err), st.Close())
	}
	return st, nil
}

// setUp opens the devices and prepares the lesson. What happens meanwhile does not belong to the play.
func (s *Stage) setUp() error {
	for _, n := range s.nodes() {
		if err := n.open(); err != nil {
			return err
		}
	}
	wanted := s.play.Settings
	s.play.Loss, s.play.Jitter = 0, 0
	if !s.lesson.connects {
		if err := s.connect(); err != nil {
			return err
		}
		for range maxTurns { // the ends tell each other what they can
			p := s.nextPacket()
			if p == nil {
				break
			}
			s.now = max(s.now, p.Due)
			s.arrive(p)
			s.settle()
		}
	}
	s.play.Settings = wanted
	if err := s.lesson.play(s); err != nil {
		return err
	}
	s.observe()
	s.packets, s.landed, s.log = nil, 0, nil
	return nil
}

func (s *Stage) nodes() [2]*node { return [2]*node{s.a, s.b} }

// Close gives the memory of the devices back.
func (s *Stage) Close() error {
	var errs []error
	for _, n := range s.nodes() {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// then appends an act.
func (s *Stage) then(a act) { s.acts = append(s.acts, a) }

// Step plays the next event that can be seen. The last one is that nothing is under way any more, and no program has
// anything to do. Behind it Step returns false, until a decision makes something happen.
func (s *Stage) Step() bool {
	if s.over || s.play.Steps >= maxSteps || len(s.log) >= maxLog {
		return false
	}
	s.play.Steps++
	mark := len(s.log)
	for range maxSilent {
		if !s.next() {
			break
		}
		s.settle()
		s.observe()
		if len(s.log) > mark {
			return true
		}
	}
	s.over = true
	s.note(Entry{Kind: "over"}) // a step too, since time has passed: timers ran out that did nothing
	return true
}

// next lets the earliest event happen. At one time packets come first, then polls, posts and timers.
func (s *Stage) next() bool {
	if s.actDue == never && len(s.acts) > 0 && (s.acts[0].when == nil || s.acts[0].when()) {
		s.actDue = s.now + max(s.acts[0].after, actDelay)
	}
	at, do := never, func() {}
	earliest := func(when time.Duration, f func()) {
		if when < at {
			at, do = max(when, s.now), f
		}
	}
	if p := s.nextPacket(); p != nil {
		earliest(p.Due, func() { s.arrive(p) })
	}
	for _, n := range s.nodes() {
		earliest(n.pollAt, n.poll)
	}
	earliest(s.actDue, s.perform)
	for _, n := range s.nodes() {
		if d, ok := n.hca.NextDrive(); ok {
			earliest(s.now+d, func() {}) // settle drives the device
		}
		if n.cm != nil {
			earliest(n.cm.NextTimeout(), func() { n.cm.HandleTimeout(s.now) })
		}
	}
	if at == never {
		return false
	}
	s.now = at
	do()
	return true
}

// perform does the act whose time has come.
func (s *Stage) perform() {
	a := s.acts[0]
	s.acts, s.actDue = s.acts[1:], never
	if err := a.do(); err != nil {
		s.note(Entry{Kind: "error", Text: err.Error()})
	}
}

// settle has the devices do all that they can do now.
func (s *Stage) settle() {
	for range maxTurns {
		busy := false
		for _, n := range s.nodes() {
			n.hca.Drive(false)
			busy = n.manage() || busy
			if d, ok := n.hca.NextDrive(); ok && d <= 0 || len(n.link.inbox) > 0 {
				busy = true
			}
		}
		if !busy {
			return
		}
	}
}

// Replay makes the stage of a play, with its decisions and up to its step.
func Replay(p Play) (*Stage, error) {
	s, err := New(p.Settings)
	if err != nil {
		return nil, err
	}
	todo := p.Decisions
	for {
		for len(todo) > 0 && todo[0].Step <= s.play.Steps {
			if err := s.Decide(todo[0].Action, todo[0].Packet); err != nil {
				return nil, errors.Join(fmt.Errorf("replay decision %v: %w", todo[:1], err), s.Close())
			}
			todo = todo[1:]
		}
		if s.play.Steps >= p.Steps && len(todo) == 0 || !s.Step() {
			break
		}
	}
	if len(todo) > 0 {
		return nil, errors.Join(fmt.Errorf("replay decision %v: the play ends at step %d before it", todo[:1], s.play.Steps), s.Close())
	}
	return s, nil
}

// Play returns what the stage has played so far. The caller must not change the decisions.
func (s *Stage) Play() Play { return s.play }

// Before returns the play without its latest step, or without the decision that came behind it.
func (p Play) Before() Play {
	switch n := len(p.Decisions); {
	case n > 0 && p.Decisions[n-1].Step >= p.Steps:
		p.Decisions = p.Decisions[:n-1]
	case p.Steps > 0:
		p.Steps--
	}
	return p
}

// Err returns why the memory at the end is not what the lesson promises, or nil: see [Stage.Whole].
func (s *Stage) Err() error { return s.check() }

// Whole reports whether the programs have done all that the lesson has them do, and nothing is under way.
func (s *Stage) Whole() bool { return s.over && len(s.acts) == 0 }
