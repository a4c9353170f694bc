package main

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

var testOptions = []option{
	{short: 'p', long: "port", arg: "<port>"},
	{short: 'e', long: "events"},
	{short: 'c', long: "chk"},
	{long: "prefetch"},
}

// parseAll returns what g finds, one word each.
func parseAll(g *getopt) string {
	var s []string
	for {
		o, arg, st := g.next()
		switch st {
		case optEnd:
			return strings.Join(append(s, g.operands...), " ")
		case optBad:
			s = append(s, "?")
		default:
			s = append(s, o.long+"="+arg)
		}
	}
}

func TestGetopt(t *testing.T) {
	for _, tt := range []struct{ args, want, stderr string }{
		{"", "", ""},
		{"-p 1 host", "port=1 host", ""},
		{"host -p1 -ec", "port=1 events= chk= host", ""},
		{"-ep 1", "events= port=1", ""},
		{"--port 1 --port=2 --po 3", "port=1 port=2 port=3", ""},
		{"-e -- -c", "events= -c", ""},
		{"-", "-", ""},
		{"-h -e", "? events=", "prog: invalid option -- 'h'\n"},
		{"-eh", "events= ?", "prog: invalid option -- 'h'\n"},
		{"-p", "?", "prog: option requires an argument -- 'p'\n"},
		{"--port", "?", "prog: option '--port' requires an argument\n"},
		{"--nope=1", "?", "prog: unrecognized option '--nope'\n"},
		{"--events=1", "?", "prog: option '--events' doesn't allow an argument\n"},
		{"--p 1", "? 1", "prog: option '--p' is ambiguous; possibilities: '--port' '--prefetch'\n"},
	} {
		var stderr strings.Builder
		g := &getopt{prog: "prog", options: testOptions, args: strings.Fields(tt.args), stderr: &stderr}
		if got := parseAll(g); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.args, got, tt.want)
		}
		if stderr.String() != tt.stderr {
			t.Errorf("%q: stderr %q, want %q", tt.args, stderr.String(), tt.stderr)
		}
	}
}

func TestStrtol(t *testing.T) {
	for _, tt := range []struct {
		s    string
		want int64
	}{
		{"", 0}, {"x", 0}, {"18515", 18515}, {" 7", 7}, {"-7", -7}, {"+7", 7}, {"7seven", 7},
		{"0x1F", 31}, {"0x", 0}, {"0xg", 0}, {"017", 15}, {"08", 0}, {"-0x10", -16},
		{"9223372036854775807", math.MaxInt64}, {"99999999999999999999", math.MaxInt64},
	} {
		if got := strtol(tt.s); got != tt.want {
			t.Errorf("strtol(%q) = %d, want %d", tt.s, got, tt.want)
		}
	}
}

func FuzzGetopt(f *testing.F) {
	f.Add("-p 1 host")
	f.Add("--p -- -e")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		g := &getopt{prog: "prog", options: testOptions, args: args, stderr: &strings.Builder{}}
		n := len(strings.Fields(parseAll(g)))
		if limit := len(line) + len(args); n > limit {
			t.Errorf("%q: %d results", line, n)
		}
		for _, a := range args {
			_ = fmt.Sprint(strtol(a))
		}
	})
}
