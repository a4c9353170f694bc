//go:build amd64 || arm64

package supervisor

import (
	"bufio"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// openat2 opens with a resolution.
func openat2(dir int, path string, flags, resolve uint64) error {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: flags, Resolve: resolve})
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func targetPaths([]string) {
	read := func(path, text string) {
		b, err := os.ReadFile(path)
		want("read "+path, err, nil)
		is("read "+path, string(b), text)
	}
	// The ways to a file.
	const text = "1: CA\n"
	for _, path := range []string{
		toyAttr, "/sys//class/./infiniband/toy0/node_type", "//sys/class/infiniband/toy0/../toy0/node_type",
		"/sys/class/infiniband_verbs/../infiniband/toy0/node_type", "/sys/class/infiniband/toy0/absolute",
		"/sys/class/infiniband/toy0/device/../../infiniband/toy0/node_type", "/sys/kernel/../class/infiniband/toy0/node_type",
	} {
		read(path, text)
	}
	read("/sys/class/infiniband/toy0/device/ibdev", "toy0\n")
	want("chdir", os.Chdir("/sys/class"), nil)
	read("infiniband/toy0/node_type", text)
	want("chdir", os.Chdir("/sys/class/net"), nil)
	read("../infiniband/toy0/node_type", text)
	real, err := os.ReadFile("/proc/sys/kernel/ostype")
	want("read a file of the system", err, nil)
	read("/sys/class/infiniband/toy0/subsystem/ostype", string(real))
	_, err = os.Stat("/sys/class/infiniband/../../devices")
	want("out of the tree", err, nil)

	// What .. means decides a link before it.
	link := filepath.Join(os.Getenv("TMPDIR"), "link")
	want("symlink", os.Symlink("/sys/kernel", link), nil)
	read(link+"/../class/infiniband/toy0/node_type", text)

	// From a directory.
	dir := open(toyClass, unix.O_RDONLY|unix.O_DIRECTORY)
	if watched(dir) {
		die("a directory is at %d", dir)
	}
	fd, err := unix.Openat(dir, "toy0/node_type", unix.O_RDONLY, 0)
	want("openat", err, nil)
	unix.Close(fd)
	var st unix.Stat_t
	want("fstatat", unix.Fstatat(dir, "toy0/node_type", &st, 0), nil)
	is("mode", st.Mode, unix.S_IFREG|0o444)
	is("owner", st.Uid, 0)
	want("openat of what is not there", openat2(dir, "none", 0, 0), unix.ENOENT)
	want("write", openat2(dir, "toy0/node_type", unix.O_WRONLY, 0), unix.EACCES)
	want("no symlinks", openat2(dir, "toy0/device/ibdev", 0, unix.RESOLVE_NO_SYMLINKS), unix.ELOOP)
	want("beneath", openat2(dir, "toy0/node_type", 0, unix.RESOLVE_BENEATH), nil)
	want("not beneath", openat2(dir, "../../../etc", 0, unix.RESOLVE_BENEATH), unix.EXDEV)
	want("fchdir", unix.Fchdir(dir), nil)
	read("toy0/node_type", text)
	dev := open("/dev/infiniband", unix.O_RDONLY)
	want("fstatat of a node", unix.Fstatat(dev, "toy0", &st, 0), nil)
	is("mode of a node", st.Mode, unix.S_IFCHR|0o666)
	is("rdev of a node", st.Rdev, unix.Mkdev(toyMajor, 192))
	node, err := unix.Openat(dev, "toy0", unix.O_RDWR, 0)
	want("openat of a node", err, nil)
	is("openat of a node", watched(node), true)
	names, err := os.ReadDir("/dev/infiniband")
	want("ReadDir", err, nil)
	is("names", len(names), 2)

	// What is wrong.
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags, 0o666)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	for _, tt := range []struct {
		path  string
		flags int
		want  error
	}{
		{toyClass + "/none", unix.O_RDONLY, unix.ENOENT},
		{toyClass + "/none/none", unix.O_RDONLY | unix.O_CREAT, unix.ENOENT},
		{toyClass + "/none", unix.O_RDWR | unix.O_CREAT, unix.EACCES},
		{toyAttr, unix.O_RDWR, unix.EACCES},
		{toyAttr, unix.O_RDONLY | unix.O_TRUNC, unix.EACCES},
		{toyAttr, unix.O_RDONLY | unix.O_CREAT, nil},
		{toyAttr, unix.O_RDONLY | unix.O_CREAT | unix.O_EXCL, unix.EEXIST},
		{toyAttr, unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{toyAttr + "/", unix.O_RDONLY, unix.ENOTDIR},
		{toyAttr + "/x", unix.O_RDONLY, unix.ENOTDIR},
		{toyClass, unix.O_WRONLY, unix.EISDIR},
		{toyClass, unix.O_TMPFILE | unix.O_RDWR, unix.EOPNOTSUPP},
		{toyClass + "/toy0/loop", unix.O_RDONLY, unix.ELOOP},
		{toyClass + "/toy0/device", unix.O_RDONLY | unix.O_NOFOLLOW, unix.ELOOP},
		{toyClass + "/toy0/device", unix.O_PATH | unix.O_NOFOLLOW, unix.ELOOP}, // as ADDFD takes no O_PATH
		{toyClass, unix.O_PATH | unix.O_DIRECTORY, nil},
		{toyAttr, unix.O_PATH, nil},
		{toyClass + "/toy0/device/", unix.O_RDONLY | unix.O_NOFOLLOW, nil},
		{toyNode, unix.O_RDWR | unix.O_DIRECTORY, unix.ENOTDIR},
		{toyNode, unix.O_RDWR | unix.O_CREAT, nil},
		{toyNode, unix.O_PATH, unix.ENXIO},
		{toyClass + strings.Repeat("/.", 3000), unix.O_RDONLY, unix.ENAMETOOLONG},
		{"/dev/infinibandx", unix.O_RDONLY, unix.ENOENT},
	} {
		want(fmt.Sprintf("open %.60s, flags %#x", tt.path, tt.flags), open(tt.path, tt.flags), tt.want)
	}
	want("creat", func() error { _, err := unix.Creat(toyClass+"/x", 0o666); return err }(), unix.EACCES)
	want("access", unix.Access(toyAttr, unix.R_OK), nil)
	want("access to write", unix.Access(toyAttr, unix.W_OK), unix.EACCES)
	want("access to a node", unix.Access(toyNode, unix.R_OK|unix.W_OK), nil)
	want("access to run", unix.Access(toyNode, unix.X_OK), unix.EACCES)
	want("faccessat2", unix.Faccessat(unix.AT_FDCWD, toyNode, unix.W_OK, unix.AT_EACCESS), nil)
	want("access to nothing", unix.Access(toyClass+"/none", 0), unix.ENOENT)

	// The names of things.
	link, err = os.Readlink(toyClass + "/toy0/device")
	want("readlink", err, nil)
	is("readlink", link, "../../infiniband_verbs/toy0")
	_, err = unix.Readlink(toyAttr, make([]byte, 9))
	want("readlink of a file", err, unix.EINVAL)
	b := make([]byte, 5)
	n, err := unix.Readlink(toyClass+"/toy0/device", b)
	want("readlink with little room", err, nil)
	is("readlink with little room", string(b[:n]), "../..")
	path, err := filepath.EvalSymlinks(toyClass + "/toy0/device")
	want("realpath", err, nil)
	is("realpath", path, "/sys/class/infiniband_verbs/toy0")
	link, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir))
	want("readlink of a descriptor", err, nil)
	is("readlink of a descriptor", link, toyClass)
	link, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", node))
	want("readlink of a device's descriptor", err, nil)
	is("readlink of a device's descriptor", link, toyNode)
	want("lstat", unix.Lstat(toyClass+"/toy0/device", &st), nil)
	is("mode of a link", st.Mode&unix.S_IFMT, unix.S_IFLNK)
	var stx unix.Statx_t
	want("statx", unix.Statx(unix.AT_FDCWD, toyNode, 0, unix.STATX_BASIC_STATS, &stx), nil)
	is("rdev by statx", [2]uint32{stx.Rdev_major, stx.Rdev_minor}, [2]uint32{toyMajor, 192})
	var sf unix.Statfs_t
	want("statfs", unix.Statfs(toyClass, &sf), nil)
	is("statfs", sf.Type, unix.SYSFS_MAGIC)
	_, err = unix.Getxattr(toyNode, "system.posix_acl_access", b)
	want("getxattr", err, unix.ENODATA)
	n, err = unix.Listxattr(toyNode, b)
	want("listxattr", err, nil)
	is("listxattr", n, 0)
	all := 0
	want("WalkDir", filepath.WalkDir(toyClass, func(string, fs.DirEntry, error) error { all++; return nil }), nil)
	is("files", all, 8)

	// What is not virtual.
	_, _, e := unix.Syscall(unix.SYS_CHDIR, 0x10, 0, 0)
	is("chdir to nowhere", e, unix.EFAULT)
	at := unix.AT_FDCWD
	_, _, e = unix.Syscall6(unix.SYS_OPENAT, uintptr(at), 0x10, 0, 0, 0, 0)
	is("open of nowhere", e, unix.EFAULT)
	want("open of nothing", open("", 0), unix.ENOENT)
	want("open of /dev/null", open("/dev/null", unix.O_RDWR), nil)
}

