package mem

import (
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// A region that the program gives is probed when it is registered: its pages must allow the access that the flags
// promise. So a program learns of a mapping that is read-only, or of the bytes of a string, when it registers them, and
// not when a peer writes. No byte changes. Pages that go later are for the guards: see guard.go.

// changes are the rights to change memory.
const changes = verbs.AccessLocalWrite | remoteChanges

// sampledPages is how many pages of a region are touched where the system does not tell of them: all of a small one, and
// of a large one so many, evenly spread.
const sampledPages = 256

var pageSize = os.Getpagesize()

// sample probes memory by touching it.
func sample(b []byte, access verbs.Access) error {
	pages := (len(b)-1)/pageSize + 2 // at most, since b may begin inside a page
	n := min(pages, sampledPages)
	for i := range n {
		off := len(b) - 1 // the last page, and the first, are among them
		if i < n-1 {
			off = i * (pages / n) * pageSize
		}
		if touch(b[off:off+1], access&changes != 0) != nil {
			return badMemory(addrOf(b)+uint64(off), needed(access), "", access)
		}
	}
	return nil
}

// touch reads a byte and, if write says so, stores the aligned word around it as it is, by one atomic operation. The race
// detector would take that for the program's own: see mem/race.go.
func touch(b []byte, write bool) (err error) {
	defer catch(watchFaults(), nil, b, &err)
	peek(&b[0])
	if write && !raceEnabled {
		p := unsafe.Pointer(uintptr(unsafe.Pointer(&b[0])) &^ 3)
		defer catch(true, unsafe.Slice((*byte)(p), 4), nil, &err)
		atomic.AddUint32((*uint32)(p), 0)
	}
	return nil
}

// peek is a load that the compiler keeps.
//
//go:noinline
//go:norace
func peek(p *byte) byte { return *p }

// needed returns the word for an access that the memory must stand: "written" or "read".
func needed(access verbs.Access) string {
	if access&changes != 0 {
		return "written"
	}
	return "read"
}

// badMemory refuses memory that cannot be read, or written. why may be empty.
func badMemory(addr uint64, verb, why string, access verbs.Access) error {
	if why != "" {
		why = " (" + why + ")"
	}
	return verbs.Errorf(verbs.ErrInvalid, "the memory at %#x cannot be %s%s, and %v needs that: register memory that is mapped so until Close",
		addr, verb, why, access)
}
