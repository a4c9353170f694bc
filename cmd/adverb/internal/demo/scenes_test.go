package demo

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/ladder"
)

var update = flag.Bool("update", false, "write the golden files anew")

// scene runs a scene, which must end well.
func scene(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "demo"}, args...)...)
	if code != 0 || stderr != "" {
		t.Fatalf("%q: got status %d, stderr %s, want status 0 and no stderr", args, code, stderr)
	}
	return stdout
}

// Each scene says the same at each run, with its ladder, in 100 columns.
func TestScenes(t *testing.T) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			see := []string{s.name, "--see"}
			if s.told {
				see = see[:1]
			}
			got := scene(t, see...)
			name := filepath.Join("testdata", s.name+".txt")
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			tooltest.DiffLines(t, got, tooltest.Transcript(t, s.name+".txt"))
			for line := range strings.Lines(got) {
				if n := utf8.RuneCountInString(line) - 1; n > textWidth {
					t.Errorf("a line has %d columns, want %d at most: %s", n, textWidth, line)
				}
			}
			if s.told {
				return
			}
			story := scene(t, s.name)
			if !strings.HasPrefix(got, story) {
				t.Error("without --see the story is another one")
			}
			if quiet := scene(t, s.name, "-q", "--see"); quiet != strings.TrimPrefix(got, story+"\n") {
				t.Errorf("quiet, got\n%swant the ladder alone", quiet)
			}
		})
	}
}

var traceLine = regexp.MustCompile(`(?m)^\d+\.\d{6} 10\.0\.0\.[12] > 10\.0\.0\.[12] RC [A-Z_]+ qp=0x`)

// A scene's trace and its capture have the same packets: those that were sent.
func TestScenePackets(t *testing.T) {
	for _, s := range scenes {
		if s.told {
			continue
		}
		file := filepath.Join(t.TempDir(), "x.pcapng")
		lines := strings.Count(scene(t, s.name, "-q", "--trace", "--pcap", file), "\n")
		text := scene(t, s.name, "--trace")
		if got := len(traceLine.FindAllString(text, -1)); got != lines || got == 0 {
			t.Errorf("%s: a trace has %d lines between the story, and %d alone", s.name, got, lines)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := ladder.NewCollector()
		if err := c.Read(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		if l := c.Ladder(ladder.Options{}); l.Total != lines || len(l.Notes) > 0 {
			t.Errorf("%s: the capture has %d packets and notes %q, want %d packets", s.name, l.Total, l.Notes, lines)
		}
	}
}

func TestScenePCAPNotWritable(t *testing.T) {
	code, _, stderr := tool.Run(t.Context(), "adverb", "demo", "send", "--pcap", filepath.Join(t.TempDir(), "no", "file"))
	if code != 1 || !strings.HasPrefix(stderr, "adverb: demo: open ") {
		t.Errorf("got status %d, stderr %s, want status 1 and why the file cannot be opened", code, stderr)
	}
}

// The demonstrations over loopback are drawn and traced too.
func TestDemoSeen(t *testing.T) {
	got := scene(t, "write", "-q", "--see", "--trace")
	repeated := strings.Contains(got, "* repeats frame ") // on a busy machine, whose packets the picture has too
	for what, want := range map[string]int{
		" send 127.": 12, " recv 127.": 12, "|  RDMA_WRITE_ONLY": 2, "|  SEND_ONLY": 4, "\n  * ": 0, "disconnected.": 2,
	} {
		if n := strings.Count(got, what); n < want || n > want && !repeated {
			t.Errorf("got %d × %q, want %d, in\n%s", n, what, want, got)
		}
	}
}

// A picture has the packets that --see draws.
func TestScenePicture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.svg")
	if got := scene(t, "routing", "-q", "--svg", file); got != "" {
		t.Errorf("got %q, want nothing printed", got)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<title id=\"title\">adverb demo routing</title>", "overtaken: 2 packets", "adaptive routing"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the picture has no %q", want)
		}
	}
}

// What is refused says the remedy: a scene that would print nothing, a name that is none, and two of them.
func TestDemoRefuses(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"send -q", "add --see, --svg=<file>, --trace or --pcap=<file>"},
		{"subnet --see", "the scene subnet tells of its packets"},
		{"sent", `there is no demonstration "sent": there are read, write, send, `},
		{"send write", "2 demonstrations were named: name one"},
	} {
		code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "demo"}, strings.Fields(tt.args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tt.want) || !strings.HasPrefix(stdout, "Usage: ") {
			t.Errorf("%s: got status %d, stdout %q, stderr %q, want %d and %q", tt.args, code, stdout, stderr, cli.ExitUsage, tt.want)
		}
	}
}
