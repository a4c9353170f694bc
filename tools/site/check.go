package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// html5 is what check reads of a page.
type html5 struct {
	ids   map[string]int
	links []string // places that a reader may go to
	loads []string // files that the page asks for by itself
}

// loading are the attributes by which elements ask for files.
var loading = map[string]string{"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "audio": "src", "object": "data", "embed": "src"}

// check looks at the files of a site: each link leads to a file and, where it says so, to an element of that file; no page
// asks another host for anything; no two elements of a page have one ID.
func check(files map[string][]byte) (faults []error) {
	pages := map[string]html5{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".html" {
			continue
		}
		p, err := readPage(files[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
		pages[name] = p
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		for _, id := range slices.Sorted(maps.Keys(p.ids)) {
			if p.ids[id] > 1 {
				faults = append(faults, fmt.Errorf("%s: %d elements have the ID %s", name, p.ids[id], id))
			}
		}
		for _, l := range p.links {
			if err := leads(name, l, files, pages); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", name, err))
			}
		}
		for _, l := range p.loads {
			if elsewhere(l) {
				faults = append(faults, fmt.Errorf("%s asks another host for %s", name, l))
			} else if err := leads(name, l, files, pages); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".css" && cssLoads(files[name]) {
			faults = append(faults, fmt.Errorf("%s loads a file by url() or @import", name))
		}
	}
	return faults
}

var cssLoad = regexp.MustCompile(`(?i)@import|url\(\s*["']?([^"'\s)]*)`)

// cssLoads reports whether a style asks for a file: by an address that is neither in the style itself nor in the page.
func cssLoads(style []byte) bool {
	return slices.ContainsFunc(cssLoad.FindAllSubmatch(style, -1), func(m [][]byte) bool {
		return m[1] == nil || !bytes.HasPrefix(m[1], []byte("data:")) && !bytes.HasPrefix(m[1], []byte("#"))
	})
}

// readPage reads the elements of a page.
func readPage(b []byte) (html5, error) {
	p := html5{ids: map[string]int{}}
	z := html.NewTokenizer(bytes.NewReader(b))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return p, err
			}
			return p, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			t := z.Token()
			for _, a := range t.Attr {
				switch {
				case a.Key == "id":
					p.ids[a.Val]++
				case a.Key == loading[t.Data]:
					p.loads = append(p.loads, a.Val)
				case a.Key == "href":
					p.links = append(p.links, a.Val)
				}
			}
		}
	}
}

// leads returns why a link of a page leads nowhere, or nil. Other sites are not looked at.
func leads(from, link string, files map[string][]byte, pages map[string]html5) error {
	u, err := url.Parse(link)
	switch {
	case err != nil:
		return err
	case u.Scheme == "data" || elsewhere(link):
		return nil
	case u.Scheme != "":
		return fmt.Errorf("links to %s: the scheme is not expected", link)
	}
	to := from
	if u.Path != "" {
		to = path.Join(path.Dir(from), u.Path)
	}
	if files[to] == nil {
		return fmt.Errorf("links to %s, which is not there", link)
	}
	if u.Fragment != "" && strings.HasSuffix(to, ".html") && pages[to].ids[u.Fragment] == 0 {
		return fmt.Errorf("links to %s, and %s has no such anchor", link, to)
	}
	return nil
}
