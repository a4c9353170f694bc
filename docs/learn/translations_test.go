package learn_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// translated is the beginning of the hash of the English text that a page translates.
var translated = regexp.MustCompile("SHA-256 以 `([0-9a-f]{12})` 开头")

var term = regexp.MustCompile(`(?m)^\| ([^|]+) \|`)

// terms are the words that a glossary explains.
func terms(text []byte) (list []string) {
	for _, m := range term.FindAllSubmatch(text, -1) {
		list = append(list, string(m[1]))
	}
	return list[1:] // the first is the heading of the table
}

// TestTranslations: each page in Chinese says which English text it translates. Who changes the English need not write
// Chinese: where the English has moved on, the test tells in its log what the page lacks, and the site tells the reader.
func TestTranslations(t *testing.T) {
	pages, err := filepath.Glob("zh/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("got pages %q, %v", pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		english, err := os.ReadFile(filepath.Base(page))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(english)
		now := hex.EncodeToString(sum[:6])
		switch m := translated.FindSubmatch(text); {
		case m == nil:
			t.Errorf("%s does not say which text it translates: write \"SHA-256 以 `%s` 开头\"", page, now)
		case string(m[1]) != now:
			t.Logf("%s translates an older text of %s: translate what has changed, and write %s in place of %s", page, filepath.Base(page), now, m[1])
		}
		if filepath.Base(page) != "glossary.md" {
			continue
		}
		have, want := terms(text), terms(english)
		if len(want) < 50 {
			t.Fatalf("the glossary has %d terms", len(want))
		}
		for _, w := range want {
			if !slices.Contains(have, w) {
				t.Logf("%s lacks %s", page, w)
			}
		}
		for _, h := range have {
			if !slices.Contains(want, h) {
				t.Logf("%s has %s, which the English has not", page, h)
			}
		}
	}
}
