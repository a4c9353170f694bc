package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Flag is an option of the command line, as getopt_long knows it.
type Flag struct {
	Short  byte   // 0 if there is none
	Long   string // "" if there is none
	Arg    string // placeholder of its argument; "" if the flag takes none
	Help   string
	Ours   bool   // the C program does not have it, so the classic usage leaves it out
	Values Values // the possible values of the argument, for completion

	Check func(arg string) error // or nil: returns why the argument is refused, and the possible ones
}

// Values are the possible values of an argument. The zero value names none.
type Values struct {
	List  func() []Value // called for each completion, since devices come and go
	Files bool           // the names of files
}

// Value is something that an argument may be.
type Value struct{ Text, Help string }

// OneOf is a fixed list of values.
func OneOf(texts ...string) Values {
	return Values{List: func() (list []Value) {
		for _, t := range texts {
			list = append(list, Value{Text: t})
		}
		return list
	}}
}

// Files are the names of files.
var Files = Values{Files: true}

// JSONFlag asks for JSON in place of the classic output.
var JSONFlag = Flag{Long: "json", Help: "print JSON with stable snake_case keys", Ours: true}

// PickFlags returns the flags of table whose letters are given, in the order of the letters.
func PickFlags(table map[byte]Flag, letters string) (list []Flag) {
	for _, letter := range []byte(letters) {
		f := table[letter]
		f.Short = letter
		list = append(list, f)
	}
	return list
}

// allFlags returns the command's flags and --help. It adds -h too, unless the command was called by
// a classic name: there -h is an error that must stay one.
func (c *Command) allFlags(byClassicName bool) []Flag {
	all := slices.Clone(c.Flags)
	if slices.ContainsFunc(all, func(f Flag) bool { return f.Long == "help" }) {
		return all
	}
	f := Flag{Long: "help", Help: "print this text", Ours: true}
	if !byClassicName {
		f.Short = 'h'
	}
	return append(all, f)
}

// names returns the flag's names as help shows them, with the placeholder of its argument.
func (f *Flag) names() string {
	var s string
	switch {
	case f.Short == 0:
		s = "--" + f.Long
	case f.Long == "":
		s = "-" + string(f.Short)
	default:
		s = "-" + string(f.Short) + ", --" + f.Long
	}
	if f.Arg != "" {
		s += "=" + f.Arg
	}
	return s
}

// dashed is the name that messages call the flag by.
func (f *Flag) dashed() string {
	if f.Long == "" {
		return "-" + string(f.Short)
	}
	return "--" + f.Long
}

// helpColumn is where the descriptions of flags start.
const helpColumn = 25

func printFlag(w io.Writer, f *Flag) {
	indent := "  "
	if f.Short == 0 {
		indent = "      " // below the long names of the other flags
	}
	fmt.Fprintf(w, "%-*s %s\n", helpColumn-1, indent+f.names(), f.Help)
}

// PrintFlags prints the flags of the C program, one a line.
func PrintFlags(w io.Writer, c *Command) {
	fmt.Fprintf(w, "Options:\n")
	for i := range c.Flags {
		if !c.Flags[i].Ours {
			printFlag(w, &c.Flags[i])
		}
	}
}

// PrintForms prints the ways to call the command, one a line. The descriptions start in the
// column that the longest of the usual forms needs.
func PrintForms(w io.Writer, c *Command, prog string) {
	const usual = 16 // characters; a longer form does not move the column
	width := 0
	for _, f := range c.Forms {
		if len(f.Args) <= usual {
			width = max(width, len(f.Args))
		}
	}
	fmt.Fprintf(w, "Usage:\n")
	for _, f := range c.Forms {
		fmt.Fprintf(w, "  %s %-*s  %s\n", prog, width, f.Args, f.Does)
	}
}

// UsageLine is the Usage of a command with one form, all on one line.
func UsageLine(w io.Writer, c *Command, prog string) {
	fmt.Fprintf(w, "Usage: %s\n", strings.TrimSpace(prog+" "+c.Forms[0].Args))
}

// PrintUsage prints the command's usage.
func (inv *Invocation) PrintUsage() { inv.Cmd.Usage(inv.Stdout, inv.Cmd, inv.Prog) }

// PrintHelp prints all that there is to say about the command.
func (inv *Invocation) PrintHelp() {
	c := inv.Cmd
	fmt.Fprintf(inv.Stdout, "%s\n\n", c.Short)
	inv.PrintUsage()
	heading := "\nOptions:\n"
	switch {
	case len(c.Classic) > 0:
		heading = "\nBeyond the classic options:\n"
	case slices.ContainsFunc(c.Flags, func(f Flag) bool { return !f.Ours }):
		heading = "" // the usage has listed the others
	}
	for _, f := range c.allFlags(inv.ByClassicName) {
		if f.Ours {
			fmt.Fprint(inv.Stdout, heading)
			heading = ""
			printFlag(inv.Stdout, &f)
		}
	}
	if c.More != "" {
		fmt.Fprintf(inv.Stdout, "\n%s", strings.ReplaceAll(c.More, "PROG", inv.Prog))
	}
}
