//go:build amd64 || arm64

package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const mb = 1 << 20

// anonymous is fresh memory with a pattern in it.
func anonymous(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	want("mmap", err, nil)
	pattern(b, 1)
	return b
}

func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*seed>>3) ^ byte(i)
	}
}

func isPattern(what string, b []byte, seed int) {
	for i := range b {
		if b[i] != byte(i*seed>>3)^byte(i) {
			die("%s: byte %d is %d", what, i, b[i])
		}
	}
}

func at(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// bytesAt is memory that Go does not know.
func bytesAt(addr uintptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

// escapes keeps what was stored there last off the stack.
var escapes atomic.Pointer[uintptr]

func ask(fd int, request uintptr, words ...uintptr) int {
	w := make([]uintptr, 3) // not of the stack, which may move
	copy(w, words)
	defer escapes.Store(&w[0])
	n, err := ioctl(fd, request, uintptr(unsafe.Pointer(&w[0])))
	want(fmt.Sprintf("ask %#x %x", request, words), err, nil)
	return n
}

// mapped maps memory that can be mapped.
func mapped(fd int, b []byte) int {
	n := ask(fd, toyMap, at(b), uintptr(len(b)))
	if n == 0 {
		die("%d bytes at %#x are not mapped", len(b), at(b))
	}
	return n
}

func kept(fd int, what string, b []byte) {
	is(what+" stays the program's alone", ask(fd, toyMap, at(b), uintptr(len(b))), 0)
}

// both checks that a byte is the program's and the supervisor's.
func both(fd, number int, b []byte, off int) {
	b[off]++
	is("a byte that the program changed", byte(ask(fd, toyPeek, uintptr(number), uintptr(off))), b[off])
	ask(fd, toyPoke, uintptr(number), uintptr(off), uintptr(b[off]+1))
	b[off]--
	b[off]-- // the supervisor's increment, and then the program's
	is("a byte that the supervisor changed", byte(ask(fd, toyPeek, uintptr(number), uintptr(off))), b[off])
}

// isReplaced reports whether the page at an address is of a memfd.
func isReplaced(addr uintptr) bool {
	list, err := areas(os.Getpid(), uint64(addr), uint64(addr)+1)
	want("maps", err, nil)
	return len(list) == 1 && list[0].file != inode{}
}

func targetMemory([]string) {
	fd := open(toyNode, unix.O_RDWR)
	b := anonymous(3 * mb)
	part := b[mb+100 : 2*mb+77]
	n := mapped(fd, part)
	isPattern("memory that was replaced", b, 1)
	is("a page before", isReplaced(at(b)+mb-1), false)
	is("the first page", isReplaced(at(b)+mb), true)
	is("the last page", isReplaced(at(b)+2*mb+76), true)
	is("a page behind", isReplaced(at(b)+2*mb+pageSize), false)
	both(fd, n, part, 0)
	both(fd, n, part, len(part)-1)
	both(fd, n, part, 5000)
	isPattern("memory that both have used", b, 1)

	// Others that overlap, or are around.
	m := mapped(fd, part[5000:9000])
	both(fd, m, part[5000:9000], 17)
	m = mapped(fd, b[mb/2:2*mb+mb/2])
	both(fd, m, b[mb/2:], 3)
	both(fd, n, part, 3)
	ask(fd, toyUnmap, uintptr(n))
	n = mapped(fd, part)
	both(fd, n, part, 9)
	m = mapped(fd, b)
	both(fd, m, b, 3*mb-1)
	isPattern("memory of several regions", b, 1)
	for i := range 3 {
		ask(fd, toyUnmap, uintptr(i+1))
	}

	// Pages that were never touched are zeros, and stay untouched.
	sparse, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	want("mmap", err, nil)
	sparse[512*mb] = 7
	before := ask(fd, toySweep)
	n = mapped(fd, sparse)
	is("KiB more for a page of a GiB", ask(fd, toySweep)-before, 4)
	is("a byte", sparse[512*mb], 7)
	is("another", sparse[100], 0)
	both(fd, n, sparse, 1<<29)

	// The program unmaps it, and the pages go.
	pattern(sparse[:16*mb], 3)
	ask(fd, toyUnmap, uintptr(n))
	is("16 MiB are there", ask(fd, toySweep) >= 16<<10, true)
	want("munmap", unix.Munmap(sparse), nil)
	is("16 MiB are gone", ask(fd, toySweep) < 8<<10, true)
	isPattern("memory that stays", b, 1)

	// The addresses are used again while the memory is registered that was there before.
	old := anonymous(4 * pageSize)
	n = mapped(fd, old)
	fresh, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&old[0]), 4*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	want("mmap", err, nil)
	is("its address", fresh, unsafe.Pointer(&old[0]))
	pattern(old, 5)
	m = mapped(fd, old)
	both(fd, m, old, 3)
	ask(fd, toyPoke, uintptr(n), 0, 77)
	isPattern("memory at the addresses of another region", old, 5)
	is("that region", ask(fd, toyPeek, uintptr(n), 0), 77)

	// The heap of brk(2), which grows and shrinks.
	brk := func(to uintptr) uintptr { r, _, _ := unix.RawSyscall(unix.SYS_BRK, to, 0, 0); return r }
	begin := (brk(0) + pageSize - 1) &^ (pageSize - 1)
	is("brk", brk(begin+64*pageSize), begin+64*pageSize)
	heap := bytesAt(begin, 64*pageSize)
	pattern(heap, 7)
	n = mapped(fd, heap[10*pageSize+50:20*pageSize])
	m = mapped(fd, heap[60*pageSize+50:])
	is("brk", brk(begin+128*pageSize), begin+128*pageSize)
	is("the heap's new end", *(*byte)(unsafe.Pointer(&bytesAt(begin, 128*pageSize)[100*pageSize])), 0)
	isPattern("the heap", heap, 7)
	both(fd, m, heap[60*pageSize+50:], 3*pageSize)
	is("brk", brk(begin+32*pageSize), begin+32*pageSize)
	is("brk", brk(begin+64*pageSize), begin+64*pageSize)
	is("the heap's new end", bytes.Equal(heap[32*pageSize:], make([]byte, 32*pageSize)), true)
	both(fd, n, heap[10*pageSize+50:], 3)

	// Protection, as of any memory.
	want("mprotect", unix.Mprotect(heap[12*pageSize:13*pageSize], unix.PROT_READ), nil)
	_, err = unix.Read(open("/dev/zero", unix.O_RDONLY), heap[12*pageSize:13*pageSize])
	want("read into memory that is for reading", err, unix.EFAULT)
	want("mprotect", unix.Mprotect(heap[12*pageSize:13*pageSize], unix.PROT_READ|unix.PROT_WRITE), nil)
	isPattern("the heap", heap[:32*pageSize], 7)

	// All numbers are in use: the descriptor of the memfd has no place.
	var limit unix.Rlimit
	want("getrlimit", unix.Getrlimit(unix.RLIMIT_NOFILE, &limit), nil)
	few := limit
	few.Cur = 3
	last := anonymous(pageSize)
	want("setrlimit", unix.Setrlimit(unix.RLIMIT_NOFILE, &few), nil)
	n = ask(fd, toyMap, at(last), pageSize)
	want("setrlimit", unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), nil)
	is("memory that is mapped without a free descriptor", n, 0)
	mapped(fd, last)
	isPattern("a page", last, 1)

	// Nothing of it is visible among the descriptors, and core dumps have it.
	names, err := os.ReadDir("/proc/self/fd")
	want("descriptors", err, nil)
	for _, e := range names {
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(link, "adverb-memory") {
			die("descriptor %s is %s", e.Name(), link)
		}
	}
	list, err := detailedAreas(os.Getpid(), uint64(at(b)), uint64(at(b))+mb)
	want("smaps", err, nil)
	is("areas", len(list) > 0, true)
	is("left out of core dumps", list[0].has("dd"), false)

	// Programs that it starts, by vfork and exec.
	out, err := exec.Command("echo", "hello").Output()
	want("echo", err, nil)
	is("echo", string(out), "hello\n")
	isPattern("memory after it", b, 1)

	// After exec all is as at first.
	if len(os.Args) < 4 {
		exe, _ := os.Executable()
		unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		want("exec", syscall.Exec(exe, []string{"target", "memory", fmt.Sprint(fd), ""}, os.Environ()), nil)
	}
}

