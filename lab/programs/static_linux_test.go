package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// buildStatic builds testdata/static.c with the libraries of a tree. Without a C compiler it builds nothing.
func buildStatic(ctx context.Context, root, work string) error {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil
	}
	args := []string{"-static", "-O1", "-DRDMA_STATIC_PROVIDERS=rxe", "-I" + filepath.Join(root, "usr/include"),
		"-o", filepath.Join(work, filepath.Base(staticPath)), "testdata/static.c", "-Wl,--start-group"}
	for _, name := range []string{"libibverbs.a", "librxe-rdmav*.a", "libnl-route-3.a", "libnl-3.a"} {
		var files []string
		for _, lib := range []string{"usr/lib", "lib"} {
			found, err := filepath.Glob(filepath.Join(root, lib, "x86_64-linux-gnu", name))
			if err != nil {
				return err
			}
			files = append(files, found...)
		}
		if len(files) == 0 {
			return fmt.Errorf("build a static program: the packages have no %s", name)
		}
		args = slices.Concat(args, files[:1])
	}
	build := exec.CommandContext(ctx, cc, append(args, "-Wl,--end-group", "-lpthread")...)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", build, err, text)
	}
	return nil
}

// needStatic skips a test of the static program where there was no compiler.
func needStatic(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(os.Getenv(treeEnv), staticPath)); err == nil {
		return
	}
	const lack = "no static program: the C compiler cc is missing"
	if os.Getenv("CI") == "true" {
		t.Fatal(lack)
	}
	t.Skip(lack)
}
