package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// The source of Linux contains a software iWARP device, siw. Debian 12's kernel packages leave it
// out. So the lab builds it as a separate module, with the compiler that built the kernel. The
// build runs in a temporary tree of packages.

const siwSource = "drivers/infiniband/sw/siw"

// addSiw builds the module and adds it to the others, unless the kernel package has it.
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
	if err := tree.buildSiw(ctx, filepath.Base(filepath.Dir(dirs[0]))); err != nil {
		return fmt.Errorf("build siw: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(ko), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tree.root, "siw", "siw.ko"), ko)
}

// otherVersions names the packages for building siw whose version differs from the kernel's, or
// returns "". Versions can differ for a while, because Debian publishes the signed kernel later
// than its source.
func otherVersions(archives []string) string {
	versions := make(map[string]string)
	for _, archive := range archives {
		name, version, _ := strings.Cut(archive, "_")
		version, _, _ = strings.Cut(version, "_")
		if version, err := url.PathUnescape(version); err == nil {
			versions[name] = version
		}
	}
	const kernel = "linux-image-amd64"
	var other []string
	for _, name := range []string{"linux-headers-amd64", "linux-source"} {
		if version, ok := versions[name]; ok && version != versions[kernel] {
			other = append(other, name+" "+version)
		}
	}
	if other == nil {
		return ""
	}
	return fmt.Sprintf("\n(packages of one version are needed, but there are %s %s, %s: is apt's source of security updates in use, and apt-get update recent?)",
		kernel, versions[kernel], strings.Join(other, ", "))
}

// buildSiw makes /siw/siw.ko for a kernel, in a tree that holds the buildPackages.
func (img *image) buildSiw(ctx context.Context, kernel string) error {
	headers, err := filepath.Glob(filepath.Join(img.root, "usr/src", "linux-headers-*-amd64"))
	if err != nil || len(headers) != 1 {
		return fmt.Errorf("found headers of %d kernels in the packages, want 1", len(headers))
	}
	if got, want := filepath.Base(headers[0]), "linux-headers-"+kernel; got != want {
		return fmt.Errorf("found %s in the packages, want %s: the kernel would refuse the module", got, want)
	}
	if err := img.extractSiw(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(img.root, "dev", "null"), nil, 0o600); err != nil { // to mount on
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(img.root, busyboxFile), "sh", "-c", enterScript,
		"sh", img.root, filepath.Join(img.root, busyboxFile), buildScript, "/usr/src/"+filepath.Base(headers[0]), strconv.Itoa(buildJobs))
	// The mount ends with its namespace.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Env = []string{"PATH=/usr/bin:/usr/sbin:/run/applets", "LC_ALL=C"}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := runTree(cmd); err != nil {
		return fmt.Errorf("make: %w %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// The build needs /dev/null. Some containers must not create the device, and some file systems
// cannot hold one, so the host's is mounted.
const (
	enterScript = `"$2" mount --bind /dev/null "$1/dev/null" && exec "$2" chroot "$1" /usr/bin/busybox sh -c "$3" sh "$4" "$5"`
	buildScript = `/usr/bin/busybox mkdir /run/applets && /usr/bin/busybox --install -s /run/applets &&
		make -s -j"$2" -C "$1" M=/siw CONFIG_RDMA_SIW=m modules && strip --strip-debug /siw/siw.ko`
	busyboxFile = "usr/bin/busybox"
)

const buildJobs = 4 // siw has eight files

// extractSiw extracts siw's part of the kernel's source to /siw.
func (img *image) extractSiw(ctx context.Context) error {
	sources, err := filepath.Glob(filepath.Join(img.root, "usr/src", "linux-source-*.tar.xz"))
	if err != nil || len(sources) != 1 {
		return fmt.Errorf("found %d kernel sources in the packages, want 1", len(sources))
	}
	to := filepath.Join(img.root, "siw")
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	n := 0
	err = readTree(img.command(ctx, "usr/bin/xz", "-dc", sources[0]), func(r io.Reader) (err error) {
		if n, err = untarDir(r, siwSource, to); err == nil && n > 0 {
			err = errEnough
		}
		return err
	})
	if err == nil && n == 0 {
		err = errors.New("it has no " + siwSource)
	}
	if err != nil {
		return fmt.Errorf("extract %s: %w", filepath.Base(sources[0]), err)
	}
	return nil
}

// untarDir writes the files of one directory to the directory to, and returns their number. The
// directory's path in the archive ends in dir. The reading stops behind the last of the files.
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
