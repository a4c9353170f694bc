// Package learn_test runs the lessons: every command in them, in a shell, and compares its output with that in the page.
// With -update the pages and pictures are written anew.
package learn_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/adverb-rdma/adverb/internal/watch"
)

var update = flag.Bool("update", false, "write the outputs in the pages, and the pictures, anew")

// A block of a page that begins with "```console" is a terminal. A line that begins with "$ " is a command, which a
// backslash at its end continues; the lines up to the next one are its output. A line "…" stands for any number of lines.
//
//	console          the output is the same at each run
//	console varies   numbers, addresses and spaces differ from run to run
//	console first    a terminal whose program waits for that of the next block; numbers differ. The next block follows when
//	                 the program has printed a line, or listens by the connection manager
var fence = regexp.MustCompile("(?ms)^```console(| varies| first)\n(.*?)^```$")

// patience ends a command that got stuck.
const patience = time.Minute

const (
	elided  = "…"
	columns = 100
)

// command is a command of a page, with the output that the page says.
type command struct {
	line string // as it stands in the page
	want string
}

// commands takes a terminal apart.
func commands(block string) (list []command) {
	continues := false
	for line := range strings.Lines(block) {
		n := len(list) - 1
		switch text, isCommand := strings.CutPrefix(line, "$ "); {
		case continues:
			list[n].line += line
		case isCommand:
			list = append(list, command{line: text})
		case n >= 0:
			list[n].want += line
		}
		continues = (continues || strings.HasPrefix(line, "$ ")) && strings.HasSuffix(line, "\\\n")
	}
	return list
}

// lesson is a page that is being run.
type lesson struct {
	t     *testing.T
	dir   string
	env   []string
	where string

	first  *exec.Cmd // of the terminal that waits, or nil
	output *bytes.Buffer
	read   chan error
	want   string
}

func (l *lesson) shell(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = l.dir, l.env
	cmd.WaitDelay = time.Second
	return cmd
}

// run runs a command to its end, and returns its output, as a terminal would show it.
func (l *lesson) run(line string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	out, err := l.shell(ctx, line).CombinedOutput()
	if ctx.Err() != nil {
		l.t.Fatalf("%s: %s: not done after %v: %v\n%s", l.where, line, patience, err, out)
	}
	return string(out)
}

// start starts the command of a first terminal, and returns when the program has printed a line, or listens.
func (l *lesson) start(c command) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	l.t.Cleanup(cancel)
	cmd := l.shell(ctx, "exec "+c.line)
	r, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.first, l.output, l.read, l.want = cmd, new(bytes.Buffer), make(chan error, 1), c.want
	begun := make(chan bool, 1) // false if it ended
	go func() {
		out := bufio.NewReader(r)
		line, err := out.ReadString('\n')
		l.output.WriteString(line)
		begun <- err == nil
		if err == nil {
			_, err = io.Copy(l.output, out)
		}
		l.read <- err
	}()
	for !listens(ctx, cmd.Process.Pid) {
		select {
		case ok := <-begun:
			if !ok {
				l.t.Fatalf("%s: %s ended", l.where, c.line)
			}
			return
		case <-ctx.Done():
			l.t.Fatalf("%s: %s: it neither prints nor listens after %v", l.where, c.line, patience)
		default:
		}
	}
}

// listens reports whether a process listens by the connection manager. Asking takes some milliseconds.
func listens(ctx context.Context, pid int) bool {
	answers, _, err := watch.Ask(ctx, watch.WantRes)
	return err == nil && slices.ContainsFunc(answers, func(p watch.Process) bool {
		return p.PID == pid && slices.ContainsFunc(p.Devices, func(d watch.Device) bool {
			return slices.ContainsFunc(d.CMID, func(id watch.CMID) bool { return id.State == "LISTEN" })
		})
	})
}

// finish waits for the program of the first terminal.
func (l *lesson) finish() {
	l.t.Helper()
	if err := <-l.read; err != nil {
		l.t.Error(err)
	}
	if err := l.first.Wait(); err != nil {
		l.t.Errorf("%s: %v", l.where, err)
	}
	l.compare(l.first.String(), l.output.String(), l.want, true)
	l.first = nil
}

var (
	varying = regexp.MustCompile(`::[0-9a-f:.]+|[0-9a-f]+(:[0-9a-f]*){2,}|0x[0-9a-f]+|\b\d+(\.\d+)*(ns|µs|ms|s)?\b`)
	spaces  = regexp.MustCompile(`[ \t]+`)
)

// compare compares outputs. If they vary, numbers and spaces do not count.
func (l *lesson) compare(what, got, want string, varies bool) {
	l.t.Helper()
	g, w := lines(got, varies), lines(want, varies)
	if !matches(g, w) {
		l.t.Errorf("%s: %s: got\n%s\nthe page says\n%s", l.where, what, got, want)
	}
}

func lines(text string, varies bool) (list []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\n")
		if varies {
			line = spaces.ReplaceAllString(varying.ReplaceAllString(line, "N"), " ")
		}
		list = append(list, line)
	}
	return list
}