// next reads a line of standard input.
var input = bufio.NewReader(os.Stdin)

func next(what string) {
	fmt.Println(what)
	if _, err := input.ReadString('\n'); err != nil {
		die("%s: %v", what, err)
	}
}

// targetRelease lets go of its files in all ways, each after a word of the test.
func targetRelease([]string) {
	fd := open(toyMem, unix.O_RDWR|unix.O_CLOEXEC) // 1
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	want("mmap", err, nil)
	unix.Close(fd)
	unix.Close(open(toyMem, unix.O_RDWR)) // 2
	next("mapped")
	unix.Munmap(mem)
	next("unmapped")

	fd = open(toyNode, unix.O_RDWR) // 3
	child := exec.Command("/bin/cat")
	pipe, err := child.StdinPipe()
	want("pipe", err, nil)
	want("start a child", child.Start(), nil)
	unix.Close(fd)
	unix.Close(open(toyNode, unix.O_RDWR)) // 4
	next("inherited")
	pipe.Close()
	child.Wait()
	next("child ended")

	// To another process, by a socket.
	fd = open(toyMem, unix.O_RDWR|unix.O_CLOEXEC) // 5
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	want("socketpair", err, nil)
	theirs := os.NewFile(uintptr(p[1]), "")
	receiver := exec.Command(os.Getenv("EXE"))
	receiver.Args = []string{"target", "receiver"}
	receiver.ExtraFiles = []*os.File{theirs}
	receiver.Stdout, receiver.Stderr = os.Stderr, os.Stderr
	want("start the receiver", receiver.Start(), nil)
	theirs.Close()
	want("sendmsg", unix.Sendmsg(p[0], []byte{byte(id(fd))}, unix.UnixRights(fd), nil, 0), nil)
	unix.Close(fd)
	unix.Read(p[0], make([]byte, 1))
	unix.Close(open(toyMem, unix.O_RDWR)) // 6
	next("sent")
	unix.Close(p[0])
	want("the receiver", receiver.Wait(), nil)
	next("receiver ended")

	// A copy, which may be an open file description of its own.
	fd = open(toyMem, unix.O_RDWR) // 7
	d, err := unix.Dup(fd)
	want("dup", err, nil)
	unix.Close(fd)
	unix.Close(open(toyMem, unix.O_RDWR)) // 8
	next("copied")
	unix.Close(d)
	next("copy closed")

	open(toyNode, unix.O_RDWR|unix.O_CLOEXEC) // 9
	want("exec", syscall.Exec("/bin/cat", []string{"cat"}, nil), nil)
}

