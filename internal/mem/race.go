//go:build race

package mem

import (
	"runtime"
	"unsafe"
)

const raceEnabled = true

// tellRead and tellWrite tell the race detector of an access to memory that the program must leave alone
// until the completion. The detector knows Go's memory only.
func tellRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

func tellWrite(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

// atomicFaults returns the error of an atomic access that would fault. The detector's atomics do it where no panic can
// come of it.
func atomicFaults(b []byte) error {
	if probe(b, changes) != nil {
		return faultError(addrOf(b), "written")
	}
	return nil
}
