package adverbprom_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOutside: a module of others can require this one and adverb, as modules that were downloaded, without the replace
// that this module has for itself. A directory takes the place of the hosting site.
func TestOutside(t *testing.T) {
	const adverb = "github.com/adverb-rdma/adverb"
	const prom = adverb + "/adverbprom"
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	// What this module requires is a release, or is below each commit: then any commit does.
	required := regexp.MustCompile(`(?m)^\s*` + adverb + ` (v\S+)$`).FindSubmatch(mod)
	if required == nil {
		t.Fatalf("go.mod does not require %s:\n%s", adverb, mod)
	}
	version := string(required[1])
	if strings.HasPrefix(version, "v0.0.0-0001") {
		version = "v0.0.0-20261129000000-abcdefabcdef"
	}
	proxy := t.TempDir()
	publish(t, proxy, adverb, version, "..")
	publish(t, proxy, prom, version, ".")

	env := func(name string) string {
		t.Helper()
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	dir, cache := t.TempDir(), t.TempDir()
	save(t, filepath.Join(dir, "go.mod"), "module example.com/program\n\ngo 1.26.0\n")
	save(t, filepath.Join(dir, "main.go"), `package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"`+prom+`"
	_ "`+adverb+`/provider/soft"
)

func main() { prometheus.MustRegister(adverbprom.New()) }
`)
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOFLAGS=-modcacherw -mod=mod", "GOWORK=off", "GONOSUMDB="+adverb,
			"GOPROXY=file://"+filepath.ToSlash(proxy)+",file://"+filepath.ToSlash(env("GOMODCACHE"))+"/cache/download,"+env("GOPROXY"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("get", adverb+"@"+version, prom+"@"+version)
	// All packages are found, in modules that were downloaded.
	if out := run("list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}} {{.Replace}}{{end}}", "."); !strings.Contains(out, adverb+" "+version+" <nil>\n") ||
		!strings.Contains(out, prom+" "+version+" <nil>\n") {
		t.Errorf("the program is made of\n%s\nwant %s of both modules", out, version)
	}
}

// publish writes what a proxy has of a module: the module's files are those below dir, without modules below it.
func publish(t *testing.T, proxy, module, version, dir string) {
	t.Helper()
	var z bytes.Buffer
	w := zip.NewWriter(&z)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if rel != "." && (err == nil || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if ext := path.Ext(name); !d.Type().IsRegular() || ext != ".go" && d.Name() != "go.mod" {
			return nil // what a program is built of is enough
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := w.Create(module + "@" + version + "/" + filepath.ToSlash(rel))
		if err == nil {
			_, err = f.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := json.Marshal(map[string]string{"Version": version, "Time": "2026-11-29T00:00:00Z"})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	save(t, filepath.Join(at, "list"), version+"\n")
	save(t, filepath.Join(at, version+".info"), string(info))
	save(t, filepath.Join(at, version+".mod"), string(mod))
	save(t, filepath.Join(at, version+".zip"), z.String())
}

func save(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
