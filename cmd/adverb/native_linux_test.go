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
