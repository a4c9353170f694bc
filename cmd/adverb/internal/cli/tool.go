package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Tool is the program: its commands, and those that it has of its own.
type Tool struct {
	Name     string // "adverb"
	Short    string // one line
	Long     string // the beginning of the help
	Commands []*Command

	AtEnd func() error // or nil: called when a command has ended, which fails with the error
}

// all returns the commands in the order of the help, with the tool's own.
func (t *Tool) all() []*Command {
	all := append(slices.Clone(t.Commands), t.helpCommand(), t.completionCommand(), t.manCommand())
	slices.SortFunc(all, func(a, b *Command) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// classicNames returns the classic names of all commands.
func (t *Tool) classicNames() (names []string) {
	for _, c := range t.Commands {
		names = append(names, c.Classic...)
	}
	return names
}

// byClassicName returns the command that a program called prog is, or nil.
func (t *Tool) byClassicName(prog string) *Command {
	for _, c := range t.Commands {
		if c.isClassic(baseName(prog)) {
			return c
		}
	}
	return nil
}

// byName returns the subcommand of that name, or nil. A classic name is a subcommand too.
func (t *Tool) byName(name string) *Command {
	for _, c := range t.all() {
		if c.Name == name {
			return c
		}
	}
	return t.byClassicName(name)
}

// Run runs the tool and returns its exit status. If argv[0] is a classic name, then it selects
// the command.
func (t *Tool) Run(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := &output{w: stdout}
	inv := &Invocation{Ctx: ctx, Prog: t.Name, Stdin: stdin, Stdout: out, Stderr: stderr}
	code := t.run(inv, argv)
	err := out.failure()
	if t.AtEnd != nil {
		if e := t.AtEnd(); err == nil {
			err = e
		}
	}
	if err != nil && code == ExitOK { // the user's output is not whole
		return inv.Fail(err, "")
	}
	return code
}

// run is Run without a check of the output's errors.
func (t *Tool) run(inv *Invocation, argv []string) int {
	if len(argv) > 0 {
		inv.Prog, inv.Args = argv[0], argv[1:]
	}
	if c := t.byClassicName(inv.Prog); c != nil {
		inv.Cmd, inv.ByClassicName = c, true
		return c.Run(inv)
	}
	if t.isUnknownProgram(inv) {
		prog := baseName(inv.Prog)
		inv.Explain(fmt.Errorf("no program is called %q%s; the classic names are %s, and %q has a command for each",
			prog, didYouMean(prog, t.classicNames()), strings.Join(t.classicNames(), ", "), t.Name))
		return ExitUsage
	}
	if len(inv.Args) == 0 {
		t.printHelp(inv.Stdout)
		return ExitOK
	}
	name := inv.Args[0]
	inv.Args = inv.Args[1:]
	switch {
	case name == "-h" || name == "--help":
		t.printHelp(inv.Stdout)
		return ExitOK
	case name == completeCommand:
		t.printCompletions(inv.Stdout, inv.Args)
		return ExitOK
	case strings.HasPrefix(name, "-"):
		inv.Explain(fmt.Errorf("unknown flag %q: flags follow the command", name))
		return ExitUsage
	}
	return t.runCommand(inv, name)
}

// isUnknownProgram reports whether the tool was called by a name that is neither its own nor a classic one, and
// without a command that would show the intention. A copy of the tool may have any name.
func (t *Tool) isUnknownProgram(inv *Invocation) bool {
	if strings.HasPrefix(baseName(inv.Prog), t.Name) { // adverb-1.0, say
		return false
	}
	return len(inv.Args) == 0 || strings.HasPrefix(inv.Args[0], "-")
}

func (t *Tool) runCommand(inv *Invocation, name string) int {
	c := t.byName(name)
	if c == nil {
		names := t.classicNames()
		for _, c := range t.all() {
			names = append(names, c.Name)
		}
		inv.Explain(fmt.Errorf("unknown command %q for %q%s; %q lists the commands", name, t.Name, didYouMean(name, names), t.Name+" --help"))
		return ExitUsage
	}
	inv.Cmd, inv.Prog = c, t.Name+" "+c.Name
	return c.Run(inv)
}

func (t *Tool) printHelp(w io.Writer) {
	all := t.all()
	width := 0
	for _, c := range all {
		width = max(width, len(c.Name))
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s [command]\n\nAvailable Commands:\n", t.Long, t.Name)
	for _, c := range all {
		fmt.Fprintf(w, "  %-*s %s\n", width, c.Name, c.Short)
	}
	fmt.Fprintf(w, "\nFlags:\n  -h, --help   help for %s\n\nUse \"%s [command] --help\" for more information about a command.\n", t.Name, t.Name)
}

// helpCommand prints the help of the tool or of a command.
func (t *Tool) helpCommand() *Command {
	return &Command{
		Name:     "help",
		Short:    "Help about any command",
		Forms:    []Form{{Args: "[command]"}},
		Operands: []Values{{List: t.commandNames}},
		Usage:    UsageLine,
		Run: func(inv *Invocation) int {
			operands, code, ok := inv.Parse(ExitUsage, func(name, _ string) bool { Undeclared(name); return false })
			switch {
			case !ok:
				return code
			case len(operands) == 0:
				t.printHelp(inv.Stdout)
				return ExitOK
			}
			inv.Args = []string{"--help"}
			return t.runCommand(inv, operands[0])
		},
	}
}

// commandNames are the values of a place where a command may stand.
func (t *Tool) commandNames() (list []Value) {
	for _, c := range t.all() {
		list = append(list, Value{c.Name, c.Short})
	}
	return list
}
