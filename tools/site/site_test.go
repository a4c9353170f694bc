package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// small is a repository of a few documents, and the pages of its commands.
func small(change map[string]string) (tree, man fstest.MapFS) {
	tree = fstest.MapFS{}
	for name, text := range map[string]string{
		"README.md":                 "# adverb\n\n[All](docs/README.md), [code](main.go), [site](https://example.com/)\n",
		"CHANGELOG.md":              "# Changelog\n",
		"main.go":                   "package main\n",
		"docs/README.md":            "# Documents\n\n## You learn\n\n[Lessons](learn/README.md), [A](A.md)\n",
		"docs/A.md":                 "# A\n\nText of\n**two** lines.\n\n## Part 1, `x`\n\nOf [it](#part-1-x) and [the glossary](learn/glossary.md#rnr).\n",
		"docs/learn/README.md":      "# Learn\n\n[Glossary](glossary.md), [Chinese](zh/README.md)\n\n![A picture](p.svg)\n",
		"docs/learn/p.svg":          "<svg/>",
		"docs/learn/glossary.md":    "# Glossary\n\n### RNR\n\nReceiver not ready.\n",
		"docs/learn/zh/README.md":   "# 学习\n\nSHA-256 以 `62f1f5036b3e` 开头，\n[术语表](glossary.md)，[英文](../README.md)\n",
		"docs/learn/zh/glossary.md": "# 术语表\n\nSHA-256 以 `000000000000` 开头\n\n队列对\n",
		"lab/README.md":             "# The lab\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tree["docs/README.md"].Data = append(tree["docs/README.md"].Data, "\n## You read on\n\n[中文](learn/zh/README.md), [Lab](../lab/README.md)\n"...)
	for name, text := range change {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	man = fstest.MapFS{
		"README.md": &fstest.MapFile{Data: []byte("# Commands of adverb\n\n[see](see.md)\n")},
		"see.md":    &fstest.MapFile{Data: []byte("# adverb see\n\n```console\n$ adverb see \\\n  x\n<out>\n```\n")},
	}
	return tree, man
}

func buildSmall(change map[string]string) (map[string][]byte, error) {
	return buildWithLab(change, nil)
}

func buildWithLab(change map[string]string, lab map[string][]byte) (map[string][]byte, error) {
	tree, man := small(change)
	s, err := readSources(tree, man)
	if err != nil {
		return nil, err
	}
	s.lab = lab
	return s.build()
}

func TestPages(t *testing.T) {
	files, err := buildSmall(nil)
	if err != nil {
		t.Fatal(err)
	}
	for page, wants := range map[string][]string{
		"index.html":             {`href="contents.html"`, `href="https://github.com/adverb-rdma/adverb/blob/main/main.go"`, `href="https://example.com/"`},
		"A.html":                 {`<h2 id="part-1-x">`, "of\n<strong>two", `href="#part-1-x">it`, `href="learn/glossary.html#rnr"`, `<html lang="en">`},
		"learn/index.html":       {`<img src="../learn/p.svg" alt="A picture">`, `<a href="../learn/zh/index.html" lang="zh-Hans">中文</a>`},
		"learn/zh/index.html":    {`<html lang="zh-Hans">`, `<a href="../../learn/index.html" lang="en">English</a>`, "本页源文件", "开头，<a href="},
		"learn/zh/glossary.html": {`<p class="outdated">英文原文`},
		"commands/see.html":      {`<span class="command">$ adverb see \</span>`, `<span class="command">  x</span>` + "\n&lt;out&gt;", `aria-current="page">see`},
		"linux-lab/index.html":   {"The lab"}, "project/CHANGELOG.html": {"Changelog"}, "learn/p.svg": {"<svg/>"}, "contents.html": {"Documents"},
	} {
		for _, want := range wants {
			if !strings.Contains(string(files[page]), want) {
				t.Errorf("%s has no %s:\n%s", page, want, files[page])
			}
		}
	}
	if strings.Contains(string(files["learn/zh/index.html"]), "outdated") {
		t.Error("a translation of the present text is called old")
	}
	if strings.Contains(string(files["commands/see.html"]), "blob/main/commands") {
		t.Error("a command's page names a source that is not in the repository")
	}
}

// The lab has a place, which pages lead to, and its pages are checked as the others.
func TestLab(t *testing.T) {
	files, err := buildWithLab(nil, map[string][]byte{"index.html": []byte(`<script src="main.js"></script>`), "main.js": []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	if page := string(files["learn/zh/index.html"]); !strings.Contains(page, `<a class="to-lab" href="../../lab/index.html">Lab</a>`) || string(files["lab/main.js"]) != "1" {
		t.Errorf("got no link to the lab, or not its files:\n%s", page)
	}
	if _, err := buildWithLab(nil, map[string][]byte{"index.html": []byte(`<script src="https://example.com/main.js"></script>`)}); err == nil {
		t.Error("a lab that asks another host was taken")
	}
	if files, err = buildSmall(nil); err != nil || strings.Contains(string(files["index.html"]), `"lab/index.html"`) {
		t.Errorf("without a lab: got %v, or a link to it", err)
	}
}

// A picture leads to the page of the same packets.
func TestPackets(t *testing.T) {
	tree, man := small(nil)
	s, err := readSources(tree, man)
	if err != nil {
		t.Fatal(err)
	}
	s.packets = map[string][]byte{"p.html": []byte("<p>packets</p>")}
	files, err := s.build()
	if err != nil {
		t.Fatal(err)
	}
	if page := string(files["learn/index.html"]); !strings.Contains(page, `<a class="picture" href="../packets/p.html"><img src="../learn/p.svg"`) || files["packets/p.html"] == nil {
		t.Errorf("got no link to the packets, or no page of them:\n%s", page)
	}
}

// What would mislead a reader is an error.
func TestFaults(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"docs/A.md", "# A\n\n[b](B.md)\n", "docs/A.md: links to B.md, which is not there"},
		{"docs/A.md", "# A\n\n[b](../none.go)\n", "links to ../none.go, which is not there"},
		{"docs/A.md", "# A\n\n[b](learn/glossary.md#none)\n", "learn/glossary.html has no such anchor"},
		{"docs/A.md", "# A\n\n[b](#none)\n", "A.html has no such anchor"},
		{"docs/A.md", "# A\n\n![b](none.svg)\n", "docs/A.md: shows none.svg, which is not there"},
		{"docs/A.md", "# A\n\n![b](https://example.com/x.png)\n", "shows https://example.com/x.png, which is not there"},
		{"docs/A.md", "# A\n\n<b>x</b>\n", "has HTML"},
		{"docs/A.md", "# A\n\n<div>\n</div>\n", "has HTML"},
		{"docs/A.md", "# A\n\n[x](javascript:alert(1))\n", "javascript"},
		{"docs/A.md", "No heading\n", "docs/A.md: it must have a heading"},
		{"docs/learn/zh/README.md", "# 学习\n", "it must say which text of docs/learn/README.md it translates"},
		{"docs/B.md", "# B\n", "docs/B.md: no index has it"},
		{"project/CHANGELOG.md", "# B\n", "its page would be project/CHANGELOG.html"},
		{"docs/A.md", "# A\n\n## site-main\n", "A.html: 2 elements have the ID site-main"},
	} {
		if _, err := buildSmall(map[string]string{tt.name: tt.text}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: got %v, want an error with %q", tt.name, tt.text, err, tt.want)
		}
	}
	if _, err := buildSmall(map[string]string{"docs/A.md": "<!-- a comment -->\n\n# A\n"}); err != nil {
		t.Errorf("a comment: %v", err)
	}
}

// A page that would ask another host for something is found, whoever made it.
func TestCheckLoads(t *testing.T) {
	for text, want := range map[string]string{
		`<script src="https://example.com/x.js"></script>`: "asks another host",
		`<link href="//example.com/x.css">`:                "asks another host",
		`<img src="none.png">`:                             "not there",
		`<a href="x.css">x</a><img src="data:,">`:          "",
	} {
		err := errors.Join(check(map[string][]byte{"a/a.html": []byte(text), "a/x.css": []byte("a{background:url(data:,)}")})...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	for css, ok := range map[string]bool{
		"@import 'x'": false, "a{b:url(https://x)}": false, "a{b:url('x')}": false, "a{b:url(dots.png)}": false, "a{b:url(#x)} c{d:url(x)}": false,
		"a{b:url(#x)}": true, "a{b:url( \"data:,x\")}": true, "a{}": true,
	} {
		if err := errors.Join(check(map[string][]byte{"x.css": []byte(css)})...); (err == nil) != ok {
			t.Errorf("%s: got %v", css, err)
		}
	}
}

func TestTokens(t *testing.T) {
	for text, want := range map[string][]string{
		"RNR-Retry, rnr_retry 7": {"rnr", "retry", "rnr_retry", "rnr", "retry", "7"},
		"__x__ _":                {"x"},
		"lkey 0x3778d4b2 0x60":   {"lkey", "0x60"},
		"队列对 QP，键":               {"队列", "列对", "qp", "键"},
		"用MR区":                   {"用", "mr", "区"},
		"":                       nil,
	} {
		if got := tokens(text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"a  b\nc":                      "a b c",
		strings.Repeat("word ", 30):    strings.TrimSpace(strings.Repeat("word ", 22)) + " …",
		strings.Repeat("x", 200):       strings.Repeat("x", excerpt) + " …",
		strings.Repeat("队", 36) + "列对": strings.Repeat("队", 36) + " …",
	} {
		if got := first(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// A directory of something else is not replaced, and an old site is, with the pages that are no more.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "site")
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := write(map[string][]byte{mark: nil, "old/page.html": nil}, dir); err != nil {
		t.Fatal(err)
	}
	if err := write(map[string][]byte{mark: nil, "new/page.html": []byte("new")}, dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file("new/page.html")); string(b) != "new" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := os.Stat(file("old")); !os.IsNotExist(err) {
		t.Errorf("the old page: got %v, want it gone", err)
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := write(map[string][]byte{mark: nil}, other); err == nil || !strings.Contains(err.Error(), "no site") {
		t.Errorf("got %v, want the directory left alone", err)
	}
}
