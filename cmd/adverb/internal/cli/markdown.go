package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// writeMarkdown writes a page of Markdown for each command into dir, and README.md with the list.
func (t *Tool) writeMarkdown(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, page := range t.markdown() {
		if err := os.WriteFile(filepath.Join(dir, name+".md"), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// markdown returns all pages by their names.
func (t *Tool) markdown() map[string]string {
	index := new(page)
	index.linef("# Commands of %s\n\n%s\n", t.Name, escapeMarkdown(strings.ReplaceAll(t.Long, "\n", " ")))
	index.linef("| %s … | classic name | does |\n|---|---|---|", t.Name)
	pages := map[string]string{}
	for _, c := range t.all() {
		pages[c.Name] = t.commandMarkdown(c)
		index.linef("| [`%s`](%s.md) | %s | %s |", c.Name, c.Name, codeList(c.Classic), escapeMarkdown(c.Short))
	}
	pages["README"] = index.String()
	return pages
}

// codeList is a list of names as code.
func codeList(names []string) string {
	var list []string
	for _, n := range names {
		list = append(list, code(n))
	}
	return strings.Join(list, ", ")
}

// commandMarkdown is the page of a command.
func (t *Tool) commandMarkdown(c *Command) string {
	p := new(page)
	prog := t.Name + " " + c.Name
	p.linef("# %s\n\n%s", prog, escapeMarkdown(sentence(c.Short)))
	if len(c.Classic) > 0 {
		p.linef("\nThrough a symlink of its classic name it is that program: %s.", codeList(c.Classic))
	}
	p.linef("\n## Usage\n\n```")
	for _, f := range c.Forms {
		line := strings.TrimSpace(prog + " " + f.Args)
		if f.Does != "" {
			line += "\n    " + f.Does
		}
		p.linef("%s", line)
	}
	p.linef("```\n\n## Options\n\n| option | does |\n|---|---|")
	flags := c.allFlags(false)
	for i := range flags {
		p.linef("| %s | %s |", code(flags[i].names()), escapeMarkdown(flags[i].Help))
	}
	if c.More != "" {
		p.linef("\n## Notes")
		for _, b := range blocks(strings.ReplaceAll(c.More, "PROG", prog)) {
			if b.literal {
				p.linef("\n```\n%s\n```", strings.Join(b.lines, "\n"))
				continue
			}
			p.linef("\n%s", escapeMarkdown(strings.Join(b.lines, "\n")))
		}
	}
	return p.String()
}

// sentence ends a text with a full stop.
func sentence(s string) string {
	if strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

var (
	special   = regexp.MustCompile("[\\\\`*_\\[\\]<>|#~&]")
	listStart = regexp.MustCompile(`(?m)^(\s*)([-+=]|\d+[.)])`)
)

// escapeMarkdown has a text appear as it is written.
func escapeMarkdown(s string) string {
	s = special.ReplaceAllString(s, `\$0`)
	return listStart.ReplaceAllStringFunc(s, func(m string) string { return m[:len(m)-1] + `\` + m[len(m)-1:] })
}

// code is a word of a table as code.
func code(s string) string { return fmt.Sprintf("`%s`", strings.ReplaceAll(s, "|", `\|`)) }
