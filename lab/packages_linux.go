package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// apt runs apt-get as if no package were installed, so that it brings all dependencies. Apt-get
// writes below dir only. From the system it reads the lists of packages and the keys.
func apt(ctx context.Context, dir string, args ...string) ([]byte, error) {
	if err := os.MkdirAll(filepath.Join(dir, "archives", "partial"), 0o755); err != nil {
		return nil, err
	}
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	options := append([]string{"-qq", "-y",
		"-o", "Dir::State::status=" + status,
		"-o", "Dir::Cache=" + dir,
		"-o", "Debug::NoLocking=1",
		"-o", "APT::Sandbox::User=root", // only root may write to dir
		"-o", "APT::Architecture=amd64",
		"-o", "APT::Install-Recommends=false",
		"-o", "Acquire::Retries=3",
	}, releaseOptions(dir)...)
	cmd := exec.CommandContext(ctx, "apt-get", append(options, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := spawn(asTree(outside(cmd)))
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		text := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("apt-get %s: %w: %s (packages come from the sources of this Debian system: has apt-get update run lately, and is the network there?)",
			args[0], err, strings.Join(text[max(0, len(text)-maxFaults):], "; "))
	}
	return stdout.Bytes(), nil
}

// resolve returns the file names of packages and of all packages that they depend on.
func resolve(ctx context.Context, dir string, packages []string) (archives []string, err error) {
	out, err := apt(ctx, dir, append([]string{"install", "--print-uris", "-o", "Dir::Cache::archives=none/"}, packages...)...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) { // 'uri' name size hash
		if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], "'") {
			archives = append(archives, f[1])
		}
	}
	slices.Sort(archives)
	if len(archives) == 0 {
		return nil, errors.New("apt-get install --print-uris: no package was named")
	}
	return archives, nil
}

// download fetches packages and removes their earlier versions. Apt-get checks the hashes.
func download(ctx context.Context, dir string, packages, archives []string) error {
	if _, err := apt(ctx, dir, append([]string{"install", "--download-only"}, packages...)...); err != nil {
		return err
	}
	have, err := filepath.Glob(filepath.Join(dir, "archives", "*.deb"))
	if err != nil {
		return err
	}
	for _, name := range have {
		if !slices.Contains(archives, filepath.Base(name)) {
			os.Remove(name)
		}
	}
	return nil
}

// unpack extracts archives into one tree, and leaves out files that the lab does not need.
func unpack(ctx context.Context, dir string, archives []string, root string) error {
	for _, d := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, d := range []string{"dev", "proc", "sys", "tmp", "run", "etc"} { // mount points of the guests
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	// The largest archives come first, because the kernel takes as long as all others together.
	size := func(name string) int64 {
		info, err := os.Stat(filepath.Join(dir, "archives", name))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	archives = slices.Clone(archives)
	slices.SortStableFunc(archives, func(a, b string) int { return int(size(b) - size(a)) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	const workers = 4
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(archives) || ctx.Err() != nil {
					return
				}
				if err := unpackOne(ctx, filepath.Join(dir, "archives", archives[i]), root); err != nil {
					name, _ := url.PathUnescape(archives[i])
					cancel(fmt.Errorf("unpack %s: %w", name, err))
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func unpackOne(ctx context.Context, archive, root string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", archive)
	if err := readTree(cmd, func(r io.Reader) error { return untar(r, root) }); err != nil {
		return fmt.Errorf("dpkg-deb: %w", err)
	}
	return nil
}

// untar extracts the files that treePath has a place for. It trusts the archives: they are
// Debian's, and apt-get has checked their hashes.
func untar(r io.Reader, root string) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r) // dpkg-deb fails unless somebody reads the padding
			return err
		}
		if err != nil {
			return err
		}
		name := treePath(h.Name)
		if name == "" {
			continue
		}
		name = filepath.Join(root, filepath.FromSlash(name))
		if h.Typeflag != tar.TypeDir { // its directory may come later, or may be left out
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = writeFile(name, tr, fs.FileMode(h.Mode).Perm())
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, name)
		case tar.TypeLink:
			if to := treePath(h.Linkname); to != "" {
				err = os.Link(filepath.Join(root, to), name)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

func writeFile(name string, r io.Reader, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
