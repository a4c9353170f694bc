package rnic

import (
	"errors"
	"log/slog"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/devlog"
	"github.com/adverb-rdma/adverb/verbs"
)

// ends names the ends of the connection in a record.
func (s *stream) ends() (qp, local, remote slog.Attr) {
	return devlog.QP(s.q.QPN()), slog.String("local", s.local.String()), slog.String("remote", s.remote.String())
}

// logMade logs that the QP has a connection.
func (s *stream) logMade() {
	if log := &s.q.dev.Log; log.On() {
		qp, local, remote := s.ends()
		log.Add(slog.LevelDebug, "made", "connection made", qp, local, remote)
	}
}

// logEnded logs the end of the connection: as a warning unless the end is in order, or this side has asked for the end.
// If no other cause is known, the QP's failure is the cause.
func (s *stream) logEnded(cause error) {
	log := &s.q.dev.Log
	if !log.On() {
		return
	}
	if s.q.s == s {
		s.failure = s.q.t.Failure()
	}
	if cause == nil {
		cause = s.failure
	}
	level := slog.LevelDebug
	if cause != nil && !errors.Is(cause, verbs.ErrState) {
		level = slog.LevelWarn
	}
	qp, local, remote := s.ends()
	log.Add(level, "ended", "connection ended", qp, local, remote, devlog.Cause(cause))
}

// Unaccepted logs that peers wait at a port whose connections cannot be taken.
func (d *Device) Unaccepted(at netip.AddrPort, cause error) {
	d.Log.Add(slog.LevelWarn, "unaccepted", "connections wait", slog.String("local", at.String()), devlog.Cause(cause))
}

// logTerminates logs Terminate messages that came or went since the last call. Their cause is in the
// QP's failure. The caller holds q.mu.
func (q *qp) logTerminates() {
	before, now := q.logged, q.t.Counters
	if before.TerminatesSent == now.TerminatesSent && before.TerminatesReceived == now.TerminatesReceived {
		return
	}
	q.logged = now
	log := &q.dev.Log
	if now.TerminatesSent > before.TerminatesSent {
		log.Add(slog.LevelWarn, "terminate sent", "TERMINATE sent", devlog.QP(q.QPN()), devlog.Cause(q.t.Failure()))
	}
	if now.TerminatesReceived > before.TerminatesReceived {
		log.Add(slog.LevelWarn, "terminate received", "TERMINATE received", devlog.QP(q.QPN()), devlog.Cause(q.t.Failure()))
	}
}
