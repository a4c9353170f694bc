package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/adverb-rdma/adverb/internal/browsertest"
)

const repositoryRoot = "../.."

// whole is the site of this repository, and the tool's help, which the tests share.
var whole = sync.OnceValues(func() (w struct {
	files map[string][]byte
	help  string
}, err error) {
	dir, err := os.MkdirTemp("", "site")
	if err != nil {
		return w, err
	}
	defer os.RemoveAll(dir)
	run := func(program string, args ...string) (string, error) {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Stderr = repositoryRoot, os.Stderr
		out, err := cmd.Output()
		return string(out), err
	}
	tool, man := filepath.Join(dir, "adverb"), filepath.Join(dir, "commands")
	if _, err = run("go", "build", "-o", tool, "./cmd/adverb"); err != nil {
		return w, err
	}
	if _, err = run(tool, "man", "--markdown", man); err != nil {
		return w, err
	}
	if w.help, err = run(tool, "--help"); err != nil {
		return w, err
	}
	lab := filepath.Join(dir, "lab") // it takes a minute to make the real one
	if err = errors.Join(os.Mkdir(lab, 0o777), os.WriteFile(filepath.Join(lab, "index.html"), []byte("<title>The lab</title>"), 0o666)); err != nil {
		return w, err
	}
	w.files, err = build(options{root: repositoryRoot, commands: man, lab: lab, version: "v0.0.0-test"})
	return w, err
})

func wholeSite(t *testing.T) map[string][]byte {
	t.Helper()
	w, err := whole()
	if err != nil {
		t.Fatal(err)
	}
	return w.files
}

// TestWhole: all documents of the repository become pages, their links lead somewhere, and each command has a page.
func TestWhole(t *testing.T) {
	files := wholeSite(t)
	w, _ := whole()
	_, list, ok := strings.Cut(w.help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	n := 0
	for line := range strings.Lines(list) {
		n++
		name := strings.Fields(line)[0]
		page := string(files["commands/"+name+".html"])
		if !strings.Contains(page, "adverb "+name+"</h1>") || !strings.Contains(page, "<code>-h, --help</code>") && name != "help" {
			t.Errorf("the page of the command %s: got %.200q", name, page)
		}
		if !strings.Contains(string(files["commands/index.html"]), `href="../commands/`+name+`.html"`) {
			t.Errorf("the index of commands has no link to %s", name)
		}
	}
	if !ok || n < 30 {
		t.Fatalf("got %d commands from\n%s", n, w.help)
	}
	for _, page := range []string{"index.html", "contents.html", "learn/send.html", "guide/memory.html", "decisions/trains.html", "ERRORS.html", "project/ARCHITECTURE.html"} {
		if !strings.Contains(string(files[page]), "v0.0.0-test") {
			t.Errorf("%s is missing, or says no version", page)
		}
	}
	const most = 600 << 10
	if n := len(files[mark]); n > most {
		t.Errorf("the search's index has %d bytes, want %d at most, since a reader waits for it", n, most)
	}
}

// open writes the site, and opens a page of it as a file.
func open(t *testing.T, name string) *browsertest.Page {
	t.Helper()
	dir := t.TempDir()
	if err := write(wholeSite(t), dir); err != nil {
		t.Fatal(err)
	}
	return browsertest.Start(t).OpenFile(filepath.Join(dir, filepath.FromSlash(name)))
}

// TestSearch searches as a reader does, with the keyboard.
func TestSearch(t *testing.T) {
	p := open(t, "learn/send.html")
	p.Press("/")
	p.Wait(`document.activeElement.matches(".search input")`)
	p.Press("RNR")
	p.Wait(`document.querySelectorAll("#site-results a").length > 3`)
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "site-search.png")
	if got := browsertest.Eval[bool](p, `[...document.querySelectorAll("#site-results a")].some(a => a.href.endsWith("/learn/loss.html#rnr-is-not-a-loss"))`); !got {
		t.Error("the search for RNR does not find the lesson on losses")
	}
	search := func(query string) string {
		p.Run(`{const i = document.querySelector(".search input"); i.value = ` + "`" + query + "`" + `; i.dispatchEvent(new Event("input"))}`)
		p.Wait(`document.getElementById("site-count").textContent != ""`)
		return browsertest.Eval[string](p, `document.querySelector("#site-results a, #site-results .none").href ?? document.querySelector("#site-results .none").textContent`)
	}
	for query, want := range map[string]string{
		"adverb rc_pingpong":   "/commands/rc_pingpong.html",
		"glossary":             "/learn/glossary.html",
		"min_rnr_timer":        ".html", // in the middle of texts
		"WC_RETRY_EXC":         ".html", // the beginning of a word
		"adaptive routing":     "/learn/loss.html#adaptive-routing",
		"队列对":                  "/learn/zh/glossary.html",
		"xyzzy rnr":            "Nothing has all of these words.",
		"<b>status</b>  12, (": ".html",
	} {
		if got := search(query); !strings.Contains(got, want) {
			t.Errorf("the search for %q finds %q first, want %q", query, got, want)
		}
	}
	search("packets first middle last")
	p.Press("\r")
	p.Do(chromedp.WaitReady(chromedp.CSS(`.contents a[aria-current][href$="learn/packets.html"]`)))
	if got := browsertest.Eval[string](p, `location.hash`); got != "#first-middle-last" {
		t.Errorf("Enter leads to the heading %q", got)
	}
}

