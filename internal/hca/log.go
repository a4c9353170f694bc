package hca

import (
	"log/slog"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/devlog"
	"github.com/adverb-rdma/adverb/verbs"
)

// SetLogger implements verbs.ProviderLogger.
func (d *Device) SetLogger(l *slog.Logger) {
	d.log.SetLogger(l, d.name)
	if err := d.config.Alone; err != nil {
		d.log.Add(slog.LevelWarn, "alone", "shares neither memory nor addresses with other programs", devlog.Cause(err))
	}
	for _, r := range d.config.Refused {
		d.log.Add(slog.LevelWarn, "refused "+r.Option, "does without a socket option that the system refuses",
			slog.String("option", r.Option), slog.String("lost", r.Lost), devlog.Cause(r.Cause))
	}
}

// event raises an asynchronous event, and logs it.
func (d *Device) event(e verbs.AsyncEvent) {
	d.events.Add(e)
	d.log.Event(e)
}

// Unserved logs that a program which listens on all addresses is not heard at one of them.
func (d *Device) Unserved(at netip.AddrPort, cause error) {
	d.log.Add(slog.LevelWarn, "unserved", "address not served", slog.String("local", at.String()), devlog.Cause(cause))
}

// logState logs that a QP has gone to another state.
func (q *qp) logState(from, to verbs.QPState) {
	if !q.closed {
		q.dev.log.State(q.QPN(), from, to, q.t.Failure())
	}
}

// qpAttr names a QP in a record.
func qpAttr(q *qp) slog.Attr {
	if q == nil {
		return slog.Attr{}
	}
	return devlog.QP(q.QPN())
}
