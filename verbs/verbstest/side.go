package verbstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// Patience is how long a case may take.
	Patience = 30 * time.Second

	// inboxSize is how many messages wait for a side. The other side is never ahead by more than one step.
	inboxSize = 4
)

var (
	errPeerEnded = errors.New("the other side has ended")
	errSideEnded = errors.New("this side has ended")
)

// settings are what both sides of a case know.
type settings struct {
	Port, GIDIndex int
	Require        Capability
	MLID           uint16
	Secured        bool
	Seed           uint64
}

// Side is one side of a case. Its methods belong to the goroutine of the script.
type Side struct {
	Name     string // "A" or "B"
	Device   *verbs.Device
	Port     int
	GIDIndex int

	require Capability
	mlid    uint16
	secured bool
	rand    *rand.Rand
	out     func(message) error // hands a message to the other side
	inbox   chan message
	ctx     context.Context
	cancel  context.CancelCauseFunc
	step    int
	undo    []func()

	mu     sync.Mutex
	result result
}

// message is what one side tells the other.
type message struct {
	Step  int    // counts the exchanges of a side
	Type  string // the Go type of Value
	Value json.RawMessage
	Ended bool // the side has failed or skipped
}

func newSide(name string, set settings, d *verbs.Device) *Side {
	s := &Side{Name: name, Device: d, Port: set.Port, GIDIndex: set.GIDIndex, require: set.Require, mlid: set.MLID, secured: set.Secured,
		rand: rand.New(rand.NewPCG(set.Seed, uint64(name[0]))), inbox: make(chan message, inboxSize)}
	ctx, stop := context.WithTimeout(context.Background(), Patience)
	ctx, s.cancel = context.WithCancelCause(ctx)
	s.ctx = ctx
	s.Cleanup(func() { s.cancel(nil); stop() })
	return s
}

// deliver takes a message of the other side. It does not block.
func (s *Side) deliver(m message) {
	if m.Ended {
		s.cancel(errPeerEnded)
		return
	}
	select {
	case s.inbox <- m:
	default:
		s.cancel(fmt.Errorf("the other side has sent more than %d messages that nobody asked for", inboxSize))
	}
}

