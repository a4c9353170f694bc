package main

import (
	"context"
	"strings"
	"testing"
)

// tool runs a command line and returns what came of it.
func tool(ctx context.Context, argv ...string) (code int, stdout, stderr string) {
	var out, err strings.Builder
	code = run(ctx, argv, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

func TestDispatch(t *testing.T) {
	for _, tt := range []struct {
		argv           []string
		code           int
		stdout, stderr string // contained
	}{
		{[]string{"adverb"}, 0, "rc_pingpong", ""},
		{[]string{"adverb", "--help"}, 0, "ibv_rc_pingpong", ""},
		{[]string{"adverb", "nope"}, 2, "", `unknown command "nope"`},
		{[]string{"adverb", "help", "devinfo"}, 0, "--ib-dev=<dev>", ""},
		{[]string{"adverb", "devinfo", "-h"}, 0, "-h, --help", ""},
		{[]string{"adverb", "ibv_devinfo", "-h"}, 0, "-h, --help", ""},
		{[]string{"/usr/bin/ibv_devinfo", "-h"}, 255, "Usage: /usr/bin/ibv_devinfo  ", "/usr/bin/ibv_devinfo: invalid option -- 'h'\n"},
		{[]string{"ibv_devinfo", "--help"}, 0, "--json", ""},
		{[]string{"ibv_devinfo", "-i", "0"}, 1, "Usage: ibv_devinfo", ""},
		{[]string{"ibv_devinfo.exe", "-x"}, 255, "Usage: ibv_devinfo.exe", "invalid option -- 'x'"},
		{[]string{"ibv_rc_pingpong", "-h"}, 1, "Usage:\n  ibv_rc_pingpong            ", "ibv_rc_pingpong: invalid option -- 'h'\n"},
		{[]string{"ibv_devices", "whatever"}, 0, "    device          \t   node GUID\n    ------          \t----------------\n", ""},
		{[]string{"show_gids", "--help"}, 0, "Usage: show_gids", ""},
		{[]string{"adverb", "demo", "sing"}, 2, "Usage: adverb demo", "read and write"},
	} {
		code, stdout, stderr := tool(t.Context(), tt.argv...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%q: status %d, want %d\nstdout: %s\nstderr: %s", tt.argv, code, tt.code, stdout, stderr)
		}
	}
}

// Every command has what the help needs, and no name twice.
func TestCommands(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range commands {
		names := []string{c.name}
		if c.classic != c.name { // rping is rping
			names = append(names, c.classic)
		}
		for _, n := range names {
			if n != "" && seen[n] {
				t.Errorf("%s: twice", n)
			}
			seen[n] = true
		}
		if c.name == "" || c.short == "" || c.usage == nil || c.run == nil {
			t.Errorf("%q: incomplete", c.name)
		}
		code, stdout, stderr := tool(t.Context(), "adverb", c.name, "--help")
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, c.short+"\n\nUsage:") {
			t.Errorf("%s --help: status %d, stderr %q, stdout:\n%s", c.name, code, stderr, stdout)
		}
		if strings.Contains(stdout, "%!") {
			t.Errorf("%s --help: bad format:\n%s", c.name, stdout)
		}
		for _, line := range strings.Split(stdout, "\n") {
			if len(line) > 110 {
				t.Errorf("%s --help: a line of %d characters: %s", c.name, len(line), line)
			}
		}
	}
}
