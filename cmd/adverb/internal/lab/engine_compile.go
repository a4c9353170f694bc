//go:build !adverb_lab

package lab

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

const (
	modulePath    = "github.com/adverb-rdma/adverb"
	enginePackage = "./internal/stage/wasm"
)

// errNoEngine says what to do where the engine cannot be compiled.
var errNoEngine = errors.New("this program was built without the page's engine, and cannot compile it here: " +
	"use a released program, or build one with \"make wasm\" and -tags adverb_lab, or have Go in PATH and run it in the module's sources")

// engine compiles the engine, or takes the one that it has compiled before.
func engine(ctx context.Context, log io.Writer) (wasm, support []byte, err error) {
	program, err := exec.LookPath("go")
	if err != nil {
		return nil, nil, fmt.Errorf("%w (%w)", errNoEngine, err)
	}
	g := toolchain{ctx, program}
	if support, err = g.runtimeFile(); err != nil {
		return nil, nil, fmt.Errorf("%w (%w)", errNoEngine, err)
	}
	info, _ := debug.ReadBuildInfo()
	version := versionOf(info)
	dir, err := g.sources(version)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (%w)", errNoEngine, err)
	}
	kept := cacheFile(version)
	if kept != "" {
		if wasm, err = os.ReadFile(kept); err == nil {
			return wasm, support, nil
		}
	}
	if wasm, err = g.compile(dir, log); err != nil {
		return nil, nil, err
	}
	if kept != "" {
		keep(kept, wasm) // next time it is compiled again, if that fails
	}
	return wasm, support, nil
}

// versionOf is the version that the program was built as a module of, or "" for a working tree's.
func versionOf(info *debug.BuildInfo) string {
	if info == nil || info.Main.Path != modulePath || strings.Contains(info.Main.Version, "+dirty") {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" { // a working tree's, which may change; go build is quick the second time
			return ""
		}
	}
	if v := info.Main.Version; v != "(devel)" {
		return v
	}
	return ""
}

// cacheFile is where the engine of a version is kept, or "" where it is not.
func cacheFile(version string) string {
	dir, err := os.UserCacheDir()
	if err != nil || version == "" {
		return ""
	}
	return filepath.Join(dir, "adverb", "lab-"+version+"-"+runtime.Version()+".wasm.gz")
}

// keep writes a file whole, or not at all.
func keep(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".lab-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// toolchain is Go's.
type toolchain struct {
	ctx     context.Context
	program string
}

// run runs a subcommand in a directory, and returns what it prints.
func (g toolchain) run(dir string, env []string, args ...string) ([]byte, error) {
	c := exec.CommandContext(g.ctx, g.program, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// runtimeFile reads Go's part of the page, which fits the engine that the same toolchain compiles. Its licence asks that
// it goes with every copy.
func (g toolchain) runtimeFile() ([]byte, error) {
	out, err := g.run("", nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	root := strings.TrimSpace(string(out))
	code, err := os.ReadFile(filepath.Join(root, "lib", "wasm", runtimeFile))
	if err != nil {
		return nil, err
	}
	if licence, err := os.ReadFile(filepath.Join(root, "LICENSE")); err == nil && !bytes.Contains(licence, []byte("*/")) { // distributions may keep it elsewhere
		code = slices.Concat([]byte("/*\n"), licence, []byte("*/\n"), code)
	}
	return code, nil
}

// sources finds the module's sources: those of the version, or else those of the working tree.
func (g toolchain) sources(version string) (dir string, err error) {
	args := []string{"list", "-m", "-json", modulePath}
	if version != "" {
		args = []string{"mod", "download", "-json", modulePath + "@" + version}
	}
	out, err := g.run("", []string{"GOWORK=off"}, args...)
	var m struct{ Dir, Error string }
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	switch {
	case err != nil:
		return "", err
	case m.Dir == "":
		return "", errors.New(cmp.Or(m.Error, "the module's sources are not here"))
	}
	return m.Dir, nil
}

// compile compiles the engine from the sources in a directory.
func (g toolchain) compile(dir string, log io.Writer) ([]byte, error) {
	fmt.Fprintln(log, "adverb: the page's engine is being compiled, which takes a minute the first time")
	tmp, err := os.MkdirTemp("", "adverb-lab-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "engine.wasm")
	if _, err := g.run(dir, []string{"GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOWASM="},
		"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, enginePackage); err != nil {
		return nil, fmt.Errorf("compile the page's engine: %w", err)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(wasm)
	}
	if err == nil {
		err = z.Close()
	}
	return b.Bytes(), err
}
