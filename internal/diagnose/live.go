package diagnose

import (
	"slices"
	"time"
)

// How long something is quiet before it is judged while the capture goes on.
const (
	quietSilent = int64(2 * time.Second)  // requests without answers, and at least four times as long as between two repeats
	quietEnded  = int64(10 * time.Second) // what has disconnected, or waits for a receive
	quietIdle   = int64(5 * time.Minute)  // anything else
)

// Tick tells the Analyzer of a capture that goes on what time it is, in nanoseconds since 1970 by the clock of the
// capture. Once a second will do. Queue pairs and conversations that have been quiet for long enough are judged and
// forgotten, so that a capture may go on without end.
func (a *Analyzer) Tick(now int64) {
	const fresh = int64(time.Second)
	a.found.live = true
	if a.first == 0 {
		a.first = now
	}
	a.last = max(a.last, now)
	for f := a.oldest; f != nil && now-f.last >= fresh; {
		next := f.newer
		a.settle(f)
		if f.over(now - f.last) {
			a.retire(f)
		}
		f = next
	}
	a.cm.order = slices.DeleteFunc(a.cm.order, func(k connKey) bool {
		c := a.cm.byID[k]
		if !c.over(now - c.lastAt) {
			return false
		}
		a.finishConn(c)
		delete(a.cm.byID, k)
		return true
	})
	for _, c := range slices.Clone(a.tcps.order) {
		if c.over(now - c.lastAt) {
			a.finishTCP(c)
			a.forgetTCP(c)
		}
	}
}

// over reports whether nothing more is to come of a flow that has been quiet for some time.
func (f *flow) over(quiet int64) bool {
	switch {
	case quiet >= quietIdle:
		return true
	case f.disconnected, f.rnrLast, f.nakked:
		return quiet >= quietEnded
	case f.started && f.reqAckAsked && f.una.Less(f.nxt) && f.silentTries == 0:
		return quiet >= quietEnded
	case f.silentTries >= 2:
		return quiet >= max(quietSilent, 4*f.silentInterval)
	}
	return false
}

// over is the same of a conversation. One that has led to a connection is kept until that ends.
func (c *conn) over(quiet int64) bool {
	switch {
	case c.dreqs > 0 || c.rejs > 0:
		return quiet >= quietEnded
	case c.reps == 0 && c.mras == 0:
		return quiet >= max(quietEnded, int64(2*c.timeout))
	}
	return false
}

// News returns the errors and warnings that have become certain since the last call, and those that have become more
// severe or ten times as many. Their counts and words may still change.
func (a *Analyzer) News() (list []*Finding) {
	const many = 10
	a.found.live = true
	for _, x := range a.found.all {
		switch {
		case x.dropped || x.note():
			continue
		case x.rule == icrcBad && (x.hosts.good == 0 || x.hosts.damageIsOpen(a.last)): // the capture may be what differs
			continue
		case x.rule == lossNAK && x.flow.unrepeated(), x.flow != nil && x.flow.puzzling() && x.rule != psnMismatch:
			continue
		case x.told == 0, x.Severity > x.toldSeverity, x.Count >= many*x.told:
			a.complete(x)
			x.told, x.toldSeverity = max(1, x.Count), x.Severity
			list = append(list, x)
		}
	}
	return list
}
