package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Tree is a file system of unpacked Debian packages, in the user's cache.
type Tree struct {
	Root string
	// Archives are the file names of the packages, with their versions.
	Archives []string
}

// NewTree unpacks packages, and those that they depend on, unless an earlier call has done so. It installs nothing,
// and runs no scripts of the packages. name is the tree's place in the cache. The tree stays as it is while this
// process lives.
func NewTree(ctx context.Context, name string, packages []string) (*Tree, error) {
	if err := checkRelease(Release); err != nil {
		return nil, err
	}
	cache, err := cacheDir(filepath.Join(name, Release))
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(cache, "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	t, err := newTree(ctx, cache, packages)
	if err != nil {
		return nil, fmt.Errorf("unpack %v: %w", packages, err)
	}
	return t, nil
}

// newTree is NewTree in a cache whose lock the caller holds.
func newTree(ctx context.Context, cache string, packages []string) (*Tree, error) {
	apt := filepath.Join(cache, "apt")
	if err := updateRelease(ctx, apt); err != nil {
		return nil, err
	}
	archives, err := resolve(ctx, apt, packages)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "image-"+recipeKey(archives))
	t := &Tree{Root: filepath.Join(dir, "root"), Archives: archives}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return t, errors.Join(err, holdImage(dir))
	}
	fmt.Fprintf(os.Stderr, "lab: downloading %d Debian packages\n", len(archives))
	if err := download(ctx, apt, packages, archives); err != nil {
		return nil, err
	}
	removeOld(cache)
	made := filepath.Join(cache, "new")
	if err := os.RemoveAll(made); err != nil { // a process that was killed may have left the directory
		return nil, err
	}
	if err := unpack(ctx, apt, archives, filepath.Join(made, "root")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(made))
	}
	if err := os.Rename(made, dir); err != nil {
		return nil, err
	}
	return t, holdImage(dir)
}
