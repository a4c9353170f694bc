package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// option is a command line option as getopt_long knows it.
type option struct {
	short byte   // 0 if there is none
	long  string // "" if there is none
	arg   string // placeholder of its argument, or "" if it takes none
	help  string
	ours  bool // not the classic program's: in --help, not in the classic usage
}

var jsonOption = option{long: "json", help: "print JSON with stable snake_case keys", ours: true}

// usageColumn is where the descriptions of options start.
const usageColumn = 25

func printOption(w io.Writer, o option) {
	s := "  "
	switch {
	case o.short == 0:
		s += "    --" + o.long
	case o.long == "":
		s += "-" + string(o.short)
	default:
		s += "-" + string(o.short) + ", --" + o.long
	}
	if o.arg != "" {
		s += "=" + o.arg
	}
	fmt.Fprintf(w, "%-*s %s\n", usageColumn-1, s, o.help)
}

// printOptions prints the classic options, one a line.
func printOptions(w io.Writer, c *command) {
	fmt.Fprintf(w, "Options:\n")
	for _, o := range c.options {
		if !o.ours {
			printOption(w, o)
		}
	}
}

// getopt steps through a command line by the rules of the GNU C library's getopt_long, so
// that every command line of a classic program means the same here: options may follow
// operands, short ones may be joined, long ones cut short, and "--" ends them.
type getopt struct {
	prog    string
	options []option
	args    []string
	cluster string // what is left of an argument such as -ce
	stderr  io.Writer

	operands []string
}

// optState is what getopt.next found.
type optState int

const (
	optFound optState = iota
	optBad            // reported on stderr
	optEnd
)

// parser returns a getopt over the arguments of inv.
func (inv *invocation) parser() *getopt {
	return &getopt{prog: inv.prog, options: inv.options(), args: inv.args, stderr: inv.stderr}
}

// parse reads all options; set takes one, and is false if it refuses the value. ok is false if
// the run ends here: with status bad and the usage, or after the help.
func (inv *invocation) parse(bad int, set func(name, arg string) bool) (operands []string, code int, ok bool) {
	g := inv.parser()
	for {
		o, arg, st := g.next()
		switch {
		case st == optEnd:
			return g.operands, exitOK, true
		case st == optBad:
			inv.printUsage()
			return nil, bad, false
		case o.long == "help" && inv.isName && !o.ours: // the classic program's own
			inv.printUsage()
			return nil, exitOK, false
		case o.long == "help":
			inv.printHelp()
			return nil, exitOK, false
		case !set(o.long, arg):
			inv.printUsage()
			return nil, bad, false
		}
	}
}

// next returns the next option and its argument.
func (g *getopt) next() (o option, arg string, st optState) {
	if g.cluster != "" {
		return g.nextShort()
	}
	for len(g.args) > 0 {
		a := g.args[0]
		g.args = g.args[1:]
		switch {
		case a == "--":
			g.operands = append(g.operands, g.args...)
			g.args = nil
		case strings.HasPrefix(a, "--"):
			return g.nextLong(a[2:])
		case len(a) > 1 && a[0] == '-':
			g.cluster = a[1:]
			return g.nextShort()
		default:
			g.operands = append(g.operands, a)
		}
	}
	return option{}, "", optEnd
}

func (g *getopt) bad(format string, args ...any) (option, string, optState) {
	fmt.Fprintf(g.stderr, "%s: "+format+"\n", append([]any{g.prog}, args...)...)
	return option{}, "", optBad
}

func (g *getopt) nextShort() (option, string, optState) {
	c := g.cluster[0]
	g.cluster = g.cluster[1:]
	for _, o := range g.options {
		if o.short != c {
			continue
		}
		if o.arg == "" {
			return o, "", optFound
		}
		arg := g.cluster
		g.cluster = ""
		if arg == "" {
			if len(g.args) == 0 {
				return g.bad("option requires an argument -- '%c'", c)
			}
			arg, g.args = g.args[0], g.args[1:]
		}
		return o, arg, optFound
	}
	return g.bad("invalid option -- '%c'", c)
}

func (g *getopt) nextLong(s string) (option, string, optState) {
	name, arg, hasArg := strings.Cut(s, "=")
	var found []option
	for _, o := range g.options {
		if o.long == name {
			found = []option{o}
			break
		}
		if o.long != "" && strings.HasPrefix(o.long, name) {
			found = append(found, o)
		}
	}
	switch {
	case len(found) == 0:
		return g.bad("unrecognized option '--%s'", name)
	case len(found) > 1:
		list := ""
		for _, o := range found {
			list += " '--" + o.long + "'"
		}
		return g.bad("option '--%s' is ambiguous; possibilities:%s", name, list)
	}
	o := found[0]
	switch {
	case o.arg == "" && hasArg:
		return g.bad("option '--%s' doesn't allow an argument", o.long)
	case o.arg != "" && !hasArg:
		if len(g.args) == 0 {
			return g.bad("option '--%s' requires an argument", o.long)
		}
		arg, g.args = g.args[0], g.args[1:]
	}
	return o, arg, optFound
}

// strtol reads a number as the C library's strtol does with base 0, which the classic
// programs use: 0x and 0 prefixes count, what follows the number is ignored, and what is no
// number is 0.
func strtol(s string) int64 {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	neg := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg, s = s[0] == '-', s[1:]
	}
	base := int64(10)
	switch {
	case len(s) > 2 && s[0] == '0' && s[1]|0x20 == 'x' && digit(s[2]) < 16:
		base, s = 16, s[2:]
	case strings.HasPrefix(s, "0"):
		base = 8
	}
	var v int64
	for i := range len(s) {
		d := digit(s[i])
		if d >= base {
			break
		}
		if v > (math.MaxInt64-d)/base {
			v = math.MaxInt64
			break
		}
		v = v*base + d
	}
	if neg {
		return -v
	}
	return v
}

func digit(c byte) int64 {
	switch {
	case c >= '0' && c <= '9':
		return int64(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'z':
		return int64(c|0x20-'a') + 10
	}
	return math.MaxInt64
}

// optInt is strtol for an option whose variable is an int in the classic program: it clamps
// where the C program would wrap around.
func optInt(s string) int { return int(max(math.MinInt32, min(math.MaxInt32, strtol(s)))) }
