//go:build amd64 || arm64

package supervisor

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Replaced pages are shared memory of a file, and some system calls do other things to such memory than to the private memory
// that it was. The filter notifies these calls.
//
//   - MADV_DONTNEED would leave the contents. The supervisor gives the pages back, so that they are zeros.
//   - MADV_FREE would fail. The pages are given back at once, as the kernel may do.
//   - MADV_REMOVE would succeed, and fails with EINVAL.
//   - mremap that makes a mapping longer would show old pages of the memfd, or those of a neighbour. The pages are cleared.
//     If they are another mapping's, then mremap fails with ENOMEM, as where there is no room.

// The advices that are notified, of madvise(2).
const (
	adviceDontNeed       = unix.MADV_DONTNEED
	adviceFree           = unix.MADV_FREE
	adviceRemove         = unix.MADV_REMOVE
	adviceDontNeedLocked = 24
)

// advise answers madvise.
func (s *Supervisor) advise(c *Call) {
	if !s.replaced.begun.Load() {
		c.Continue()
		return
	}
	c.Go(func() { s.replaced.advise(c) })
}

func (r *replaced) advise(c *Call) {
	addr, advice := c.Args[0], c.Args[2]
	end := addr + (c.Args[1]+pageSize-1)&^(pageSize-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if addr%pageSize != 0 || end <= addr || !r.anyOf(c.TID, addr, end) {
		c.Continue()
		return
	}
	if advice == adviceRemove {
		c.Fail(unix.EINVAL)
		return
	}
	look := areas
	if hasLocked(c.TID) {
		look = detailedAreas
	}
	list, err := look(c.TID, addr, end)
	if err != nil {
		c.Fail(unix.EAGAIN)
		return
	}
	at, whole := addr, true
	for i := range list {
		a := &list[i]
		whole = whole && a.from == at
		at = a.to
		if a.has("lo") && advice != adviceDontNeedLocked { // as the kernel does: what comes before is done
			c.Fail(unix.EINVAL)
			return
		}
		if f := r.files[a.file]; f != nil {
			if err := f.punch(a.inFile()); err != nil {
				c.Fail(unix.EAGAIN)
				return
			}
		}
	}
	switch {
	case advice != adviceFree:
		c.Continue() // for all else in the range
	case whole && at == end:
		c.Return(0)
	default:
		c.Fail(unix.ENOMEM)
	}
}

// hasLocked reports whether a process has memory that mlock(2) keeps. To ask each area costs a walk over its pages.
func hasLocked(tid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	return err != nil || statusField(string(b), "VmLck:") != "0 kB"
}

// anyOf reports whether some of a range is replaced.
func (r *replaced) anyOf(tid int, from, to uint64) bool {
	list, err := areas(tid, from, to)
	for i := range list {
		if r.files[list[i].file] != nil {
			return true
		}
	}
	return err != nil
}

// remapped answers mremap.
func (s *Supervisor) remapped(c *Call) {
	if !s.replaced.begun.Load() {
		c.Continue()
		return
	}
	c.Go(func() { s.replaced.remapped(c) })
}

func (r *replaced) remapped(c *Call) {
	pages := func(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }
	from, before, after := c.Args[0], pages(c.Args[1]), pages(c.Args[2])
	r.mu.Lock()
	defer r.mu.Unlock()
	list, err := areas(c.TID, from, from+max(before, pageSize))
	if err != nil || len(list) != 1 || list[0].from != from || r.files[list[0].file] == nil {
		c.Continue() // nothing is there, or the kernel refuses it
		return
	}
	f := r.files[list[0].file]
	r.moves++
	switch {
	case before == 0: // private memory cannot be mapped twice
		c.Fail(unix.EINVAL)
		return
	case after > before:
		more := span{list[0].offset + before, list[0].offset + after}
		all, err := allAreas(c.TID)
		if err != nil || more.to > memorySize || f.usesSpan(all, more) || f.punch(more) != nil {
			c.Fail(unix.ENOMEM)
			return
		}
	}
	c.Continue()
}
