package lab

import (
	"context"
	"fmt"
	"path/filepath"
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
	cache, lock, err := lockCache(name, Release)
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
	if err := updateRelease(ctx, apt, Release); err != nil {
		return nil, err
	}
	archives, err := resolve(ctx, apt, packages)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "image-"+recipeKey(archives))
	t := &Tree{Root: filepath.Join(dir, "root"), Archives: archives}
	return t, makeImage(ctx, cache, dir, packages, archives, func(made string) error {
		return unpack(ctx, apt, archives, filepath.Join(made, "root"))
	})
}