// targetKept tries memory that is not replaced.
func targetKept([]string) {
	fd := open(toyNode, unix.O_RDWR)
	m := func(what string, file, prot, flags int) []byte {
		b, err := unix.Mmap(file, 0, 4*pageSize, prot, flags)
		want("mmap of "+what, err, nil)
		return b
	}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	name := filepath.Join(os.Getenv("TMPDIR"), fmt.Sprint("file", os.Getpid()))
	want("write a file", os.WriteFile(name, make([]byte, 4*pageSize), 0o600), nil)
	file := open(name, unix.O_RDWR)
	kept(fd, "a file", m("a file", file, rw, unix.MAP_PRIVATE))
	kept(fd, "a shared file", m("a file", file, rw, unix.MAP_SHARED))
	kept(fd, "shared memory", m("shared memory", -1, rw, unix.MAP_SHARED|unix.MAP_ANON))
	kept(fd, "memory for reading", m("memory", -1, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON))
	kept(fd, "a stack", m("a stack", -1, rw, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_GROWSDOWN)[:pageSize])
	wiped := m("memory", -1, rw, unix.MAP_PRIVATE|unix.MAP_ANON)
	want("madvise", unix.Madvise(wiped, unix.MADV_WIPEONFORK), nil)
	kept(fd, "memory that fork wipes", wiped)
	gap := m("memory", -1, rw, unix.MAP_PRIVATE|unix.MAP_ANON)
	want("munmap", unix.MunmapPtr(unsafe.Pointer(&gap[2*pageSize]), pageSize), nil)
	kept(fd, "memory with a gap", gap)
	is("nothing", ask(fd, toyMap, at(gap), 0), 0)
	is("all", ask(fd, toyMap, at(gap), ^uintptr(0)), 0)
	is("beyond all", ask(fd, toyMap, ^uintptr(0)-10, 5), 0)
	both(fd, mapped(fd, gap[:2*pageSize]), gap, 0)

	// A thread with a filter of its own, which lets all calls pass.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var p program
		allow(&p)
		filter := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
		_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&filter)))
		is("install a filter", e, 0)
		kept(fd, "memory of a thread with a filter", anonymous(pageSize))
	}()
	<-done

	// A ring of io_uring, which has pages of its own of the program's.
	params := make([]byte, 120)
	ring, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, at(params), 0)
	if e != 0 {
		return // the system has none
	}
	rings, err := unix.Mmap(int(ring), 0, pageSize, rw, unix.MAP_SHARED)
	want("mmap of a ring", err, nil)
	fresh := anonymous(pageSize)
	kept(fd, "memory of a program with io_uring", fresh)
	want("munmap", unix.Munmap(rings), nil)
	both(fd, mapped(fd, fresh), fresh, 0)
}

