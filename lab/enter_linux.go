package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	// Set in the process that is inside, to its PID: its children inherit the variable, but not the PID.
	insideEnv = "ADVERB_LAB_INSIDE"
	imageEnv  = "ADVERB_LAB_IMAGE" // directory of the image
	workTmpfs = "adverb-lab"
)

// Enter moves the process into a network and a mount namespace of its own, by executing itself
// anew with the same PID, arguments and environment: main or TestMain call it first. What the
// process then makes — interfaces, mounts, temporary files — goes when it and its children go, whatever
// ends them. Where the process is inside already, Enter does nothing.
//
// Before the network is gone, Enter has prepared all that comes from there. TMPDIR then names a
// file system of the namespace.
func Enter() error {
	if inside() {
		return nil
	}
	return fmt.Errorf("enter the lab: %w", enter())
}

func inside() bool { return os.Getenv(insideEnv) == strconv.Itoa(os.Getpid()) }

// enter returns only if it fails.
func enter() error {
	if err := possible(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	tmp, err := cacheDir("work") // to mount on
	if err != nil {
		return err
	}
	img, err := prepare(context.Background())
	if err != nil {
		return err
	}
	// Namespaces belong to threads, and exec keeps those of the thread that calls it.
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
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w (does a seccomp profile of the container forbid it?)", err)
	}
	// Sysfs shows the network in which it was mounted. Only the speed of interfaces is read there.
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount /sys: %w", err)
	}
	for name, value := range map[string]string{insideEnv: strconv.Itoa(os.Getpid()), imageEnv: img.dir, "TMPDIR": tmp} {
		if err := os.Setenv(name, value); err != nil { // a second value of one name would not count
			return err
		}
	}
	return fmt.Errorf("execute %s: %w", exe, syscall.Exec(exe, os.Args, os.Environ()))
}

// possible says what of the machine is missing.
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

// capabilities that the lab needs of root: those which containers have by default come last.
var capabilities = []struct {
	name string
	bit  int
}{
	{"SYS_ADMIN", unix.CAP_SYS_ADMIN},   // namespaces and mounts
	{"NET_ADMIN", unix.CAP_NET_ADMIN},   // the network in them
	{"NET_RAW", unix.CAP_NET_RAW},       // captures
	{"SYS_CHROOT", unix.CAP_SYS_CHROOT}, // the compiler's tree
}

func lackingCapabilities(have uint64) (names []string) {
	for _, c := range capabilities {
		if have>>c.bit&1 == 0 {
			names = append(names, c.name)
		}
	}
	return names
}
