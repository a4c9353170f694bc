package mem

import (
	"fmt"
	"runtime/debug"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The program can take memory away that it has registered: unmap it, protect it, or cut off the file behind it. An access
// then faults, which ends a process. So each access to a region that the program gave is guarded: a fault becomes
// ErrFault. Memory of AllocMR stays in place, and memory that a peer lends is sealed. Neither costs a guard.

// ErrFault is the kind of error of an access that has found no memory, or none that permits it.
var ErrFault = fmt.Errorf("memory fault: %w", verbs.ErrInvalid)

// watchFaults has faults of this goroutine be panics, and returns the setting that the end of the access restores.
func watchFaults() (was bool) { return debug.SetPanicOnFault(true) }

// The kinds of copies.
type copying uint8

const (
	copyPlain  copying = iota // in no order
	copyPlace                 // see place
	copyShared                // see placeShared
	copyFetch                 // see copyFrom
	copyFolded                // see Keeper.Fold
)

// guarded copies src to dst, which is as long. Its error is a fault of the memory that may fault. fold is that of
// copyFolded.
func guarded(how copying, dst, src []byte, fold *wire.Fold) (err error) {
	if ok, err := copyForeign(how, dst, src, fold); ok {
		return err
	}
	was, done := watchFaults(), false
	defer func() {
		debug.SetPanicOnFault(was)
		if !done {
			err = how.fault(recover(), dst, src)
		}
	}()
	switch how {
	case copyPlace:
		place(dst, src)
	case copyShared:
		placeShared(dst, src)
	case copyFetch:
		copyFrom(dst, src)
	case copyFolded:
		fetchFolded(fold, dst, src)
	default:
		copy(dst, src)
	}
	done = true
	return nil
}

// fault is faultOf for a copy. The other side of most is the device's own.
func (how copying) fault(e any, dst, src []byte) error {
	switch how {
	case copyPlace:
		src = nil
	case copyFetch, copyFolded:
		dst = nil
	}
	return faultOf(e, dst, src)
}

// Copy copies src to dst, which is as long. One of them may be a span's Bytes, and fault.
func Copy(dst, src []byte) error { return guarded(copyPlain, dst, src, nil) }

// guardedWord calls access for a word of b.
func guardedWord(b []byte, access func() uint64) (orig uint64, err error) {
	if err = atomicFaults(b); err != nil {
		return 0, err
	}
	defer catch(watchFaults(), b, nil, &err)
	return access(), nil
}

// catch is deferred while single words at dst, or at src, are accessed. A fault there becomes *err.
func catch(was bool, dst, src []byte, err *error) {
	debug.SetPanicOnFault(was)
	if e := recover(); e != nil {
		*err = faultOf(e, dst, src)
	}
}

// faultOf makes an error of a panic that is a fault while memory is written at dst and read at src. Any other panic goes
// on: it is a fault of the program, or of ours.
func faultOf(e any, dst, src []byte) error {
	if f, ok := e.(interface{ Addr() uintptr }); ok {
		switch at := uint64(f.Addr()); {
		case holds(dst, at):
			return faultError(at, "written")
		case holds(src, at):
			return faultError(at, "read")
		}
	}
	panic(e)
}

func holds(b []byte, addr uint64) bool { return addr-addrOf(b) < uint64(len(b)) }

func faultError(addr uint64, access string) error {
	return verbs.Errorf(ErrFault, "the memory at %#x cannot be %s any more: the program has unmapped or protected it, or truncated its file, "+
		"since it was registered: close the MR before that", addr, access)
}
