package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Automatic path migration. Both ends load an alternate path and say that they want to have it (REARM), by the bit
// MigReq of their packets, which is 0 then. Who hears of the other's wish is ARMED. An end whose retries are used up, or
// whose program says so, takes the alternate path, and its packets have MigReq 1. That makes the other end follow.

// HeardMigReq takes note of a packet of the peer's whose MigReq is 0.
func (q *QP) HeardMigReq() {
	if q.attr.PathMigState == verbs.MigRearm {
		q.attr.PathMigState = verbs.MigArmed
	}
}

// Migrate takes the alternate path if the QP is ARMED, and reports whether it is. The caller then sends by that path.
// The retries begin anew.
func (q *QP) Migrate(now time.Duration) bool {
	a := &q.attr
	if a.PathMigState != verbs.MigArmed {
		return false
	}
	a.AH, a.PKeyIndex, a.Timeout = a.AltAH, a.AltPKeyIndex, a.AltTimeout
	a.PathMigState = verbs.MigMigrated
	q.raise(verbs.EventPathMig, nil)
	q.service.attributesChanged(now)
	return true
}

// RefuseMigration tells the program that the peer has migrated, and the QP cannot follow.
func (q *QP) RefuseMigration() { q.raise(verbs.EventPathMigErr, nil) }