// targetReceiver gets a descriptor at a number of the kernel's choice.
func targetReceiver([]string) {
	b, oob := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(3, b, oob, 0)
	want("recvmsg", err, nil)
	m, err := unix.ParseSocketControlMessage(oob[:n])
	want("control message", err, nil)
	fds, err := unix.ParseUnixRights(&m[0])
	want("descriptors", err, nil)
	is("the file that was sent", id(fds[0]), int(b[0]))
	unix.Write(3, b)
	unix.Read(3, b)
}

// targetClosing closes all that it has, as daemons do.
func targetClosing([]string) {
	before := open(toyNode, unix.O_RDWR)
	for fd := 3; fd < 2048; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	_, err := ioctl(before, toyID, 0)
	want("ioctl of a closed descriptor", err, unix.EBADF)
	again := open(toyNode, unix.O_RDWR)
	is("the number is free", again, before)
	first := id(again)
	want("close_range", unix.CloseRange(rangeTop-rangeSize, math.MaxUint32, 0), nil)
	_, err = unix.Write(again, nil)
	want("write to a closed descriptor", err, unix.EBADF)
	if second := id(open(toyNode, unix.O_RDWR)); second == first {
		die("a file came back: %d", second)
	}
	// A thread with a table of its own.
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FILES)
		if err == nil {
			err = unix.Dup3(0, again, 0)
		}
		if _, e := ioctl(again, toyID, 0); err == nil && e != unix.ENOTTY {
			err = fmt.Errorf("ioctl of standard input, on a number of the range: %v", e)
		}
		done <- err
	}()
	want("unshare", <-done, nil)
	is("the other threads' table", id(again) > 0, true)
}

// targetSurroundings prints what a program inherits.
func targetSurroundings([]string) {
	b, _ := os.ReadFile("/proc/self/status")
	var fds []string
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.Contains(link, "anon_inode") && !strings.HasPrefix(link, "/proc/") {
			fds = append(fds, e.Name())
		}
	}
	wd, _ := os.Getwd()
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", os.Getpid()))
	var some string
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core") || strings.HasPrefix(line, "Max stack") {
			some += line
		}
	}
	slices.Sort(fds)
	fmt.Printf("fds %s\ndirectory %s\numask %s\nvariable %s\nblocked %s\nlimits %s\n", fds, wd, statusField(string(b), "Umask:"), os.Getenv("VARIABLE"), statusField(string(b), "SigBlk:"), some)
}
