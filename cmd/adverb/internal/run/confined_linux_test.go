//go:build amd64 || arm64

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

// namespaces are the flags of clone(2) that make namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// dockerDenies are the calls that Docker's default profile denies to a container without capabilities, as of version 27.
// Those that neither a program nor the tool would make are left out.
var dockerDenies = []uint32{
	unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_FANOTIFY_INIT, unix.SYS_FSOPEN, unix.SYS_GET_MEMPOLICY, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEYCTL, unix.SYS_MBIND, unix.SYS_MOUNT, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIVOT_ROOT, unix.SYS_PROCESS_MADVISE, unix.SYS_QUOTACTL, unix.SYS_REQUEST_KEY,
	unix.SYS_SET_MEMPOLICY, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD,
}

// memoryDenies are the calls that profiles deny which want CAP_SYS_PTRACE for them.
var memoryDenies = []uint32{unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV}

// confinement is what a program and its adverb run may not do.
type confinement struct {
	denies []uint32
	docker bool // and what the profile says of arguments
	limits map[int]uint64
	soft   bool // the limits may be raised again
}

var confinements = map[string]confinement{
	"docker":    {denies: dockerDenies, docker: true},
	"no ptrace": {denies: append(memoryDenies, dockerDenies...), docker: true},
	"seccomp":   {denies: []uint32{unix.SYS_SECCOMP}},
	"64 files":  {limits: map[int]uint64{unix.RLIMIT_NOFILE: 64}},
	"256 files": {limits: map[int]uint64{unix.RLIMIT_NOFILE: 256}},
	"no locked": {limits: map[int]uint64{unix.RLIMIT_MEMLOCK: 0}},
	"file size": {limits: map[int]uint64{unix.RLIMIT_FSIZE: 1 << 20}},
	"soft size": {limits: map[int]uint64{unix.RLIMIT_FSIZE: 1 << 20}, soft: true},
}