func zeros(what string, b []byte) { is(what, len(bytes.Trim(b, "\x00")), 0) }

func targetAdvice([]string) {
	fd := open(toyNode, unix.O_RDWR)
	b := anonymous(mb)
	n := mapped(fd, b[mb/4:mb/2])
	want("MADV_REMOVE", unix.Madvise(b[mb/4:mb/2], unix.MADV_REMOVE), unix.EINVAL)
	isPattern("memory after MADV_REMOVE", b, 1)
	for _, advice := range []int{unix.MADV_DONTNEED, adviceDontNeedLocked, unix.MADV_FREE} {
		pattern(b, 1)
		want(fmt.Sprint("advice ", advice), unix.Madvise(b[mb/2-pageSize:mb/2+pageSize], advice), nil)
		zeros("a page of both", b[mb/2-pageSize:mb/2])
		if advice != unix.MADV_FREE {
			zeros("a page of the program's alone", b[mb/2:mb/2+pageSize])
		}
		isPattern("memory before", b[:mb/2-pageSize], 1)
		both(fd, n, b[mb/4:], mb/4-1)
	}
	want("a range with a gap", unix.Madvise(b[1:], unix.MADV_DONTNEED), unix.EINVAL)
	want("mlock", unix.Mlock(b[mb/4:mb/4+pageSize]), nil)
	pattern(b, 1)
	want("locked memory", unix.Madvise(b[mb/4:mb/4+pageSize], unix.MADV_DONTNEED), unix.EINVAL)
	isPattern("locked memory", b, 1)
	want("locked memory", unix.Madvise(b[mb/4:mb/4+pageSize], adviceDontNeedLocked), nil)
	zeros("locked memory", b[mb/4:mb/4+pageSize])
	want("munlock", unix.Munlock(b[mb/4:mb/4+pageSize]), nil)
	want("munmap", unix.MunmapPtr(unsafe.Pointer(&b[mb/4+pageSize]), pageSize), nil)
	for _, advice := range []int{unix.MADV_FREE, unix.MADV_DONTNEED} {
		want("a range with a gap", unix.Madvise(b[:mb/2], advice), unix.ENOMEM)
	}

	// Locked memory stays locked, and what fork leaves out.
	locked := anonymous(4 * pageSize)
	want("mlock", unix.Mlock(locked), nil)
	want("madvise", unix.Madvise(locked, unix.MADV_DONTFORK), nil)
	mapped(fd, locked)
	list, err := detailedAreas(os.Getpid(), uint64(at(locked)), uint64(at(locked))+4*pageSize)
	want("smaps", err, nil)
	is("areas", len(list), 1)
	is("locked", list[0].has("lo"), true)
	is("left out by fork", list[0].has("dc"), true)
	isPattern("locked memory", locked, 1)
}

