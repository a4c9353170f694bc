package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark/ast"
)

// The search is for sections: what stands below one heading. The index is a script, since a page that was opened as a file
// may load scripts, and nothing else. It has pages, sections, and for each word the sections that have it:
//
//	pages     [address, title, language], ...
//	sections  [number of the page, anchor, heading, its first words], ...
//	words     lines of a word, a tab and its sections: the distance to the one before in base 36, and a capital letter, A for
//	          a word of the text, B of a heading, C of a page's title
//
// site.js reads it, and takes words apart as tokens does.

// excerpt is the most bytes of a section's first words.
const excerpt = 110

// Weights of a word in a section.
const (
	inText = 'A' + iota
	inHeading
	inTitle
)

// index makes the script.
func (s *site) index() []byte {
	var pages, sections [][]any
	where := map[string]map[int]rune{}
	for i, d := range s.order {
		pages = append(pages, []any{d.address, d.title, d.lang})
		for k, sec := range d.sections() {
			n := len(sections)
			sections = append(sections, []any{i, sec.anchor, sec.heading, first(sec.text)})
			note := func(text string, weight rune) {
				for _, word := range tokens(text) {
					if where[word] == nil {
						where[word] = map[int]rune{}
					}
					where[word][n] = max(where[word][n], weight)
				}
			}
			note(sec.text, inText)
			if k == 0 {
				note(d.title, inTitle)
			} else {
				note(sec.heading, inHeading)
			}
		}
	}
	var list strings.Builder
	for _, word := range slices.Sorted(maps.Keys(where)) {
		list.WriteString(word + "\t")
		last := 0
		for _, n := range slices.Sorted(maps.Keys(where[word])) {
			list.WriteString(strconv.FormatInt(int64(n-last), 36) + string(where[word][n]))
			last = n
		}
		list.WriteByte('\n')
	}
	b, err := json.Marshal(map[string]any{"pages": pages, "sections": sections, "words": list.String()})
	if err != nil {
		panic(fmt.Sprint("site: texts are no JSON: ", err))
	}
	return fmt.Appendf(nil, "window.adverbIndex = %s;\n", b)
}

// documentSection is a heading with what stands below it, until the next one.
type documentSection struct{ anchor, heading, text string }

func (d *document) sections() (list []documentSection) {
	anchors := map[string]int{}
	var text []string
	flush := func() {
		if len(list) > 0 {
			list[len(list)-1].text = strings.Join(text, " ")
		}
		text = nil
	}
	for n := d.tree.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			text = append(text, body(n, d.text))
			continue
		}
		flush()
		title := plain(h, d.text)
		id := anchor(title, anchors)
		if len(list) == 0 {
			id = "" // the page itself
		}
		list = append(list, documentSection{anchor: id, heading: title})
	}
	flush()
	return list
}

// body returns the text of a block, with spaces between its parts.
func body(n ast.Node, source []byte) string {
	if n.Type() == ast.TypeBlock && n.FirstChild() == nil && n.Lines() != nil { // code
		return string(n.Lines().Value(source))
	}
	if first := n.FirstChild(); first == nil || first.Type() == ast.TypeInline {
		return plain(n, source)
	}
	var parts []string
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		parts = append(parts, body(c, source))
	}
	return strings.Join(parts, " ")
}

// first returns the first words of a text.
func first(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= excerpt {
		return text
	}
	cut, end := 0, 0
	for i, r := range text {
		if i > excerpt {
			break
		}
		end = i
		if r == ' ' || unicode.Is(unicode.Han, r) {
			cut = i
		}
	}
	if cut == 0 {
		cut = end
	}
	return text[:cut] + " …"
}

// tokens takes a text apart into words of small letters: letters and digits, of which an underscore is one. A word with
// underscores counts in its parts too. Of Chinese each pair of characters is a word, and each character that stands alone.
// Long hexadecimal numbers are of one run alone, and left out.
func tokens(text string) (list []string) {
	var han []rune
	word := strings.Builder{}
	end := func() {
		w := strings.Trim(word.String(), "_")
		word.Reset()
		if w != "" && len(w) <= 40 && !(strings.HasPrefix(w, "0x") && len(w) > 6) {
			list = append(list, w)
			if parts := strings.FieldsFunc(w, func(r rune) bool { return r == '_' }); len(parts) > 1 {
				list = append(list, parts...)
			}
		}
		if len(han) == 1 {
			list = append(list, string(han))
		}
		for i := range len(han) - 1 {
			list = append(list, string(han[i:i+2]))
		}
		han = han[:0]
	}
	wasHan := false
	for _, r := range strings.ToLower(text) {
		isHan := unicode.Is(unicode.Han, r)
		if isHan != wasHan {
			end()
		}
		wasHan = isHan
		switch {
		case isHan:
			han = append(han, r)
		case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			word.WriteRune(r)
		default:
			end()
		}
	}
	end()
	return list
}