// filter returns the filter of a confinement.
func (c confinement) filter() ([]bpf.RawInstruction, error) {
	const number, arg0 = 0, 16 // in struct seccomp_data
	deny := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	p := []bpf.Instruction{bpf.LoadAbsolute{Off: number, Size: 4}}
	for _, n := range c.denies {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: 1}, deny)
	}
	if c.docker {
		p = append(p,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4}, bpf.LoadAbsolute{Off: arg0, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1}, deny, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 3}, bpf.LoadAbsolute{Off: arg0, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_VSOCK, SkipTrue: 1}, deny)
	}
	return bpf.Assemble(append(p, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
}

// targetConfined confines this process, and becomes a program: "adverb" is the tool.
func targetConfined(how string, argv []string) error {
	c, ok := confinements[how]
	if !ok {
		return fmt.Errorf("no confinement %q", how)
	}
	for what, n := range c.limits {
		limit := syscall.Rlimit{Cur: n, Max: n}
		if c.soft {
			limit.Max = ^uint64(0) // RLIM_INFINITY
		}
		if err := syscall.Setrlimit(what, &limit); err != nil {
			return err
		}
	}
	if c.denies != nil {
		f, err := c.filter()
		if err != nil {
			return err
		}
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		prog := unix.SockFprog{Len: uint16(len(f)), Filter: (*unix.SockFilter)(unsafe.Pointer(&f[0]))}
		if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
			return e
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(exe, argv, os.Environ())
}

// confined runs the tool in a confinement.
func confined(t *testing.T, how string, argv ...string) tooltest.Result {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, append([]string{asTarget, "confined", how}, argv...)...)
	cmd.Env = append(os.Environ(), tooltest.AsTool+"=1", "GORACE=atexit_sleep_ms=0")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return tooltest.Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// TestConfined: programs run in the confinement of containers, or the tool says what they lack.
func TestConfined(t *testing.T) {
	needSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		how     string
		finding string // of --check, that is not as it should be
		fails   string // what a run says that fails
	}{
		{"docker", "pidfd_getfd                  no", ""},
		{"no ptrace", "process_vm_readv             no", ""},
		{"seccomp", "seccomp listener             NO", "a security policy forbids seccomp(2)"},
		{"64 files", "open files                   NO", "the limit of open files is 64"},
		{"256 files", "open files                   no", ""},
		{"no locked", "", ""},
		{"file size", "memory for queues            NO", "file too large"},
		{"soft size", "", ""},
	} {
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			check := confined(t, tt.how, "adverb", "run", "--check")
			if want := strings.Contains(tt.finding, " NO"); (check.Code == 1) != want || !strings.Contains(check.Stdout, tt.finding) {
				t.Errorf("--check: status %d, %s%s, want %q", check.Code, check.Stdout, check.Stderr, tt.finding)
			}
			r := confined(t, tt.how, "adverb", "run", "-v", "-d", "soft_lo", "--", exe, asTarget, "verbs")
			switch {
			case tt.fails != "":
				if r.Code == 0 || !strings.Contains(r.Stderr, tt.fails) {
					t.Errorf("status %d, %q, %s, want a failure that says %q", r.Code, r.Stdout, r.Stderr, tt.fails)
				}
			case r.Code != 0 || r.Stdout != "done\n":
				t.Errorf("status %d, %q, %s, want done", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}

// TestNested: a run within a run says that there is one already, and so does --check.
func TestNested(t *testing.T) {
	needSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const want = "under a supervisor already"
	inner := `exec -a adverb "$0" run "$@"`
	if r := underRun(t, "bash", "-c", inner, exe, "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, want) {
		t.Errorf("status %d, %q, %s, want 125 and %q", r.Code, r.Stdout, r.Stderr, want)
	}
	if r := underRun(t, "bash", "-c", inner, exe, "--check"); r.Code != 1 || !strings.Contains(r.Stdout, want) {
		t.Errorf("--check: status %d, %q, %s, want 1 and %q", r.Code, r.Stdout, r.Stderr, want)
	}
}

// targetNative is a program in Go that uses the software devices itself.
func targetNative() error {
	dev, err := verbs.Open("soft_lo")
	if err != nil {
		return err
	}
	defer dev.Close()
	gid, err := dev.GID(1, 0)
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(8)
	if err != nil {
		return err
	}
	var qps [2]*verbs.QP
	for i := range qps {
		if qps[i], err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}); err != nil {
			return err
		}
		if err := qps[i].Init(1, verbs.AccessRemoteWrite); err != nil {
			return err
		}
	}
	for i, qp := range qps {
		if err := errors.Join(qp.RTR(verbs.Peer{QPN: qps[1-i].QPN(), GID: gid.GID}, verbs.Path{}), qp.RTS(0, verbs.DefaultRetry)); err != nil {
			return err
		}
	}
	mr, err := pd.AllocMR(128, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	n := copy(mr.Bytes(), "not through the supervisor")
	if _, err := qps[0].PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, n)}, Remote: mr.Remote(64)}}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooltest.Patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := cq.Wait(ctx, wcs[:]); err != nil {
		return err
	}
	if got := string(mr.Bytes()[64:][:n]); wcs[0].Status != 0 || got != string(mr.Bytes()[:n]) {
		return fmt.Errorf("written: %q with %v", got, wcs[0].Status)
	}
	return targetVerbs() // the devices that are shown work beside
}

// targetNetlink is a program that talks netlink alone. What libibverbs would ask of NETLINK_RDMA it is refused.
func targetNetlink() error {
	if links, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC); err != nil || len(links) == 0 {
		return fmt.Errorf("list the links: %d bytes, %v", len(links), err)
	}
	for _, family := range []int{unix.NETLINK_ROUTE, unix.NETLINK_GENERIC, unix.NETLINK_KOBJECT_UEVENT} {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
		if err != nil {
			return fmt.Errorf("netlink family %d: %w", family, err)
		}
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.Close(fd)); err != nil {
			return fmt.Errorf("netlink family %d: %w", family, err)
		}
	}
	for _, kind := range []int{unix.SOCK_RAW, unix.SOCK_DGRAM} {
		if _, err := unix.Socket(unix.AF_NETLINK, kind|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA); err != unix.EPROTONOSUPPORT {
			return fmt.Errorf("NETLINK_RDMA: got %v, want EPROTONOSUPPORT", err)
		}
	}
	return nil
}
