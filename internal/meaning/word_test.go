package meaning_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/meaning"
)

var (
	row     = regexp.MustCompile(`(?m)^\| ([^|]+) \| (.*) \|$`)
	code    = regexp.MustCompile("`([^`]*)`")
	linked  = regexp.MustCompile(`\[[^\]]*\]\([^)]*\)`)
	between = regexp.MustCompile(`, | \(|\)`)
	blank   = regexp.MustCompile(`\s+([.:;,])`)
)

// word makes the entry of a row of the glossary: without links, and with its commands apart.
func word(names, text string) meaning.Entry {
	list := slices.DeleteFunc(between.Split(names, -1), func(s string) bool { return s == "" })
	e := meaning.Entry{Kind: meaning.KindWord, Number: -1, Name: list[0], Also: list[1:]}
	text = code.ReplaceAllStringFunc(text, func(s string) string {
		switch s = strings.Trim(s, "`"); {
		case strings.HasPrefix(s, "adverb explain "):
			see := strings.TrimPrefix(s, "adverb explain ")
			if !slices.ContainsFunc(meaning.Kinds, func(k meaning.KindDesc) bool { return string(k.Kind) == see }) {
				e.See = append(e.See, see)
			}
		case strings.HasPrefix(s, "adverb "):
			e.Tools = append(e.Tools, s)
		default:
			return s
		}
		return ""
	})
	text = blank.ReplaceAllString(linked.ReplaceAllString(text, ""), "$1")
	e.Brief = strings.TrimRight(text, " .:;,")
	return e
}

// TestGlossary: each word of the glossary is explained: by an entry of the same text, or by one of another kind.
func TestGlossary(t *testing.T) {
	file, err := os.ReadFile("../../docs/learn/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := row.FindAllSubmatch(file, -1)
	if len(rows) < 50 {
		t.Fatalf("the glossary has %d rows", len(rows))
	}
	n := 0
	for _, m := range rows[1:] { // the first is the heading
		want := word(string(m[1]), string(m[2]))
		if strings.HasPrefix(want.Name, "---") {
			continue
		}
		found := meaning.Explain(want.Name)
		switch {
		case len(found) == 0:
			t.Errorf("%s is in the glossary, and not in the table: %+v", want.Name, want)
		case found[0].Kind != meaning.KindWord:
		default:
			n++
			got := found[0].Entry
			if got.Name != want.Name || got.Brief != want.Brief || !slices.Equal(got.Also, want.Also) || !slices.Equal(got.Tools, want.Tools) || !slices.Equal(got.See, want.See) {
				t.Errorf("the table has %+v, the glossary %+v", got, want)
			}
		}
	}
	if all := len(meaning.Of(meaning.KindWord)); n != all {
		t.Errorf("%d of %d words of the table are in the glossary", n, all)
	}
}

// A word is found by what its letters stand for.
func TestLongForms(t *testing.T) {
	for s, want := range map[string]string{"queue pair": "QP", "Memory Region": "MR", "packet sequence number": "PSN", "protection domain": "PD"} {
		if found := meaning.Explain(s); len(found) != 1 || found[0].Kind != meaning.KindWord || found[0].Name != want {
			t.Errorf("%q: found %q, want the word %s", s, titles(found), want)
		}
	}
}

// A word of the glossary within a log means nothing.
func TestWordsOfLogs(t *testing.T) {
	for _, s := range []string{"the device read the port", "RTS reached", "post send", "init done"} {
		for _, f := range meaning.Explain(s) {
			if f.Kind == meaning.KindWord || f.Kind == meaning.KindQPState {
				t.Errorf("%q: found %s", s, f.Title())
			}
		}
	}
}
