//go:build amd64 || arm64

package supervisor

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// targets are what this binary does as a target: os.Exit(1) after a word is a failure.
var targets = map[string]func(args []string){
	"number":       func([]string) { fmt.Println("number", open(toyNode, unix.O_RDWR), open(toyMem, unix.O_RDWR)) },
	"descriptors":  targetDescriptors,
	"release":      targetRelease,
	"receiver":     targetReceiver,
	"paths":        targetPaths,
	"signals":      targetSignals,
	"wait":         targetWait,
	"closing":      targetClosing,
	"surroundings": targetSurroundings,
	"sleeper":      targetSleeper,
	"terminal":     targetTerminal,
	"session":      targetSession,
	"hostile":      targetHostile,
	"cost":         targetCost,
	"memory":       targetMemory,
	"kept":         targetKept,
	"advice":       targetAdvice,
	"mremap":       targetMremap,
	"forks":        targetForks,
	"blocked":      targetBlocked,
	"late":         targetLate,
	"unstoppable":  targetUnstoppable,
	"stopped":      targetStopped,
	"remapper":     targetRemapper,
	"debugged":     targetDebugged,
	"seized":       targetSeized,
	"chaos":        targetChaos,
	"mapcost":      targetMapCost,
}

func target(mode string, args []string) {
	f := targets[mode]
	if f == nil {
		die("no target %q", mode)
	}
	f(args)
	fmt.Println("ok")
}

func die(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "target: "+format+"\n", args...)
	os.Exit(1)
}

// want fails the target unless an error is the expected one.
func want(what string, got, wanted error) {
	if got != wanted {
		die("%s: got error %v, want %v", what, got, wanted)
	}
}

func is[T comparable](what string, got, wanted T) {
	if got != wanted {
		die("%s: got %v, want %v", what, got, wanted)
	}
}

func open(path string, flags int) int {
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		die("open %s: %v", path, err)
	}
	return fd
}

func ioctl(fd int, request uintptr, arg uintptr) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}

// id is the number of the open file.
func id(fd int) int {
	n, err := ioctl(fd, toyID, 0)
	want(fmt.Sprintf("ask descriptor %d for its file", fd), err, nil)
	return n
}

func watched(fd int) bool { return fd >= rangeTop-rangeSize && fd < rangeTop }

