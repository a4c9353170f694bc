//go:build !adverb_portable

package shm

import (
	"sync/atomic"
	"unsafe"
)

// storeRelease stores a word after all that was stored or loaded before. On x86 a plain store is that, and package
// atomic's costs twenty times as much, since it also keeps later loads behind it.
//
//go:norace
func storeRelease(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
