package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// image is a directory with the files that guests boot from.
type image struct {
	dir    string
	root   string // a tree of Debian packages
	kernel string // vmlinux
}

func imageAt(dir string) *image {
	return &image{dir: dir, root: filepath.Join(dir, "root"), kernel: filepath.Join(dir, "vmlinux")}
}

// prepare downloads and unpacks the packages of a release, unless an earlier call has done so. They stay in
// the user's cache directory.
func prepare(ctx context.Context, release string) (*image, error) {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is missing: guests are made of Debian packages, and that needs a Debian system, version 12 or newer", program)
		}
	}
	cache, lock, err := lockCache("", release)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	return prepareIn(ctx, cache, release)
}

// lockCache locks the cache of that name for a release. The lock lasts until its file is closed.
func lockCache(name, release string) (cache string, lock *os.File, err error) {
	if err := checkRelease(release); err != nil {
		return "", nil, err
	}
	if cache, err = cacheDir(filepath.Join(name, release)); err != nil {
		return "", nil, err
	}
	lock, err = lockFile(filepath.Join(cache, "lock"), unix.LOCK_EX)
	return cache, lock, err
}

// cacheDir returns a directory of that name in the lab's part of the user's cache. It creates the
// directory if need be.
func cacheDir(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w (set HOME or XDG_CACHE_HOME)", err)
	}
	dir := filepath.Join(cache, "adverb", "lab", name)
	return dir, os.MkdirAll(dir, 0o755)
}

// prepareIn is prepare in a cache whose lock the caller holds.
func prepareIn(ctx context.Context, cache, release string) (*image, error) {
	apt := filepath.Join(cache, "apt")
	if err := updateRelease(ctx, apt, release); err != nil {
		return nil, err
	}
	archives, err := resolve(ctx, apt, packages)
	if err != nil {
		return nil, err
	}
	wanted, all := slices.Clone(packages), slices.Clone(archives)
	builders, siwErr := resolve(ctx, apt, buildPackages)
	if siwErr == nil {
		wanted, all = append(wanted, buildPackages...), append(all, builders...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	img := imageAt(filepath.Join(cache, "image-"+recipeKey(all)))
	return img, makeImage(ctx, cache, img.dir, wanted, all, func(dir string) error {
		fmt.Fprintln(os.Stderr, "lab: unpacking them")
		made := imageAt(dir)
		if err := made.make(ctx, apt, archives); err != nil {
			return err
		}
		if siwErr == nil {
			siwErr = made.addSiw(ctx, apt, builders)
		}
		if siwErr == nil {
			return nil
		}
		// Most of the lab needs no siw.
		siwErr = fmt.Errorf("%w%s", siwErr, otherVersions(all))
		fmt.Fprintln(os.Stderr, "lab: going on without siw:", siwErr)
		return made.setLack(deviceSiw, fmt.Errorf("%w\n(to try again, remove %s)", siwErr, img.dir))
	})
}

// makeImage makes and holds the image dir, unless it is there already: it downloads packages, has fill make the image in
// another directory, and renames that. The caller holds the cache's lock. archives are the files of all packages.
func makeImage(ctx context.Context, cache, dir string, packages, archives []string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return holdImage(dir)
	}
	fmt.Fprintf(os.Stderr, "lab: downloading %d Debian packages\n", len(archives))
	if err := download(ctx, filepath.Join(cache, "apt"), packages, archives); err != nil {
		return err
	}
	removeOld(cache)
	made := filepath.Join(cache, "new")
	if err := os.RemoveAll(made); err != nil { // a process that was killed may have left the directory
		return err
	}
	err := fill(made)
	if err == nil {
		err = os.Rename(made, dir)
	}
	if err != nil {
		os.RemoveAll(made)
		return err
	}
	return holdImage(dir)
}

func (img *image) make(ctx context.Context, apt string, archives []string) error {
	if err := unpack(ctx, apt, archives, img.root); err != nil {
		return err
	}
	if err := img.extractKernel(ctx); err != nil {
		return err
	}
	if err := img.inflateModules(ctx); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(img.root, "etc", "hosts"), []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644)
}

// If an image cannot have guests with some type of device, the image contains a file that says why.

func (img *image) lackFile(device string) string { return filepath.Join(img.dir, "no-"+device) }

func (img *image) setLack(device string, why error) error {
	return os.WriteFile(img.lackFile(device), []byte(why.Error()), 0o644)
}

// errNoDevice is an image's lack of a type of device.
var errNoDevice = errors.New("no guest has one here")

// lacks returns why there cannot be guests with that type of device, or nil if there can.
func (img *image) lacks(device string) error {
	why, err := os.ReadFile(img.lackFile(device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("device %s: %w: %s", device, errNoDevice, why)
}

// holdImage protects an image from removeOld in other processes, as long as this process lives.
func holdImage(dir string) error {
	_, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_SH)
	return err
}

// removeOld removes the images that no process holds. They were made from earlier versions of the
// packages.
func removeOld(cache string) {
	old, _ := filepath.Glob(filepath.Join(cache, "image-*"))
	for _, dir := range old {
		if lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			os.RemoveAll(dir)
			lock.Close()
		}
	}
}

// lockFile opens a file and locks it. Children inherit the lock, so it lasts until this process and
// all its children have ended. Otherwise, children of a killed process could write to a directory
// that the next process uses.
func lockFile(name string, how int) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	for {
		err = unix.Flock(fd, how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if how == unix.LOCK_SH {
		return nil, nil // the lock must last, and the finalizer of an os.File would close the file
	}
	return os.NewFile(uintptr(fd), name), nil
}

// command returns a command that runs a program of the packages on this machine. The program uses the
// libraries of the packages.
func (img *image) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	libs := []string{filepath.Join(img.root, "usr/lib/x86_64-linux-gnu"), filepath.Join(img.root, "usr/lib")}
	argv := append([]string{"--library-path", strings.Join(libs, ":"), filepath.Join(img.root, program)}, args...)
	return exec.CommandContext(ctx, filepath.Join(img.root, "usr/lib64/ld-linux-x86-64.so.2"), argv...)
}