func targetDescriptors([]string) {
	a := open(toyNode, unix.O_RDWR)
	is("the number is in the range", watched(a), true)
	flags, _ := unix.FcntlInt(uintptr(a), unix.F_GETFD, 0)
	is("close-on-exec", flags, 0)

	var st unix.Stat_t
	want("fstat", unix.Fstat(a, &st), nil)
	is("mode", st.Mode, unix.S_IFCHR|0o666)
	is("rdev", st.Rdev, unix.Mkdev(toyMajor, 192))
	want("newfstatat of a descriptor", unix.Fstatat(a, "", &st, unix.AT_EMPTY_PATH), nil)
	is("rdev", st.Rdev, unix.Mkdev(toyMajor, 192))
	var stx unix.Statx_t
	want("statx of a descriptor", unix.Statx(a, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &stx), nil)
	is("rdev", [2]uint32{stx.Rdev_major, stx.Rdev_minor}, [2]uint32{toyMajor, 192})

	n, err := unix.Write(a, []byte("hello"))
	want("write", err, nil)
	is("written", n, 5)
	p := []unix.PollFd{{Fd: int32(a), Events: unix.POLLIN}}
	n, err = unix.Poll(p, 0)
	want("poll", err, nil)
	is("ready", n, 1)
	b := make([]byte, 16)
	var set unix.FdSet
	set.Set(a)
	n, err = unix.Select(a+1, &set, nil, nil, nil)
	want("select", err, nil)
	is("selected", n, 1)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	want("epoll_create1", err, nil)
	want("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, a, &unix.EpollEvent{Events: unix.EPOLLIN}), nil)
	n, err = unix.EpollWait(ep, make([]unix.EpollEvent, 2), -1)
	want("epoll_wait", err, nil)
	is("epoll_wait", n, 1)
	unix.Close(ep)
	n, err = unix.Read(a, b)
	want("read", err, nil)
	is("read", string(b[:n]), "hello")
	_, err = unix.Write(a, []byte("fail"))
	want("a write that fails", err, unix.EXDEV)
	n, err = unix.Writev(a, [][]byte{nil, []byte("first"), []byte("second")})
	want("writev", err, nil)
	is("writev", n, 5)
	n, err = unix.Readv(a, [][]byte{b[:3], b[3:]})
	want("readv", err, nil)
	is("readv", n, 5)
	_, _, e := unix.Syscall(unix.SYS_WRITE, uintptr(a), 0x10, 8)
	is("write from nowhere", e, unix.EFAULT)
	_, err = unix.Pread(a, b, 0)
	want("pread", err, unix.ESPIPE)
	_, err = unix.Seek(a, 0, unix.SEEK_SET)
	want("lseek", err, unix.ESPIPE)

	x := uint64(21)
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	want("mmap", err, nil)
	later := (*uint64)(unsafe.Pointer(&page[0]))
	*later = 21
	_, err = ioctl(a, toyTwice, uintptr(unsafe.Pointer(&x)))
	want("ioctl", err, nil)
	is("ioctl", x, 42)
	_, err = ioctl(a, toyLater, uintptr(unsafe.Pointer(later)))
	want("ioctl", err, nil)
	id(a) // the thread that answers is through with it
	is("memory that was written after the answer", *later, 42)
	_, err = ioctl(a, toyTwice, 0x10)
	want("ioctl with a bad address", err, unix.EFAULT)
	_, err = ioctl(a, unix.TIOCGWINSZ, uintptr(unsafe.Pointer(&x)))
	want("isatty", err, unix.ENOTTY)
	got, err := ioctl(a, toyPID, 0)
	want("ioctl", err, nil)
	is("TGID", got, os.Getpid())
	got, err = ioctl(a, toySlow, 0)
	want("slow ioctl", err, nil)
	is("slow ioctl", got, 42)
	_, err = ioctl(a, toyMute, 0)
	want("ioctl without an answer", err, unix.EIO)
	on := int32(1)
	_, err = ioctl(a, fioNBIO, uintptr(unsafe.Pointer(&on)))
	want("FIONBIO", err, nil)
	_, err = ioctl(a, toyWait, 0)
	want("waiting with O_NONBLOCK", err, unix.EAGAIN)
	_, err = unix.Read(a, b)
	want("read with O_NONBLOCK", err, unix.EAGAIN)
	nb := open(toyNode, unix.O_RDWR|unix.O_NONBLOCK)
	_, err = ioctl(nb, toyWait, 0)
	want("waiting, opened with O_NONBLOCK", err, unix.EAGAIN)
	unix.Close(nb)

	// Copies.
	i := id(a)
	d, err := unix.Dup(a)
	want("dup", err, nil)
	is("dup is in the range", watched(d), true)
	is("the file of dup", id(d), i)
	want("set O_NONBLOCK", unix.SetNonblock(d, false), nil)
	fl, _ := unix.FcntlInt(uintptr(a), unix.F_GETFL, 0)
	if os.Getenv("TOY_DENY") == "" {
		is("O_NONBLOCK is shared", fl&unix.O_NONBLOCK, 0)
	}
	f, err := unix.FcntlInt(uintptr(a), unix.F_DUPFD_CLOEXEC, 3)
	want("F_DUPFD_CLOEXEC", err, nil)
	is("the copy is in the range", watched(f), true)
	is("its file", id(f), i)
	flags, _ = unix.FcntlInt(uintptr(f), unix.F_GETFD, 0)
	is("close-on-exec", flags, unix.FD_CLOEXEC)
	_, err = unix.FcntlInt(uintptr(a), unix.F_DUPFD, rangeTop)
	want("F_DUPFD above the range", err, unix.EMFILE)
	free := rangeTop - nativeSize // the lowest of those that are notified
	want("dup3 into the range", unix.Dup3(a, free, unix.O_CLOEXEC), nil)
	is("its file", id(free), i)
	want("dup3 out of the range", unix.Dup3(a, 20, 0), unix.EMFILE)
	want("dup3 onto itself", unix.Dup3(a, a, 0), unix.EINVAL)

	// A number means another file once it was closed, or dup went over it.
	c := open(toyNode, unix.O_RDWR|unix.O_CLOEXEC)
	j := id(c)
	if i == j {
		die("two opens are one file: %d", i)
	}
	want("dup3 over a device", unix.Dup3(a, c, 0), nil)
	is("its file", id(c), i)
	null := open("/dev/null", unix.O_RDWR)
	want("dup3 of another file over a device", unix.Dup3(null, c, 0), nil)
	n, err = unix.Write(c, []byte("fail"))
	want("write to /dev/null on a number of the range", err, nil)
	is("written", n, 4)
	want("fstat", unix.Fstat(c, &st), nil)
	is("rdev of /dev/null", st.Rdev, unix.Mkdev(1, 3))

	// The memfd.
	m := open(toyMem, unix.O_RDWR)
	is("the part of the range", m < rangeTop-nativeSize && m >= rangeTop-rangeSize, true)
	mem, err := unix.Mmap(m, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	want("mmap", err, nil)
	n, err = unix.Write(m, []byte(strings.Repeat("x", 32)))
	want("native write", err, nil)
	is("native write", n, 32)
	is("what it wrote", string(mem[:33]), strings.Repeat("x", 32)+"\x00")
	n, err = unix.Write(m, []byte("12345"))
	want("write", err, nil)
	is("write", n, 5)
	is("write is the device's", mem[32], 0)
	want("dup3 anywhere", unix.Dup3(m, 20, 0), nil)
	is("its file", id(20), id(m))
	reopened := open(fmt.Sprintf("/proc/self/fd/%d", m), unix.O_RDWR)
	if id(reopened) == id(m) {
		die("a reopened device is the same file")
	}

	// All numbers.
	var all []int
	for {
		fd, err := unix.Open(toyNode, unix.O_RDWR, 0)
		if err != nil {
			want("open with all numbers in use", err, unix.EMFILE)
			break
		}
		all = append(all, fd)
	}
	is("numbers", len(all) > 20 && len(all) <= nativeSize, true)
	_, err = unix.Dup(a)
	want("dup with all numbers in use", err, unix.EMFILE)
	want("close", unix.Close(all[3]), nil)
	is("the number that is free again", open(toyNode, unix.O_RDWR), all[3])

	_, err = unix.Open(toyNode, unix.O_WRONLY, 0)
	want("an open that the device refuses", err, unix.EPERM)
	_, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_RDMA)
	want("a rule that denies", err, unix.EPROTONOSUPPORT)
	prio, _, e := unix.RawSyscall(unix.SYS_GETPRIORITY, 77, 1000, 0)
	is("a rule that notifies", e, 0)
	is("a rule that notifies", prio, 1001)
	_, _, e = unix.RawSyscall(unix.SYS_GETPRIORITY, 0, 0, 0)
	is("a rule that does not hold", e, 0)
}
