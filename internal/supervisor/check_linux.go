//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Check says what this machine and this process's surroundings allow. It changes nothing.
func Check() []Finding {
	list := checkListener()
	list = append(list, checkMemory()...)
	return append(list, checkTrace(), checkScope(yamaScope, hasPtrace()), checkCopy(), checkFiles(), checkQueues(), checkProc(), checkInotify(),
		checkTemporary(), checkCores())
}

// found makes a finding of an error.
func found(name string, needed bool, err error, lost, remedy string) Finding {
	f := Finding{Name: name, OK: err == nil, Needed: needed}
	if err != nil {
		f.Lost = fmt.Sprintf("%s (%v)", lost, err)
		f.Remedy = remedy
	}
	return f
}

// checkListener tries it all on a thread of its own, which ends with its filter.
func checkListener() []Finding {
	result := make(chan []Finding)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- tryListener()
	}()
	return <-result
}

func tryListener() []Finding {
	const (
		nothing = "no program can be run"
		newer   = "a newer kernel"
	)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return []Finding{found("no_new_privs", true, err, nothing, "allow prctl(PR_SET_NO_NEW_PRIVS)")}
	}
	var filter program
	allow(&filter)
	try := func(flags uintptr) (int, unix.Errno) {
		p := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		r, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
		return int(r), e
	}
	fd, killable := try(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	e := killable
	if e == unix.EINVAL {
		fd, e = try(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	list := []Finding{found("seccomp listener", true, errOrNil(e), nothing, refusal(e))}
	if e != 0 {
		return list
	}
	l := Listener{FD: fd}
	defer l.Close()
	_, e = l.ioctl(ioctlAddFD, unsafe.Pointer(&addFD{flags: unix.SECCOMP_ADDFD_FLAG_SEND, source: uint32(fd)}))
	if e == unix.ENOENT { // there is no such notification, which is the last that the kernel looks at
		e = 0
	}
	_, sizes := notificationSize()
	return append(list,
		found("injected descriptors", true, errOrNil(e), nothing, newer+": Linux 5.14"),
		found("notification size", true, sizes, nothing, newer+": Linux 5.0"),
		found("WAIT_KILLABLE_RECV", false, errOrNil(killable), "a signal may take a call back while it is being answered, so that it is done twice", newer+": Linux 5.19"),
	)
}

func errOrNil(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

var checkWord = uint64(42)

func checkMemory() []Finding {
	b := make([]byte, 8)
	addr := uint64(uintptr(unsafe.Pointer(&checkWord))) // not of the stack, which may move
	_, byCallErr := byCall(os.Getpid(), addr, b, false)
	_, byFileErr := byFile(os.Getpid(), addr, b, false)
	either := byCallErr
	if byFileErr == nil {
		either = nil
	}
	const remedy = "allow process_vm_readv and process_vm_writev, as the capability SYS_PTRACE does in a container's profile"
	return []Finding{
		found("memory of the program", true, either, "no device can be used", remedy+", or mount /proc"),
		found("process_vm_readv", false, byCallErr, "each access to the program's memory takes longer, by /proc/PID/mem", remedy),
	}
}

// checkTrace says whether memory of the target can be this process's too.
func checkTrace() Finding {
	err := errNoTrace
	remedy := ""
	if canTrace {
		err, remedy = triesTrace(), "Linux 5.19, and ptrace, as the capability SYS_PTRACE allows it in a container's profile"
	}
	return found("mapped memory", false, err, "devices reach the program's memory by copies, which take longer", remedy)
}

// triesTrace traces a process that is there for that.
var triesTrace = sync.OnceValue(func() error {
	if !hasKillable() {
		return errors.ErrUnsupported
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(p[1]) // and the process ends
	pid, err := syscall.ForkExec("/proc/self/exe", []string{idleName, "", ""}, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{uintptr(p[0])}})
	unix.Close(p[0])
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	defer unix.Wait4(pid, nil, 0, nil)
	defer unix.Kill(pid, unix.SIGKILL)
	return trace(func(t *tracer) error { return t.seize(pid, 0) })
})

// hasKillable reports whether the kernel knows WAIT_KILLABLE_RECV: then it looks for the filter, which is not there.
func hasKillable() bool {
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0)
	return e == unix.EFAULT
}

// yamaScope is where Yama says who may look into whose memory.
const yamaScope = "/proc/sys/kernel/yama/ptrace_scope"

// checkScope looks at Yama, which may keep processes from one another: 1 allows it to ancestors, as the supervisor is one, 2
// to those with CAP_SYS_PTRACE, and 3 to nobody until the next boot.
func checkScope(file string, ptrace bool) Finding {
	f := Finding{Name: "yama", OK: true}
	b, err := os.ReadFile(file)
	if err != nil {
		return f
	}
	scope, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case scope == 1 && !ptrace:
		f.OK = false
		f.Lost = "each run has a supervisor of its own, so that programs of two runs talk to each other more slowly: kernel.yama.ptrace_scope is 1"
		f.Remedy = "sysctl kernel.yama.ptrace_scope=0, or the capability SYS_PTRACE"
		return f
	case scope <= 1 || scope == 2 && ptrace:
		return f
	}
	f.OK, f.Needed = false, true
	f.Lost = fmt.Sprintf("no device can be used: kernel.yama.ptrace_scope is %d, so that the supervisor may not look into the program's memory", scope)
	f.Remedy = "sysctl kernel.yama.ptrace_scope=1, or the capability SYS_PTRACE"
	if scope > 2 {
		f.Remedy = "boot with kernel.yama.ptrace_scope 1 or 0: a running kernel does not go back from 3"
	}
	return f
}

// hasPtrace reports whether this process has CAP_SYS_PTRACE.
func hasPtrace() bool {
	b, _ := os.ReadFile("/proc/self/status")
	n, _ := strconv.ParseUint(statusField(string(b), "CapEff:"), 16, 64)
	return n&(1<<unix.CAP_SYS_PTRACE) != 0
}

func checkCopy() Finding {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return found("pidfd", true, err, "no program can be run", "Linux 5.6, and a profile that allows pidfd_open")
	}
	defer unix.Close(fd)
	c, err := unix.PidfdGetfd(fd, fd, 0)
	if err == nil {
		unix.Close(c)
	}
	return found("pidfd_getfd", false, err, "a descriptor that dup made does not share O_NONBLOCK with the first", "allow pidfd_getfd, as the capability SYS_PTRACE does in a container's profile")
}

