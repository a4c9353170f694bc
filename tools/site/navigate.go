package main

import (
	"path"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// section is a part of the navigation: readers of one kind.
type section struct {
	Title   string
	Entries []*entry
}

// entry is a document in the navigation, with those that it is the index of.
type entry struct {
	Title    string
	doc      *document
	Children []*entry
}

// navigate orders the documents as docs/README.md does: its headings are sections, its links are entries, and the links of
// an index to documents beside it are the entries below it. Each document has the first place that is found for it.
func (s *site) navigate() {
	seen := map[*document]bool{s.docs[home]: true, s.docs[contents]: true}
	project := &section{Title: "The project"}
	place := func(to *section, title string, d *document) {
		if d != nil && !seen[d] {
			seen[d] = true
			if strings.HasSuffix(title, ".md") { // a file's name
				title = d.title
			}
			to.Entries = append(to.Entries, s.entry(title, d, seen))
		}
	}
	project.Entries = append(project.Entries, &entry{Title: "adverb", doc: s.docs[home]}, &entry{Title: "All documents", doc: s.docs[contents]})

	index, current := s.docs[contents], &section{}
	for n := index.tree.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 2 {
			current = &section{Title: plain(h, index.text)}
			s.sections = append(s.sections, current)
			continue
		}
		for _, l := range links(n) {
			d, _ := s.to(index, string(l.Destination))
			place(current, plain(l, index.text), d)
		}
	}
	tool := &section{Title: "The tool"}
	place(tool, "Commands", s.docs[commands+"README.md"])
	for _, name := range []string{"CHANGELOG.md", "SECURITY.md"} {
		if d := s.docs[name]; d != nil {
			place(project, d.title, d)
		}
	}
	s.sections = append(s.sections, tool, project)
	for _, sec := range s.sections {
		s.listed(sec.Entries)
	}
}

// entry is the entry of a document.
func (s *site) entry(title string, d *document, seen map[*document]bool) *entry {
	e := &entry{Title: title, doc: d}
	if path.Base(d.source) != "README.md" {
		return e
	}
	for _, l := range links(d.tree) {
		to, _ := s.to(d, string(l.Destination))
		if to == nil || seen[to] || path.Dir(to.source) != path.Dir(d.source) {
			continue
		}
		seen[to] = true
		e.Children = append(e.Children, &entry{Title: plain(l, d.text), doc: to})
	}
	return e
}

// listed appends the documents of entries to the order.
func (s *site) listed(entries []*entry) {
	for _, e := range entries {
		s.order = append(s.order, e.doc)
		s.listed(e.Children)
	}
}

// links returns the links below a node that lead to this site or to files of the repository.
func links(n ast.Node) (list []*ast.Link) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if l, ok := n.(*ast.Link); ok && entering && !elsewhere(string(l.Destination)) {
			list = append(list, l)
		}
		return ast.WalkContinue, nil
	})
	return list
}

// elsewhere reports whether a link leads to another site.
func elsewhere(link string) bool {
	return strings.Contains(link, "://") || strings.HasPrefix(link, "//") || strings.HasPrefix(link, "mailto:")
}
