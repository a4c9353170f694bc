package meaning_test

import (
	"flag"
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/meaning"
)

var update = flag.Bool("update", false, "write docs/ERRORS.md anew")

const (
	columns = 100 // of documents

	introduction = `What RDMA programs, drivers and cards report, what it means, why it comes, and what to check: for cards
and software devices of all makers. ` + "`adverb explain WORDS`" + ` finds the entry, by the words below or
by a whole line of a log: ` + "`adverb explain \"Got completion with error 12, vendor err 129\"`." + `

Causes stand in the order of their likelihood. Of many errors the first one counts: statuses and
codes that only follow another failure say so.

This page is made of the table in internal/meaning, which the command and the errors use too:
` + "`go test ./internal/meaning -update`" + ` writes it.
`
)

// tabular are the kinds whose entries are rows of a table: they have little more than a meaning.
var tabular = map[meaning.Kind]bool{
	meaning.KindSyndrome: true, meaning.KindAETH: true, meaning.KindRNR: true, meaning.KindTimeout: true, meaning.KindMTU: true,
	meaning.KindCounter: true, meaning.KindOpcode: true, meaning.KindSIDR: true, meaning.KindQPState: true, meaning.KindIrdma: true, meaning.KindEFA: true, meaning.KindWCOpcode: true,
}

// shownAETH are the bytes that a reader meets; the drawing explains the others.
var shownAETH = map[int]bool{0x00: true, 0x1f: true, 0x20: true, 0x21: true, 0x2c: true, 0x60: true, 0x61: true, 0x62: true, 0x63: true}

func writeDocument() string {
	var b strings.Builder
	b.WriteString("# Errors and codes\n\n" + meaning.Wrap(introductionOf(0), columns, "", ""))
	for i := 1; introductionOf(i) != ""; i++ {
		b.WriteString("\n" + meaning.Wrap(introductionOf(i), columns, "", ""))
	}
	b.WriteString("\n| kind | entries | words, as an example |\n|---|---|---|\n")
	for _, k := range meaning.Kinds {
		if k.Kind == meaning.KindWord {
			fmt.Fprintf(&b, "| [%s](learn/glossary.md) | %d | `%s` |\n", k.Title, len(meaning.Of(k.Kind)), k.Example)
			continue
		}
		fmt.Fprintf(&b, "| [%s](#%s) | %d | `%s` |\n", k.Title, anchor(k), len(meaning.Of(k.Kind)), k.Example)
	}
	for _, k := range meaning.Kinds {
		if k.Kind == meaning.KindWord {
			continue // the glossary has them
		}
		fmt.Fprintf(&b, "\n## %s\n", k.Title)
		if tabular[k.Kind] {
			if k.Rule != "" {
				b.WriteString("\n" + meaning.Wrap(k.Rule, columns, "", ""))
			}
			writeTable(&b, k.Kind, k.Rule == "")
			continue
		}
		for _, e := range meaning.Of(k.Kind) {
			writeEntry(&b, e)
		}
	}
	return b.String()
}

// introductionOf returns the paragraph i of the introduction, or "".
func introductionOf(i int) string {
	paragraphs := strings.Split(introduction, "\n\n")
	if i >= len(paragraphs) {
		return ""
	}
	return paragraphs[i]
}

// anchor is that of a kind's heading.
func anchor(k meaning.KindDesc) string {
	s := strings.ToLower(k.Title)
	for _, c := range []string{"(", ")", ",", "."} {
		s = strings.ReplaceAll(s, c, "")
	}
	return strings.ReplaceAll(s, " ", "-")
}

func writeTable(b *strings.Builder, kind meaning.Kind, meanings bool) {
	entries := meaning.Of(kind)
	if d := entries[0].Drawing; kind == meaning.KindAETH {
		b.WriteString("\n```\n" + d + "\n```\n")
	}
	numbers := entries[0].Number >= 0
	head, rule := "| name | meaning |", "|---|---|"
	if !meanings {
		head, rule = "| time |", "|---|"
	}
	if numbers {
		head, rule = "| number "+head, "|---"+rule
	}
	b.WriteString("\n" + head + "\n" + rule + "\n")
	for _, e := range entries {
		if kind == meaning.KindAETH && !shownAETH[e.Number] {
			continue
		}
		text := e.Brief
		if kind == meaning.KindOpcode {
			text += ": `" + strings.ReplaceAll(e.Drawing, "|", "·") + "`"
		}
		if len(e.Causes) > 0 {
			text += ". Usual causes: " + strings.Join(e.Causes, "; ")
		}
		if e.Follows {
			text += ". It only follows another failure"
		}
		name := e.Name
		if kind == meaning.KindCounter && len(e.Also) > 0 && len(e.Also) < 4 {
			name += "`, `" + strings.Join(e.Also, "`, `")
		}
		if strings.Contains(name, "_") || strings.Contains(name, "`") {
			name = "`" + name + "`"
		}
		if numbers {
			fmt.Fprintf(b, "| %s ", e.Digits())
		}
		if !meanings {
			fmt.Fprintf(b, "| %s |\n", name)
			continue
		}
		fmt.Fprintf(b, "| %s | %s |\n", name, text)
	}
}

func writeEntry(b *strings.Builder, e meaning.Entry) {
	fmt.Fprintf(b, "\n### %s\n\n", e.Title())
	if len(e.Also) > 0 {
		b.WriteString(meaning.Wrap("Also: "+strings.Join(e.Also, ", ")+".", columns, "", "") + "\n")
	}
	text := meaning.Sentence(e.Brief)
	if e.Follows {
		text += " " + meaning.FollowsText
	}
	if e.More != "" {
		text += " " + e.More
	}
	b.WriteString(meaning.Wrap(text, columns, "", ""))
	if e.Drawing != "" {
		b.WriteString("\n```\n" + e.Drawing + "\n```\n")
	}
	writeList(b, "Usual causes", "1. ", e.Causes)
	writeList(b, "Check", "- ", e.Checks)
	writeList(b, "adverb shows it", "- ", e.Tools)
	if len(e.See) > 0 {
		b.WriteString("\n" + meaning.Wrap("See also: `"+strings.Join(e.See, "`, `")+"`.", columns, "", ""))
	}
}

func writeList(b *strings.Builder, heading, mark string, list []string) {
	if len(list) == 0 {
		return
	}
	b.WriteString("\n" + heading + ":\n\n")
	for _, s := range list {
		b.WriteString(meaning.Wrap(s, columns, mark, strings.Repeat(" ", len(mark))))
	}
}
