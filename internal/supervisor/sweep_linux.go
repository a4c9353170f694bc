//go:build amd64 || arm64

package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
)

// The program unmaps replaced pages without anybody being told. Their contents stay in the memfd. So the supervisor looks
// from time to time for pages that nobody has any more, and gives them back. A mapping that mremap moves may be
// missing from one look at all mappings: a page is given back when two looks have not found it, and nothing moved between.

// The time between two looks is sweepPeriod at first, and grows to sweepLongest while nothing is found.
const (
	sweepPeriod  = time.Second
	sweepLongest = 16 * time.Second
)

// sweepSoon has a look come after sweepPeriod at the latest. The caller holds the lock.
func (r *replaced) sweepSoon() { r.sweepAfter(sweepPeriod) }

// sweepAfter has a look come. The caller holds the lock.
func (r *replaced) sweepAfter(d time.Duration) {
	switch r.period = d; {
	case len(r.files) == 0:
	case r.sweep == nil:
		r.sweep = time.AfterFunc(d, r.sweepNow)
	default:
		r.sweep.Reset(d)
	}
}

func (r *replaced) sweepNow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := min(2*r.period, sweepLongest)
	for key, f := range r.files {
		if r.clean(f) {
			unix.Close(f.fd)
			delete(r.files, key)
		}
		if len(f.garbage) > 0 {
			next = sweepPeriod
		}
	}
	r.sweepAfter(next)
}

// clean gives back the pages of a file that nobody has, and reports whether the file itself is of no use any more.
func (r *replaced) clean(f *memoryFile) (done bool) {
	all, err := allAreas(f.process.TGID)
	if !f.process.Alive() {
		return len(f.mapped) == 0
	}
	if err != nil || len(all) == 0 {
		return false
	}
	now := f.unused(all)
	if f.moves == r.moves {
		for _, s := range now {
			for _, before := range f.garbage {
				if s.overlaps(before) {
					_ = f.punch(span{max(s.from, before.from), min(s.to, before.to)})
				}
			}
		}
	}
	f.garbage, f.moves = now, r.moves
	return false
}

// unused are the parts of a file with contents that the process, of which all areas are given, does not have, and that are not
// registered.
func (f *memoryFile) unused(all []area) (list []span) {
	for at := int64(0); ; {
		from, err := unix.Seek(f.fd, at, unix.SEEK_DATA)
		if err != nil { // ENXIO: no more
			return list
		}
		to, err := unix.Seek(f.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return list
		}
		rest := []span{{uint64(from), uint64(to)}}
		for m := range f.mapped {
			rest = without(rest, m.span)
		}
		for i := range all {
			if all[i].file == f.key {
				rest = without(rest, all[i].inFile())
			}
		}
		list = append(list, rest...)
		at = to
	}
}

// without returns the parts of spans that s does not have.
func without(list []span, s span) (rest []span) {
	for _, x := range list {
		if !x.overlaps(s) {
			rest = append(rest, x)
			continue
		}
		if x.from < s.from {
			rest = append(rest, span{x.from, s.from})
		}
		if s.to < x.to {
			rest = append(rest, span{s.to, x.to})
		}
	}
	return rest
}

// close ends all: the target has ended.
func (r *replaced) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sweep != nil {
		r.sweep.Stop()
	}
	for key, f := range r.files {
		unix.Close(f.fd)
		delete(r.files, key)
	}
}
