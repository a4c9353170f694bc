//go:build !amd64 || adverb_portable

package shm

import "sync/atomic"

// storeRelease stores a word after all that was stored or loaded before.
func storeRelease(p *atomic.Uint64, v uint64) { p.Store(v) }
