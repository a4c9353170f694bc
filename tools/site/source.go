package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// site is what the pages are made of.
type site struct {
	tree    fs.FS                // the repository
	docs    map[string]*document // by the names of their sources
	lab     map[string][]byte    // the lab's pages, or nil
	packets map[string][]byte    // pages of adverb see, or nil
	version string

	sections []*section  // the navigation
	order    []*document // the documents, as the navigation has them
}

// document is a source that becomes a page.
type document struct {
	source  string // its name below the repository, such as docs/learn/send.md
	address string // its page's name below the site, such as learn/send.html
	text    []byte
	tree    ast.Node
	title   string // the first heading, as text
	lang    string
	other   *document // the same in another language, or nil
	old     bool      // it translates an older text of other
}

const (
	home     = "README.md"
	contents = "docs/README.md" // the index of all documents
	commands = "commands/"      // where the commands' pages are, as sources and below the site
	packets  = "packets/"       // where the pages of adverb see are, below the site
	chinese  = "zh"             // the directory of pages in Chinese
)

// address is where a document's page is. The site has the pages of docs at its top, and those of the repository's top below
// project. lab is the place of the lab that runs in a browser.
func address(source string) string {
	switch {
	case source == contents:
		return "contents.html"
	case source != home && !strings.Contains(source, "/"):
		source = "project/" + source
	case strings.HasPrefix(source, "lab/"):
		source = "linux-" + source
	}
	dir, file := path.Split(strings.TrimPrefix(source, "docs/"))
	if file == "README.md" {
		return dir + "index.html"
	}
	return dir + strings.TrimSuffix(file, ".md") + ".html"
}

// readSources reads all documents: those of the repository, and those of the commands.
func readSources(tree, man fs.FS) (*site, error) {
	s := &site{tree: tree, docs: map[string]*document{}}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "dist"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		return s.read(tree, name, name)
	})
	if err != nil {
		return nil, err
	}
	pages, err := fs.Glob(man, "*.md")
	if err != nil {
		return nil, err
	}
	for _, name := range pages {
		if err := s.read(man, name, commands+name); err != nil {
			return nil, err
		}
	}
	for _, source := range []string{home, contents, commands + "README.md"} {
		if s.docs[source] == nil {
			return nil, fmt.Errorf("find the documents: there is no %s", source)
		}
	}
	for _, d := range s.docs {
		if other := s.docs[path.Join(path.Dir(path.Dir(d.source)), path.Base(d.source))]; d.lang != "en" && other != nil {
			d.other, other.other = other, d
			m := translated.FindSubmatch(d.text)
			if m == nil {
				return nil, fmt.Errorf("read %s: it must say which text of %s it translates, by its SHA-256", d.source, other.source)
			}
			sum := sha256.Sum256(other.text)
			d.old = string(m[1]) != hex.EncodeToString(sum[:6])
		}
	}
	return s, s.unique()
}

// translated is the beginning of the hash of the text that a page translates.
var translated = regexp.MustCompile("SHA-256 以 `([0-9a-f]{12})` 开头")

var parser = goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser()

func (s *site) read(tree fs.FS, file, source string) error {
	b, err := fs.ReadFile(tree, file)
	if err != nil {
		return err
	}
	d := &document{source: source, address: address(source), text: b, tree: parser.Parse(text.NewReader(b)), lang: "en"}
	if path.Base(path.Dir(source)) == chinese {
		d.lang = "zh-Hans"
	}
	for n := d.tree.FirstChild(); n != nil && d.title == ""; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 1 {
			d.title = plain(h, b)
		}
	}
	if d.title == "" {
		return fmt.Errorf("read %s: it must have a heading of level 1, which is its page's title", source)
	}
	s.docs[source] = d
	return nil
}

// unique finds documents that would have one page.
func (s *site) unique() error {
	sources := map[string]string{}
	for _, source := range slices.Sorted(maps.Keys(s.docs)) {
		a := s.docs[source].address
		if sources[a] != "" {
			return fmt.Errorf("place %s: its page would be %s, as that of %s is", source, a, sources[a])
		}
		sources[a] = source
	}
	return nil
}

// plain returns the text of a node, without marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.String:
			if entering {
				b.Write(n.Value)
			}
		case *ast.AutoLink:
			if entering {
				b.Write(n.Label(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// to returns the document that a link of d names, or nil, and the file or directory that it names.
func (s *site) to(d *document, link string) (*document, string) {
	file, _, _ := strings.Cut(link, "#")
	if file == "" {
		return d, d.source
	}
	name := path.Join(path.Dir(d.source), file)
	if index := s.docs[path.Join(name, "README.md")]; index != nil && s.docs[name] == nil {
		return index, name
	}
	return s.docs[name], name
}
