//go:build !adverb_portable

package shm

import "unsafe"

// A cache line that the other end has used last takes as long to come as all the rest of a short packet's way. So the
// processor is told in time which lines will be used.

// prefetchLoad has the line at p, and the two behind it, come to be read.
//
//go:noescape
func prefetchLoad(p unsafe.Pointer)

// prefetchStore has the line at p, and the two behind it, come to be written.
//
//go:noescape
func prefetchStore(p unsafe.Pointer)

// prefetchStoreLine has the line at p come to be written.
//
//go:noescape
func prefetchStoreLine(p unsafe.Pointer)
