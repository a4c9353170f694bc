//go:build amd64 || arm64

package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blocking is a system call that waits until it is released.
type blocking struct {
	name    string
	number  int // of the call
	wait    func() error
	release func()
}

func fails(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// blockings are calls that wait in the kernel.
func blockings() (list []blocking) {
	b := make([]byte, 1)
	pipe := func() (r int, release func()) {
		var p [2]int
		want("pipe", unix.Pipe2(p[:], unix.O_CLOEXEC), nil)
		return p[0], func() { unix.Write(p[1], b) }
	}
	add := func(name string, number int, wait func() error, release func()) {
		list = append(list, blocking{name, number, wait, release})
	}
	r, release := pipe()
	add("read", unix.SYS_READ, func() error { _, err := unix.Read(r, make([]byte, 1)); return err }, release)
	r2, release := pipe()
	add("ppoll", unix.SYS_PPOLL, func() error {
		_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(r2), Events: unix.POLLIN}}, &unix.Timespec{Sec: 30}, nil)
		return err
	}, release)
	r3, release := pipe()
	add("pselect", unix.SYS_PSELECT6, func() error {
		var set unix.FdSet
		set.Set(r3)
		_, err := unix.Pselect(r3+1, &set, nil, nil, &unix.Timespec{Sec: 30}, nil)
		return err
	}, release)
	for _, number := range []int{unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2} {
		r, release := pipe()
		ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		want("epoll_create1", err, nil)
		want("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, r, &unix.EpollEvent{Events: unix.EPOLLIN}), nil)
		add(fmt.Sprint("epoll ", number), number, func() error {
			var events [1]unix.EpollEvent
			timeout := uintptr(30000)
			if number == unix.SYS_EPOLL_PWAIT2 {
				timeout = 0 // no end
			}
			_, _, e := unix.Syscall6(uintptr(number), uintptr(ep), uintptr(unsafe.Pointer(&events)), 1, timeout, 0, 8)
			return fails(e)
		}, release)
	}
	for _, private := range []uintptr{0, 128} {
		word := new(atomic.Uint32)
		futex := func(op, val uintptr, timeout *unix.Timespec) unix.Errno {
			_, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op|private, val, uintptr(unsafe.Pointer(timeout)), 0, 0)
			return e
		}
		// A thread that was stopped begins to wait again some time later, and a wake-up before that finds nobody: so the word
		// tells of it too.
		add(fmt.Sprint("futex ", private), unix.SYS_FUTEX, func() error {
			e := futex(0, 0, &unix.Timespec{Sec: 30})
			if e == unix.EAGAIN && word.Load() == 1 {
				e = 0
			}
			return fails(e)
		}, func() {
			word.Store(1)
			futex(1, 1, nil)
		})
	}
	for _, timeout := range []int64{0, 30} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		want("socketpair", err, nil)
		want("SO_RCVTIMEO", unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}), nil)
		add(fmt.Sprint("recvfrom with a timeout of ", timeout), unix.SYS_RECVFROM, func() error {
			_, _, err := unix.Recvfrom(pair[0], make([]byte, 1), 0)
			return err
		}, func() { unix.Write(pair[1], b) })
	}
	var awake atomic.Bool
	add("clock_nanosleep", unix.SYS_CLOCK_NANOSLEEP, func() error {
		for !awake.Load() { // one sleep might be over before anybody looks
			begin := time.Now()
			if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &unix.Timespec{Nsec: 500e6}, nil); err != nil {
				return err
			}
			if d := time.Since(begin); d < 500*time.Millisecond {
				die("slept %v, want half a second", d)
			}
		}
		return nil
	}, func() { awake.Store(true) })
	sem, _, e := unix.Syscall(unix.SYS_SEMGET, 0, 1, 0o600)
	if e == 0 {
		op := func(n int16) error {
			ops := [3]int16{0, n, 0}
			_, _, e := unix.Syscall(unix.SYS_SEMOP, sem, uintptr(unsafe.Pointer(&ops)), 1)
			return fails(e)
		}
		add("semop", unix.SYS_SEMOP, func() error {
			defer unix.Syscall(unix.SYS_SEMCTL, sem, 0, unix.IPC_RMID) // else it is there after the program
			return op(-1)
		}, func() { op(1) })
	}
	cat := exec.Command("cat")
	stdin, err := cat.StdinPipe()
	want("pipe", err, nil)
	want("start cat", cat.Start(), nil)
	add("wait4", unix.SYS_WAIT4, func() error { _, err := unix.Wait4(cat.Process.Pid, nil, 0, nil); return err }, func() { stdin.Close() })
	return list
}

