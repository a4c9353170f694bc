//go:build !race && !adverb_portable

package release

import (
	"sync/atomic"
	"unsafe"
)

// Store stores a word, which others load with its Load. Who sees it sees all that was stored before. A load that follows
// may be done before others see the word. On x86 a plain store is that.
func Store(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
