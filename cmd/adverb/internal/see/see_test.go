package see

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/demo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// tool is the tool with the command of this package, and one whose packets it draws.
var tool = tooltest.New(Command, demo.Command)

func TestMain(m *testing.M) { tool.Main(m) }

var testdata = filepath.Join("..", "..", "..", "..", "internal", "wire", "testdata")

func TestFile(t *testing.T) {
	rping := filepath.Join(testdata, "rping.pcap")
	for _, tt := range []struct {
		args []string
		want []string // in order
		not  string
	}{
		{[]string{rping}, []string{"A  10.98.0.3\nB  10.98.0.2\n", "CM REQ, asks for a connection with 10.98.0.2:7174", "RDMA_READ_REQUEST", "CM DREP"}, "left out"},
		{[]string{"--text", "--limit", "3", rping}, []string{"CM RTU", "packets from 0.01"}, "SEND_ONLY"},
		{[]string{"--from=20ms", "--to", "0.025", rping}, []string{"RDMA_READ_REQUEST", "The flags leave out 28 of 29 packets."}, "SEND_ONLY"},
		{[]string{"--svg", rping}, []string{"<svg ", "rping.pcap</title>", "A is 10.98.0.3", "CM REQ", "</svg>"}, "frame 1"},
		{[]string{"--qp", "0x18", "--addr", "10.98.0.3", rping}, []string{"CM REQ", "SEND_ONLY", "CM DREQ"}, "leave out"},
		{[]string{"--addr", "10.98.0.9", rping}, []string{"No packets to draw."}, "|"},
		{[]string{"--all", filepath.Join(testdata, "write_lat.pcap")}, []string{"    3 ", "RDMA_WRITE_MIDDLE"}, "×"},
	} {
		code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "see"}, tt.args...)...)
		if code != 0 || stderr != "" {
			t.Errorf("%q: got status %d, stderr %s", tt.args, code, stderr)
		}
		rest := stdout
		for _, want := range tt.want {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%q: got\n%swant %q behind the texts before it", tt.args, stdout, want)
				break
			}
			rest = after
		}
		if strings.Contains(stdout, tt.not) {
			t.Errorf("%q: got\n%swant it without %q", tt.args, stdout, tt.not)
		}
	}
}

func TestRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no capture"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "give captures"},
		{[]string{"--"}, 2, "give captures"},
		{[]string{"x", "--", "y"}, 2, "give captures"},
		{[]string{"--pdf", "x"}, 2, "--pdf"},
		{[]string{"--qp", "x", "y"}, 2, "read --qp=x"},
		{[]string{"--limit", "-1", "y"}, 2, "not negative"},
		{[]string{"--from", "-1s", "y"}, 2, "from the first packet"},
		{[]string{"--addr", "host", "y"}, 2, "read --addr=host"},
		{[]string{filepath.Join(t.TempDir(), "none")}, 1, "none: no such file"},
		{[]string{text}, 1, "not a capture"},
		{[]string{"--", "no-such-program-of-this-name"}, 1, "executable file not found"},
	} {
		code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "see"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: got status %d, stdout %s, stderr %s, want status %d and %q", tt.args, code, stdout, stderr, tt.code, tt.want)
		}
	}
}

