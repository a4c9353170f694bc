//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The names by which this binary runs itself.
const (
	supervisorName = "adverb-supervisor"
	reaperName     = "adverb-reaper"
	idleName       = "adverb-idle" // waits for the end of its input: see Check
)

// Stage must be the first that main calls. In the processes that Run starts it does not return: in the supervisor it calls
// serve, and in the reaper it starts the program.
func Stage(serve func(*Session) error) {
	if len(os.Args) < 3 {
		return
	}
	switch os.Args[0] {
	case supervisorName:
		os.Exit(supervise(serve))
	case reaperName:
		os.Exit(reap())
	case idleName:
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
}

// spawn runs this binary by another name. All descriptors that are not close-on-exec are inherited with their numbers, and
// so is the socket: it is the first argument.
func spawn(name string, socket conn, args ...string) (pid int, err error) {
	if _, err := unix.FcntlInt(uintptr(socket.fd), unix.F_SETFD, 0); err != nil {
		return 0, os.NewSyscallError("fcntl", err)
	}
	argv := append([]string{name, strconv.Itoa(socket.fd)}, args...)
	pid, err = syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true}, // the terminal's signals are for the program
	})
	socket.close()
	if err != nil {
		return 0, fmt.Errorf("start %s: /proc/self/exe: %w: is /proc mounted?", name, err)
	}
	return pid, nil
}

// entered prepares a process that spawn started.
func entered() (socket conn, err error) {
	fd, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return conn{-1}, fmt.Errorf("%s is not for users: its first argument must be a socket", os.Args[0])
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || n != unix.SOCK_SEQPACKET {
		return conn{-1}, fmt.Errorf("%s is not for users: descriptor %d is not its socket", os.Args[0], fd)
	}
	unix.CloseOnExec(fd)
	return conn{fd}, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// inherited are the descriptors that the program is to get beside standard input, output and error.
func inherited() (list []int) {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range names {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			list = append(list, fd)
		}
	}
	return list
}

// release lets go of the descriptors that the program inherited, so that its pipes end when it closes them: the descriptors of the list,
// and the standard ones, which become /dev/null.
func release(list []int, standard ...int) {
	for _, fd := range list {
		unix.Close(fd)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for _, fd := range standard {
		unix.Dup3(null, fd, 0)
	}
	unix.Close(null)
}

// originalLimit gives this process the limit of open files that it was started with, which Go's runtime had raised.
// There is one way to learn of that limit: Exec restores it, and leaves it so when it fails.
func originalLimit() (soft uint64, err error) {
	if err := syscall.Exec("/", []string{""}, nil); err == nil {
		return 0, errors.New("exec of a directory succeeded")
	}
	var r unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Cur, os.NewSyscallError("getrlimit", err)
}

// descendants finds the children of a process, their children and so on, by /proc.
func descendants(of int) []int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	below := map[int][]int{}
	for _, e := range names {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if parent := parentOf(pid); parent != 0 {
				below[parent] = append(below[parent], pid)
			}
		}
	}
	list := append([]int(nil), below[of]...)
	for i := 0; i < len(list); i++ {
		list = append(list, below[list[i]]...)
	}
	return list
}

// parentOf reads the parent of a process, or 0: "12 (a name) S 11 …".
func parentOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(f[1])
	return n
}

// killDescendants kills all descendants of this process that are there now. Descendants whose parent dies become this
// process's own, since it is a child subreaper: so after enough rounds none is left.
func killDescendants() {
	for _, pid := range descendants(os.Getpid()) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// The ID may have become another's since it was read.
		if parent := parentOf(pid); parent != 0 {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// killAll kills all descendants, and waits until none is left. Nobody else may wait for children meanwhile. It waits for children by
// their IDs: stops of traced processes, which are another run's, are not for it.
func killAll() {
	me := os.Getpid()
	for {
		killDescendants()
		list := descendants(me)
		if len(list) == 0 {
			return
		}
		for _, pid := range list {
			if parentOf(pid) == me { // nobody else reaps it, so the ID is still the child's
				unix.Kill(pid, unix.SIGKILL)
				for _, err := unix.Wait4(pid, nil, 0, nil); err == unix.EINTR; _, err = unix.Wait4(pid, nil, 0, nil) {
				}
			}
		}
	}
}

// defaultAction gives a signal its default action, as a program has it after exec.
func defaultAction(sig unix.Signal) {
	var action [4]uint64 // struct sigaction of the kernel: SIG_DFL is 0
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}
