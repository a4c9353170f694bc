package lab

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// extractKernel uncompresses the kernel to vmlinux.
func (img *image) extractKernel(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(img.root, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("found %d kernels in the packages, want 1", len(found))
	}
	bz, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	payload, program, err := kernelPayload(bz)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(img.kernel, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := img.command(ctx, "usr/bin/"+program, "-dc")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(payload), out
	if err := runTree(cmd); err != nil {
		return fmt.Errorf("uncompress kernel: %w", err)
	}
	return out.Close()
}

// inflateModules uncompresses the kernel modules. Debian 13 compresses them.
func (img *image) inflateModules(ctx context.Context) error {
	modules, err := img.moduleFiles(".ko.xz")
	if err != nil || len(modules) == 0 {
		return err
	}
	args := append([]string{"--decompress", "--"}, slices.Collect(maps.Values(modules))...)
	if err := runTree(img.command(ctx, "usr/bin/xz", args...)); err != nil {
		return fmt.Errorf("uncompress kernel modules: %w", err)
	}
	return nil
}

// moduleFiles returns the paths of kernel modules. The map's keys are the modules' names.
func (img *image) moduleFiles(suffix string) (map[string]string, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(filepath.Join(img.root, "usr/lib/modules"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(name, suffix) {
			files[moduleName(name)] = name
		}
		return err
	})
	return files, err
}

// builtinModules returns the names of the modules that are linked into the kernel.
func (img *image) builtinModules() (map[string]bool, error) {
	lists, err := filepath.Glob(filepath.Join(img.root, "usr/lib/modules", "*", builtinFile))
	if err != nil || len(lists) != 1 {
		return nil, fmt.Errorf("found %d files %s in the packages, want 1", len(lists), builtinFile)
	}
	text, err := os.ReadFile(lists[0])
	names := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		names[moduleName(strings.TrimSpace(line))] = true
	}
	return names, err
}

// initramfs makes the archive with all that a guest needs until it has mounted the tree of packages
// as its root.
func (img *image) initramfs(agentd []byte) ([]byte, error) {
	busybox, err := os.ReadFile(filepath.Join(img.root, "usr/bin/busybox"))
	if err != nil {
		return nil, err
	}
	files, err := img.moduleFiles(".ko")
	if err != nil {
		return nil, err
	}
	builtin, err := img.builtinModules()
	if err != nil {
		return nil, err
	}
	contents := make(map[string][]byte)
	depends := func(name string) ([]string, error) {
		if files[name] == "" {
			return nil, fmt.Errorf("%s: the kernel package has no such module in %q", name, moduleDirs)
		}
		ko, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		contents[name] = ko
		return moduleDepends(ko)
	}
	var a cpioArchive
	for _, dir := range []string{"bin", "dev", "proc", "sys", "deb", "modules.d"} {
		a.dir(dir)
	}
	a.file("bin/busybox", busybox)
	a.file("init", initScript)
	a.file("agentd", agentd)
	for device, more := range deviceModules {
		if img.lacks(device) != nil {
			continue
		}
		wanted := slices.DeleteFunc(append(slices.Clone(modules), more...), func(name string) bool { return builtin[name] })
		order, err := loadOrder(wanted, depends)
		if err != nil {
			return nil, err
		}
		a.file("modules."+device, []byte(strings.Join(order, "\n")+"\n"))
	}
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		a.file("modules.d/"+name, contents[name])
	}
	return a.bytes(), nil
}

// goBuild builds a command of this module without cgo, so that it runs in guests, which may lack
// its libraries. The caller must have locked its thread. The command go sees the mounts of that
// thread, and ends with it.
func goBuild(ctx context.Context, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := asTree(cmd).CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", pkg, err, text)
	}
	return nil
}

// These files are in the directory that Enter makes for TMPDIR.
const (
	adverbFile = "adverb"
	agentdFile = "agentd"
)

// initrd returns the path of the image's initramfs in dir.
func (img *image) initrd(dir string) string {
	return filepath.Join(dir, "initrd-"+filepath.Base(img.dir))
}

// build makes the files that depend on this module's sources. The caller must have locked its thread.
func (img *image) build(ctx context.Context, dir string) error {
	for pkg, out := range map[string]string{"cmd/adverb": adverbFile, "lab/agentd": agentdFile} {
		if err := goBuild(ctx, modulePath+pkg, filepath.Join(dir, out)); err != nil {
			return err
		}
	}
	return img.writeInitrd(dir)
}

// writeInitrd makes the image's initramfs in dir, where build has made the agent.
func (img *image) writeInitrd(dir string) error {
	agentd, err := os.ReadFile(filepath.Join(dir, agentdFile))
	if err != nil {
		return err
	}
	initrd, err := img.initramfs(agentd)
	if err != nil {
		return err
	}
	return os.WriteFile(img.initrd(dir), initrd, 0o600)
}

const modulePath = "github.com/adverb-rdma/adverb/"
