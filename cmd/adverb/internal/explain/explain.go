// Package explain has the command explain, which says of a number, a name or a line of a log: its meaning, its causes, the
// checks to make, and the commands that show it. All its knowledge is in internal/meaning.
package explain

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/meaning"
)

// Command is the command explain.
var Command = &cli.Command{
	Name:     "explain",
	Short:    "Explain an error, a code, a counter or a line of a log, of any RDMA program",
	Flags:    []cli.Flag{cli.JSONFlag},
	Operands: []cli.Values{words, words, words},
	Forms:    []cli.Form{{Args: "[--json] [<word>... | -]"}},
	Usage:    cli.UsageLine,
	More: `Words are what a program, a library or the kernel has printed, whole lines included, a word of RDMA, a
finding of "adverb diagnose", or a kind and a number:
  PROG "Got completion with error 12, opcode 0, len 0, vendor err 129"
  PROG ibv_modify_qp RTR 110
  PROG reject 28
  PROG rkey
  PROG LOSS-NAK
  dmesg | tail | PROG -
A word such as -110 is no flag. Without words it lists the kinds, and with a kind alone what the kind has.
With - it reads the standard input to its end, line by line; of a line it looks at the first 16 KiB.

The first answer is what the words are most likely about; others follow in a line each, and of several lines
each answer with its own. The status is 1 if nothing is known. No device or host is asked: the answers are
for cards and software devices of all makers.
`,
	Run: run,
}

// words are the names of kinds and entries, for completion.
var words = cli.Values{List: func() (list []cli.Value) {
	for _, n := range meaning.Names() {
		list = append(list, cli.Value{Text: n})
	}
	for _, f := range diagnose.Rules() {
		list = append(list, cli.Value{Text: f.ID})
	}
	return list
}}

// split puts flags first and words behind "--", so that -110 is a word.
func split(args []string) []string {
	var flags, rest []string
	for i, a := range args {
		if a == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if a == "-h" || strings.HasPrefix(a, "--") {
			flags = append(flags, a)
		} else {
			rest = append(rest, a)
		}
	}
	return append(append(flags, "--"), rest...)
}

func run(inv *cli.Invocation) int {
	json := false
	inv.Args = split(inv.Args)
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, _ string) bool {
		if name != "json" {
			cli.Undeclared(name)
		}
		json = true
		return true
	})
	if !ok {
		return code
	}
	text := strings.Join(operands, " ")
	var log meaning.Log
	if text == "-" {
		if err := readLog(inv.Stdin, &log); err != nil {
			return inv.Fail(fmt.Errorf("read the standard input: %w", err), "")
		}
		one, ok := log.Text()
		if n, _ := log.Lines(); !ok {
			one = fmt.Sprintf("%d lines of the standard input", n)
		}
		if text = one; text == "" {
			return inv.Fail(errors.New("explain: the standard input is empty"), "")
		}
	} else {
		for line := range strings.Lines(text) {
			log.Add(line)
		}
	}
	if strings.TrimSpace(text) == "" {
		return listKinds(inv, json)
	}
	found := log.Findings()
	if n, cut := log.Lines(); cut > 0 {
		inv.Explain(fmt.Errorf("explain: %d of %d lines are longer than %d bytes: their ends were not looked at", cut, n, meaning.MaxLine))
	}
	for _, f := range diagnose.Rules() {
		if strings.EqualFold(f.ID, text) && (len(found) == 0 || strings.Contains(f.ID, "-")) { // RNR and CNP are words of others too
			return tellFinding(inv, json, text, f)
		}
	}
	for _, k := range meaning.Kinds {
		if string(k.Kind) == text || len(found) == 0 && strings.EqualFold(string(k.Kind), text) { // AETH is a header, aeth a kind
			return listKind(inv, json, k)
		}
	}
	if len(found) == 0 {
		var near []string
		if _, one := log.Text(); one {
			near = meaning.Nearest(text, cli.Nearest)
		}
		if json {
			inv.PrintJSON(answer{Words: text, Found: found, Nearest: near})
			return cli.ExitError
		}
		err := fmt.Errorf("explain %q: nothing is known about it", shorten(text))
		if len(near) > 0 {
			err = fmt.Errorf("%w; near are %s", err, strings.Join(near, ", "))
		}
		inv.Explain(fmt.Errorf("%w; %q lists the kinds", err, inv.Prog))
		return cli.ExitError
	}
	if json {
		return inv.PrintJSON(answer{Words: text, Found: found})
	}
	print(inv, found)
	return cli.ExitOK
}

