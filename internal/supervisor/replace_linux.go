//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory of the target that a device uses a lot can become memory of both: Call.Map replaces pages of the process by pages of a
// memfd, which the supervisor can map too. All threads of the process are stopped meanwhile. The pages are copied to the memfd, and
// the thread of the call makes the mmap(2) that puts them in the place of the old ones. So nothing is lost if a step fails: before
// the mmap the old pages are there, and after it the new ones.
//
// A process has one memfd, in which a page has its own address as offset. So all that is replaced is one piece wherever it is
// one piece in the process, and pages of several regions need no bookkeeping: /proc/PID/maps tells which pages are
// replaced. Only where addresses have been used for other memory, which is still registered or which mremap has moved, a
// second memfd is begun.
//
// The thread that makes the call waits for an answer, and cannot stop before it has one. So the answer is ERESTARTNOINTR: when the
// thread runs on it makes the same call once more, and this time finds its pages replaced.
//
// What a program could notice of it is undone: see forks_linux.go and advice_linux.go.

// replaced are the pages that a supervisor has replaced.
type replaced struct {
	s *Supervisor

	begun   atomic.Bool  // some process has, or had, replaced pages
	forking atomic.Int64 // the thread that is traced while it forks, or 0: a signal may have its call begin anew without a stop

	mu     sync.Mutex // held while pages are replaced, given up or copied: one at a time
	files  map[inode]*memoryFile
	tries  map[int]try   // by thread
	moves  int           // how often mremap was called on replaced pages
	sweep  *time.Timer   // or nil
	period time.Duration // of sweep
}

// memoryFile is a memfd whose pages a process has in place of its own.
type memoryFile struct {
	fd      int
	key     inode
	process *Process
	mapped  map[*Mapped]struct{}
	garbage []span // of the last sweep
	moves   int    // of mremap, at the last sweep
}

// span is a part of a memfd.
type span struct{ from, to uint64 }

// try counts how often a call was made again.
type try struct {
	start uint64
	n     int
}

// mostTries is how often a call is made again before it gets an error.
const mostTries = 2

// Mapped is memory of a process that this process can map.
type Mapped struct {
	FD     int   // open until Close
	Offset int64 // of the first byte in the file

	replaced *replaced
	file     *memoryFile
	span     span // whole pages
}

// ErrAgain is the error of Call.Map for a call that has been answered so that the program makes it once more.
var ErrAgain = errors.New("the call was answered: the program makes it once more")

// errNotMapped is the kind of error of Call.Map where the memory cannot be this process's too.
var errNotMapped = errors.New("the memory stays the program's alone")

const (
	pageSize = 4096 // of amd64
	// memorySize is the size of a memfd: that of the addresses.
	memorySize = 1 << 47
	// stopPatience is how long a thread may take to stop. One that waits for a disk may take longer.
	stopPatience = 500 * time.Millisecond
)

// Map has memory of the call's process be memory of this process too. Whatever the error is but ErrAgain, the call is to be
// answered as without it, and the memory is reached by Process.Read and Process.Write. After ErrAgain it has been answered. Without
// replace only pages that are replaced already are mapped.
func (c *Call) Map(start, length uint64, replace bool) (*Mapped, error) {
	r := &c.s.replaced
	if !c.s.cfg.Map {
		return nil, errNotMapped
	}
	span := span{start &^ (pageSize - 1), (start + length + pageSize - 1) &^ (pageSize - 1)}
	if length == 0 || span.to <= span.from || span.to > memorySize {
		return nil, errNotMapped
	}
	p, err := c.Process()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list, err := areas(c.TID, span.from, span.to)
	if err != nil {
		return nil, err
	}
	if m := r.find(list, span); m != nil {
		delete(r.tries, c.TID)
		m.Offset += int64(start - span.from)
		return m, nil
	}
	if !replace {
		return nil, fmt.Errorf("%w: replacing pages has taken too much time", errNotMapped)
	}
	t := r.tries[c.TID]
	if t.start != start {
		t = try{start: start}
	}
	if t.n >= mostTries {
		delete(r.tries, c.TID)
		return nil, fmt.Errorf("%w, after %d tries", errNotMapped, t.n)
	}
	t.n++
	if err := r.replace(c, p, span); err != ErrAgain {
		delete(r.tries, c.TID)
		return nil, err
	}
	if len(r.tries) >= mostTIDs {
		clear(r.tries)
	}
	r.tries[c.TID] = t
	return nil, ErrAgain
}

