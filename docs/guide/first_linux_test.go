package guide_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFirst runs the program of first.md as two processes, which print what the page says.
func TestFirst(t *testing.T) {
	text, err := os.ReadFile("first.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, write := module(t)
	write("first/main.go", blocks("first.md", text)[0].text)
	exe := filepath.Join(dir, "first", "first")
	build := exec.Command("go", "build", "-o", exe, "./first")
	build.Dir, build.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := exec.CommandContext(t.Context(), exe, "serve", "127.0.0.1:0")
	server.Stderr = os.Stderr
	r, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(r)
	lines.Scan()
	addr, ok := strings.CutPrefix(lines.Text(), "listening at ")
	if !ok {
		t.Fatalf("the server printed %q", lines.Text())
	}
	out, err := exec.CommandContext(t.Context(), exe, "read", addr).CombinedOutput()
	if err != nil {
		t.Fatalf("the client: %v\n%s", err, out)
	}
	lines.Scan()
	got := "listening at 127.0.0.1:7471\n" + lines.Text() + "\n```\n"
	if err := server.Wait(); err != nil {
		t.Errorf("the server: %v", err)
	}
	for _, want := range []string{got, "7471\n" + string(out) + "```\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks\n%s", want)
		}
	}
}