// readLog reads lines to the end. The end of a line that is longer than meaning.MaxLine is not kept.
func readLog(r io.Reader, log *meaning.Log) error {
	b := bufio.NewReaderSize(r, meaning.MaxLine+1)
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			log.Add(string(line))
		}
		for err == bufio.ErrBufferFull {
			_, err = b.ReadSlice('\n')
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// answer is the JSON of a question.
type answer struct {
	Words   string            `json:"words"`
	Found   []meaning.Finding `json:"found"` // the most telling first
	Nearest []string          `json:"nearest,omitempty"`
	Finding *finding          `json:"finding,omitempty"`
}

// finding is a finding of adverb diagnose, without a capture.
type finding struct {
	ID       string             `json:"id"`
	Severity diagnose.Severity  `json:"severity"`
	Certain  diagnose.Certainty `json:"certainty"`
	Side     diagnose.Side      `json:"look_at"`
	Title    string             `json:"title"`
	Remedy   []string           `json:"remedy"`
	WrongIf  string             `json:"would_be_wrong_if,omitempty"`
}

// tellFinding explains a finding of adverb diagnose.
func tellFinding(inv *cli.Invocation, json bool, text string, f diagnose.Finding) int {
	if json {
		return inv.PrintJSON(answer{Words: text, Found: []meaning.Finding{}, Finding: &finding{f.ID, f.Severity, f.Certainty, f.Side, f.Title, f.Remedy, f.WrongIf}})
	}
	severities, certainties := diagnose.Variants(f.ID)
	how := alternatives(certainties)
	if f.Certainty != diagnose.Hint {
		how = alternatives(severities) + ", " + how
	}
	inv.Printf("finding %s of adverb diagnose (%s)\n%s", f.ID, how, meaning.Wrap(meaning.Sentence(f.Title), width, "  ", "  "))
	inv.Printf("  Look at the %v.\n", f.Side)
	printList(inv.Stdout, "Do:", f.Remedy, false)
	if f.WrongIf != "" {
		printList(inv.Stdout, "It would be wrong if:", []string{f.WrongIf}, false)
	}
	return cli.ExitOK
}

// alternatives joins what something can be.
func alternatives[T fmt.Stringer](list []T) string {
	var s []string
	for _, x := range list {
		s = append(s, x.String())
	}
	return strings.Join(s, " or ")
}

const maxShown = 80

// shorten keeps an error in one line.
func shorten(text string) string {
	if len(text) > maxShown {
		return text[:maxShown] + "…"
	}
	return text
}

// count says how many entries a kind has.
type count struct {
	meaning.KindDesc
	Entries int `json:"entries"`
}

func listKinds(inv *cli.Invocation, json bool) int {
	var list []count
	for _, k := range meaning.Kinds {
		list = append(list, count{k, len(meaning.Of(k.Kind))})
	}
	if json {
		return inv.PrintJSON(list)
	}
	inv.Printf("Kinds, with the number of their entries and an example of words:\n\n")
	for _, c := range list {
		inv.Printf("  %-10s %4d  %-27s %s\n", c.Kind, c.Entries, c.Example, c.Title)
	}
	inv.Printf("\nOr paste a line of a log: %s \"…\"\n", inv.Prog)
	return cli.ExitOK
}

func listKind(inv *cli.Invocation, json bool, kind meaning.KindDesc) int {
	entries := meaning.Of(kind.Kind)
	if json {
		return inv.PrintJSON(entries)
	}
	if found := meaning.Explain(string(kind.Kind)); len(found) > 0 { // a kind's word may be a name as well
		print(inv, found[:1])
		inv.Printf("\n")
	}
	inv.Printf("%s:\n\n", kind.Title)
	if kind.Rule != "" {
		inv.Printf("%s\n%s", meaning.Wrap(kind.Rule, width, "  ", "  "), table(entries))
		return cli.ExitOK
	}
	for i := range entries {
		inv.Printf("  %s\n", line(&entries[i]))
	}
	return cli.ExitOK
}

// table has the numbers and names of entries, in columns that are read downward.
func table(entries []meaning.Entry) string {
	const columns = 4
	rows := (len(entries) + columns - 1) / columns
	var b strings.Builder
	for r := range rows {
		var line strings.Builder
		for i := r; i < len(entries); i += rows {
			fmt.Fprintf(&line, "  %4s  %-10s", entries[i].Digits(), entries[i].Name)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// line is an entry in one line.
func line(e *meaning.Entry) string {
	s := e.Title()
	if e.Follows {
		s += " (follows another failure)"
	}
	return s + ": " + e.Brief
}

const width = 100 // of the lines of answers

// print prints findings: the first in full, and others that are as telling.
func print(inv *cli.Invocation, found []meaning.Finding) {
	full := meaning.Leading(found)
	for i := range full {
		if i > 0 {
			inv.Printf("\n")
		}
		printFull(inv.Stdout, inv.Prog, &found[i])
	}
	if full == len(found) {
		return
	}
	inv.Printf("\nBesides:\n")
	for i := range found[full:] {
		f := &found[full+i]
		inv.Printf("%s", meaning.Wrap(line(&f.Entry), width, "  ", "    "))
		if f.Line > 0 {
			inv.Printf("    %s\n", where(f, width-4))
		}
	}
}

// where is the line of a text that names an entry, in one line of at most n characters.
func where(f *meaning.Finding, n int) string {
	s := fmt.Sprintf("line %d", f.Line)
	if f.Times > 1 {
		s += fmt.Sprintf(", and %d more", f.Times-1)
	}
	s += ": " + strings.Map(func(r rune) rune { // a log is no place for what a terminal would obey
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, f.Text)
	if short := []rune(s); len(short) > n {
		s = string(short[:n-1]) + "…"
	}
	return s
}

func printFull(w io.Writer, prog string, f *meaning.Finding) {
	if f.Guess {
		fmt.Fprintf(w, "%s failed, and no errno is given. The likeliest:\n\n", f.Call)
	}
	fmt.Fprintf(w, "%s", f.Title())
	if len(f.Also) > 0 {
		fmt.Fprintf(w, " (%s)", strings.Join(f.Also, ", "))
	}
	fmt.Fprintln(w)
	if f.Line > 0 {
		fmt.Fprintf(w, "  In %s\n", where(f, width-5))
	}
	fmt.Fprint(w, meaning.Wrap(meaning.Sentence(f.Brief), width, "  ", "  "))
	if f.Note != "" {
		fmt.Fprint(w, meaning.Wrap("Here: "+f.Note+".", width, "  ", "  "))
	}
	if f.Follows {
		fmt.Fprint(w, meaning.Wrap(meaning.FollowsText, width, "  ", "  "))
	}
	if f.More != "" {
		fmt.Fprint(w, meaning.Wrap(f.More, width, "  ", "  "))
	}
	if f.Drawing != "" {
		fmt.Fprintf(w, "\n  %s\n", strings.ReplaceAll(f.Drawing, "\n", "\n  "))
	}
	printList(w, "Usual causes, the likeliest first:", f.Causes, true)
	printList(w, "Check:", f.Checks, false)
	printList(w, "adverb shows it:", f.Tools, false)
	if len(f.See) > 0 {
		fmt.Fprintf(w, "\n%s", meaning.Wrap("See also, behind "+prog+": "+strings.Join(f.See, ", "), width, "  ", "    "))
	}
}

func printList(w io.Writer, heading string, list []string, numbered bool) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n  %s\n", heading)
	for i, text := range list {
		mark := "  - "
		if numbered {
			mark = fmt.Sprintf("%3d. ", i+1)
		}
		fmt.Fprint(w, meaning.Wrap(text, width, "  "+mark, "  "+strings.Repeat(" ", len(mark))))
	}
}
