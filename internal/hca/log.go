package hca

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Of each kind of record logBurst are written at once, and then one each logPause. What is left out is
// counted in the next record of its kind. So a flood of packets does not flood the log.
const (
	logBurst = 10
	logPause = time.Second
	// maxLogged bounds the records that wait for a slow handler.
	maxLogged = 256
)

// logbook writes what happens on a device to the program's logger. Its methods may be called with locks
// held: the program's handler runs on a goroutine of its own, which exists while there is something to
// write. Records keep their order and their times.
type logbook struct {
	to atomic.Pointer[slog.Logger] // nil for silence

	mu      sync.Mutex
	kinds   map[string]*logKind
	records []slog.Record
	writing bool
}

// logKind is what is known of the records of a kind.
type logKind struct {
	left     int // that may be written at once
	refilled time.Time
	omitted  int
}

// on reports whether there is a logger. Whoever is told no has nothing to prepare.
func (b *logbook) on() bool { return b.to.Load() != nil }

// add logs a message. kind is what its rate is limited by.
func (b *logbook) add(level slog.Level, kind, msg string, attrs ...slog.Attr) {
	l := b.to.Load()
	if l == nil || !l.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	omitted, ok := b.allow(kind, now)
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
func (b *logbook) allow(kind string, now time.Time) (omitted int, ok bool) {
	if b.kinds == nil {
		b.kinds = map[string]*logKind{}
	}
	k := b.kinds[kind]
	if k == nil {
		k = &logKind{left: logBurst, refilled: now}
		b.kinds[kind] = k
	}
	if n := int(now.Sub(k.refilled) / logPause); n > 0 {
		k.left = min(logBurst, k.left+n)
		k.refilled = k.refilled.Add(time.Duration(n) * logPause)
	}
	if k.left == 0 || len(b.records) >= maxLogged {
		k.omitted++
		return 0, false
	}
	k.left--
	omitted, k.omitted = k.omitted, 0
	return omitted, true
}

// write writes records until there are none.
func (b *logbook) write() {
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

// SetLogger implements verbs.ProviderLogger.
func (d *Device) SetLogger(l *slog.Logger) {
	if l != nil {
		l = l.With("device", d.name)
	}
	d.log.to.Store(l)
}

// event raises an asynchronous event, and logs it.
func (d *Device) event(e verbs.AsyncEvent) {
	d.events.Add(e)
	if !d.log.on() {
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
	var qp, cause slog.Attr
	if e.QP != nil {
		qp = slog.String("qp", e.QP.QPN().String())
	}
	if e.Cause != nil {
		cause = slog.String("cause", e.Cause.Error())
	}
	d.log.add(level, e.Type.String(), "asynchronous event", slog.String("event", e.Type.String()), qp, cause)
}

// logState logs that a QP has gone to another state: as a warning if it failed.
func (q *qp) logState(from, to verbs.QPState) {
	log := &q.dev.log
	if !log.on() || q.closed {
		return
	}
	if to == verbs.QPStateErr {
		if err := q.t.Failure(); err != nil {
			log.add(slog.LevelWarn, "failed", "QP failed", qpAttr(q), slog.String("from", from.String()), slog.String("cause", err.Error()))
			return
		}
	}
	log.add(slog.LevelDebug, "state", "QP changed its state", qpAttr(q), slog.String("from", from.String()), slog.String("to", to.String()))
}

// qpAttr names a QP in a record.
func qpAttr(q *qp) slog.Attr {
	if q == nil {
		return slog.Attr{}
	}
	return slog.String("qp", q.QPN().String())
}
