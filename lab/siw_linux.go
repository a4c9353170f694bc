package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Linux's software iWARP device is part of every kernel's source, and of no kernel package of Debian 12. So it is
// built as a module of its own, by the compiler that has built the kernel, inside a tree of
// packages which is removed again.

const siwSource = "drivers/infiniband/sw/siw"

// addSiw adds the module to the others, unless the kernel package has it.
func (img *image) addSiw(ctx context.Context, apt string, archives []string) error {
	dirs, err := filepath.Glob(filepath.Join(img.root, "usr/lib/modules", "*", "kernel"))
	if err != nil || len(dirs) != 1 {
		return fmt.Errorf("build siw: modules of %d kernels in the packages, want 1", len(dirs))
	}
	ko := filepath.Join(dirs[0], siwSource, "siw.ko")
	if _, err := os.Stat(ko); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "lab: building the kernel module siw")
	tree := imageAt(filepath.Join(img.dir, "build"))
	defer os.RemoveAll(tree.dir)
	if err := unpack(ctx, apt, archives, tree.root); err != nil {
		return err
	}
	if err := tree.buildSiw(ctx); err != nil {
		return fmt.Errorf("build siw: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(ko), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tree.root, "siw", "siw.ko"), ko)
}

// buildSiw makes /siw/siw.ko in a tree of the buildPackages.
func (img *image) buildSiw(ctx context.Context) error {
	if err := img.extractSiw(ctx); err != nil {
		return err
	}
	headers, err := filepath.Glob(filepath.Join(img.root, "usr/src", "linux-headers-*-amd64"))
	if err != nil || len(headers) != 1 {
		return fmt.Errorf("found headers of %d kernels in the packages, want 1", len(headers))
	}
	if err := unix.Mknod(filepath.Join(img.root, "dev", "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("make a device file: %w (in a container: add the capability MKNOD)", err)
	}
	script := `/usr/bin/busybox mkdir /run/applets && /usr/bin/busybox --install -s /run/applets &&
		make -s -j` + strconv.Itoa(buildJobs) + ` -C "$1" M=/siw CONFIG_RDMA_SIW=m modules && strip --strip-debug /siw/siw.ko`
	cmd := exec.CommandContext(ctx, "/usr/bin/busybox", "sh", "-c", script, "sh", "/usr/src/"+filepath.Base(headers[0]))
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: img.root}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/usr/sbin:/run/applets", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make: %w: %s", err, out)
	}
	return nil
}

const buildJobs = 4 // siw has eight files

// extractSiw extracts its part of the kernel's source to /siw.
func (img *image) extractSiw(ctx context.Context) error {
	sources, err := filepath.Glob(filepath.Join(img.root, "usr/src", "linux-source-*.tar.xz"))
	if err != nil || len(sources) != 1 {
		return fmt.Errorf("found %d kernel sources in the packages, want 1", len(sources))
	}
	to := filepath.Join(img.root, "siw")
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	cmd := img.command(ctx, "usr/bin/xz", "-dc", sources[0])
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n, err := untarDir(out, siwSource, to)
	cmd.Process.Kill() // what follows the directory is of no interest
	cmd.Wait()
	if err != nil {
		return fmt.Errorf("extract %s: %w: %s", filepath.Base(sources[0]), err, stderr.Bytes())
	}
	if n == 0 {
		return fmt.Errorf("extract %s: it has no %s", filepath.Base(sources[0]), siwSource)
	}
	return nil
}

// untarDir writes the files of one directory, whose path in the archive ends in dir, and returns how
// many they were. It reads no further than them.
func untarDir(r io.Reader, dir, to string) (n int, err error) {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if !strings.HasSuffix(path.Dir(h.Name), "/"+dir) {
			if n > 0 {
				return n, nil
			}
			continue
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := writeFile(filepath.Join(to, path.Base(h.Name)), tr, 0o644); err != nil {
			return n, err
		}
		n++
	}
}
