//go:build amd64 || arm64

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/supervisor"
)

// withCards builds the tool that has cards, and skips the test where there is no libibverbs for it to drive. Under
// "adverb run" the cards are software devices, which rdma-core's own library reaches as those of a kernel.
func withCards(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the tool anew: not in the short tests")
	}
	drivers, _ := filepath.Glob("/usr/lib*/*/libibverbs/librxe-rdmav*.so")
	more, _ := filepath.Glob("/usr/lib*/libibverbs/librxe-rdmav*.so")
	lacks := ""
	if len(drivers)+len(more) == 0 {
		lacks = "libibverbs with its provider for rxe (on Debian: ibverbs-providers)"
	}
	for _, f := range supervisor.Check() {
		if f.Needed && !f.OK {
			lacks = fmt.Sprintf("%s: %s: %s", f.Name, f.Lost, f.Remedy)
		}
	}
	switch {
	case lacks != "" && os.Getenv("CI") == "true":
		t.Fatal("missing: ", lacks)
	case lacks != "":
		t.Skip("missing: ", lacks)
	}
	return built(t, "adverb_native")
}

// built builds the tool with build tags, or without for none.
func built(t *testing.T, tags string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "adverb")
	build := exec.Command("go", "build", "-tags", tags, "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return file
}

// TestStatic: the tool is static, and the one that has cards needs the loader of C's library.
func TestStatic(t *testing.T) {
	interpreter := func(file string) bool {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				return true
			}
		}
		return false
	}
	if !interpreter(withCards(t)) {
		t.Error("the tool with cards is static, so its library cannot be loaded")
	}
	if interpreter(built(t, "")) {
		t.Error("the tool without cards is dynamic: it does not start in an empty container")
	}
}

// TestContainers: the tool runs in a directory that has nothing beside it, as in an image FROM scratch, and the tool with cards in
// one that has C's library alone: without rdma-core's, it has the software devices.
func TestContainers(t *testing.T) {
	native := withCards(t)
	switch {
	case os.Geteuid() != 0 && os.Getenv("CI") == "true":
		t.Fatal("needs root, to change the root directory")
	case os.Geteuid() != 0:
		t.Skip("needs root, to change the root directory")
	}
	for _, image := range []struct{ name, tool, has string }{
		{"scratch", built(t, ""), "devices   soft"},
		{"C's library", native, "devices   native, soft"},
	} {
		t.Run(image.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Chmod(root, 0o755); err != nil { // for a user of no name
				t.Fatal(err)
			}
			files := map[string]string{"adverb": image.tool}
			if image.tool == native {
				for _, lib := range libraries(t, native) {
					files[lib] = lib
				}
			}
			for to, from := range files {
				b, err := os.ReadFile(from)
				if err == nil {
					err = os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755)
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(root, to), b, 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range []struct{ args, want string }{{"version", image.has}, {"devices", "soft_lo"}, {"demo write", ""}} {
				cmd := exec.CommandContext(t.Context(), "/adverb", strings.Fields(c.args)...)
				cmd.Dir, cmd.Env = "/", []string{}
				cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), c.want) {
					t.Errorf("adverb %s: %v, want success and %q in\n%s", c.args, err, c.want, out)
				}
			}
		})
	}
}

// libraries returns the paths of the files that a dynamic program is linked with.
func libraries(t *testing.T, file string) (paths []string) {
	t.Helper()
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", file, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	return paths
}

// TestCardsConnect has two programs talk by each of the tool's ways to connect: both with the kernel's devices and
// connection manager, and one of them with a software device.
func TestCardsConnect(t *testing.T) {
	native := withCards(t)
	tooltest.Exclusive(t, "soft_lo")
	dir, env := asPrograms(t)
	adverb := filepath.Join(dir, "adverb")
	const soft, card = "soft_lo", "rxe_lo"
	program := func(device string) []string {
		if device == soft {
			return []string{adverb}
		}
		return []string{adverb, "run", "-d", soft, "--", native}
	}
	for _, ends := range [][2]string{{card, card}, {card, soft}, {soft, card}} {
		t.Run(ends[0]+" serves "+ends[1], func(t *testing.T) {
			for _, c := range []struct{ name, server, client string }{
				{"rping", "rping -s -a 127.0.0.1 -C 3 -p PORT", "rping -c -a 127.0.0.1 -C 3 -p PORT"},
				{"cmatose", "cmatose -b 127.0.0.1 -p PORT", "cmatose -s 127.0.0.1 -p PORT"},
				{"cmatose by GID", "cmatose -f gid -b 127.0.0.1 -p PORT", "cmatose -f gid -s 127.0.0.1 -p PORT"},
				{"udaddy by GID", "udaddy -f gid -b 127.0.0.1 --port PORT", "udaddy -f gid -s 127.0.0.1 --port PORT"},
				{"udaddy", "udaddy -b 127.0.0.1 --port PORT", "udaddy -s 127.0.0.1 --port PORT"},
				{"mckey", "mckey -b 127.0.0.1 -m 239.0.PORT", "mckey -b 127.0.0.1 -m 239.0.PORT -s"},
				{"write_bw", "write_bw -R -n 50 -p PORT -d SERVER", "write_bw -R -n 50 -p PORT -d CLIENT 127.0.0.1"},
				{"send_lat", "send_lat -R -n 50 -p PORT -d SERVER", "send_lat -R -n 50 -p PORT -d CLIENT 127.0.0.1"},
				{"atomic_bw", "atomic_bw -R -n 50 -p PORT -d SERVER", "atomic_bw -R -n 50 -p PORT -d CLIENT 127.0.0.1"},
				{"rc_pingpong", "rc_pingpong -n 50 -g 0 -p PORT -d SERVER", "rc_pingpong -n 50 -g 0 -p PORT -d CLIENT 127.0.0.1"},
			} {
				t.Run(c.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
					defer cancel()
					port := tooltest.FreePort(t)
					if c.name == "mckey" { // the last two bytes of a group
						port = fmt.Sprintf("%d.%d", len(port), os.Getpid()%250+1)
					}
					args := func(device, line string) []string {
						return append(program(device), strings.Fields(strings.NewReplacer("PORT", port, "SERVER", ends[0], "CLIENT", ends[1]).Replace(line))...)
					}
					start := func(argv []string) (*exec.Cmd, *bytes.Buffer) {
						out := new(bytes.Buffer)
						cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
						cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
						if err := cmd.Start(); err != nil {
							t.Fatal(err)
						}
						return cmd, out
					}
					server, serverSays := start(args(ends[0], c.server))
					served := make(chan error, 1)
					go func() { served <- server.Wait() }()
					for {
						client, says := start(args(ends[1], c.client))
						err := client.Wait()
						select {
						case serr := <-served:
							if serr != nil || err != nil {
								t.Errorf("the server ends with %v:\n%s\nthe client with %v:\n%s", serr, serverSays, err, says)
							}
							return
						default:
						}
						if err == nil && c.name != "mckey" { // whose datagrams go nowhere until the server is a member
							if serr := <-served; serr != nil {
								t.Errorf("the server ends with %v:\n%s", serr, serverSays)
							}
							return
						}
						if err != nil && !strings.Contains(says.String(), "refused") || ctx.Err() != nil { // "no listener" yet, or no TCP port
							cancel()
							t.Fatalf("the client ends with %v:\n%s\nand the server, which goes on (%v), has said:\n%s", err, says, <-served, serverSays)
						}
					}
				})
			}
		})
	}
}