func checkFiles() Finding {
	f := Finding{Name: "open files", OK: true}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || r.Max >= rangeTop {
		return f
	}
	f.OK = false
	f.Needed = r.Max < 2*rangeSize
	f.Lost = fmt.Sprintf("descriptors of devices have the %d numbers below %d, which the program may use itself", rangeSize, r.Max)
	f.Remedy = "raise the hard limit of open files to 1024: ulimit -Hn"
	return f
}

// checkQueues looks at what the memory of queues needs: a sparse file of queuesSize, which takes as much memory as there are
// queues.
func checkQueues() Finding {
	const name, lost = "memory for queues", "no device can be used"
	fd, err := unix.MemfdCreate("adverb-check", unix.MFD_CLOEXEC)
	if err != nil {
		return found(name, true, os.NewSyscallError("memfd_create", err), lost, "allow memfd_create in the container's profile")
	}
	unix.Close(fd)
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &r) != nil || r.Max >= queuesSize {
		return Finding{Name: name, OK: true}
	}
	return Finding{
		Name: name, Needed: true,
		Lost:   fmt.Sprintf("%s: the hard limit of file sizes is %d bytes, and queues are in a sparse file of %d", lost, r.Max, uint64(queuesSize)),
		Remedy: "no limit of file sizes: ulimit -Hf unlimited",
	}
}

// queuesSize is the size of the file that a device gives its program to map.
const queuesSize = 1 << 60

// RaiseFileSize raises this process's limit of file sizes as far as that is allowed: the file of a device's queues is large
// and sparse. The program keeps its own limit.
func RaiseFileSize() {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &r) == nil && r.Cur < r.Max {
		unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: r.Max, Max: r.Max})
	}
}

// checkCores looks at how many processors this process may use.
func checkCores() Finding {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return Finding{Name: "processors", OK: true}
	}
	return coresFinding(set.Count())
}

func coresFinding(n int) Finding {
	f := Finding{Name: "processors", OK: n >= 2}
	if !f.OK {
		f.Lost = "a program that polls and its peer share one processor, so that each waits for its turn: latency is a matter of milliseconds"
		f.Remedy = "two processors: docker run --cpuset-cpus, taskset"
	}
	return f
}

func checkProc() Finding {
	_, err := os.Stat("/proc/self/exe")
	return found("/proc", true, err, "no program can be run", "mount /proc")
}

func checkInotify() Finding {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return found("inotify", true, err, "no program can be run", "sysctl fs.inotify.max_user_instances=1024")
}

func checkTemporary() Finding {
	return found("temporary directory", true, unix.Access(base(), unix.W_OK|unix.X_OK), "no program can be run", "set TMPDIR to a directory that can be written")
}