// blocked are threads that wait in system calls.
type blocked struct {
	list    []blocking
	results []error
	all     sync.WaitGroup
}

// block begins threads, and returns when they wait.
func block() *blocked {
	list := blockings()
	b := &blocked{list: list, results: make([]error, len(list))}
	tids := make([]atomic.Int64, len(list))
	// A signal's handler ends some of these calls with EINTR, whoever looks on, and cat's end brings a signal.
	noChild := unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGCHLD - 1)}}
	for i, x := range list {
		b.all.Go(func() {
			runtime.LockOSThread()
			want("block SIGCHLD", unix.PthreadSigmask(unix.SIG_BLOCK, &noChild, nil), nil)
			tids[i].Store(int64(unix.Gettid()))
			b.results[i] = x.wait()
		})
	}
	for i, x := range list {
		for end := time.Now().Add(patience); ; runtime.Gosched() {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tids[i].Load()))
			if strings.HasPrefix(string(b), strconv.Itoa(x.number)+" ") {
				break
			}
			if time.Now().After(end) {
				die("%s: the thread does not wait: %s", x.name, b)
			}
		}
	}
	return b
}

// release ends the calls, in which nobody has noticed anything.
func (b *blocked) release() {
	for _, x := range b.list {
		x.release()
	}
	b.all.Wait()
	for i, x := range b.list {
		want(x.name, b.results[i], nil)
	}
}

// targetBlocked has threads wait in system calls while memory is replaced.
func targetBlocked([]string) {
	fd := open(toyNode, unix.O_RDWR)
	threads := block()
	for range 5 {
		b := anonymous(64 << 10)
		both(fd, mapped(fd, b), b, 1)
	}
	threads.release()
	if sem := slices.IndexFunc(threads.list, func(x blocking) bool { return x.name == "semop" }); sem < 0 {
		fmt.Println("no semaphores")
	}
}

// targetLate has threads wait in system calls until its input ends.
func targetLate([]string) {
	threads := block()
	fmt.Println("they wait")
	os.Stdin.Read(make([]byte, 1))
	threads.release()
}

// targetUnstoppable has a thread wait for a child of vfork(2), where nothing stops it. So the other threads are stopped in vain.
func targetUnstoppable([]string) {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) // Go does not know that the thread waits
	debug.SetGCPercent(-1)
	fd := open(toyNode, unix.O_RDWR)
	threads := block()
	var ready, end [2]int
	want("pipe", unix.Pipe2(ready[:], unix.O_CLOEXEC), nil)
	want("pipe", unix.Pipe2(end[:], unix.O_CLOEXEC), nil)
	word := make([]byte, 1)
	child := make(chan uintptr)
	go func() {
		runtime.LockOSThread()
		child <- vfork(ready[1], end[0], unsafe.Pointer(&word[0]))
	}()
	_, err := unix.Read(ready[0], make([]byte, 1))
	want("read", err, nil)
	for range 3 {
		kept(fd, "memory of a program with a thread that does not stop", anonymous(pageSize))
	}
	_, err = unix.Write(end[1], []byte{1})
	want("write", err, nil)
	_, err = unix.Wait4(int(<-child), nil, unix.WALL, nil)
	want("wait for the child", err, nil)
	b := anonymous(pageSize)
	both(fd, mapped(fd, b), b, 1)
	threads.release()
}

// vfork makes a child that writes a byte and reads one, for the end of which the thread waits. No signal tells of the end.
//
//go:norace
//go:nosplit
func vfork(ready, end int, word unsafe.Pointer) uintptr {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK, 0, 0, 0, 0, 0)
	if e == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_WRITE, uintptr(ready), uintptr(word), 1)
		unix.RawSyscall(unix.SYS_READ, uintptr(end), uintptr(word), 1)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return pid
}

// targetRemapper maps fresh memory until its input ends, or once for each byte of the input: "each", or "blocked" where threads wait
// in system calls meanwhile.
func targetRemapper(args []string) {
	fd := open(toyNode, unix.O_RDWR)
	if len(args) > 0 {
		in := bufio.NewReader(os.Stdin)
		if args[0] == "blocked" {
			defer block().release()
		}
		for {
			if _, err := in.ReadByte(); err == io.EOF {
				return
			}
			b := anonymous(pageSize)
			fmt.Println("mapped", ask(fd, toyMap, at(b), pageSize) != 0)
			isPattern("memory", b, 1)
		}
	}
	var over atomic.Bool
	go func() {
		os.Stdin.Read(make([]byte, 1))
		over.Store(true)
	}()
	fmt.Println("begins")
	for !over.Load() {
		b := anonymous(4 * pageSize)
		n := ask(fd, toyMap, at(b), 4*pageSize)
		isPattern("memory", b, 1)
		if n != 0 {
			both(fd, n, b, 2*pageSize)
			ask(fd, toyUnmap, uintptr(n))
		}
		want("munmap", unix.Munmap(b), nil)
	}
}

