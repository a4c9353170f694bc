package verbstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// must ends the script on an error.
func (s *Side) must(err error) {
	if err != nil {
		s.Fatalf("%v", err)
	}
}

// need ends the script on an error. If the error is ErrUnsupported, the device lacks the capability c,
// and the case is skipped or fails by that.
func (s *Side) need(c Capability, err error) {
	if errors.Is(err, verbs.ErrUnsupported) {
		s.Unsupported(c, err)
	}
	s.must(err)
}

// wantErr fails the case unless err is an OpError of one of the kinds.
func (s *Side) wantErr(what string, err error, kinds ...error) {
	if !slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
		s.Errorf("%s: got error %v, want %q", what, err, kinds)
		return
	}
	if _, ok := errors.AsType[*verbs.OpError](err); !ok {
		s.Errorf("%s: %v is a %T and says neither verb nor object: want an OpError", what, err, err)
	}
}

// want fails the case unless got is want.
func want[T comparable](s *Side, what string, got, want T) {
	if got != want {
		s.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// spin yields until f is true, for what no event tells of.
func (s *Side) spin(what string, f func() bool) {
	for !f() {
		if s.ctx.Err() != nil {
			s.Fatalf("waited in vain for %s", what)
		}
		runtime.Gosched()
	}
}

// fill writes the pattern of a seed.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 0xd1b54a32d192ed03
	for len(b) > 0 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		if len(b) < 8 {
			for i := range b {
				b[i] = byte(x >> (8 * i))
			}
			return
		}
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
}

// verify fails the case unless b has the pattern of a seed.
func (s *Side) verify(what string, b []byte, seed uint64) {
	w := make([]byte, len(b))
	fill(w, seed)
	s.same(what, b, w)
}

func (s *Side) same(what string, got, want []byte) {
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	s.Errorf("%s: %d bytes, want %d, differ from byte %d on: got %x, want %x", what, len(got), len(want), at, few(got, at), few(want, at))
}

func few(b []byte, at int) []byte { return b[at:min(len(b), at+16)] }

// guard is the value of the bytes that nothing may touch.
const guard = 0xee

func paint(b []byte) {
	for i := range b {
		b[i] = guard
	}
}

// untouched fails the case unless b is as paint left it.
func (s *Side) untouched(what string, b []byte) {
	for i, v := range b {
		if v != guard {
			s.Errorf("%s: byte %d of %d was touched: %#02x, want %#02x", what, i, len(b), v, guard)
			return
		}
	}
}

// event returns the device's next event of a QP, CQ or SRQ. The case fails if it is not of type t.
func (s *Side) event(t verbs.EventType) verbs.AsyncEvent {
	e := s.nextEvent()
	if e.Type != t {
		s.Fatalf("event %v, want %v", e.Type, t)
	}
	return e
}

// refusedEvent waits for the event of a request that the QP has refused, on devices that promise one.
// The event must be EventQPAccessErr; with reqErr it may be EventQPReqErr as well.
func (e *end) refusedEvent(reqErr bool) {
	if !e.has(ResponderEvents) {
		return
	}
	ev := e.nextEvent()
	if ev.Type != verbs.EventQPAccessErr && (!reqErr || ev.Type != verbs.EventQPReqErr) || ev.QP != e.qp {
		e.Errorf("event %v of qp %p, want EVENT_QP_ACCESS_ERR of %p (or EVENT_QP_REQ_ERR: %v)", ev.Type, ev.QP, e.qp, reqErr)
	}
}

// nextEvent returns the device's next event that concerns a QP, CQ or SRQ. It passes over the events of
// ports, since the host's network may change at any time.
func (s *Side) nextEvent() verbs.AsyncEvent {
	for {
		e, err := s.Device.NextEvent(s.ctx)
		s.must(err)
		if e.QP != nil || e.CQ != nil || e.SRQ != nil {
			return e
		}
	}
}
