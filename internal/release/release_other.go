//go:build race || !amd64 || adverb_portable

package release

import "sync/atomic"

// Store stores a word, which others load with its Load. Who sees it sees all that was stored before. The race detector
// knows package atomic alone.
func Store(p *atomic.Uint64, v uint64) { p.Store(v) }
