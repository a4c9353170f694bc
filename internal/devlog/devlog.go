// Package devlog writes what happens on a device to the logger that its program has given it.
package devlog

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Of each kind of record burst are written at once, and then one each pause. What is left out is
// counted in the next record of its kind. So a flood of packets does not flood the log.
const (
	burst = 10
	pause = time.Second
	// maxRecords bounds the records that wait for a slow handler.
	maxRecords = 256
)

// Book is the log of a device. Its zero value is silent. Its methods may be called with locks
// held: the program's handler runs on a goroutine of its own, which exists while there is something to
// write. Records keep their order and their times.
type Book struct {
	to atomic.Pointer[slog.Logger] // nil for silence

	mu      sync.Mutex
	kinds   map[string]*kind
	records []slog.Record
	writing bool
}

// kind is what is known of the records of a kind.
type kind struct {
	left     int // that may be written at once
	refilled time.Time
	omitted  int
}

// On reports whether there is a logger. Whoever is told no has nothing to prepare.
func (b *Book) On() bool { return b.to.Load() != nil }

// Add logs a message. of is its kind, which its rate is limited by.
func (b *Book) Add(level slog.Level, of, msg string, attrs ...slog.Attr) {
	l := b.to.Load()
	if l == nil || !l.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	omitted, ok := b.allow(of, now)
	if !ok {
		return
	}
	r := slog.NewRecord(now, level, msg, 0)
	for _, a := range attrs {
		if a.Key != "" {
			r.AddAttrs(a)
		}
	}
	if omitted > 0 {
		r.AddAttrs(slog.Int("omitted", omitted))
	}
	b.records = append(b.records, r)
	if !b.writing {
		b.writing = true
		go b.write()
	}
}

// allow reports whether a record of a kind may be written, and how many were left out before it.
func (b *Book) allow(of string, now time.Time) (omitted int, ok bool) {
	if b.kinds == nil {
		b.kinds = map[string]*kind{}
	}
	k := b.kinds[of]
	if k == nil {
		k = &kind{left: burst, refilled: now}
		b.kinds[of] = k
	}
	if n := int(now.Sub(k.refilled) / pause); n > 0 {
		k.left = min(burst, k.left+n)
		k.refilled = k.refilled.Add(time.Duration(n) * pause)
	}
	if k.left == 0 || len(b.records) >= maxRecords {
		k.omitted++
		return 0, false
	}
	k.left--
	omitted, k.omitted = k.omitted, 0
	return omitted, true
}

// write writes records until there are none.
func (b *Book) write() {
	for {
		b.mu.Lock()
		records := b.records
		b.records = nil
		if len(records) == 0 {
			b.writing = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for _, r := range records {
			if l := b.to.Load(); l != nil {
				_ = l.Handler().Handle(context.Background(), r) // there is nobody to tell
			}
		}
	}
}

// SetLogger makes the device with a name log to l, and be silent again with nil.
func (b *Book) SetLogger(l *slog.Logger, device string) {
	if l != nil {
		l = l.With("device", device)
	}
	b.to.Store(l)
}

// Event logs an asynchronous event.
func (b *Book) Event(e verbs.AsyncEvent) {
	if !b.On() {
		return
	}
	level := slog.LevelInfo
	switch e.Type {
	case verbs.EventCommEst, verbs.EventSQDrained, verbs.EventSRQLimitReached, verbs.EventQPLastWQEReached:
		level = slog.LevelDebug
	case verbs.EventCQErr, verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventPortErr:
		level = slog.LevelWarn
	case verbs.EventDeviceFatal:
		level = slog.LevelError
	}
	var qp slog.Attr
	if e.QP != nil {
		qp = QP(e.QP.QPN())
	}
	b.Add(level, e.Type.String(), "asynchronous event", slog.String("event", e.Type.String()), qp, Cause(e.Cause))
}

// State logs that a QP has gone to another state: as a warning if it failed. failure is why it is in the
// error state, or nil. It is a verbs.ErrState if this end has asked for that state, as the connection manager does at
// the end of each connection.
func (b *Book) State(n verbs.QPN, from, to verbs.QPState, failure error) {
	if !b.On() {
		return
	}
	if to == verbs.QPStateErr && failure != nil && !errors.Is(failure, verbs.ErrState) {
		b.Add(slog.LevelWarn, "failed", "QP failed", QP(n), slog.String("from", from.String()), Cause(failure))
		return
	}
	b.Add(slog.LevelDebug, "state", "QP changed its state", QP(n), slog.String("from", from.String()), slog.String("to", to.String()))
}

// QP names a QP in a record.
func QP(n verbs.QPN) slog.Attr { return slog.String("qp", n.String()) }

// Cause says in a record why something has happened, if err is not nil.
func Cause(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.String("cause", err.Error())
}