func mremap(addr uintptr, before, after int, flags int) (uintptr, error) {
	r, _, e := unix.Syscall6(unix.SYS_MREMAP, addr, uintptr(before), uintptr(after), uintptr(flags), 0, 0)
	if e != 0 {
		return 0, e
	}
	return r, nil
}

func targetMremap([]string) {
	fd := open(toyNode, unix.O_RDWR)
	room := anonymous(mb)
	want("munmap", unix.MunmapPtr(unsafe.Pointer(&room[4*pageSize]), mb-4*pageSize), nil)
	b := room[:4*pageSize]
	n := mapped(fd, b)
	grow := func(what string, addr uintptr, before, after int) []byte {
		to, err := mremap(addr, before, after, unix.MREMAP_MAYMOVE)
		want(what, err, nil)
		return bytesAt(to, after)
	}
	// In place, and back, and again.
	longer := grow("mremap", at(b), 4*pageSize, 8*pageSize)
	isPattern("what was there", longer[:4*pageSize], 1)
	zeros("what is new", longer[4*pageSize:])
	pattern(longer, 1)
	shorter := grow("mremap", at(longer), 8*pageSize, 4*pageSize)
	longer = grow("mremap", at(shorter), 4*pageSize, 8*pageSize)
	zeros("what is new after what was there", longer[4*pageSize:])
	both(fd, n, longer, 3)
	n = mapped(fd, longer)
	both(fd, n, longer, 5*pageSize)

	// To another place.
	pattern(longer, 1)
	neighbour, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&room[8*pageSize]), pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	want("mmap", err, nil)
	moved := grow("mremap", at(longer), 8*pageSize, 64*pageSize)
	is("it has moved", at(moved) != at(longer), true)
	isPattern("what has moved", moved[:8*pageSize], 1)
	zeros("what is new", moved[8*pageSize:])
	both(fd, n, moved, 5*pageSize)
	m := mapped(fd, moved[10:])
	both(fd, m, moved[10:], 20*pageSize)

	// Where it was is other memory, which cannot have the same pages.
	_, err = unix.MmapPtr(-1, 0, unsafe.Pointer(&room[0]), 8*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	want("mmap", err, nil)
	pattern(room[:8*pageSize], 3)
	k := mapped(fd, room[:8*pageSize])
	both(fd, k, room, 5*pageSize)
	isPattern("the other memory", room[:8*pageSize], 3)
	isPattern("what has moved", moved[:8*pageSize], 1)

	// A neighbour in the file.
	pair := anonymous(8 * pageSize)
	ask(fd, toyUnmap, uintptr(mapped(fd, pair)))
	_, err = mremap(at(pair), 4*pageSize, 6*pageSize, unix.MREMAP_MAYMOVE)
	want("mremap of a part that grows", err, unix.ENOMEM)
	isPattern("memory after that", pair, 1)
	_, err = mremap(at(pair), 0, pageSize, unix.MREMAP_MAYMOVE)
	want("mremap that copies", err, unix.EINVAL)
	part, err := mremap(at(pair)+4*pageSize, 4*pageSize, 4*pageSize, unix.MREMAP_MAYMOVE)
	want("mremap of a part", err, nil)
	is("its place", part, at(pair)+4*pageSize)
	_ = neighbour
}

// inChild is what a child looks at.
type inChild struct {
	region, hidden, readOnly, word unsafe.Pointer
	r, w                           int
	vfork                          bool
}

// clone makes a child by clone or clone3. The child makes raw system calls alone, and ends with what is wrong. It runs no code at
// which Go's scheduler may look up: the other threads of the runtime are not there.
//
//go:norace
//go:nosplit
func clone(number, a, b uintptr, x *inChild) uintptr {
	pid, _, e := unix.RawSyscall6(number, a, b, 0, 0, 0, 0)
	if e != 0 {
		return 0
	}
	if pid == 0 {
		wrong := uintptr(0)
		if x != nil {
			wrong = forked(x)
		}
		unix.RawSyscall(unix.SYS_EXIT_GROUP, wrong, 0, 0)
	}
	return pid
}

