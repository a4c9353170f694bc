package lab

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NewSource unpacks files of a source package of this Debian release: those below a directory of its upstream archive,
// into a directory of that name in dir. It fetches the package unless an earlier call has done so.
func NewSource(ctx context.Context, name, below, dir string) error {
	if err := newSource(ctx, name, below, dir); err != nil {
		return fmt.Errorf("unpack %s of the source of %s: %w", below, name, err)
	}
	return nil
}

func newSource(ctx context.Context, name, below, dir string) error {
	cache, lock, err := lockCache("source", Release)
	if err != nil {
		return err
	}
	defer lock.Close()
	found, err := filepath.Glob(filepath.Join(cache, name+"_*.orig.tar.gz"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		if err := fetchSource(ctx, cache, name); err != nil {
			return err
		}
		if found, err = filepath.Glob(filepath.Join(cache, name+"_*.orig.tar.gz")); err != nil {
			return err
		}
	}
	if len(found) != 1 {
		return fmt.Errorf("got %d archives %s_*.orig.tar.gz in %s, want 1", len(found), name, cache)
	}
	f, err := os.Open(found[0])
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	return untarBelow(z, below, dir)
}

// untarBelow extracts the regular files that lie below a directory of an archive's only top directory.
func untarBelow(r io.Reader, below, dir string) error {
	n := 0
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !strings.HasPrefix(name, below+"/") || !filepath.IsLocal(name) {
			continue
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := writeFile(to, tr, 0o644); err != nil {
			return err
		}
		n++
	}
	if n == 0 {
		return errors.New("the archive has no such files")
	}
	return nil
}

// fetchSource has apt-get fetch a source package into dir. Systems list no sources of source packages, so apt-get gets a
// list with the mirrors of the binary ones.
func fetchSource(ctx context.Context, dir, name string) error {
	sources, err := sourcesOf(ctx, Release)
	if err != nil {
		return err
	}
	at := filepath.Join(dir, "source.sources")
	if err := os.WriteFile(at, []byte(strings.ReplaceAll(sources, "Types: deb\n", "Types: deb-src\n")), 0o644); err != nil {
		return err
	}
	lists := filepath.Join(dir, "lists")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		return err
	}
	from := []string{
		"-o", "Dir::Etc::sourcelist=" + at,
		"-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + lists,
	}
	if _, err := apt(ctx, dir, append([]string{"update", "-o", "APT::Update::Error-Mode=any"}, from...)...); err != nil {
		return err
	}
	// Apt-get fetches into its working directory.
	options := append(from, "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "-o", "Dir::Cache="+dir,
		"source", "--download-only", "--only-source", name)
	cmd := exec.CommandContext(ctx, "apt-get", options...)
	cmd.Dir = dir
	return runTree(cmd)
}
