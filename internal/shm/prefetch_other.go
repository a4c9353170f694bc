//go:build !amd64 || adverb_portable

package shm

import "unsafe"

func prefetchLoad(unsafe.Pointer)  {}
func prefetchStore(unsafe.Pointer) {}

func prefetchStoreLine(unsafe.Pointer) {}
