package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"

	"github.com/adverb-rdma/adverb/internal/theme"
)

//go:embed page.html style.css site.js
var files embed.FS

var pageTemplate = template.Must(template.ParseFS(files, "page.html"))

// repository is where links to sources lead.
const repository = "https://github.com/adverb-rdma/adverb"

// labels are the words of a page that are no document's.
type labels struct{ Search, Contents, OnThisPage, Previous, Next, Source, Other, Old string }

var words = map[string]labels{
	"en":      {"Search", "Contents", "On this page", "Previous", "Next", "Source of this page", "中文", "The original has changed since."},
	"zh-Hans": {"搜索", "目录", "本页内容", "上一页", "下一页", "本页源文件", "English", "英文原文在此之后又有改动。"},
}

// page is what the template makes a page of.
type page struct {
	labels
	Title, Lang, Root, Version string
	Address, SourceURL         string
	Sections                   []navSection
	Body                       template.HTML
	Parts                      []part
	Before, After, Translation *link
	Lab, Outdated              bool
}

type link struct{ Title, Address, Lang string }

// part is a heading of a page.
type part struct{ ID, Title string }

// navSection and navEntry are the navigation, as one page has it.
type navSection struct {
	Title   string
	Entries []navEntry
}

type navEntry struct {
	link
	Here     bool // the page itself
	Open     bool // the page, or one below it
	Children []navEntry
}

// render makes the files of the site.
func (s *site) render() (map[string][]byte, error) {
	out, faults := map[string][]byte{}, []error{}
	for _, source := range slices.Sorted(maps.Keys(s.docs)) {
		d := s.docs[source]
		if !slices.Contains(s.order, d) {
			faults = append(faults, fmt.Errorf("%s: no index has it: link to it from %s, or from the README.md beside it", source, contents))
			continue
		}
		parts := s.resolve(d, out, &faults)
		b, err := s.page(d, parts)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", source, err)
		}
		out[d.address] = b
	}
	style, err := files.ReadFile("style.css")
	if err != nil {
		return nil, err
	}
	colors := theme.Colors(":root") + ":root{--sans:" + theme.Sans + ";--mono:" + theme.Mono + "}\n"
	out["style.css"] = append([]byte(colors), style...)
	if out["site.js"], err = files.ReadFile("site.js"); err != nil {
		return nil, err
	}
	out[mark] = s.index()
	return out, errors.Join(faults...)
}

// resolve gives a document's headings their anchors, and has its links lead to pages. It copies pictures into out. It
// returns the headings of level 2.
func (s *site) resolve(d *document, out map[string][]byte, faults *[]error) (parts []part) {
	fault := func(format string, args ...any) {
		*faults = append(*faults, fmt.Errorf(d.source+": "+format, args...))
	}
	anchors := map[string]int{}
	_ = ast.Walk(d.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			id := anchor(plain(n, d.text), anchors)
			n.SetAttributeString("id", id)
			if n.Level == 2 {
				parts = append(parts, part{id, plain(n, d.text)})
			}
		case *ast.Link:
			to, err := s.destination(d, string(n.Destination))
			if err != nil {
				fault("%w", err)
			}
			n.Destination = []byte(to)
		case *ast.Image:
			name := path.Join(path.Dir(d.source), string(n.Destination))
			b, err := fs.ReadFile(s.tree, name)
			if err != nil {
				fault("shows %s, which is not there", n.Destination)
				break
			}
			at := strings.TrimPrefix(name, "docs/")
			out[at] = b
			n.Destination = []byte(relative(d.address, at))
			if page := strings.TrimSuffix(path.Base(name), ".svg") + ".html"; s.packets[page] != nil {
				n.SetAttributeString("page", relative(d.address, packets+page))
			}
		case *ast.RawHTML:
			fault("has HTML, which the pages leave out: write Markdown")
		case *ast.HTMLBlock:
			if n.HTMLBlockType != ast.HTMLBlockType2 { // a comment
				fault("has HTML, which the pages leave out: write Markdown")
			}
		}
		return ast.WalkContinue, nil
	})
	return parts
}

var noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchor is the anchor of a heading, as GitHub makes it. seen counts those of the page.
func anchor(title string, seen map[string]int) string {
	a := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
	n := seen[a]
	seen[a]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", a, n)
	}
	return a
}

// destination is where a link of a page leads: to a page, or to a file of the repository.
func (s *site) destination(d *document, to string) (string, error) {
	if elsewhere(to) {
		return to, nil
	}
	doc, name := s.to(d, to)
	_, fragment, has := strings.Cut(to, "#")
	switch {
	case doc == d && has:
		return "#" + fragment, nil
	case doc != nil && has:
		return relative(d.address, doc.address) + "#" + fragment, nil
	case doc != nil:
		return relative(d.address, doc.address), nil
	}
	info, err := fs.Stat(s.tree, name)
	switch {
	case err != nil:
		return "", fmt.Errorf("links to %s, which is not there", to)
	case info.IsDir():
		return repository + "/tree/main/" + name, nil
	}
	return repository + "/blob/main/" + name, nil
}

