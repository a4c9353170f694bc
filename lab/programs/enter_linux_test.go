package programs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/lab"
)

const (
	labEnv   = "ADVERB_LAB" // as in package lab
	required = "require"
	// treeEnv is set in the process that is inside: where the tree is, and its packages.
	treeEnv     = "ADVERB_PROGRAMS_TREE"
	archivesEnv = "ADVERB_PROGRAMS_ARCHIVES"
	// noSuite is a file in TMPDIR that says why there are no tests of rdma-core.
	noSuite = "nosuite"
)

func TestMain(m *testing.M) {
	flag.StringVar(&lab.Release, "release", "", "Debian release of the programs, such as trixie (default this system's)")
	flag.Parse()
	switch mode := os.Getenv(labEnv); {
	case mode != "" && mode != required:
		fmt.Fprintf(os.Stderr, "%s=%s: want %q, or no such variable\n", labEnv, mode, required)
		os.Exit(2)
	case mode == required && os.Getenv(treeEnv) == "":
		code, err := outside()
		if err != nil {
			fmt.Fprintln(os.Stderr, "programs:", err)
			code = 1
		}
		os.Exit(code)
	case mode == required:
		if err := prepareInside(os.Getenv(treeEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "programs:", err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if code == 0 && os.Getenv(treeEnv) != "" {
		if err := results.finish(page, strings.Fields(os.Getenv(archivesEnv)), *updateFlag); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// outside prepares the tree, and runs this program again in namespaces of its own. That process is the first of its
// PID namespace. So it sees all processes that the programs leave behind, and none of them outlives it.
func outside() (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("it needs root, to make namespaces: try sudo -E make programs")
	}
	if runtime.GOARCH != "amd64" {
		return 1, fmt.Errorf("there are no packages for %s, only for amd64", runtime.GOARCH)
	}
	tree, err := lab.NewTree(context.Background(), "programs", packages)
	if err != nil {
		return 1, err
	}
	work, err := os.MkdirTemp("", "adverb-programs-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(work)
	build := exec.Command("go", "build", "-o", filepath.Join(work, "adverb"), "github.com/adverb-rdma/adverb/cmd/adverb")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%v: %w: %s", build, err, text)
	}
	if err := buildStatic(context.Background(), tree.Root, work); err != nil {
		return 1, err
	}
	if err := fetchSuite(context.Background(), work); err != nil {
		if err := os.WriteFile(filepath.Join(work, noSuite), []byte(err.Error()), 0o644); err != nil {
			return 1, err
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return 1, err
	}
	runtime.LockOSThread() // Pdeathsig asks for a locked thread
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), treeEnv+"="+tree.Root, archivesEnv+"="+strings.Join(tree.Archives, " "), "TMPDIR="+work)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// prepareInside makes the mounts that programs need in the tree, and brings the network up.
func prepareInside(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts apart: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	in := func(name string) string { return filepath.Join(root, name) }
	for _, m := range []struct {
		source, target, fs string
		flags              uintptr
		data               string
	}{
		{root, root, "", unix.MS_BIND, ""},
		{"proc", in("proc"), "proc", 0, ""},
		{"/dev", in("dev"), "", unix.MS_BIND, ""}, // without the mounts below /dev
		{"shm", in("dev/shm"), "tmpfs", 0, "mode=1777"},
		{"sysfs", in("sys"), "sysfs", unix.MS_RDONLY, ""},
		{"tmp", in("tmp"), "tmpfs", 0, "mode=1777"},
		{"run", in("run"), "tmpfs", 0, "mode=755"},
	} {
		if err := unix.Mount(m.source, m.target, m.fs, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/var:/bin/sh\n",
		"etc/hosts":  "127.0.0.1 localhost programs\n::1 localhost\n",
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	static := filepath.Join(os.TempDir(), filepath.Base(staticPath))
	for from, to := range map[string]string{
		filepath.Join(os.TempDir(), "adverb"): adverb,
		static:                                staticPath,
		"testdata/ranks.py":                   "/run/ranks.py",
		"testdata/suite.py":                   "/run/suite.py",
		"testdata/dat.conf":                   "/run/dat.conf",
	} {
		text, err := os.ReadFile(from)
		if from == static && errors.Is(err, fs.ErrNotExist) {
			continue // there is no compiler
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(in(to), text, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("programs")); err != nil {
		return err
	}
	if suite := os.DirFS(filepath.Join(os.TempDir(), "tests")); exists(suite) {
		if err := os.CopyFS(in(suiteDir+"/tests"), suite); err != nil {
			return err
		}
	}
	// What the packages' scripts would do to have Debian's alternatives.
	if err := os.Mkdir(in("run/lib"), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/usr/lib/libpsm1/libpsm_infinipath.so.1.16", in("run/lib/libpsm_infinipath.so.1")); err != nil {
		return err
	}
	return network(root)
}

func exists(dir fs.FS) bool {
	_, err := fs.Stat(dir, ".")
	return err == nil
}

// address is that of eth0, whose device is soft_eth0 to our tool and rxe_eth0 to the programs.
const address = "192.0.2.1"

// network brings up lo, and makes eth0.
func network(root string) error {
	for _, line := range []string{
		"link set lo up",
		"link add eth0 type veth peer name far0",
		"addr add " + address + "/24 dev eth0",
		"addr add fd00:5::1/64 dev eth0 nodad",
		"link set far0 up",
		"link set eth0 up",
	} {
		ip := exec.Command("/usr/bin/ip", strings.Fields(line)...)
		ip.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		if text, err := ip.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, text)
		}
	}
	return nil
}

// needTree skips a test unless this process is inside.
func needTree(t *testing.T) {
	t.Helper()
	if os.Getenv(treeEnv) == "" {
		t.Skip("needs Debian's packages and namespaces: make programs, as root on Debian")
	}
}
