package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// manCommand writes the manual pages.
func (t *Tool) manCommand() *Command {
	return &Command{
		Name:     "man",
		Short:    "Write the manual pages to a directory",
		Flags:    []Flag{{Long: "markdown", Help: "write the pages as Markdown, into <dir> itself", Ours: true}},
		Forms:    []Form{{Args: "[--markdown] <dir>"}},
		Operands: []Values{Files},
		Usage:    UsageLine,
		More: `The pages of section 1 go to <dir>/man1: one of ` + t.Name + `, one of each command, and a link to it from each
classic name. <dir> is a directory of MANPATH, such as /usr/local/share/man.
`,
		Run: func(inv *Invocation) int {
			write := t.writeManual
			operands, code, ok := inv.Parse(ExitUsage, func(name, _ string) bool {
				if name != "markdown" {
					Undeclared(name)
				}
				write = t.writeMarkdown
				return true
			})
			if !ok {
				return code
			}
			if len(operands) != 1 {
				inv.PrintUsage()
				return ExitUsage
			}
			if err := write(operands[0]); err != nil {
				return inv.Fail(err, "")
			}
			return ExitOK
		},
	}
}

// writeManual writes all pages below dir.
func (t *Tool) writeManual(dir string) error {
	section := filepath.Join(dir, "man1")
	if err := os.MkdirAll(section, 0o755); err != nil {
		return err
	}
	for name, page := range t.manual() {
		if err := os.WriteFile(filepath.Join(section, name+".1"), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manual returns all pages by their names.
func (t *Tool) manual() map[string]string {
	pages := map[string]string{t.Name: t.toolPage()}
	for _, c := range t.all() {
		page := t.pageName(c)
		pages[page] = t.commandPage(c)
		for _, classic := range c.Classic {
			if classic != page {
				pages[classic] = fmt.Sprintf(".so man1/%s.1\n", page)
			}
		}
	}
	return pages
}

// pageName is the name of a command's page, such as adverb-devinfo.
func (t *Tool) pageName(c *Command) string { return t.Name + "-" + c.Name }

// roff escapes a text so that it appears as it is written.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`, `"`, `\(dq`, "…", "...").Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// buildDate is the date of the commit that the tool was built from, or "" if it is not known.
func buildDate() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			date, _, _ := strings.Cut(s.Value, "T")
			return date
		}
	}
	return ""
}

// page collects the lines of a manual page.
type page struct{ strings.Builder }

func (p *page) linef(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// begin writes the title and the section NAME.
func (p *page) begin(tool string, names []string, short string) {
	p.linef(`.TH %s 1 "%s" "%s" "User Commands"`, roff(strings.ToUpper(names[0])), buildDate(), roff(tool))
	p.linef(".SH NAME")
	var escaped []string
	for _, n := range names {
		escaped = append(escaped, roff(n))
	}
	p.linef(`%s \- %s`, strings.Join(escaped, ", "), roff(short))
}

// synopsis writes the section SYNOPSIS: each of the programs in each of its forms.
func (p *page) synopsis(progs []string, forms []Form) {
	p.linef(".SH SYNOPSIS")
	for i, prog := range progs {
		for j, f := range forms {
			if i+j > 0 {
				p.linef(".br")
			}
			p.linef("%s", strings.TrimSpace(`\fB`+roff(prog)+`\fR `+roff(f.Args)))
		}
	}
}

// flag writes a flag with its description.
func (p *page) flag(f *Flag) {
	var names []string
	if f.Short != 0 {
		names = append(names, `\fB`+roff("-"+string(f.Short))+`\fR`)
	}
	if f.Long != "" {
		names = append(names, `\fB`+roff("--"+f.Long)+`\fR`)
	}
	head := strings.Join(names, ", ")
	if f.Arg != "" {
		head += "=" + roff(f.Arg)
	}
	p.linef(".TP\n%s\n%s", head, roff(f.Help))
}

// block is a paragraph, or lines that stay as they are.
type block struct {
	literal bool
	lines   []string
}

// blocks takes a text apart. Lines that are indented stay as they are; blank lines between them do too.
func blocks(s string) (list []block) {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	begins := true
	for i, line := range lines {
		last := len(list) - 1
		inside := !begins && list[last].literal
		switch text := strings.TrimSpace(line); {
		case text == "" && inside && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  "):
			list[last].lines = append(list[last].lines, "")
			continue
		case text == "":
			begins = true
			continue
		case strings.HasPrefix(line, "  "):
			if !inside {
				list = append(list, block{literal: true})
			}
			line = strings.TrimPrefix(line, "  ")
		default:
			if begins || inside {
				list = append(list, block{})
			}
			line = text
		}
		begins, last = false, len(list)-1
		list[last].lines = append(list[last].lines, line)
	}
	return list
}

// text writes the blocks of a section.
func (p *page) text(s string) {
	for i, b := range blocks(s) {
		switch {
		case b.literal:
			p.linef(".PP\n.RS 4\n.nf")
		case i > 0:
			p.linef(".PP")
		}
		for _, line := range b.lines {
			if line == "" {
				p.linef(".sp")
				continue
			}
			p.linef("%s", roff(line))
		}
		if b.literal {
			p.linef(".fi\n.RE")
		}
	}
}

// toolPage is the page of the tool itself.
func (t *Tool) toolPage() string {
	p := new(page)
	p.begin(t.Name, []string{t.Name}, t.Short)
	p.synopsis([]string{t.Name}, []Form{{Args: "<command> [<flags>]"}})
	p.linef(".SH DESCRIPTION")
	p.text(t.Long)
	p.linef(".SH COMMANDS")
	for _, c := range t.all() {
		p.linef(".TP\n\\fB%s\\fR(1)\n%s", roff(t.pageName(c)), roff(c.Short))
	}
	return p.String()
}

// commandPage is the page of a command.
func (t *Tool) commandPage(c *Command) string {
	p := new(page)
	prog := t.Name + " " + c.Name
	p.begin(t.Name, append([]string{t.pageName(c)}, c.Classic...), c.Short)
	p.synopsis(append([]string{prog}, c.Classic...), c.Forms)
	if slices.ContainsFunc(c.Forms, func(f Form) bool { return f.Does != "" }) {
		p.linef(".SH DESCRIPTION")
		for _, f := range c.Forms {
			if f.Does != "" {
				p.linef(".TP\n%s\n%s", strings.TrimSpace(`\fB`+roff(prog)+`\fR `+roff(f.Args)), roff(f.Does))
			}
		}
	}
	p.linef(".SH OPTIONS")
	flags := c.allFlags(false)
	for i := range flags {
		p.flag(&flags[i])
	}
	if c.More != "" {
		p.linef(".SH NOTES")
		p.text(strings.ReplaceAll(c.More, "PROG", prog))
	}
	p.linef(".SH SEE ALSO\n\\fB%s\\fR(1)", roff(t.Name))
	return p.String()
}