// run plays a side's script and closes what it has made.
func (s *Side) run(needs Capability, script func(*Side)) result {
	done := make(chan struct{})
	go func() { // a goroutine that Fatalf can end
		defer close(done)
		defer s.end()
		s.mustHave(needs)
		if script != nil {
			script(s)
		}
		s.Barrier() // neither side closes what the other still needs
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// end runs the cleanups, after it has told the other side of a failure.
func (s *Side) end() {
	if p := recover(); p != nil {
		s.note(failed, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
	}
	if s.ended() >= stopped {
		s.out(message{Ended: true}) // if this fails, the other side has ended too
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}

// Context returns a context that ends when the case has run out of time, or when the other side has
// ended early.
func (s *Side) Context() context.Context { return s.ctx }

// Cleanup has f called when the script has ended on both sides. The functions are called in the reverse
// order of the Cleanups.
func (s *Side) Cleanup(f func()) { s.undo = append(s.undo, f) }

// Logf adds a line to what a failure of the case prints.
func (s *Side) Logf(format string, args ...any) { s.note(passed, fmt.Sprintf(format, args...)) }

// Errorf fails the case, and returns.
func (s *Side) Errorf(format string, args ...any) { s.note(failed, fmt.Sprintf(format, args...)) }

// Fatalf fails the case, and ends the script.
func (s *Side) Fatalf(format string, args ...any) {
	if context.Cause(s.ctx) == errPeerEnded {
		// The other side failed first, and its line says why.
		s.note(stopped, "stopped, as the other side did: "+fmt.Sprintf(format, args...))
	} else {
		text := fmt.Sprintf(format, args...)
		if s.ctx.Err() != nil {
			text += fmt.Sprintf(" (%v)", context.Cause(s.ctx))
		}
		s.note(failed, text)
	}
	s.cancel(errSideEnded) // for goroutines that the script has started
	runtime.Goexit()
}

// Skipf skips the case, on both sides.
func (s *Side) Skipf(format string, args ...any) {
	s.note(skipped_, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Unsupported skips the case, since err says that the device lacks a capability. If the capability is
// required, the case fails.
func (s *Side) Unsupported(c Capability, err error) {
	if c&s.require != 0 || c == 0 {
		s.Fatalf("%v is required: %v", c, err)
	}
	s.Skipf("the device has no %v: %v", c, err)
}

// mustHave skips the case, or fails it, if the device lacks a capability.
func (s *Side) mustHave(c Capability) {
	if missing, err := lacks(s.Device, c); err != nil {
		s.Unsupported(missing, err)
	}
}

// has reports whether the device has a capability. It is for the parts of a case that depend on one. The
// case fails if the capability is required and missing.
func (s *Side) has(c Capability) bool {
	missing, err := lacks(s.Device, c)
	switch {
	case err == nil:
		return true
	case missing == 0, missing&s.require != 0:
		s.Fatalf("%v is required: %v", c, err)
	}
	return false
}

// Failed reports whether the side has failed.
func (s *Side) Failed() bool { return s.ended() == failed }

func (s *Side) ended() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result.outcome
}

func (s *Side) note(o outcome, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result.outcome = max(s.result.outcome, o)
	s.result.lines = append(s.result.lines, fmt.Sprintf("%s%s: %s", s.Name, where(), text))
}

// where lists the lines of the script that are being executed, innermost first.
func where() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var lines []string
	for {
		f, more := frames.Next()
		file := filepath.Base(f.File)
		if strings.HasSuffix(f.Function, ".(*Side).run.func1") {
			break
		}
		if strings.Contains(f.Function, "verbstest") && !slices.Contains(ownFiles, file) {
			lines = append(lines, fmt.Sprintf("%s:%d", file, f.Line))
		}
		if !more {
			break
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return " " + strings.Join(lines, " < ")
}

// ownFiles are the files without scripts. Their lines do not say where in a script something went wrong.
var ownFiles = []string{"side.go", "verbstest.go", "across.go", "check.go", "conn.go", "meet.go"}

// Exchange gives v to the other side, and returns what the other side gives. The other side's script must
// come to an Exchange of the same type. encoding/json must be able to carry a T.
func Exchange[T any](s *Side, v T) T {
	var theirs T
	s.exchange(reflect.TypeFor[T]().String(), v, &theirs)
	return theirs
}

// Barrier waits until the other side's script has come to a Barrier too.
func (s *Side) Barrier() { s.exchange("Barrier", nil, nil) }

func (s *Side) exchange(typ string, mine, theirs any) {
	s.step++
	value, err := json.Marshal(mine)
	if err != nil {
		s.Fatalf("step %d: %v", s.step, err)
	}
	if err := s.out(message{Step: s.step, Type: typ, Value: value}); err != nil {
		s.Fatalf("step %d: tell the other side: %v", s.step, err)
	}
	m, err := s.receive()
	if err != nil {
		s.Fatalf("step %d, %s: the other side did not come to it: %v", s.step, typ, err)
	}
	if m.Step != s.step || m.Type != typ {
		s.Fatalf("the scripts are out of step: this side is at %d, %s, the other at %d, %s", s.step, typ, m.Step, m.Type)
	}
	if theirs == nil {
		return
	}
	if err := json.Unmarshal(m.Value, theirs); err != nil {
		s.Fatalf("step %d: %v", s.step, err)
	}
}

// receive returns the other side's next message. What it has said before it ended is still heard.
func (s *Side) receive() (m message, err error) {
	select {
	case m = <-s.inbox:
		return m, nil
	case <-s.ctx.Done():
	}
	select {
	case m = <-s.inbox:
		return m, nil
	default:
		return m, context.Cause(s.ctx)
	}
}
