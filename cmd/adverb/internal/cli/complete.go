package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// completeCommand is the subcommand by which the shells' scripts ask for the completions of a word. Its arguments are
// the words of the command line up to the cursor; the last one is completed. Each line of the answer is a candidate
// and, behind a tab, its description.
const completeCommand = "__complete"

// filesDirective is the line of an answer which says that the names of files may stand here.
const filesDirective = ":files"

// printCompletions answers a shell.
func (t *Tool) printCompletions(w io.Writer, words []string) {
	v := t.complete(words)
	if v.Files {
		fmt.Fprintf(w, "%s\n", filesDirective)
	}
	if v.List == nil {
		return
	}
	for _, c := range v.List() {
		if c.Help == "" {
			fmt.Fprintf(w, "%s\n", c.Text)
		} else {
			fmt.Fprintf(w, "%s\t%s\n", c.Text, c.Help)
		}
	}
}

// complete returns the completions of the last of the words.
func (t *Tool) complete(words []string) Values {
	if len(words) < 2 {
		return Values{}
	}
	prog, args := words[0], words[1:]
	if c := t.byClassicName(prog); c != nil {
		return c.complete(args, true)
	}
	if len(args) == 1 {
		list := append(t.commandNames(), Value{"--help", "help for " + t.Name})
		return Values{List: func() []Value { return list }}.from(args[0], "")
	}
	if c := t.byName(args[0]); c != nil {
		return c.complete(args[1:], false)
	}
	return Values{}
}

// from narrows v to the values that begin with typed, and puts prefix in front of them. Flags do
// not come up before a dash is typed.
func (v Values) from(typed, prefix string) Values {
	if v.List == nil {
		return v
	}
	all := v.List
	return Values{Files: v.Files, List: func() (list []Value) {
		for _, c := range all() {
			flag := strings.HasPrefix(c.Text, "-") && !strings.HasPrefix(typed, "-")
			if strings.HasPrefix(c.Text, typed) && !flag {
				list = append(list, Value{prefix + c.Text, c.Help})
			}
		}
		return list
	}}
}

// complete returns the completions of the last of the command's arguments. The arguments before it are read by the
// rules of getopt, as a run would read them.
func (c *Command) complete(args []string, byClassicName bool) Values {
	last := len(args) - 1
	word := args[last]
	g := &Getopt{Stderr: io.Discard, flags: c.allFlags(byClassicName), args: args[:last]}
	for state := GetoptFlag; state != GetoptEnd; {
		_, _, state = g.Next()
	}
	name, value, hasValue := strings.Cut(word, "=")
	switch {
	case g.lacking != nil:
		return g.lacking.Values.from(word, "")
	case g.ended || !strings.HasPrefix(word, "-"):
		return c.operand(len(g.Operands)).from(word, "")
	case strings.HasPrefix(word, "--") && hasValue:
		if found := matchLong(g.flags, name[2:]); len(found) == 1 {
			return found[0].Values.from(value, name+"=")
		}
		return Values{}
	case strings.HasPrefix(word, "--") || word == "-":
		return flagNames(g.flags).from(word, "")
	}
	return completeCluster(g.flags, word)
}

// operand returns the possible values of the operand at index i.
func (c *Command) operand(i int) Values {
	if i < len(c.Operands) {
		return c.Operands[i]
	}
	return Values{}
}

// flagNames returns the names of all flags. A long name that takes an argument ends in "=".
func flagNames(flags []Flag) Values {
	var list []Value
	for _, f := range flags {
		if f.Short != 0 {
			list = append(list, Value{"-" + string(f.Short), f.Help})
		}
		switch {
		case f.Long == "":
		case f.Arg == "":
			list = append(list, Value{"--" + f.Long, f.Help})
		default:
			list = append(list, Value{"--" + f.Long + "=", f.Help})
		}
	}
	return Values{List: func() []Value { return list }}
}

// completeCluster completes joined short flags, of which the last may have its argument behind it.
func completeCluster(flags []Flag, word string) Values {
	for i := 1; i < len(word); i++ {
		at := slices.IndexFunc(flags, func(f Flag) bool { return f.Short != 0 && f.Short == word[i] })
		switch {
		case at < 0:
			return Values{}
		case flags[at].Arg != "" && i+1 < len(word):
			return flags[at].Values.from(word[i+1:], word[:i+1])
		case i+1 == len(word):
			return Values{List: func() []Value { return []Value{{word, flags[at].Help}} }}
		}
	}
	return Values{}
}

// shells are those that there is a script for.
var shells = []string{"bash", "fish", "zsh"}

// completionCommand prints a script for a shell.
func (t *Tool) completionCommand() *Command {
	return &Command{
		Name:     "completion",
		Short:    "Print the completion script for bash, fish or zsh",
		Forms:    []Form{{Args: strings.Join(shells, "|")}},
		Operands: []Values{OneOf(shells...)},
		Usage:    UsageLine,
		More: `The shell then completes commands, flags and the names of devices, for ` + t.Name + ` and for its classic names:
  eval "$(PROG bash)"     in ~/.bashrc
  PROG fish | source      in ~/.config/fish/config.fish
  eval "$(PROG zsh)"      in ~/.zshrc, behind compinit
The scripts call ` + t.Name + `, which must be in PATH.
`,
		Run: func(inv *Invocation) int {
			operands, code, ok := inv.Parse(ExitUsage, func(name, _ string) bool { Undeclared(name); return false })
			if !ok {
				return code
			}
			if len(operands) != 1 || !slices.Contains(shells, operands[0]) {
				inv.Explain(fmt.Errorf("completion %q: there are scripts for bash, fish and zsh", operands))
				inv.PrintUsage()
				return ExitUsage
			}
			script := map[string]string{"bash": bashScript, "fish": fishScript, "zsh": zshScript}[operands[0]]
			names := strings.Join(append([]string{t.Name}, t.classicNames()...), " ")
			inv.Printf("%s", strings.NewReplacer("TOOL", t.Name, "NAMES", names, "COMPLETE", completeCommand, "FILES", filesDirective).Replace(script))
			return ExitOK
		},
	}
}
