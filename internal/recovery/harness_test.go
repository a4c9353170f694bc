package recovery

import (
	"testing"
	"time"
)

const (
	us = time.Microsecond
	ms = time.Millisecond

	testSeq = 1 << 24
)

// newState is the State of a QP that begins with sequence number 0, whose peer can acknowledge selectively.
func newState(t testing.TB) *State {
	t.Helper()
	s, rate := new(State), new(Rate)
	s.Init(rate)
	s.Reset()
	rate.SetMTU(1024)
	rate.Use(Window, 0, s)
	s.PermitSACK()
	s.Start(0)
	s.SetRetry(0, Retry{Timeout: time.Second, Count: 7, RNRCount: Forever})
	s.EndSlowStart()
	return s
}