// find returns the memory of mappings that are one piece of a memfd, or nil.
func (r *replaced) find(list []area, s span) *Mapped {
	if len(list) == 0 || list[0].from != s.from || list[len(list)-1].to != s.to {
		return nil
	}
	f := r.files[list[0].file]
	if f == nil {
		return nil
	}
	for i := range list {
		if a := &list[i]; a.file != f.key || a.offset-list[0].offset != a.from-s.from || i > 0 && a.from != list[i-1].to {
			return nil
		}
	}
	at := list[0].offset
	m := &Mapped{FD: f.fd, Offset: int64(at), replaced: r, file: f, span: span{at, at + s.to - s.from}}
	f.mapped[m] = struct{}{}
	return m
}

// Close ends the use of the memory.
func (m *Mapped) Close() {
	m.replaced.mu.Lock()
	defer m.replaced.mu.Unlock()
	delete(m.file.mapped, m)
	m.replaced.sweepSoon()
}

// replace replaces those pages of a range that are not replaced yet. It returns ErrAgain once it has answered the call.
func (r *replaced) replace(c *Call, p *Process, s span) error {
	if _, _, err := r.plan(c, p, s); err != nil {
		return err
	}
	return trace(func(t *tracer) error {
		held := func(tid int) bool { return tid == c.TID || c.s.holdsThread(tid) }
		if err := t.stopAll(p.TGID, stopPatience, held); err != nil {
			return err
		}
		ids := map[int]bool{p.TGID: true}
		for tid := range t.threads {
			ids[tid] = true
		}
		c.s.mem.freeze(ids)
		defer c.s.mem.thaw()
		if err := t.settle(stopPatience, held); err != nil { // a call may have been continued before
			return err
		}
		// From here on nobody changes the process's memory or mappings.
		if sharesMemory(p.TGID) {
			return fmt.Errorf("%w: another process has it too", errNotMapped)
		}
		f, parts, err := r.plan(c, p, s)
		if err != nil {
			return err
		}
		if f == nil {
			if f, err = r.newFile(p); err != nil {
				return err
			}
		}
		number, err := c.Inject(f.fd, true, -1, false)
		if err != nil {
			return err
		}
		if !c.take() {
			return errGone
		}
		c.s.forget(c)
		if e := c.s.l.send(response{id: c.id, errno: -errRestartNoIntr}); e != 0 {
			return errGone
		}
		r.begun.Store(true)
		if err := r.remap(t, c, p, f, number, parts); err != nil {
			c.s.logf("replace memory of thread %d: %v", c.TID, err)
		}
		return ErrAgain
	})
}

// comesBack is how long a thread may take to stop that has its answer. The machine may be busy, and nothing else keeps the
// thread.
const comesBack = 10 * time.Second

// errRestartNoIntr is ERESTARTNOINTR: the call is restarted in any case.
const errRestartNoIntr = 513

// remap has the thread of the call, which has its answer, put the pages in their place. Then the thread makes the call again, also
// where remap has failed.
func (r *replaced) remap(t *tracer, c *Call, p *Process, f *memoryFile, number int, parts []area) error {
	if err := t.await(c.TID, comesBack); err != nil {
		return err
	}
	thread, err := t.calling(c.TID)
	if err != nil {
		return err
	}
	for i := range parts {
		if err = f.take(c.s, p, &parts[i]); err != nil {
			break
		}
		if err = thread.place(number, &parts[i]); err != nil {
			break
		}
	}
	_, cerr := thread.call(unix.SYS_CLOSE, uint64(number))
	return errors.Join(err, cerr, thread.finish(true))
}

// place maps the memfd in the place of an area, with the area's protection, locks and MADV_DONTFORK.
func (c *calling) place(fd int, a *area) error {
	n := a.to - a.from
	if _, err := c.call(unix.SYS_MMAP, a.from, n, a.protection(), unix.MAP_SHARED|unix.MAP_FIXED, uint64(fd), a.from); err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	if a.has("dc") {
		if _, err := c.call(unix.SYS_MADVISE, a.from, n, unix.MADV_DONTFORK); err != nil {
			return fmt.Errorf("madvise: %w", err)
		}
	}
	if a.has("lo") {
		if _, err := c.call(unix.SYS_MLOCK, a.from, n); err != nil {
			return fmt.Errorf("mlock: %w", err)
		}
	}
	return nil
}