// status waits for a child, and returns its exit status.
func status(pid uintptr) int {
	if pid == 0 {
		die("no child")
	}
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(int(pid), &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		want("wait for a child", err, nil)
		if ws.Signaled() {
			die("a child ended by signal %d", ws.Signal())
		}
		return ws.ExitStatus()
	}
}

func targetForks([]string) {
	runtime.LockOSThread()
	fd := open(toyNode, unix.O_RDWR)
	b := anonymous(mb)
	region := b[mb/4+8 : mb/2]
	n := mapped(fd, region)
	want("mprotect", unix.Mprotect(b[mb/4+pageSize:mb/4+2*pageSize], unix.PROT_READ), nil)
	hidden := anonymous(pageSize)
	want("madvise", unix.Madvise(hidden, unix.MADV_DONTFORK), nil)
	mapped(fd, hidden)
	var p [2]int
	want("pipe", unix.Pipe2(p[:], unix.O_CLOEXEC), nil)
	back := make([]byte, 1)
	word := unsafe.Pointer(&back[0])
	args := &struct{ flags, pidfd, tid, parent, exit, stack, size, tls uint64 }{exit: uint64(unix.SIGCHLD)}
	for name, number := range map[string][3]uintptr{
		"fork":   {unix.SYS_CLONE, uintptr(unix.SIGCHLD)},
		"clone3": {unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args)},
		"clone":  {unix.SYS_CLONE, 0}, // whose end is told by no signal
		"vfork":  {unix.SYS_CLONE, uintptr(unix.SIGCHLD) | unix.CLONE_VFORK},
	} {
		region[0] = 10
		x := &inChild{unsafe.Pointer(&region[0]), unsafe.Pointer(&hidden[0]), unsafe.Pointer(&b[mb/4+pageSize]), word, p[0], p[1], name == "vfork"}
		pid := clone(number[0], number[1], number[2], x)
		region[0] = 20 // the child has 10 for ever
		if !x.vfork {
			_, err := unix.Write(p[1], []byte{1})
			want("write", err, nil)
		}
		if name == "clone" {
			var ws unix.WaitStatus
			_, err := unix.Wait4(int(pid), &ws, unix.WALL, nil)
			want("wait", err, nil)
			is(name+": the child's status", ws, 0)
		} else {
			is(name+": the child's status", status(pid), 0)
		}
		is(name+": what the child wrote is not here", region[0], 20)
		both(fd, n, region, 0)
	}
	runtime.KeepAlive(args)
	// A fork that fails.
	var limit unix.Rlimit
	want("getrlimit", unix.Getrlimit(unix.RLIMIT_NPROC, &limit), nil)
	if os.Geteuid() != 0 {
		few := limit
		few.Cur = 1
		want("setrlimit", unix.Setrlimit(unix.RLIMIT_NPROC, &few), nil)
		_, _, e := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
		is("fork beyond the limit", e, unix.EAGAIN)
		want("setrlimit", unix.Setrlimit(unix.RLIMIT_NPROC, &limit), nil)
	}
	both(fd, n, region, 0)
}

// forked is a child. It returns the first fault.
//
//go:norace
//go:nosplit
func forked(x *inChild) uintptr {
	region, readOnly := x.region, x.readOnly
	if !x.vfork {
		unix.RawSyscall(unix.SYS_READ, uintptr(x.r), uintptr(x.word), 1) // the parent has written to the region
	}
	if *(*byte)(region) != 10 {
		return 1
	}
	*(*byte)(region) = 30
	if _, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(x.w), uintptr(x.hidden), 1); e != unix.EFAULT {
		return 2 // memory that fork leaves out
	}
	if _, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(x.r), uintptr(readOnly), 0); e != 0 {
		return 3
	}
	if _, _, e := unix.RawSyscall(unix.SYS_GETRANDOM, uintptr(readOnly), 1, 0); e != unix.EFAULT {
		return 4 // memory for reading
	}
	// A child of the child.
	pid, _, e := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	if e != 0 {
		return 5
	}
	if pid == 0 {
		if *(*byte)(region) != 30 {
			return 6
		}
		*(*byte)(region) = 40
		return 0
	}
	status := (*uint32)(unsafe.Add(region, 64))
	unix.RawSyscall6(unix.SYS_WAIT4, pid, uintptr(unsafe.Pointer(status)), 0, 0, 0, 0)
	if *status != 0 {
		return uintptr(*status >> 8)
	}
	if *(*byte)(region) != 30 {
		return 7
	}
	return 0
}
