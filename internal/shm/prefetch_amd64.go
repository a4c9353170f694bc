//go:build !adverb_portable

package shm

import "unsafe"

// A cache line that the other end has used last takes as long to come as all other work for a short packet. So the
// processor is told in time which lines will be used.

// prefetchLoad prefetches the line at p, and the two behind it, for reading.
//
//go:noescape
func prefetchLoad(p unsafe.Pointer)

// prefetchStore prefetches the line at p, and the two behind it, for writing.
//
//go:noescape
func prefetchStore(p unsafe.Pointer)

// prefetchStoreLine has the line at p come to be written.
//
//go:noescape
func prefetchStoreLine(p unsafe.Pointer)
