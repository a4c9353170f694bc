package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

var testFlags = []Flag{
	{Short: 'p', Long: "port", Arg: "<port>"},
	{Short: 'e', Long: "events"},
	{Short: 'c', Long: "chk"},
	{Long: "prefetch"},
	{Short: 'x', Arg: "<x>"},
}

func testGetopt(stderr *strings.Builder, args []string) *Getopt {
	return &Getopt{prog: "prog", flags: testFlags, args: args, Stderr: stderr}
}

// parseAll returns g's results, one word each.
func parseAll(g *Getopt) string {
	var s []string
	for {
		f, arg, state := g.Next()
		switch state {
		case GetoptEnd:
			return strings.Join(append(s, g.Operands...), " ")
		case GetoptBad:
			s = append(s, "?")
		default:
			s = append(s, f.Long+"="+arg)
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
		if got := parseAll(testGetopt(&stderr, strings.Fields(tt.args))); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.args, got, tt.want)
		}
		if stderr.String() != tt.stderr {
			t.Errorf("%q: got stderr %q, want %q", tt.args, stderr.String(), tt.stderr)
		}
	}
}

// found is one thing that Getopt found.
type found struct {
	flag string // -x or --xyz; "" for a flag that is refused
	arg  string
}

// parseFound returns Getopt's results for args.
func parseFound(args []string) (all []found, operands []string) {
	var stderr strings.Builder
	g := testGetopt(&stderr, args)
	for {
		f, arg, state := g.Next()
		switch {
		case state == GetoptEnd:
			return all, g.Operands
		case state == GetoptBad:
			all = append(all, found{})
		case f.Long != "":
			all = append(all, found{"--" + f.Long, arg})
		default:
			all = append(all, found{"-" + string(f.Short), arg})
		}
	}
}

// model is a second getopt_long for testFlags, written from its manual page with other means: it
// takes the command line apart by cases over whole arguments, and knows the flags by maps.
func model(args []string) (all []found, operands []string) {
	short := map[byte]string{'p': "--port", 'e': "--events", 'c': "--chk", 'x': "-x"}
	takesArg := map[string]bool{"--port": true, "-x": true}
	long := map[string]string{}
	for _, name := range []string{"port", "events", "chk", "prefetch"} {
		for n := range name {
			long[name[:n+1]] = "--" + name
		}
	}
	delete(long, "p") // ambiguous
	next := func() (string, bool) {
		if len(args) == 0 {
			return "", false
		}
		a := args[0]
		args = args[1:]
		return a, true
	}
	add := func(flag, arg string, ok bool) {
		if !ok {
			flag, arg = "", ""
		}
		all = append(all, found{flag, arg})
	}
	for {
		a, more := next()
		switch {
		case !more:
			return all, operands
		case a == "--":
			return all, append(operands, args...)
		case a == "-" || !strings.HasPrefix(a, "-"):
			operands = append(operands, a)
		case strings.HasPrefix(a, "--"):
			name, arg, given := strings.Cut(a[2:], "=")
			flag, known := long[name]
			switch {
			case !known:
				add("", "", false)
			case given:
				add(flag, arg, takesArg[flag])
			case takesArg[flag]:
				arg, ok := next()
				add(flag, arg, ok)
			default:
				add(flag, "", true)
			}
		default:
			for rest := a[1:]; rest != ""; {
				flag, known := short[rest[0]]
				rest = rest[1:]
				switch {
				case !known:
					add("", "", false)
				case !takesArg[flag]:
					add(flag, "", true)
				case rest != "":
					add(flag, rest, true)
					rest = ""
				default:
					arg, ok := next()
					add(flag, arg, ok)
				}
			}
		}
	}
}

// FuzzGetopt compares Getopt with the model. It also rebuilds a command line from Getopt's results, and expects to
// find the same in it.
func FuzzGetopt(f *testing.F) {
	for _, line := range []string{
		"-p 1 host", "--p -- -e", "--port=1 --po 2 --pr x", "-ecp1 - -- -x", "-xe -ex e", "--=1 --e= ---", "-p", "--events=", "-\xff", "-\x00e", "--c h -- --",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, " ") // empty arguments too
		got, operands := parseFound(slices.Clone(args))
		want, wantOperands := model(slices.Clone(args))
		if !slices.Equal(got, want) || !slices.Equal(operands, wantOperands) {
			t.Fatalf("%q: got %q and operands %q, want %q and %q", args, got, operands, want, wantOperands)
		}
		var rebuilt []string
		var kept []found
		for _, g := range got {
			switch {
			case g.flag == "":
				continue
			case !strings.HasPrefix(g.flag, "--"):
				rebuilt = append(rebuilt, g.flag, g.arg)
			case g.flag == "--port":
				rebuilt = append(rebuilt, g.flag+"="+g.arg)
			default:
				rebuilt = append(rebuilt, g.flag)
			}
			kept = append(kept, g)
		}
		rebuilt = append(append(rebuilt, "--"), operands...)
		again, againOperands := parseFound(rebuilt)
		if !slices.Equal(again, kept) || !slices.Equal(againOperands, operands) {
			t.Errorf("%q, rebuilt from %q: got %q and operands %q, want %q and %q", rebuilt, args, again, againOperands, kept, operands)
		}
	})
}

// The code for a flag that is not declared, or a declaration without code, is a mistake of ours.
func TestUndeclared(t *testing.T) {
	defer func() {
		if got, want := fmt.Sprint(recover()), "cli: no code for the flag --nope"; got != want {
			t.Errorf("got panic %q, want %q", got, want)
		}
	}()
	Undeclared("nope")
}

// An empty argument is refused, since "" means to the programs that nothing was given.
func TestGetoptEmpty(t *testing.T) {
	for _, tt := range []struct {
		args      []string
		want, why string
	}{
		{[]string{"-p", "", "host"}, "? host", "read --port: the text is empty"},
		{[]string{"--port="}, "?", "read --port: the text is empty"},
		{[]string{"-x", ""}, "?", "read -x: the text is empty"},
		{[]string{"-e", "a", ""}, "events= ? a", "read argument 2: the text is empty"},
		{[]string{"--", ""}, "?", "read argument 1: the text is empty"},
	} {
		var why error
		g := testGetopt(new(strings.Builder), tt.args)
		g.refuse = func(err error) {
			why, g.Operands = err, slices.DeleteFunc(g.Operands, func(s string) bool { return s == "" })
		}
		if got := strings.TrimSpace(parseAll(g)); got != tt.want || why == nil || !strings.Contains(why.Error(), tt.why) {
			t.Errorf("%q: got %q, %v; want %q, %s", tt.args, got, why, tt.want, tt.why)
		}
	}
}