// matches reports whether lines are those that are wanted, of which some stand for others.
func matches(got, want []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == elided {
		for i := range len(got) + 1 {
			if matches(got[i:], want[1:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && got[0] == want[0] && matches(got[1:], want[1:])
}

// page runs a page, and returns the page with its outputs anew.
func (l *lesson) page(name, text string) string {
	var fresh strings.Builder
	last := 0
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		kind, block := text[m[2]:m[3]], text[m[4]:m[5]]
		l.where = fmt.Sprintf("%s:%d", name, strings.Count(text[:m[4]], "\n")+1)
		fresh.WriteString(text[last:m[4]])
		last = m[5]
		list := commands(block)
		if len(list) == 0 || kind == " first" && len(list) != 1 {
			l.t.Fatalf("%s: a terminal has %d commands", l.where, len(list))
		}
		if kind == " first" {
			l.start(list[0])
			fresh.WriteString(block)
			continue
		}
		for _, c := range list {
			got := l.run(strings.TrimSuffix(c.line, "\n"))
			if *update && kind == "" && !slices.Contains(lines(c.want, false), elided) {
				c.want = got
			}
			l.compare(strings.TrimSpace(c.line), got, c.want, kind != "")
			fresh.WriteString("$ " + c.line + c.want)
		}
		if l.first != nil {
			l.finish()
		}
	}
	return fresh.String() + text[last:]
}

// lookAtSources has the cache of test results see the sources that go build reads: a result holds until a source changes.
func lookAtSources(t *testing.T) {
	t.Helper()
	files := 0
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "../.." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go"):
			files++
			_, err = os.Stat(name)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Fatalf("%d sources were found: %v", files, err)
	}
}

// TestLessons runs all pages. The programs find the captures of internal/wire where they are in the repository.
func TestLessons(t *testing.T) {
	lookAtSources(t)
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/adverb-rdma/adverb/cmd/adverb").CombinedOutput(); err != nil {
		t.Fatalf("build the tool: %v\n%s", err, out)
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + bin}
	internal, err := filepath.Abs("../../internal")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	chinese, err2 := filepath.Glob("zh/*.md")
	if err := errors.Join(err, err2); err != nil || len(pages) < 5 || len(chinese) < 2 {
		t.Fatalf("got pages %q and %q, %v", pages, chinese, err)
	}
	drawn, all := []string{}, ""
	for _, name := range append(pages, chinese...) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
		t.Run(name, func(t *testing.T) {
			l := &lesson{t: t, dir: t.TempDir()}
			l.env = append(slices.Clone(env), "TMPDIR="+l.dir)
			if err := os.Symlink(internal, filepath.Join(l.dir, "internal")); err != nil {
				t.Fatal(err)
			}
			fresh := l.page(name, string(b))
			if *update && fresh != string(b) {
				if err := os.WriteFile(name, []byte(fresh), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			checkWidth(t, name, fresh)
			drawn = append(drawn, pictures(t, l.dir)...)
		})
	}
	shown, err := filepath.Glob("*.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range shown {
		if !slices.Contains(drawn, name) {
			t.Errorf("%s: no command of a page draws it", name)
		}
		if !strings.Contains(all, "]("+name+")") {
			t.Errorf("%s: no page shows it", name)
		}
	}
}

// checkWidth checks the lines of a page, but for terminals, whose lines are the programs', and tables.
func checkWidth(t *testing.T, name, text string) {
	t.Helper()
	terminal := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "```") {
			terminal = !terminal
		}
		if n := utf8.RuneCountInString(line); n > columns && !terminal && !strings.HasPrefix(line, "|") {
			t.Errorf("%s:%d: the line has %d columns, want %d at most", name, i+1, n, columns)
		}
	}
}

// pictures compares the pictures that a page has drawn with those beside the pages.
func pictures(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		names = append(names, name)
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(name, got, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the page's command draws another picture; -update writes it", name)
		}
	}
	return names
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		got, want string
		varies    bool
		ok        bool
	}{
		{"a\nb\n", "a\nb\n", false, true},
		{"a\nb\n", "a\n", false, false},
		{"a\n", "a\nb\n", false, false},
		{"a\nb\nc\n", "a\n…\nc\n", false, true},
		{"a\nc\n", "a\n…\nc\n", false, true},
		{"a\nb\n", "a\n…\nc\n", false, false},
		{"", "…\n", false, true},
		{"port 12\n", "port 13\n", false, false},
		{"port 12, QP 0x1a,  1.5ms ::1\n", "port 13, QP 0x2b, 20µs fe80::2\n", true, true},
		{"port 12\n", "part 12\n", true, false},
	} {
		if ok := matches(lines(tt.got, tt.varies), lines(tt.want, tt.varies)); ok != tt.ok {
			t.Errorf("%q and %q: got %v, want %v", tt.got, tt.want, ok, tt.ok)
		}
	}
	got := commands("$ a \\\n  b\nx\n$ c\n")
	if want := []command{{"a \\\n  b\n", "x\n"}, {"c\n", ""}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