// The name of the output says the form, and a flag says it again, or otherwise.
func TestOutput(t *testing.T) {
	dir := t.TempDir()
	rping := filepath.Join(testdata, "rping.pcap")
	for _, tt := range []struct {
		flags []string
		name  string
		want  string
	}{
		{nil, "page.html", "<!doctype html>"},
		{nil, "PAGE.HTM", "<!doctype html>"},
		{nil, "picture.svg", "<svg "},
		{nil, "trace.json", `{"displayTimeUnit":"ns"`},
		{nil, "text", "A  10.98.0.3\n"},
		{nil, "text.TXT", "A  10.98.0.3\n"},
		{[]string{"--svg"}, "picture.xml", "<svg "},
		{[]string{"--text"}, "text.html", "A  10.98.0.3\n"},
		{[]string{"--perfetto", "--limit=1"}, "trace.txt", `{"displayTimeUnit":"ns"`},
		{[]string{"--html"}, "", "<!doctype html>"},
	} {
		args := append([]string{"adverb", "see"}, tt.flags...)
		name := filepath.Join(dir, tt.name)
		if tt.name != "" {
			args = append(args, "-o", name)
		}
		code, stdout, stderr := tool.Run(t.Context(), append(args, rping)...)
		got := stdout
		if tt.name != "" {
			b, err := os.ReadFile(name)
			if err != nil || stdout != "" {
				t.Errorf("%q: %v, stdout %.80s", args, err, stdout)
			}
			got = string(b)
		}
		if code != 0 || stderr != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%q: status %d, stderr %s, and %.80s, want %s", args, code, stderr, got, tt.want)
		}
	}
	capture := filepath.Join(dir, "capture.pcap")
	b, err := os.ReadFile(rping)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(capture, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ output, input, want string }{
		{capture, capture, "choose another name"},
		{filepath.Join(dir, "none", "x.html"), capture, "none"},
		{filepath.Join(dir, "y.html"), filepath.Join(dir, "text"), "not a capture"},
	} {
		code, stdout, stderr := tool.Run(t.Context(), "adverb", "see", "-o", tt.output, tt.input)
		if code != 1 || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("-o %s %s: status %d, stdout %q, stderr %q, want 1 and %q", tt.output, tt.input, code, stdout, stderr, tt.want)
		}
	}
	for _, name := range []string{"x.pdf", "x.PNG", "x.svg.gz", "x."} {
		name = filepath.Join(dir, name)
		code, stdout, stderr := tool.Run(t.Context(), "adverb", "see", capture, "-o", name)
		if want := ": name it .html, .svg, .json (a trace) or .txt"; code != 2 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("-o %s: status %d, stdout %q, stderr %q, want 2 and %q", name, code, stdout, stderr, want)
		}
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if after, err := os.ReadFile(capture); err != nil || string(after) != string(b) {
		t.Errorf("the capture has become %.20q, %v", after, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "y.html")); err == nil {
		t.Error("a capture that cannot be read left a page")
	}
}

var numbers = regexp.MustCompile(`\d+|0x[0-9a-f]+`)

// A program's packets are drawn behind its output, and its status is kept.
func TestProgram(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(tooltest.AsTool, "1")
	code, stdout, stderr := tool.Run(t.Context(), "adverb", "see", "--", exe, "demo", "write", "-q")
	if code != 0 || stderr != "" {
		t.Fatalf("got status %d, stderr %s", code, stderr)
	}
	printed, drawn, ok := strings.Cut(stdout, "disconnected.\nA  127.0.")
	if !ok || !strings.HasPrefix(printed, "$ rdma-server write\n") {
		t.Fatalf("got %s", stdout)
	}
	// Each packet once, though the capture has it at both ends, but for repeats on a busy machine, which have a mark.
	var unmarked strings.Builder
	for line := range strings.Lines(drawn) {
		if !strings.Contains(line, "*") {
			unmarked.WriteString(numbers.ReplaceAllString(line, ""))
		}
	}
	if got := unmarked.String(); strings.Count(got, "RDMA_WRITE_ONLY") != 2 || strings.Count(got, "SEND_ONLY") != 4 {
		t.Errorf("got %s, want 2 WRITEs and 4 SENDs without a mark", drawn)
	}

	code, stdout, stderr = tool.Run(t.Context(), "adverb", "see", "--svg", "--", exe, "demo", "write", "-q")
	if code != 0 || !strings.HasPrefix(stdout, "<svg ") || !strings.HasPrefix(stderr, "$ rdma-server write\n") {
		t.Errorf("got status %d, stdout %.80s, stderr %.80s, want the picture apart from what the program prints", code, stdout, stderr)
	}
	// A page has what the devices did, and the diagnosis; the program's output stays where it is.
	page := filepath.Join(t.TempDir(), "page.html")
	code, stdout, stderr = tool.Run(t.Context(), "adverb", "see", "-o", page, "--", exe, "demo", "write", "-q")
	html, err := os.ReadFile(page)
	if err != nil || code != 0 || stderr != "" || !strings.HasPrefix(stdout, "$ rdma-server write\n") {
		t.Errorf("got %v, status %d, stderr %s, stdout %.80s", err, code, stderr, stdout)
	}
	for _, want := range []string{`"name":"WQE"`, `"name":"CQE"`, `"name":"state"`, "RDMA_WRITE_ONLY"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if !regexp.MustCompile(`"verdict":"[A-Z]`).Match(html) { // on a busy machine it may speak of repeats
		t.Error("the page lacks a verdict")
	}
	code, _, stderr = tool.Run(t.Context(), "adverb", "see", "--", exe, "demo", "send")
	if want := "opened no software device: " + exe + " demo send --see draws a scene's packets"; code != 0 || !strings.Contains(stderr, want) {
		t.Errorf("got status %d, stderr %s, want %q", code, stderr, want)
	}
	code, _, stderr = tool.Run(t.Context(), "adverb", "see", "--", exe, "demo", "none")
	if code != 2 || !strings.Contains(stderr, "opened no software device\n") {
		t.Errorf("got status %d, stderr %s, want the program's status, 2", code, stderr)
	}
}
