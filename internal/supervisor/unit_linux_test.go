//go:build amd64 || arm64

package supervisor

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// evaluate is what the kernel does with a filter.
func evaluate(t *testing.T, filter []unix.SockFilter, arch, number uint32, args ...uint64) uint32 {
	t.Helper()
	var data [64]byte
	binary.LittleEndian.PutUint32(data[dataNumber:], number)
	binary.LittleEndian.PutUint32(data[dataArch:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[dataArgs+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(filter); pc++ {
		in := filter[pc]
		jump := func(holds bool) {
			if holds {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.LittleEndian.Uint32(data[in.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ:
			jump(acc == in.K)
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGE:
			jump(acc >= in.K)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d has code %#x", pc, in.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func TestFilter(t *testing.T) {
	const base = 960
	all := ^uint32(0)
	f := Filter{
		NativeWrite: 32,
		Ioctls:      []uint32{7, 9},
		Rules: []Rule{
			{Number: unix.SYS_SOCKET, If: []Arg{{0, all, 16}, {2, all, 20}}, Errno: unix.EPROTONOSUPPORT},
			{Number: unix.SYS_CLONE, If: []Arg{{0, unix.CLONE_VM, 0}}, Notify: true},
			{Number: unix.SYS_WRITE, If: []Arg{{0, all, 970}}, Errno: unix.EIO},
		},
	}
	filter, err := f.compile(base)
	if err != nil {
		t.Fatal(err)
	}
	const (
		allowed  = unix.SECCOMP_RET_ALLOW
		notified = unix.SECCOMP_RET_USER_NOTIF
	)
	for _, tt := range []struct {
		arch, number uint32
		args         []uint64
		want         uint32
	}{
		{nativeArch, unix.SYS_GETPPID, nil, allowed},
		{nativeArch, unix.SYS_CLOSE, []uint64{base}, allowed},
		{nativeArch, unix.SYS_OPENAT, nil, notified},
		{unix.AUDIT_ARCH_I386, unix.SYS_OPENAT, nil, allowed},
		{nativeArch, unix.SYS_IOCTL, []uint64{base - 1, 1}, allowed},
		{nativeArch, unix.SYS_IOCTL, []uint64{base, 1}, notified},
		{nativeArch, unix.SYS_IOCTL, []uint64{base + rangeSize - 1, 1}, notified},
		{nativeArch, unix.SYS_IOCTL, []uint64{base + rangeSize, 1}, allowed},
		{nativeArch, unix.SYS_IOCTL, []uint64{1<<32 | base, 1}, notified}, // the kernel takes the low half
		{nativeArch, unix.SYS_IOCTL, []uint64{3, 9}, notified},
		{nativeArch, unix.SYS_WRITE, []uint64{base, 0, 32}, allowed},
		{nativeArch, unix.SYS_WRITE, []uint64{base, 0, 33}, notified},
		{nativeArch, unix.SYS_WRITE, []uint64{base + nativeSize, 0, 32}, notified},
		{nativeArch, unix.SYS_WRITE, []uint64{970, 0, 33}, unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{nativeArch, unix.SYS_FCNTL, []uint64{base, unix.F_DUPFD}, notified},
		{nativeArch, unix.SYS_FCNTL, []uint64{base, unix.F_DUPFD_CLOEXEC}, notified},
		{nativeArch, unix.SYS_FCNTL, []uint64{base, unix.F_SETFL}, allowed},
		{nativeArch, unix.SYS_SOCKET, []uint64{16, 3, 20}, unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{nativeArch, unix.SYS_SOCKET, []uint64{16, 3, 0}, allowed},
		{nativeArch, unix.SYS_SOCKET, []uint64{2, 3, 20}, allowed},
		{nativeArch, unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_FILES}, allowed},
		{nativeArch, unix.SYS_CLONE, []uint64{unix.CLONE_FILES}, notified},
	} {
		if got := evaluate(t, filter, tt.arch, tt.number, tt.args...); got != tt.want {
			t.Errorf("system call %d of architecture %#x with %d: got %#x, want %#x", tt.number, tt.arch, tt.args, got, tt.want)
		}
	}
	if foreignBit != 0 {
		if got := evaluate(t, filter, nativeArch, foreignBit|unix.SYS_OPENAT); got != allowed {
			t.Errorf("openat of x32: got %#x, want allow", got)
		}
	}
	for _, bad := range []Rule{
		{Number: 1, If: []Arg{{Index: 6}}, Notify: true},
		{Number: 1},
		{Number: 1, Errno: 4096},
		{Number: 1, If: make([]Arg, 7), Notify: true},
	} {
		if _, err := (&Filter{Rules: []Rule{bad}}).compile(base); err == nil {
			t.Errorf("rule %+v compiles", bad)
		}
	}
	if _, err := (&Filter{Ioctls: make([]uint32, 33)}).compile(base); err == nil {
		t.Error("too many ioctls compile")
	}
}

func TestPendingSignals(t *testing.T) {
	for _, tt := range []struct {
		name        string
		own, shared string
		blocked     string
		ignored     string
		caught      string
		wantOwn     bool
		wantShared  bool
	}{
		{"none", "0", "0", "0", "0", "0", false, false},
		{"of the thread", "200", "0", "0", "0", "200", true, false},
		{"of the process", "0", "200", "0", "0", "200", false, true},
		{"blocked", "200", "200", "200", "0", "200", false, false},
		{"ignored", "200", "200", "0", "200", "0", false, false},
		{"ignored by default: SIGCHLD", "10000", "0", "0", "0", "0", false, false},
		{"SIGCHLD with a handler", "10000", "0", "0", "0", "10000", true, false},
		{"a real-time signal", "8000000000000000", "0", "0", "0", "0", true, false},
	} {
		own, shared := pendingSignals("Name:\tx\nSigPnd:\t" + tt.own + "\nShdPnd:\t" + tt.shared + "\nSigBlk:\t" + tt.blocked + "\nSigIgn:\t" + tt.ignored + "\nSigCgt:\t" + tt.caught + "\n")
		if own != 0 != tt.wantOwn || shared != 0 != tt.wantShared {
			t.Errorf("%s: got %#x, %#x, want %v, %v", tt.name, own, shared, tt.wantOwn, tt.wantShared)
		}
	}
	for status, want := range map[string]uint64{
		"State:\tS (sleeping)\nSigBlk:\t200\n": 0x200,
		"State:\tZ (zombie)\nSigBlk:\t200\n":   ^uint64(0),
		"":                                     ^uint64(0),
	} {
		if got := leftByMain(status); got != want {
			t.Errorf("%q: the main thread leaves %#x, want %#x", status, got, want)
		}
	}
}

// Each way to another process's memory respects the protection of its pages.
func TestMemory(t *testing.T) {
	page, err := unix.Mmap(-1, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	copy(page[4090:], "0123456789")
	at := uint64(uintptr(unsafe.Pointer(&page[0])))
	if err := unix.Mprotect(page[4096:8192], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(page[8192:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	byText := func(pid int, addr uint64, b []byte, write bool) (int, error) {
		list, err := areasByText(pid, addr, addr+uint64(len(b)), "maps")
		if err != nil {
			return 0, err
		}
		n := permittedIn(list, addr, write)
		if n == 0 {
			return 0, unix.EFAULT
		}
		return byFile(pid, addr, b[:n], write)
	}
	for name, f := range map[string]func(int, uint64, []byte, bool) (int, error){"process_vm": byCall, "/proc/PID/mem": byFile, "maps": byText} {
		b := make([]byte, 10)
		if n, err := f(os.Getpid(), at+4090, b, false); n != 10 || err != nil || string(b) != "0123456789" {
			t.Errorf("%s: read %d, %v, %q", name, n, err, b)
		}
		if n, err := f(os.Getpid(), at+4090, []byte("abcdefghij"), true); n != 6 || err != nil || string(page[4090:4097]) != "abcdef6" {
			t.Errorf("%s: wrote %d, %v over a page that is read only; there is %q", name, n, err, page[4090:4097])
		}
		if n, err := f(os.Getpid(), at+4096, []byte("x"), true); n > 0 || err != unix.EFAULT {
			t.Errorf("%s: wrote %d, %v to a page that is read only", name, n, err)
		}
		if n, err := f(os.Getpid(), at+8190, b, false); n != 2 || err != nil {
			t.Errorf("%s: read %d, %v over the end of what is readable", name, n, err)
		}
		if n, err := f(os.Getpid(), at+8192, b, false); n > 0 || err != unix.EFAULT {
			t.Errorf("%s: read %d, %v of what is not readable", name, n, err)
		}
		copy(page[4090:4096], "012345")
	}
	var m memory
	if _, err := m.read(os.Getpid(), ^uint64(0)-3, make([]byte, 8)); err != unix.EFAULT {
		t.Errorf("read over the end of the address space: got %v, want EFAULT", err)
	}
}

// The next start removes what a dead run left, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	alive, err := NewTree("/dev/x")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := NewTree("/dev/x")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.File("/dev/x/y/z", "text"); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "adverb-other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	unix.Close(dead.lock)
	next, err := NewTree("/dev/x")
	if err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	want := []string{other, alive.root, next.root}
	slices.Sort(left)
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	if st, err := os.Stat(alive.root); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode of a tree: %v, %v", st.Mode(), err)
	}
	alive.Close()
	next.Close()
	if err := next.File("/dev/x/y", ""); err == nil {
		t.Error("a file was made in a tree that is closed")
	}
}

func TestTree(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, bad := range []string{"", "/", "dev", "/dev/", "/dev/../x"} {
		if _, err := NewTree(bad); err == nil {
			t.Errorf("a tree with prefix %q", bad)
		}
	}
	tree, err := NewTree("/dev/x", "/sys/y")
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for _, bad := range []string{"/dev/xy", "/dev", "dev/x/y", "/dev/x/../y", "/dev/x//y"} {
		if tree.File(bad, "") == nil {
			t.Errorf("a file at %q", bad)
		}
	}
	for _, text := range []string{"one", "two"} {
		if err := tree.File("/dev/x/a/b", text); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(tree.root + "/dev/x/a/b"); string(b) != text {
			t.Errorf("got %q, %v, want %q", b, err, text)
		}
	}
	files := map[string]string{"/dev/x/a/c": "three", "/dev/x/d/e/f": "", "/sys/y/z": "four\n"}
	if err := tree.Files(files); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		b, err := os.ReadFile(tree.root + name)
		st, serr := os.Stat(filepath.Dir(tree.root + name))
		if string(b) != text || serr != nil || st.Mode().Perm() != 0o555 {
			t.Errorf("%s: got %q, %v, want %q in a directory that cannot be written, and %v", name, b, err, text, st.Mode())
		}
	}
	if tree.Files(map[string]string{"/dev/x/a/c": ""}) == nil || tree.Files(map[string]string{"/dev/xy": ""}) == nil {
		t.Error("Files has replaced a file, or made one at /dev/xy")
	}
	if err := tree.Node("/dev/x/a/n", Node{}); err != nil {
		t.Fatal(err)
	}
	if tree.node("/dev/x/a/n") == nil {
		t.Error("no node")
	}
	if err := tree.Remove("/dev/x/a"); err != nil {
		t.Fatal(err)
	}
	if tree.node("/dev/x/a/n") != nil || tree.at("/dev/x/a").error != unix.ENOENT {
		t.Error("what was removed is there")
	}
}

// Check changes nothing of this process, and knows what to do about all that it misses.
func TestCheck(t *testing.T) {
	for _, f := range Check() {
		if f.Name == "" || f.OK != (f.Lost == "") || f.OK != (f.Remedy == "") {
			t.Errorf("finding %+v: want what is lost and a remedy, unless it is there", f)
		}
	}
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	if got := statusField(string(b), "NoNewPrivs:"); got != "0" {
		t.Skip("no_new_privs was set before")
	}
}

// TestScope: under Yama's 1 runs share no supervisor, 2 allows what CAP_SYS_PTRACE allows, and 3 nothing.
func TestScope(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ptrace_scope")
	if f := checkScope(file, false); !f.OK {
		t.Errorf("without Yama: %+v, want OK", f)
	}
	for _, tt := range []struct {
		scope  string
		ptrace bool
		ok     bool
		needed bool
		remedy string
	}{
		{"0\n", false, true, false, ""}, {"1\n", true, true, false, ""}, {"2\n", true, true, false, ""},
		{"1\n", false, false, false, "ptrace_scope=0"},
		{"2\n", false, false, true, "SYS_PTRACE"}, {"3\n", false, false, true, "boot"}, {"3\n", true, false, true, "boot"},
	} {
		if err := os.WriteFile(file, []byte(tt.scope), 0o600); err != nil {
			t.Fatal(err)
		}
		f := checkScope(file, tt.ptrace)
		if f.OK != tt.ok || f.Needed != tt.needed || !strings.Contains(f.Remedy, tt.remedy) || !tt.ok && !strings.Contains(f.Lost, "is "+tt.scope[:1]) {
			t.Errorf("scope %q, with CAP_SYS_PTRACE %v: %+v, want OK %v and remedy %q", tt.scope, tt.ptrace, f, tt.ok, tt.remedy)
		}
	}
}

// TestRefusal: the reason of a refused filter says which kernel refuses.
func TestRefusal(t *testing.T) {
	for _, tt := range []struct {
		e             unix.Errno
		release, want string
	}{
		{unix.EBUSY, "6.1.0", "under a supervisor already"},
		{unix.EPERM, "6.1.0", "forbids seccomp"},
		{unix.EINVAL, "4.4.0", "gVisor does"},
		{unix.EINVAL, "4.18.0-513.el8.x86_64", "4.18.0-513.el8.x86_64 is too old"},
		{unix.EINVAL, "5.10.0-28-amd64", "too old"},
		{unix.ENOSYS, "6.1.0", "CONFIG_SECCOMP_FILTER"},
		{unix.EINVAL, "6.1.0", "sandbox"},
		{unix.EINVAL, "", "Linux 5.14"},
		{unix.ENOMEM, "6.1.0", "seccomp(2)"},
	} {
		if got := refusalOf(tt.e, tt.release); !strings.Contains(got, tt.want) {
			t.Errorf("%v on %q: %q, want %q", tt.e, tt.release, got, tt.want)
		}
	}
}

// TestCores: one processor is enough, and slow.
func TestCores(t *testing.T) {
	if f := coresFinding(1); f.OK || f.Needed || f.Remedy == "" {
		t.Errorf("one: %+v, want a finding that is no obstacle", f)
	}
	if f := coresFinding(2); !f.OK {
		t.Errorf("two: %+v, want OK", f)
	}
}

// No path makes the supervisor do anything but give a file of the tree, or one that a link of the tree names.
func FuzzWalk(f *testing.F) {
	f.Setenv("XDG_RUNTIME_DIR", f.TempDir())
	tree, err := toyTree(toyLog{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { tree.Close() })
	for _, s := range []string{
		"/", "", "/sys/class/infiniband/toy0/loop", toyAttr, toyNode + "/", toyClass + "/toy0/device/../..", "/sys/../dev/infiniband/toy0",
		"/proc/self/../../dev/infiniband", toyClass + "/toy0/subsystem/../ostype", toyClass + "/../../../..", toyClass + "/none/..",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, p string, noFollow bool) {
		if len(p) >= mostPath || strings.ContainsRune(p, 0) {
			return
		}
		at, ok := tree.walk("/"+p, lookup{noFollow: noFollow})
		switch {
		case !ok || at.error != 0:
		case at.path != "":
			if !tree.virtual(at.path) || path.Clean(at.path) != at.path || at.file != tree.root+at.path {
				t.Errorf("%q leads to %q, file %q", p, at.path, at.file)
			}
		case at.file == "" || strings.HasPrefix(at.file, tree.root):
			t.Errorf("%q leads out of the tree to %q", p, at.file)
		}
		tree.virtual(squeeze("/" + p))
	})
}

// Lines of /proc/PID/maps.
func TestParseArea(t *testing.T) {
	for line, want := range map[string]area{
		"7f00a000-7f00b000 rw-p 00001000 00:01 1234                       /memfd:a name (deleted)": {
			from: 0x7f00a000, to: 0x7f00b000, offset: 0x1000, rights: "rw-p", file: inode{1, 1234}, name: "/memfd:a name (deleted)"},
		"55ced7644000-55ced7646000 r--s 00000000 fe:00 247026                     /usr/bin/cat": {
			from: 0x55ced7644000, to: 0x55ced7646000, rights: "r--s", file: inode{0xfe00, 247026}, name: "/usr/bin/cat"},
		"55ced7646000-55ced7647000 rw-p 00000000 00:00 0": {from: 0x55ced7646000, to: 0x55ced7647000, rights: "rw-p"},
	} {
		if got, ok := parseArea(line); !ok || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{"", "Size:    8 kB", "VmFlags: rd wr mr", "1-2", "1-2 rw-p", "x-2 rw-p 0 0:0 0", "1-2 rw 0 0:0 0", "1-2 rw-p 0 00 0"} {
		if a, ok := parseArea(line); ok {
			t.Errorf("%q: got %+v, want nothing", line, a)
		}
	}
	a := area{from: 0x5000, to: 0x9000, offset: 0x1000}
	if got := a.cut(0x6000, 0x7000); got.from != 0x6000 || got.to != 0x7000 || got.offset != 0x2000 {
		t.Errorf("cut: got %+v", got)
	}
	for name, want := range map[string]bool{
		"": false, "[heap]": false, "/dev/zero (deleted)": false, "/dev/shm/x": false, "/usr/lib/libc.so": false,
		"/dev/nvidia0": true, "anon_inode:[io_uring]": true, "/[aio] (deleted)": true,
	} {
		if a := (area{name: name}); a.pins() != want {
			t.Errorf("%q: pins %v, want %v", name, !want, want)
		}
	}
}

// Both ways to ask for mappings give the same.
func TestAreas(t *testing.T) {
	byText, err := allAreas(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(&checkWord)))
	list, err := areas(os.Getpid(), at-8, at+8)
	if err != nil || len(list) == 0 {
		t.Fatalf("got %v, %v", list, err)
	}
	last := list[len(list)-1]
	i := slices.IndexFunc(byText, func(a area) bool { return a.from <= at && at < a.to })
	if i < 0 {
		t.Fatal("no mapping of a variable")
	}
	want := byText[i].cut(at-8, at+8)
	want.name = ""
	if last.name = ""; last != want {
		t.Errorf("got %+v, want %+v", last, want)
	}
	if list, err := areas(os.Getpid(), 0, pageSize); err != nil || len(list) != 0 {
		t.Errorf("at the address 0: got %+v, %v, want nothing", list, err)
	}
}

// What each notified call does takes no memory.
func TestNoAllocations(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	tree, err := NewTree("/dev/x")
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(&Listener{FD: stop, Base: 960}, Config{Tree: tree})
	if err != nil {
		t.Fatal(err)
	}
	go s.table.watch()
	defer s.table.close()
	c := &Call{s: s, TID: os.Getpid()}
	b := make([]byte, 64)
	at := uint64(uintptr(unsafe.Pointer(&checkWord)))
	if n := testing.AllocsPerRun(100, func() {
		s.table.find(c, 0)
		s.mem.read(c.TID, at, b[:8])
		s.l.valid(1)
		s.l.send(response{})
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestEarlySignal: a signal of the terminal's that comes when the starter has not heard yet that the program runs is passed on if
// the program did not run, and not if the program has got it too.
func TestEarlySignal(t *testing.T) {
	for name, passed := range map[string]bool{"before the program": true, "to both": false} {
		t.Run(name, func(t *testing.T) {
			ours, theirs, err := pair()
			if err != nil {
				t.Fatal(err)
			}
			defer ours.close()
			program := exec.Command("sleep", "60")
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			pidfd, err := unix.PidfdOpen(program.Process.Pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pidfd)
			r := &starter{conn: ours, pidfd: -1, signals: make(chan os.Signal), foreground: func() bool { return true }}
			ended := make(chan Status, 1)
			go func() { ended <- r.wait() }()
			at := monotonic()
			r.signals <- unix.SIGINT
			if passed { // the program runs later
				at += int64(time.Hour)
			}
			theirs.send(message{Kind: kindStarted, At: at}, pidfd)
			theirs.send(message{Kind: kindExited})
			theirs.close()
			<-ended
			if !passed {
				program.Process.Kill()
			}
			program.Wait()
			want := unix.SIGKILL
			if passed {
				want = unix.SIGINT
			}
			if got := program.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != want {
				t.Errorf("the program was ended by %v, want %v", got, want)
			}
		})
	}
}

// TestProcessClose: who knows a process still when its descriptor is closed finds that it has ended, whatever has the descriptor's
// number by then.
func TestProcessClose(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &Process{TGID: os.Getpid(), pidfd: fd, mem: &memory{}}
	all := processes{byID: map[int]*Process{x.TGID: x}}
	if !x.Alive() {
		t.Error("this process has ended, before its descriptor is closed")
	}
	all.close()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is open: %v, want EBADF", err)
	}
	if len(all.byID) > 0 || x.Alive() {
		t.Errorf("%d processes are known, and this one is alive: %v; want neither", len(all.byID), x.Alive())
	}
	if _, err := x.copyFD(0); err != unix.ESRCH {
		t.Errorf("copy a descriptor: %v, want ESRCH", err)
	}
	if _, err := x.Read(1, make([]byte, 1)); err != unix.ESRCH {
		t.Errorf("read memory: %v, want ESRCH", err)
	}
}