// remapper starts a target that maps memory.
func remapper(args ...string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Reader) {
	exe, err := os.Executable()
	want("executable", err, nil)
	cmd = exec.Command(exe)
	cmd.Args = append([]string{"target", "remapper"}, args...)
	cmd.Stderr = os.Stderr
	in, err = cmd.StdinPipe()
	want("pipe", err, nil)
	r, err := cmd.StdoutPipe()
	want("pipe", err, nil)
	want("start", cmd.Start(), nil)
	return cmd, in, bufio.NewReader(r)
}

// targetStopped stops and continues a program that maps memory all the time.
func targetStopped([]string) {
	cmd, in, out := remapper()
	line, err := out.ReadString('\n')
	want("read", err, nil)
	is("the program", line, "begins\n")
	var ws unix.WaitStatus
	wait := func(flag int) {
		pid, err := unix.Wait4(cmd.Process.Pid, &ws, flag, nil)
		want("wait", err, nil)
		is("who", pid, cmd.Process.Pid)
	}
	for range 100 {
		want("stop", cmd.Process.Signal(unix.SIGSTOP), nil)
		wait(unix.WUNTRACED)
		is("stopped", ws.Stopped(), true)
		want("continue", cmd.Process.Signal(unix.SIGCONT), nil)
		wait(unix.WCONTINUED)
		is("continued", ws.Continued(), true)
	}
	in.Close()
	want("the program's end", cmd.Wait(), nil)
}

// mapsOne has a remapper map memory, and expects that it can or cannot.
func mapsOne(in io.Writer, out *bufio.Reader, what string, wanted bool) {
	_, err := in.Write([]byte{'x'})
	want("write", err, nil)
	line, err := out.ReadString('\n')
	want("read", err, nil)
	is(what, line, fmt.Sprintln("mapped", wanted))
}

// targetDebugged debugs a program that maps memory.
func targetDebugged([]string) {
	runtime.LockOSThread()
	cmd, in, out := remapper("each")
	pid := cmd.Process.Pid
	mapsOne(in, out, "memory of a program without a debugger", true)
	list, err := threadsOf(pid)
	want("threads", err, nil)
	for _, tid := range list {
		want("a debugger attaches", ptrace(unix.PTRACE_SEIZE, tid, 0, 0), nil)
	}
	mapsOne(in, out, "memory of a program with a debugger", false)
	for _, tid := range list {
		want("interrupt", ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0), nil)
		_, err := unix.Wait4(tid, nil, unix.WALL, nil)
		want("wait", err, nil)
		want("detach", ptrace(unix.PTRACE_DETACH, tid, 0, 0), nil)
	}
	mapsOne(in, out, "memory of a program without a debugger", true)
	in.Close()
	want("the program's end", cmd.Wait(), nil)
}

// targetSeized has a debugger for the last of the threads that wait in system calls. So the others are stopped in vain.
func targetSeized([]string) {
	runtime.LockOSThread()
	cmd, in, out := remapper("blocked")
	mapsOne(in, out, "memory of a program without a debugger", true)
	list, err := threadsOf(cmd.Process.Pid)
	want("threads", err, nil)
	last := 0
	for _, tid := range list {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
		want("status", err, nil)
		if mask, _ := strconv.ParseUint(statusField(string(b), "SigBlk:"), 16, 64); mask == 1<<(unix.SIGCHLD-1) {
			last = tid
		}
	}
	want("a debugger attaches", ptrace(unix.PTRACE_SEIZE, last, 0, 0), nil)
	mapsOne(in, out, "memory of a program with a debugger", false)
	in.Close()
	_, err = unix.Wait4(last, nil, unix.WALL, nil)
	want("the thread's end", err, nil)
	want("the program's end", cmd.Wait(), nil)
}