// relative is the way from a page to another file of the site.
func relative(from, to string) string { return root(from) + to }

// root is the way from a page to the top of the site.
func root(from string) string { return strings.Repeat("../", strings.Count(from, "/")) }

// page makes a document's page.
func (s *site) page(d *document, parts []part) ([]byte, error) {
	var body bytes.Buffer
	if err := markdown[d.lang].Render(&body, d.text, d.tree); err != nil {
		return nil, err
	}
	p := page{
		labels: words[d.lang], Title: d.title, Lang: d.lang, Root: root(d.address), Version: s.version, Address: d.address,
		SourceURL: repository + "/blob/main/" + d.source,
		Body:      template.HTML(tables.Replace(body.String())),
		Parts:     parts,
		Lab:       s.lab != nil,
		Outdated:  d.old,
	}
	if strings.HasPrefix(d.source, commands) {
		p.SourceURL = "" // it comes from the command's declaration
	}
	to := func(title string, other *document) link {
		return link{title, relative(d.address, other.address), other.lang}
	}
	if d.other != nil {
		l := to(d.other.title, d.other)
		p.Translation = &l
	}
	if i := slices.Index(s.order, d); i >= 0 {
		if i > 0 {
			l := to(s.order[i-1].title, s.order[i-1])
			p.Before = &l
		}
		if i+1 < len(s.order) {
			l := to(s.order[i+1].title, s.order[i+1])
			p.After = &l
		}
	}
	var entries func(list []*entry) []navEntry
	entries = func(list []*entry) (nav []navEntry) {
		for _, e := range list {
			n := navEntry{link: to(e.Title, e.doc), Here: e.doc == d, Children: entries(e.Children)}
			n.Open = n.Here || slices.ContainsFunc(n.Children, func(c navEntry) bool { return c.Open })
			nav = append(nav, n)
		}
		return nav
	}
	for _, sec := range s.sections {
		p.Sections = append(p.Sections, navSection{sec.Title, entries(sec.Entries)})
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, p)
	return b.Bytes(), err
}

// tables has wide tables scroll, and not the page.
var tables = strings.NewReplacer("<table>", `<div class="table" tabindex="0"><table>`, "</table>", "</table></div>")

// markdown are the renderers, by language. The end of a line of Chinese is no space.
var markdown = map[string]renderer.Renderer{
	"en":      newRenderer(),
	"zh-Hans": newRenderer(extension.NewCJK(extension.WithEastAsianLineBreaks())),
}

func newRenderer(also ...goldmark.Extender) renderer.Renderer {
	return goldmark.New(
		goldmark.WithExtensions(append(also, extension.GFM)...),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(ours{}, 1))),
	).Renderer()
}

// ours renders what goldmark's own renderer does otherwise.
type ours struct{}

func (ours) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, heading)
	r.Register(ast.KindFencedCodeBlock, codeBlock)
	r.Register(ast.KindImage, image)
}

// heading has a link to itself.
func heading(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	h := n.(*ast.Heading)
	id, _ := h.AttributeString("id")
	if entering {
		fmt.Fprintf(w, `<h%d id="%s">`, h.Level, id)
		return ast.WalkContinue, nil
	}
	if h.Level > 1 {
		fmt.Fprintf(w, ` <a class="anchor" href="#%s" aria-label="%s">#</a>`, id, "#"+fmt.Sprint(id))
	}
	fmt.Fprintf(w, "</h%d>\n", h.Level)
	return ast.WalkContinue, nil
}

// codeBlock marks the commands of a terminal. The block scrolls where it is too wide, by the keyboard too.
func codeBlock(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkSkipChildren, nil
	}
	b := n.(*ast.FencedCodeBlock)
	terminal := string(b.Language(source)) == "console"
	_, _ = w.WriteString(`<pre tabindex="0"><code>`)
	command := false
	for i := range b.Lines().Len() {
		line := b.Lines().At(i)
		escaped := string(util.EscapeHTML(line.Value(source)))
		command = terminal && (strings.HasPrefix(escaped, "$ ") || command)
		if command {
			text := strings.TrimSuffix(escaped, "\n")
			escaped = `<span class="command">` + text + "</span>\n"
			command = strings.HasSuffix(text, `\`) // it continues
		}
		_, _ = w.WriteString(escaped)
	}
	_, _ = w.WriteString("</code></pre>\n")
	return ast.WalkSkipChildren, nil
}

// image links a picture to its file, where it is as large as it likes, or to the page of the same packets.
func image(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		file := string(util.EscapeHTML(n.(*ast.Image).Destination))
		to, caption := file, ""
		if page, ok := n.AttributeString("page"); ok {
			to, caption = page.(string), "<small>All packets, with queues and memory</small>"
		}
		fmt.Fprintf(w, `<a class="picture" href="%s"><img src="%s" alt="%s">%s</a>`, to, file, util.EscapeHTML([]byte(plain(n, source))), caption)
	}
	return ast.WalkSkipChildren, nil
}
