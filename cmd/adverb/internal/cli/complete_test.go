package cli

import (
	"slices"
	"strings"
	"testing"
)

var testTool = &Tool{Name: "tool", Short: "For tests", Long: "tool is for tests.", Commands: []*Command{
	{
		Name: "ping", Classic: []string{"c_ping"}, Short: "Ping a host",
		Flags: []Flag{
			{Short: 'm', Long: "mtu", Arg: "<size>", Help: "path MTU", Values: OneOf("256", "512", "4096")},
			{Short: 'e', Long: "events", Help: "sleep"},
			{Short: 'o', Long: "output", Arg: "<file>", Help: "write to a file", Values: Files},
			{Short: 'n', Long: "number", Arg: "<num>", Help: "of rounds"},
		},
		Operands: []Values{OneOf("read", "write")},
		Forms:    []Form{{Args: "<mode>"}},
		Usage:    UsageLine,
		Run: func(inv *Invocation) int {
			operands, code, ok := inv.Parse(ExitUsage, func(string, string) bool { return true })
			if ok {
				inv.Printf("operands %q\n", operands)
			}
			return code
		},
	},
}}

// completions returns the tool's answers to a shell, without descriptions.
func completions(words ...string) (all []string) {
	var out strings.Builder
	testTool.printCompletions(&out, words)
	for line := range strings.Lines(out.String()) {
		text, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, text)
	}
	return all
}

func TestComplete(t *testing.T) {
	for _, tt := range []struct {
		line string // words that are separated by "|", the last one to be completed
		want string
	}{
		{"tool", ""},
		{"tool|", "completion help man ping"},
		{"tool|p", "ping"},
		{"tool|-", "--help"},
		{"tool|nope|", ""},
		{"tool|help|p", "ping"},
		{"tool|completion|", "bash fish zsh"},
		{"tool|man|", ":files"},
		{"tool|ping|", "read write"},
		{"tool|ping|w", "write"},
		{"tool|ping|read|", ""}, // there is one operand
		{"tool|ping|-e|r", "read"},
		{"tool|ping|-", "-m --mtu= -e --events -o --output= -n --number= -h --help"},
		{"tool|ping|--", "--mtu= --events --output= --number= --help"},
		{"tool|ping|--ev", "--events"},
		{"tool|ping|-m|", "256 512 4096"},
		{"tool|ping|-m|5", "512"},
		{"tool|ping|-em|4", "4096"},
		{"tool|ping|-m5", "-m512"},
		{"tool|ping|-em2", "-em256"},
		{"tool|ping|-em", "-em"},
		{"tool|ping|-ex", ""},
		{"tool|ping|--mtu|2", "256"},
		{"tool|ping|--mtu=", "--mtu=256 --mtu=512 --mtu=4096"},
		{"tool|ping|--m=4", "--m=4096"}, // cut short, as getopt_long takes it
		{"tool|ping|--nope=", ""},
		{"tool|ping|-n|", ""}, // any number
		{"tool|ping|-o|x", ":files"},
		{"tool|ping|--|-", ""}, // no flag behind "--"
		{"tool|ping|--|r", "read"},
		{"tool|c_ping|-m|5", "512"},
		{"/usr/bin/c_ping|-m|5", "512"},
		{"c_ping|-", "-m --mtu= -e --events -o --output= -n --number= --help"}, // -h is an error there
	} {
		if got, want := completions(strings.Split(tt.line, "|")...), strings.Fields(tt.want); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", tt.line, got, want)
		}
	}
}

// The descriptions of candidates stand behind a tab.
func TestCompletionDescriptions(t *testing.T) {
	var out strings.Builder
	testTool.printCompletions(&out, []string{"tool", "ping", "--e"})
	if got, want := out.String(), "--events\tsleep\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The scripts complete the tool and its classic names, and nothing in them is left to replace.
func TestScripts(t *testing.T) {
	for _, shell := range shells {
		var out, errs strings.Builder
		code := testTool.Run(t.Context(), []string{"tool", "completion", shell}, strings.NewReader(""), &out, &errs)
		script := out.String()
		if code != ExitOK || errs.String() != "" || !strings.Contains(script, "tool c_ping") || !strings.Contains(script, completeCommand) {
			t.Errorf("%s: got status %d, stderr %q, script\n%swant one for tool and c_ping", shell, code, errs.String(), script)
		}
		for _, word := range []string{"TOOL", "NAMES", "FILES"} {
			if strings.Contains(script, word) {
				t.Errorf("%s: got %s in the script, want it replaced", shell, word)
			}
		}
	}
}