// TestLooks: pages follow the reader's colours, and fit on narrow screens.
func TestLooks(t *testing.T) {
	p := open(t, "learn/loss.html")
	ground := func() string { return browsertest.Eval[string](p, `getComputedStyle(document.body).backgroundColor`) }
	p.Media("screen", "light")
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "site-light.png")
	if got := ground(); got != "rgb(255, 255, 255)" {
		t.Errorf("the ground is %s", got)
	}
	p.Media("screen", "dark")
	p.Run(`document.querySelector("img").scrollIntoView()`)
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "site-dark.png")
	if got := ground(); got != "rgb(13, 17, 23)" {
		t.Errorf("the dark ground is %s", got)
	}
	if !browsertest.Eval[bool](p, `(async () => { const i = document.querySelector("img"); await i.decode(); return i.naturalWidth > 100 })()`) {
		t.Error("the picture is not drawn")
	}
	for _, width := range []int64{360, 700, 1000, 1600} {
		p.Size(width, 800)
		if got := browsertest.Eval[int64](p, `document.documentElement.scrollWidth`); got > width {
			t.Errorf("on a screen of %d pixels the page is %d wide", width, got)
		}
	}
	p.Size(400, 800)
	p.Run(`scrollTo(0, 0)`)
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "site-narrow.png")
	p.Click(".to-contents")
	p.Wait(`location.hash == "#site-contents"`)
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "site-contents.png")
	p.Media("print", "dark")
	if got := ground(); got != "rgb(255, 255, 255)" {
		t.Errorf("the printed ground is %s", got)
	}
	if browsertest.Eval[bool](p, `[...document.querySelectorAll("header, .contents")].some(e => e.offsetHeight > 0)`) {
		t.Error("the navigation is printed")
	}
}

// TestWithoutScript: the pages are read without JavaScript, and the search does not show.
func TestWithoutScript(t *testing.T) {
	p := open(t, "index.html")
	if got := browsertest.Eval[string](p, `document.querySelector(".to-lab").href`); !strings.HasSuffix(got, "/commands/lab.html") {
		t.Errorf("in a file, where the lab does not work, its link leads to %s", got)
	}
	p.Do(browsertest.Call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	p.Click(`.contents a[href$="guide/index.html"]`)
	p.Do(chromedp.WaitReady(chromedp.CSS(`.contents a[aria-current][href$="guide/index.html"]`)))
	if !browsertest.Eval[bool](p, `document.querySelector(".search").offsetHeight == 0 && document.querySelector("main").innerText.length > 1000`) {
		t.Error("the page has no text, or shows a search that does not work")
	}
	if !browsertest.Eval[bool](p, `[...document.querySelectorAll(".contents details[open] a")].some(a => a.textContent == "Memory" && a.offsetHeight > 0)`) {
		t.Error("the contents do not show the guides")
	}
}