// targetChaos changes memory in all ways while it is registered and written to, by several threads and by a seed.
func targetChaos(args []string) {
	seed, _ := strconv.ParseUint(args[0], 10, 64)
	rounds, _ := strconv.Atoi(args[1])
	fd := open(toyNode, unix.O_RDWR)
	const pages = 64
	arena := at(anonymous(pages * pageSize))
	var all sync.WaitGroup
	for thread := range 4 {
		all.Go(func() {
			runtime.LockOSThread()
			r := rand.New(rand.NewPCG(seed, uint64(thread)))
			for range rounds {
				n := uintptr(1 + r.IntN(8))
				from := arena + uintptr(r.IntN(pages-int(n)))*pageSize
				size := n * pageSize
				switch r.IntN(10) {
				case 0, 1:
					unix.Syscall6(unix.SYS_MMAP, from, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED, ^uintptr(0), 0)
				case 2:
					unix.Syscall(unix.SYS_MUNMAP, from, size, 0)
				case 3:
					unix.Syscall(unix.SYS_MPROTECT, from, size, uintptr(r.IntN(4)))
				case 4:
					unix.Syscall(unix.SYS_MADVISE, from, size, []uintptr{unix.MADV_DONTNEED, unix.MADV_FREE, unix.MADV_REMOVE, unix.MADV_DONTFORK}[r.IntN(4)])
				case 5:
					to := arena + uintptr(r.IntN(pages-8))*pageSize
					unix.Syscall6(unix.SYS_MREMAP, from, size, pageSize*uintptr(1+r.IntN(8)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to, 0)
				case 6:
					if r.IntN(4) == 0 {
						pid := clone(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, nil)
						if pid != 0 {
							is("a child's status", status(pid), 0)
						}
					}
				case 7:
					ioctl(fd, toyUnmap, words(uintptr(r.IntN(20))))
				case 8:
					ioctl(fd, toyPoke, words(uintptr(r.IntN(20)), uintptr(r.IntN(int(size)))))
				default:
					ioctl(fd, toyMap, words(from+uintptr(r.IntN(100)), size-100))
				}
			}
		})
	}
	all.Wait()
	b := anonymous(pageSize)
	both(fd, mapped(fd, b), b, 5)
}

// words are words in memory that stays in its place.
func words(list ...uintptr) uintptr {
	w := make([]uintptr, 3)
	copy(w, list)
	escapes.Store(&w[0])
	kept := &w[0]
	wordsMu.Lock()
	defer wordsMu.Unlock()
	allWords = append(allWords, kept)
	return uintptr(unsafe.Pointer(kept))
}

var (
	wordsMu  sync.Mutex
	allWords []*uintptr
)

// targetMapCost prints what registering, forking and advice take.
func targetMapCost([]string) {
	fd := open(toyNode, unix.O_RDWR)
	say := func(what string, rounds int, f func()) {
		least, sum := time.Hour, time.Duration(0)
		for range rounds {
			begin := time.Now()
			f()
			d := time.Since(begin)
			sum += d
			least = min(least, d)
		}
		fmt.Printf("%-40s least %v, mean %v\n", what, least, sum/time.Duration(rounds))
	}
	fork := func() { status(clone(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, nil)) }
	one := anonymous(pageSize)
	dontNeed := func() { unix.Madvise(one, unix.MADV_DONTNEED) }
	say("fork, nothing replaced", 50, fork)
	say("MADV_DONTNEED, nothing replaced", 1000, dontNeed)
	say("MADV_COLD, which is not notified", 1000, func() { unix.Madvise(one, unix.MADV_COLD) })
	for _, size := range []int{pageSize, 64 << 10, mb, 16 * mb, 128 * mb} {
		rounds := 50
		if size > mb {
			rounds = 5
		}
		var all [][]byte
		for range rounds {
			all = append(all, anonymous(size))
		}
		i := 0
		say(fmt.Sprintf("map %d KiB", size>>10), rounds, func() { mapped(fd, all[i]); i++ })
		i = 0
		say(fmt.Sprintf("map %d KiB that are replaced", size>>10), rounds, func() { mapped(fd, all[i]); i++ })
		i = 0
		say(fmt.Sprintf("touch %d KiB that are replaced", size>>10), rounds, func() {
			for j := 0; j < size; j += pageSize {
				all[i][j]++
			}
			i++
		})
		for _, b := range all {
			want("munmap", unix.Munmap(b), nil)
		}
	}
	mapped(fd, anonymous(mb))
	say("fork, 1 MiB replaced", 50, fork)
	say("MADV_DONTNEED, others replaced", 1000, dontNeed)
	mapped(fd, one)
	say("MADV_DONTNEED, replaced", 1000, dontNeed)
	mapped(fd, anonymous(100*mb))
	say("fork, 101 MiB replaced", 5, fork)
}
