package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	// insideEnv is set to the PID of the process that is inside. Its children inherit the variable,
	// but have other PIDs.
	insideEnv = "ADVERB_LAB_INSIDE"
	imageEnv  = "ADVERB_LAB_IMAGE" // directory of the image
	workTmpfs = "adverb-lab"
	// outsideFile, in TMPDIR, is the machine's network namespace: apt-get runs there.
	outsideFile = "outside"
)

// Enter moves the process into a network namespace and a mount namespace of its own. To do so, the
// process executes itself again, with the same PID, arguments and environment. So main or TestMain
// must call Enter first. Interfaces, mounts and temporary files that the process then makes
// disappear when the process and its children end, whatever ends them. If the process is already
// inside, Enter does nothing.
//
// Enter prepares the packages before it leaves the machine's network. Inside, TMPDIR names a
// file system that belongs to the namespace.
func Enter() error {
	if inside() {
		return nil
	}
	return fmt.Errorf("enter the lab: %w", enter())
}

func inside() bool { return os.Getenv(insideEnv) == strconv.Itoa(os.Getpid()) }

// enter is Enter for a process outside. The function returns only on failure.
func enter() error {
	if err := possible(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	tmp, err := cacheDir("work") // a mount point
	if err != nil {
		return err
	}
	img, err := prepare(context.Background(), Release)
	if err != nil {
		return err
	}
	// Namespaces belong to threads. Exec keeps the namespaces of the calling thread.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w (does a seccomp profile of the container forbid it?)", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts apart: %w (does an AppArmor profile of the container forbid it?)", err)
	}
	if err := unix.Mount(workTmpfs, tmp, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount %s: %w", tmp, err)
	}
	if err := img.build(context.Background(), tmp); err != nil {
		return err
	}
	if err := keepOutside(tmp); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w (does a seccomp profile of the container forbid it?)", err)
	}
	// Sysfs shows the network namespace in which it was mounted. The lab can do without: only the
	// speed of interfaces is read from there.
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount /sys: %w", err)
	}
	for name, value := range map[string]string{insideEnv: strconv.Itoa(os.Getpid()), imageEnv: img.dir, "TMPDIR": tmp} {
		if err := os.Setenv(name, value); err != nil { // appending to the environment would not replace an earlier value
			return err
		}
	}
	return fmt.Errorf("execute %s: %w", exe, syscall.Exec(exe, os.Args, os.Environ()))
}

// keepOutside makes the network namespace of this thread a file in dir.
func keepOutside(dir string) error {
	file := filepath.Join(dir, outsideFile)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep the machine's network: %w", err)
	}
	return nil
}

// outside has a command run in the machine's network.
func outside(cmd *exec.Cmd) *exec.Cmd {
	if !inside() {
		return cmd
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		cmd.Err = fmt.Errorf("%w (apt-get install util-linux)", err)
		return cmd
	}
	cmd.Args = append([]string{"nsenter", "--net=" + filepath.Join(os.TempDir(), outsideFile), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = nsenter
	return cmd
}

// possible returns an error that names the things that this machine lacks, or nil.
func possible() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("it has no guests for %s, only for amd64", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return errors.New("it needs root, to make a network namespace with a bridge: try sudo -E make lab")
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if lacking := lackingCapabilities(uint64(have[1].Effective)<<32 | uint64(have[0].Effective)); len(lacking) > 0 {
		return fmt.Errorf("root lacks the capabilities %s: add them to the container", strings.Join(lacking, ", "))
	}
	f, err := os.OpenFile(tunDevice, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w (modprobe tun; in a container: add that device)", err)
	}
	return f.Close()
}

// capabilities are the powers of root that the lab needs. Containers have the last two by default.
var capabilities = []struct {
	name string
	bit  int
}{
	{"SYS_ADMIN", unix.CAP_SYS_ADMIN},   // namespaces and mounts
	{"NET_ADMIN", unix.CAP_NET_ADMIN},   // the network in the namespace
	{"NET_RAW", unix.CAP_NET_RAW},       // captures
	{"SYS_CHROOT", unix.CAP_SYS_CHROOT}, // the compiler runs in a tree of packages
}

func lackingCapabilities(have uint64) (names []string) {
	for _, c := range capabilities {
		if have>>c.bit&1 == 0 {
			names = append(names, c.name)
		}
	}
	return names
}
