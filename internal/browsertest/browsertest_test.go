package browsertest

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	b := Start(t)
	if v := b.Version(); !strings.Contains(v, "Chrome") {
		t.Errorf("the browser is %q", v)
	}
	name := filepath.Join(t.TempDir(), "a page #1.html")
	const text = `<!doctype html><title>one</title><button onclick="document.title='clicked'">b</button>
<script>addEventListener('keydown', e => document.title += e.key)</script>`
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := b.OpenFile(name)
	p.Wait(`document.title == "one"`)
	p.Click("button")
	p.Press("xy")
	if got := Eval[string](p, `document.title`); got != "clickedxy" {
		t.Errorf("after a click and two keys the title is %q", got)
	}
	if got := Eval[int](p, `new Promise(r => setTimeout(() => r(7), 1))`); got != 7 {
		t.Errorf("a promise gave %d", got)
	}
	p.Media("screen", "dark")
	if !Eval[bool](p, `matchMedia("(prefers-color-scheme:dark)").matches`) {
		t.Error("the page is not dark")
	}
	p.Size(400, 300)
	if got := Eval[int](p, `innerWidth`); got != 400 {
		t.Errorf("the window is %d pixels wide", got)
	}
	if !bytes.HasPrefix(p.Screenshot(), []byte("\x89PNG")) {
		t.Error("the picture is no PNG")
	}
	if !bytes.HasPrefix(p.PDF(), []byte("%PDF")) {
		t.Error("the print is no PDF")
	}
}

func TestProblems(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`<!doctype html><link rel=icon href="data:,"><img src="https://example.invalid/x.png">
<script>console.error("said so", 1); throw new Error("thrown")</script>`))
	}))
	defer server.Close()
	p := Start(t).Open(server.URL)
	all := strings.Join(p.Problems(), "\n")
	for _, want := range []string{"a request to https://example.invalid/x.png", "console.error: \"said so\"", "thrown"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among the problems:\n%s", want, all)
		}
	}
	if requests := p.Requests(); !slices.Contains(requests, server.URL+"/") {
		t.Errorf("the requests are %q", requests)
	}
}