// plan decides by which memfd pages of a range are to be replaced, nil for a new one, and which pages.
func (r *replaced) plan(c *Call, p *Process, s span) (f *memoryFile, parts []area, err error) {
	// A filter of the program's own may end it for the calls that its thread is to make.
	if n := filtersOf(strconv.Itoa(c.TID)); n != filtersOf("self")+1 {
		return nil, nil, fmt.Errorf("%w: the thread has %d filters of system calls", errNotMapped, n)
	}
	list, err := detailedAreas(c.TID, s.from, s.to)
	if err != nil {
		return nil, nil, err
	}
	all, err := allAreas(c.TID)
	if err != nil {
		return nil, nil, err
	}
	at := s.from
	for i := range list {
		a := &list[i]
		if a.from != at {
			break
		}
		at = a.to
		switch of := r.files[a.file]; {
		case of == nil:
			if why := a.keeps(); why != "" {
				return nil, nil, fmt.Errorf("%w: %#x is %s", errNotMapped, a.from, why)
			}
			parts = append(parts, *a)
		case a.offset != a.from || f != nil && f != of:
			return nil, nil, fmt.Errorf("%w: it lies in several files", errNotMapped)
		default:
			f = of
		}
	}
	if at != s.to {
		return nil, nil, fmt.Errorf("%w: nothing is at %#x", errNotMapped, at)
	}
	for i := range all {
		if all[i].pins() {
			return nil, nil, fmt.Errorf("%w: the kernel may have pages of it, for %s", errNotMapped, all[i].name)
		}
	}
	if f != nil {
		if f.uses(all, parts) {
			return nil, nil, fmt.Errorf("%w: it lies in several files", errNotMapped)
		}
		return f, parts, nil
	}
	for _, of := range r.files {
		if of.process == p && of.isMapped(all) && !of.uses(all, parts) {
			return of, parts, nil
		}
	}
	return nil, parts, nil
}

// filtersOf is how many seccomp filters a thread has, or this process.
func filtersOf(thread string) int {
	b, err := os.ReadFile("/proc/" + thread + "/status")
	n, cerr := strconv.Atoi(statusField(string(b), "Seccomp_filters:"))
	if err != nil || cerr != nil {
		return -1
	}
	return n
}

// keeps says why the pages of an area cannot be replaced, or nothing.
func (a *area) keeps() string {
	switch {
	case a.rights[:2] != "rw" || a.rights[3] != 'p':
		return "not private memory to be read and written"
	case a.file != inode{}:
		return "of a file"
	case a.flags == "":
		return "a mapping of which the kernel tells nothing"
	case a.key != "" && a.key != "0":
		return "under a protection key"
	}
	for _, f := range [][2]string{
		{"gd", "a stack that grows"}, {"ht", "of huge pages"}, {"wf", "wiped by fork"}, {"um", "watched by userfaultfd"},
		{"uw", "watched by userfaultfd"}, {"ui", "watched by userfaultfd"}, {"mg", "merged with equal pages"},
		{"io", "of a device"}, {"pf", "of a device"}, {"mm", "of a device"}, {"dd", "left out of core dumps"}, {"ss", "a shadow stack"},
		{"sl", "sealed"},
	} {
		if a.has(f[0]) {
			return f[1]
		}
	}
	return ""
}

// pins reports whether an area is of something by which a process has the kernel keep pages: a device, such as a GPU, or a ring
// of io_uring or AIO. The kernel would go on with the pages that were there when they were given to it.
func (a *area) pins() bool {
	switch n := a.name; {
	case strings.HasPrefix(n, "/dev/zero"), strings.HasPrefix(n, "/dev/shm/"):
		return false
	default:
		return strings.HasPrefix(n, "/dev/") || strings.HasPrefix(n, "anon_inode:") || strings.HasPrefix(n, "/[aio]")
	}
}

// isMapped reports whether a process, of which all areas are given, has pages of the file.
func (f *memoryFile) isMapped(all []area) bool {
	for i := range all {
		if all[i].file == f.key {
			return true
		}
	}
	return false
}

// uses reports whether the file's pages for new areas are in use: by memory that is registered, or that mremap has moved.
func (f *memoryFile) uses(all, fresh []area) bool {
	for i := range fresh {
		if f.usesSpan(all, span{fresh[i].from, fresh[i].to}) {
			return true
		}
	}
	return false
}

func (f *memoryFile) usesSpan(all []area, s span) bool {
	for m := range f.mapped {
		if s.overlaps(m.span) {
			return true
		}
	}
	for i := range all {
		if a := &all[i]; a.file == f.key && s.overlaps(a.inFile()) {
			return true
		}
	}
	return false
}

