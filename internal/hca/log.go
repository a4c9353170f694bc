package hca

import (
	"log/slog"

	"github.com/adverb-rdma/adverb/internal/devlog"
	"github.com/adverb-rdma/adverb/verbs"
)

// SetLogger implements verbs.ProviderLogger.
func (d *Device) SetLogger(l *slog.Logger) {
	d.Base.SetLogger(l)
	if err := d.config.Alone; err != nil {
		d.Log.Add(slog.LevelWarn, "alone", "shares neither memory nor addresses with other programs", devlog.Cause(err))
	}
	for _, r := range d.config.Refused {
		d.Log.Add(slog.LevelWarn, "refused "+r.Option, "does without a socket option that the system refuses",
			slog.String("option", r.Option), slog.String("lost", r.Lost), devlog.Cause(r.Cause))
	}
}

// logState logs that a QP has gone to another state.
func (q *qp) logState(from, to verbs.QPState) {
	if !q.closed {
		q.dev.Log.State(q.QPN(), from, to, q.t.Failure())
	}
}

// qpAttr names a QP in a record.
func qpAttr(q *qp) slog.Attr {
	if q == nil {
		return slog.Attr{}
	}
	return devlog.QP(q.QPN())
}
