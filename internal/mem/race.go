//go:build race

package mem

import (
	"runtime"
	"unsafe"
)

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
