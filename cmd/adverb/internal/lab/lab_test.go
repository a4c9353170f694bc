package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/stage"
)

var testContext = context.Background()

func TestUsage(t *testing.T) {
	tool := tooltest.New(Command)
	for _, test := range []struct{ args, stderr string }{
		{"x", "nothing is to be named"}, {"--port=x", "want a number"}, {"--port=70000", "want a number"}, {"--out=", "empty"},
	} {
		r := tool.Result(t.Context(), "adverb", "lab", test.args)
		if r.Code != 2 || !strings.Contains(r.Stderr, test.stderr) {
			t.Errorf("%s: status %d, %s; want 2, and %q", test.args, r.Code, r.Stderr, test.stderr)
		}
	}
}

func TestOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "site")
	r := tooltest.New(Command).Result(t.Context(), "adverb", "lab", "--out="+dir)
	if r.Code != 0 || !strings.Contains(r.Stdout, dir) {
		t.Fatalf("status %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	html, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	// All that the page asks for is there.
	script := regexp.MustCompile(`(?:href|src)="([a-z_]+\.[a-z]+)"`)
	found := script.FindAllStringSubmatch(string(html), -1)
	if len(found) != 4 {
		t.Errorf("the page names %q, want 4 files", found)
	}
	for _, m := range append(found, []string{"", engineFile}) {
		if info, err := os.Stat(filepath.Join(dir, m[1])); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, want a file that is not empty", m[1], err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, engineFile))
	if err != nil {
		t.Fatal(err)
	}
	const most = 4_000_000 // a page that takes longer to load than to read is no lesson
	t.Logf("the engine has %d bytes", info.Size())
	if info.Size() > most {
		t.Errorf("the engine has %d bytes, want %d at most", info.Size(), most)
	}
}

func TestServe(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	site := map[string]file{"index.html": {kinds[".html"], []byte("<p>page")}, "a.js": {kinds[".js"], []byte("1")}}
	told, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- open(ctx, 0, site, func(url string) { told <- url }) }()
	url := <-told
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("the lab is at %s, want 127.0.0.1 alone", url)
	}
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if r.Body.Close(); err != nil || string(body) != "<p>page" || r.Header.Get("Content-Type") != kinds[".html"] || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %q, %v, %v", body, r.Header, err)
	}
	end()
	if err := <-ended; err != context.Canceled {
		t.Errorf("the server ends with %v, want %v", err, context.Canceled)
	}
	http.DefaultClient.CloseIdleConnections()
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// A page of another name that stands for 127.0.0.1 gets nothing.
func TestHosts(t *testing.T) {
	h := handler(address("127.0.0.1:8000"), map[string]file{"index.html": {kinds[".html"], []byte("page")}})
	for _, test := range []struct {
		method, host, path string
		want               int
	}{
		{"GET", "127.0.0.1:8000", "/", 200}, {"GET", "localhost:8000", "/", 200}, {"HEAD", "127.0.0.1:8000", "/index.html", 200},
		{"GET", "evil.example:8000", "/", 421}, {"GET", "127.0.0.1:80", "/", 421}, {"GET", "127.0.0.1", "/", 421}, {"GET", "", "/", 421},
		{"POST", "127.0.0.1:8000", "/", 405}, {"GET", "127.0.0.1:8000", "/none", 404}, {"GET", "127.0.0.1:8000", "/../index.html", 404},
	} {
		r := httptest.NewRequest(test.method, "/", nil)
		r.Host, r.URL.Path = test.host, test.path
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%s %s of %q: status %d, want %d", test.method, test.path, test.host, w.Code, test.want)
		}
	}
}

// The links in the lessons show what they say: they can be replayed.
func TestWords(t *testing.T) {
	words, err := page.ReadFile("page/words.js")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`\["[^"]+", "(l=[^"]*)"\]`).FindAllStringSubmatch(string(words), -1)
	if len(links) < 20 {
		t.Fatalf("the words have %d links, want more", len(links))
	}
	for _, m := range links {
		p, err := stage.Decode(m[1])
		if err != nil {
			t.Error(err)
			continue
		}
		s, err := stage.Replay(p)
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
			continue
		}
		if got := s.View(); got.Step != p.Steps || got.Link != m[1] {
			t.Errorf("%s: the play is at step %d of %s", m[1], got.Step, got.Link)
		}
		for s.Step() {
		}
		if err := s.Err(); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range stage.Lessons() {
		if !strings.Contains(string(words), fmt.Sprintf("\n    %s: { title: ", name)) {
			t.Errorf("lesson %s has no words", name)
		}
	}
}