func (s span) overlaps(o span) bool { return s.from < o.to && o.from < s.to }

// inFile is the part of its file that an area has.
func (a *area) inFile() span { return span{a.offset, a.offset + a.to - a.from} }

// newFile makes a memfd for a process. Nothing can shrink it, so no access to it faults.
func (r *replaced) newFile(p *Process) (*memoryFile, error) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur < memorySize { // a signal would end this process
		return nil, fmt.Errorf("%w: the limit of file sizes is %d (ulimit -f)", errNotMapped, limit.Cur)
	}
	fd, err := unix.MemfdCreate("adverb-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	var st unix.Stat_t
	err = unix.Ftruncate(fd, memorySize)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make a memfd: %w", err)
	}
	f := &memoryFile{fd: fd, key: inode{st.Dev, st.Ino}, process: p, mapped: map[*Mapped]struct{}{}}
	r.files[f.key] = f
	r.sweepSoon()
	return f, nil
}

// punch gives the pages of a span back. They are zeros then.
func (f *memoryFile) punch(s span) error {
	return unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(s.from), int64(s.to-s.from))
}

// copyPiece is how much is copied at once.
const copyPiece = 256 << 10

// copyPieces has buffers for copies.
var copyPieces = sync.Pool{New: func() any { return new([copyPiece]byte) }}

// take copies an area's pages into the file, as far as they have ever been touched.
func (f *memoryFile) take(s *Supervisor, p *Process, a *area) error {
	if err := f.punch(span{a.from, a.to}); err != nil {
		return fmt.Errorf("punch a hole: %w", err)
	}
	buf := copyPieces.Get().(*[copyPiece]byte)
	defer copyPieces.Put(buf)
	return touched(p.TGID, a.from, a.to, func(t span) error {
		for at := t.from; at < t.to; {
			b := buf[:min(t.to-at, copyPiece)]
			if _, err := s.mem.read(p.TGID, at, b); err != nil {
				return fmt.Errorf("read: %w", err)
			}
			if _, err := unix.Pwrite(f.fd, b, int64(at)); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			at += uint64(len(b))
		}
		return nil
	})
}

// touched calls f for the pages in a range that a process has: in memory, or swapped out.
func touched(pid int, from, to uint64, f func(span) error) error {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return f(span{from, to})
	}
	defer unix.Close(fd)
	const isThere = 1<<63 | 1<<62
	entries := make([]uint64, min((to-from)/pageSize, 1<<15))
	var run span
	for at := from; at < to; {
		b := unsafe.Slice((*byte)(unsafe.Pointer(&entries[0])), 8*min(uint64(len(entries)), (to-at)/pageSize))
		n, err := unix.Pread(fd, b, int64(at/pageSize*8))
		if err != nil || n < 8 {
			return f(span{at, to})
		}
		for _, e := range entries[:n/8] {
			if e&isThere != 0 {
				if run.to != at {
					if err := run.call(f); err != nil {
						return err
					}
					run.from = at
				}
				run.to = at + pageSize
			}
			at += pageSize
		}
	}
	return run.call(f)
}

func (s span) call(f func(span) error) error {
	if s.to == 0 {
		return nil
	}
	return f(s)
}

// sharesMemory reports whether another process may have the same memory: a child of vfork(2), or of clone(2) with CLONE_VM.
func sharesMemory(tgid int) bool {
	others := children(tgid)
	if parent := parentOf(tgid); parent > 1 {
		others = append(others, parent)
	}
	if len(others) == 0 {
		return false
	}
	ours, err := os.ReadFile("/proc/" + strconv.Itoa(tgid) + "/maps")
	if err != nil {
		return true
	}
	for _, other := range others {
		theirs, err := os.ReadFile("/proc/" + strconv.Itoa(other) + "/maps")
		if err != nil || string(theirs) != string(ours) {
			continue // it has ended, or is another user's, or has other memory
		}
		if different, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(tgid), uintptr(other), kcmpVM, 0, 0, 0); e != 0 || different == 0 {
			return true
		}
	}
	return false
}

// kcmpVM is KCMP_VM.
const kcmpVM = 1

// children are those of a process's threads.
func children(tgid int) (list []int) {
	threads, err := threadsOf(tgid)
	if err != nil {
		return nil
	}
	for _, tid := range threads {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(tgid) + "/task/" + strconv.Itoa(tid) + "/children")
		if err != nil { // the kernel lacks CONFIG_PROC_CHILDREN
			return descendants(tgid)
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				list = append(list, pid)
			}
		}
	}
	return list
}
