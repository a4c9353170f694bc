// Command site makes static pages of the documents, with a search that needs no server:
//
//	site -root ../.. -commands DIR -version v0.1.0 -o ../../dist/site
//
// DIR has the pages that "adverb man --markdown DIR" writes. -lab DIR, if it is given, has the pages of "adverb lab --out
// DIR", and -packets DIR those of "adverb see", for the pictures of the same names. A link that leads nowhere, a document that no index has and a page that would ask another host for something are
// errors, and then nothing is written. "make site" calls it. It is a module of its own because nothing else needs its
// Markdown library.
//
// source.go reads the documents, navigate.go finds their order, render.go makes pages of them, index.go the search, and
// check.go looks at what came out.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "`directory` of the repository")
	flag.StringVar(&o.commands, "commands", "", "`directory` of the commands' pages, as adverb man --markdown writes them")
	flag.StringVar(&o.lab, "lab", "", "`directory` of the lab's static pages, if there are any")
	flag.StringVar(&o.packets, "packets", "", "`directory` of pages that adverb see has made; NAME.html is shown with the picture NAME.svg")
	flag.StringVar(&o.version, "version", "", "the `version` that the pages tell")
	out := flag.String("o", "", "`directory` to write")
	flag.Parse()
	if *out == "" || o.commands == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

type options struct{ root, commands, lab, packets, version string }

// run makes the site, and writes it if nothing is wrong with it.
func run(o options, out string) error {
	files, err := build(o)
	if err != nil {
		return err
	}
	return write(files, out)
}

// build returns the site's files by their slash-separated names.
func build(o options) (map[string][]byte, error) {
	s, err := readSources(os.DirFS(o.root), os.DirFS(o.commands))
	if err != nil {
		return nil, err
	}
	if o.lab != "" {
		if s.lab, err = readAll(os.DirFS(o.lab)); err != nil {
			return nil, fmt.Errorf("read the lab's pages: %w", err)
		}
	}
	if o.packets != "" {
		if s.packets, err = readAll(os.DirFS(o.packets)); err != nil {
			return nil, fmt.Errorf("read the pages of packets: %w", err)
		}
	}
	s.version = o.version
	return s.build()
}

// build makes the files of the sources, and checks them.
func (s *site) build() (map[string][]byte, error) {
	s.navigate()
	files, err := s.render()
	if err != nil {
		return nil, err
	}
	for name, b := range s.lab {
		files["lab/"+name] = b
	}
	for name, b := range s.packets {
		files[packets+name] = b
	}
	return files, errors.Join(check(files)...)
}

// mark is a file that each site has, by which a directory is known as one that may be replaced.
const mark = "search-index.js"

// write replaces the directory out by the files. A directory that is no site stays as it is.
func write(files map[string][]byte, out string) error {
	entries, err := os.ReadDir(out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == mark }) {
		return fmt.Errorf("write %s: the directory has files that are no site: choose another, or empty it", out)
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	for name, b := range files {
		file := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(file, b, 0o666); err != nil {
			return err
		}
	}
	return nil
}

func readAll(tree fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[name], err = fs.ReadFile(tree, name)
		return err
	})
	return files, err
}
