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

// extractKernel writes vmlinux.
func (img *image) extractKernel(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(img.root, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("found %d kernels in the packages, want 1", len(found))
	}
	bz, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	payload, err := kernelPayload(bz)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(img.kernel, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := img.command(ctx, "usr/bin/xz", "-dc")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(payload), out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("uncompress kernel: %w: %s", err, stderr.Bytes())
	}
	return out.Close()
}

// initramfs holds what brings a guest up to where its root, the tree of packages, is mounted.
func (img *image) initramfs(agentd []byte) ([]byte, error) {
	busybox, err := os.ReadFile(filepath.Join(img.root, "usr/bin/busybox"))
	if err != nil {
		return nil, err
	}
	files := make(map[string]string) // of modules, by name
	err = filepath.WalkDir(filepath.Join(img.root, "usr/lib/modules"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(name, ".ko") {
			files[moduleName(name)] = name
		}
		return err
	})
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
		order, err := loadOrder(append(slices.Clone(modules), more...), depends)
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

// goBuild builds a command of this module, for guests and for the network beside them: without cgo
// it needs no library.
func goBuild(ctx context.Context, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", pkg, err, text)
	}
	return nil
}

// Files in the TMPDIR of Enter.
const (
	adverbFile = "adverb"
	agentdFile = "agentd"
	initrdFile = "initrd"
)

// build makes what depends on this module.
func (img *image) build(ctx context.Context, dir string) error {
	for pkg, out := range map[string]string{"cmd/adverb": adverbFile, "lab/agentd": agentdFile} {
		if err := goBuild(ctx, modulePath+pkg, filepath.Join(dir, out)); err != nil {
			return err
		}
	}
	agentd, err := os.ReadFile(filepath.Join(dir, agentdFile))
	if err != nil {
		return err
	}
	initrd, err := img.initramfs(agentd)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, initrdFile), initrd, 0o600)
}

const modulePath = "github.com/adverb-rdma/adverb/"
