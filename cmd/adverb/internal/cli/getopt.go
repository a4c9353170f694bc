package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// errEmpty refuses a text of no bytes. To the programs "" means that nothing was given, and a flag with an unset
// variable of the shell would have the first device, or make a server of a client.
var errEmpty = errors.New("the text is empty: is a variable of the shell not set?")

// Getopt steps through a command line by the rules of the GNU C library's getopt_long. So each
// command line of a C program means the same here: flags may follow operands, short flags may be
// joined, long flags may be cut short, and "--" ends the flags.
type Getopt struct {
	Stderr   io.Writer // gets the C library's message about a bad flag
	Operands []string  // the arguments that are no flags, as far as Next has come

	prog    string
	flags   []Flag
	args    []string
	cluster string // the rest of an argument such as -ce

	ended   bool  // "--" has been met
	lacking *Flag // the last flag, if its argument is missing
	program bool  // the first operand ends the flags: see Command.RunsProgram

	refuse func(error) // gets the errors of flags' Checks; nil: arguments are not checked
}

// GetoptState is the result of Getopt.Next.
type GetoptState int

// The results of Getopt.Next.
const (
	GetoptFlag GetoptState = iota
	GetoptBad              // a flag that is refused, or its argument; the message has been printed
	GetoptEnd
)

// Getopt returns a Getopt over the arguments of inv.
func (inv *Invocation) Getopt() *Getopt {
	return &Getopt{Stderr: inv.Stderr, prog: inv.Prog, flags: inv.Cmd.allFlags(inv.ByClassicName), args: inv.Args, refuse: inv.Explain, program: inv.Cmd.RunsProgram}
}

// Parse reads all flags and returns the operands. It calls set for each flag with the flag's long
// name; set returns false if it refuses the value. If ok is false, then the run ends here with
// status code: the help was asked for, or a flag was refused and code is bad.
func (inv *Invocation) Parse(bad int, set func(name, arg string) bool) (operands []string, code int, ok bool) {
	g := inv.Getopt()
	for {
		f, arg, state := g.Next()
		switch {
		case state == GetoptEnd:
			return g.Operands, ExitOK, true
		case state == GetoptBad:
			inv.PrintUsage()
			return nil, bad, false
		case f.Long == "help" && inv.ByClassicName && !f.Ours: // the C program has it too
			inv.PrintUsage()
			return nil, ExitOK, false
		case f.Long == "help":
			inv.PrintHelp()
			return nil, ExitOK, false
		case !set(f.Long, arg):
			inv.PrintUsage()
			return nil, bad, false
		}
	}
}

// Undeclared panics. It is for the default case of a switch over the names of flags: a name that
// only the declaration or only the switch has is a mistake of ours.
func Undeclared(name string) { panic("cli: no code for the flag --" + name) }

// Next returns the next flag and its argument, which the flag's Check has found good. No argument is empty, and no
// operand is.
func (g *Getopt) Next() (f Flag, arg string, state GetoptState) {
	f, arg, state = g.next()
	if g.refuse == nil {
		return f, arg, state
	}
	var err error
	switch {
	case state == GetoptFlag && f.Arg != "" && arg == "":
		err = fmt.Errorf("read %s: %w", f.dashed(), errEmpty)
	case state == GetoptFlag && f.Check != nil:
		if err = f.Check(arg); err != nil {
			err = fmt.Errorf("read %s=%s: %w", f.dashed(), arg, err)
		}
	case state == GetoptEnd && !g.program:
		if i := slices.Index(g.Operands, ""); i >= 0 {
			err = fmt.Errorf("read argument %d: %w", i+1, errEmpty)
		}
	}
	if err != nil {
		g.refuse(err)
		return Flag{}, "", GetoptBad
	}
	return f, arg, state
}

func (g *Getopt) next() (f Flag, arg string, state GetoptState) {
	if g.cluster != "" {
		return g.nextShort()
	}
	for len(g.args) > 0 {
		a := g.args[0]
		g.args = g.args[1:]
		switch {
		case a == "--":
			g.ended = true
			g.Operands = append(g.Operands, g.args...)
			g.args = nil
		case strings.HasPrefix(a, "--"):
			return g.nextLong(a[2:])
		case len(a) > 1 && a[0] == '-':
			g.cluster = a[1:]
			return g.nextShort()
		case g.program:
			g.Operands = append(append(g.Operands, a), g.args...)
			g.args = nil
		default:
			g.Operands = append(g.Operands, a)
		}
	}
	return Flag{}, "", GetoptEnd
}

func (g *Getopt) bad(format string, args ...any) (Flag, string, GetoptState) {
	fmt.Fprintf(g.Stderr, "%s: "+format+"\n", append([]any{g.prog}, args...)...)
	return Flag{}, "", GetoptBad
}

func (g *Getopt) nextShort() (Flag, string, GetoptState) {
	c := g.cluster[0]
	g.cluster = g.cluster[1:]
	for _, f := range g.flags {
		if f.Short != c || c == 0 { // 0 stands for no short name
			continue
		}
		if f.Arg == "" {
			return f, "", GetoptFlag
		}
		arg := g.cluster
		g.cluster = ""
		if arg == "" {
			if len(g.args) == 0 {
				g.lacking = &f
				return g.bad("option requires an argument -- '%c'", c)
			}
			arg, g.args = g.args[0], g.args[1:]
		}
		return f, arg, GetoptFlag
	}
	return g.bad("invalid option -- '%c'", c)
}

// matchLong returns the flags that a long name, perhaps cut short, may mean. A name that is
// complete means only itself.
func matchLong(flags []Flag, name string) (found []Flag) {
	for _, f := range flags {
		switch {
		case f.Long == "":
		case f.Long == name:
			return []Flag{f}
		case strings.HasPrefix(f.Long, name):
			found = append(found, f)
		}
	}
	return found
}

func (g *Getopt) nextLong(s string) (Flag, string, GetoptState) {
	name, arg, hasArg := strings.Cut(s, "=")
	found := matchLong(g.flags, name)
	switch {
	case len(found) == 0:
		return g.bad("unrecognized option '--%s'", name)
	case len(found) > 1:
		list := ""
		for _, f := range found {
			list += " '--" + f.Long + "'"
		}
		return g.bad("option '--%s' is ambiguous; possibilities:%s", name, list)
	}
	f := found[0]
	switch {
	case f.Arg == "" && hasArg:
		return g.bad("option '--%s' doesn't allow an argument", f.Long)
	case f.Arg != "" && !hasArg:
		if len(g.args) == 0 {
			g.lacking = &f
			return g.bad("option '--%s' requires an argument", f.Long)
		}
		arg, g.args = g.args[0], g.args[1:]
	}
	return f, arg, GetoptFlag
}
