package main

import (
	"context"
	"os"
	"strings"
	"testing"
)

// asTool makes the test binary be the tool, for tests with processes.
const asTool = "ADVERB_TEST_AS_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(asTool) != "" {
		main()
	}
	os.Exit(m.Run())
}

// tool runs a command line and returns its output and status.
func tool(ctx context.Context, argv ...string) (code int, stdout, stderr string) {
	var out, err strings.Builder
	code = newTool().Run(ctx, argv, strings.NewReader(""), &out, &err)
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
		{[]string{"adverb", "help"}, 0, "ibv_rc_pingpong", ""},
		{[]string{"adverb", "nope"}, 2, "", `unknown command "nope" for "adverb"; "adverb --help" lists`},
		{[]string{"adverb", "version", "x"}, 2, "Usage:", `adverb version: ["x"]: nothing is to be named`},
		{[]string{"adverb", "proxy", "x"}, 2, "Usage:", `adverb proxy: ["x"]: two addresses are needed`},
		{[]string{"adverb", "nope", "--help"}, 2, "", `unknown command "nope"`},
		{[]string{"adverb", "devinf"}, 2, "", `unknown command "devinf" for "adverb" (did you mean "devinfo"?)`},
		{[]string{"adverb", "help", "ibv_devinof"}, 2, "", `(did you mean "ibv_devinfo"?)`},
		{[]string{"ibv_nothing"}, 2, "", `no program is called "ibv_nothing"; the classic names are ibv_devices, `},
		{[]string{"/usr/bin/ibv_devinof"}, 2, "", `no program is called "ibv_devinof" (did you mean "ibv_devinfo"?)`},
		{[]string{"ibv_devinof", "--help"}, 2, "", `no program is called "ibv_devinof"`},
		{[]string{"ibv_devinof", "-d", "x"}, 2, "", `no program is called "ibv_devinof"`},
		{[]string{"adverb-1.0", "--help"}, 0, "rc_pingpong", ""},
		{[]string{"a.out", "devinfo", "--help"}, 0, "--ib-dev", ""},
		{[]string{"adverb", "--nope"}, 2, "", `unknown flag "--nope"`},
		{[]string{"adverb", "help", "devinfo"}, 0, "--ib-dev=<dev>", ""},
		{[]string{"adverb", "help", "nope"}, 2, "", `unknown command "nope"`},
		{[]string{"adverb", "completion", "--help"}, 0, "Usage: adverb completion bash|fish|zsh\n", ""},
		{[]string{"adverb", "completion", "tcsh"}, 2, "Usage: adverb completion", "bash, fish and zsh"},
		{[]string{"adverb", "man"}, 2, "Usage: adverb man [--markdown] <dir>\n", ""},
		{[]string{"adverb", "devinfo", "-h"}, 0, "-h, --help", ""},
		{[]string{"adverb", "ibv_devinfo", "-h"}, 0, "-h, --help", ""},
		{[]string{"/usr/bin/ibv_devinfo", "-h"}, 255, "Usage: /usr/bin/ibv_devinfo  ", "/usr/bin/ibv_devinfo: invalid option -- 'h'\n"},
		{[]string{"ibv_devinfo", "--help"}, 0, "--json", ""},
		{[]string{"ibv_devinfo", "-i", "0"}, 1, "Usage: ibv_devinfo", ""},
		{[]string{"ibv_devinfo.exe", "-x"}, 255, "Usage: ibv_devinfo.exe", "invalid option -- 'x'"},
		{[]string{"ibv_rc_pingpong", "-h"}, 1, "Usage:\n  ibv_rc_pingpong            ", "ibv_rc_pingpong: invalid option -- 'h'\n"},
		{[]string{"ibv_devices", "whatever"}, 0, "    device          \t   node GUID\n    ------          \t----------------\n", ""},
		{[]string{"show_gids", "--help"}, 0, "Usage: show_gids", ""},
		{[]string{"ucmatose", "--help"}, 0, "usage: ucmatose\n", ""},
		{[]string{"cmatose", "--help"}, 0, "usage: cmatose\n", ""},
		{[]string{"adverb", "demo", "sing"}, 2, "Usage: adverb demo", "read, write, send"},
	} {
		code, stdout, stderr := tool(t.Context(), tt.argv...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || tt.code == 2 && tt.stdout == "" && stdout != "" {
			t.Errorf("%q: got status %d\nstdout: %s\nstderr: %s\nwant status %d, stdout with %q, stderr with %q",
				tt.argv, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}

// Every command has the texts that the help needs, and no two have the same name.
func TestCommands(t *testing.T) {
	taken := map[string]bool{}
	for _, c := range commands {
		names := []string{c.Name}
		for _, n := range c.Classic {
			if n != c.Name { // rping is rping
				names = append(names, n)
			}
		}
		for _, n := range names {
			if taken[n] {
				t.Errorf("%s: got two commands of the name, want one", n)
			}
			taken[n] = true
		}
		if c.Name == "" || c.Short == "" || c.Usage == nil || c.Run == nil || len(c.Forms) == 0 {
			t.Errorf("%q: the declaration is incomplete, want a name, a short text, a usage, forms and Run", c.Name)
		}
		code, stdout, stderr := tool(t.Context(), "adverb", c.Name, "--help")
		if want := c.Short + "\n\nUsage:"; code != 0 || stderr != "" || !strings.HasPrefix(stdout, want) {
			t.Errorf("%s --help: got status %d, stderr %q, stdout:\n%swant status 0 and stdout %q…", c.Name, code, stderr, stdout, want)
		}
		if strings.Contains(stdout, "%!") {
			t.Errorf("%s --help: bad format:\n%s\nwant no %%!", c.Name, stdout)
		}
		for _, line := range strings.Split(stdout, "\n") {
			if len(line) > 110 {
				t.Errorf("%s --help: got a line of %d characters, want at most 110: %s", c.Name, len(line), line)
			}
		}
	}
}

// Every declared flag has names of its own, and is known to the code that reads the flags: that code
// panics at an unknown one.
func TestFlags(t *testing.T) {
	for _, c := range commands {
		taken := map[string]bool{}
		for _, f := range c.Flags {
			if f.Long == "" || f.Help == "" || taken["--"+f.Long] || f.Short != 0 && taken["-"+string(f.Short)] {
				t.Errorf("%s: got the flag %+v, want a long name, help, and names that no other flag has", c.Name, f)
			}
			taken["--"+f.Long], taken["-"+string(f.Short)] = true, true
			if f.Long == "help" || f.Long == "list" { // --list acts at once
				continue
			}
			flag := "--" + f.Long
			switch f.Arg {
			case "":
			case "<addr>":
				flag += "=127.0.0.1"
			default:
				flag += "=1"
			}
			// The help ends the run before the command does anything.
			if code, stdout, stderr := tool(t.Context(), "adverb", c.Name, flag, "--help"); stdout == "" {
				t.Errorf("%s %s --help: got status %d, no stdout and stderr %q, want the help or the usage", c.Name, flag, code, stderr)
			}
		}
	}
}
