package lab

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/browsertest"
)

// pictures is a variable of the environment: a directory for pictures of the page, which people look at.
const pictures = "ADVERB_TEST_PICTURES"

// siteFiles compiles the engine once for all tests.
var siteFiles = sync.OnceValues(func() (map[string]file, error) {
	return files(testContext, os.Stderr)
})

// lab serves the page and opens it in a browser.
func openLab(t *testing.T, fragment string) *browsertest.Page {
	t.Helper()
	p, _ := openIn(t, browsertest.Start(t), fragment)
	return p
}

func openIn(t *testing.T, b *browsertest.Browser, fragment string) (*browsertest.Page, *browsertest.Browser) {
	t.Helper()
	site, err := siteFiles()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler(l.Addr(), site)}}
	s.Start()
	t.Cleanup(s.Close)
	p := b.Open(s.URL + "/" + fragment)
	p.Wait(`!document.getElementById("main").hasAttribute("aria-busy")`)
	return p, b
}

const (
	said    = `document.getElementById("said").textContent`
	other   = `document.getElementById("other").hidden ? "" : document.getElementById("other").textContent`
	problem = `document.getElementById("problem").hidden ? "" : document.getElementById("problem").textContent`
	link    = `location.hash.slice(1).replace(/&v=[0-9a-f]{8}$/, "")`
	whole   = `location.hash.slice(1)`
)

// wantText fails the test unless an expression of JavaScript has a text in it.
func wantText(t *testing.T, p *browsertest.Page, expression, want string) {
	t.Helper()
	if got := browsertest.Eval[string](p, expression); !strings.Contains(got, want) {
		t.Errorf("%s is %q, want %q in it", expression, got, want)
	}
}

func wantEqual[T comparable](t *testing.T, p *browsertest.Page, expression string, want T) {
	t.Helper()
	if got := browsertest.Eval[T](p, expression); got != want {
		t.Errorf("%s is %v, want %v", expression, got, want)
	}
}

func TestPage(t *testing.T) {
	p := openLab(t, "")
	wantText(t, p, "document.title", "SEND")
	wantEqual(t, p, `document.getElementById("lesson").options.length`, 12)
	p.Click("#step")
	wantText(t, p, said, "B's program posts a receive")
	p.Click("#step")
	wantText(t, p, said, "A's device sends packet 1: SEND ONLY")
	wantEqual(t, p, `document.querySelectorAll("#lane0 .packet").length`, 1)
	p.ScreenshotTo(pictures, "send.png")

	// The packet's bits.
	p.Click("#lane0 .packet")
	wantText(t, p, `document.getElementById("detailTitle").textContent`, "Packet 1, from A")
	wantText(t, p, `document.getElementById("headers").textContent`, "destination QP")
	// A QPN has the form that it has in all of adverb, at its host and in the packet.
	wantEqual(t, p, `/^Host B QP 0x[0-9a-f]{6} at /.test(document.querySelector("#host1 h3").textContent)`, true)
	wantEqual(t, p, `document.getElementById("headers").textContent.includes(/QP 0x[0-9a-f]{6}/.exec(document.querySelector("#host1 h3").textContent)[0])`, true)
	p.Click("#step")
	wantText(t, p, said, "B's device puts a CQE")
	wantText(t, p, `document.querySelector("#host1 .cq").textContent`, "RECV · SUCCESS")
	wantText(t, p, link, "l=send&at=3")
	p.Click("#back")
	wantText(t, p, link, "l=send&at=2")

	// The rest of the lesson, and then more of it.
	p.Run(`document.getElementById("until").value = "end"`)
	p.Click("#run")
	wantText(t, p, said, "The lesson is over")
	wantEqual(t, p, `document.getElementById("step").disabled`, true)
	p.Click(`[data-post="w"]`)
	wantEqual(t, p, `document.getElementById("step").disabled`, false)
	wantText(t, p, said, "A's program posts RDMA WRITE")
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, "http://127.0.0.1:") && !strings.HasPrefix(r, "data:") {
			t.Errorf("the page asked for %s", r)
		}
	}
}

// A packet is dropped by a click, and the link replays that.
func TestDropByClick(t *testing.T) {
	p, b := openIn(t, browsertest.Start(t), "#l=loss")
	p.Press("ss")
	wantEqual(t, p, `document.querySelectorAll("#lane0 .packet").length`, 6)
	p.Click(`#lane0 .packet[data-n="2"]`)
	p.Click(`#actions [data-action="x"]`)
	wantText(t, p, said, "You drop packet 2: RDMA WRITE MIDDLE, PSN 1")
	p.ScreenshotTo(pictures, "dropped.png")
	p.Run(`document.getElementById("until").value = "end"`)
	p.Press("e")
	p.ScreenshotTo(pictures, "loss.png")
	seen := browsertest.Eval[string](p, `document.getElementById("packets").textContent`)
	if !strings.Contains(seen, "sent again") {
		t.Errorf("the packets are %q, want some sent again", seen)
	}
	fragment := browsertest.Eval[string](p, link)
	if !strings.HasPrefix(fragment, "l=loss&d=2x2&at=") {
		t.Errorf("the link is %q", fragment)
	}

	bad, _ := openIn(t, b, "#l=loss&d=1x9")
	wantText(t, bad, problem, "there is no packet 9")
	wantEqual(t, bad, link, "l=send")
	bad.Press("s")
	wantEqual(t, bad, problem, "")

	again, _ := openIn(t, b, "#"+fragment)
	wantEqual(t, again, `document.getElementById("packets").textContent`, seen)
	wantEqual(t, again, link, fragment)
	wantEqual(t, again, other, "")

	// The link has the engine's version. Under another one a play may differ, and the page says so.
	full := browsertest.Eval[string](again, whole)
	if full == fragment || !strings.HasPrefix(full, fragment+"&v=") {
		t.Errorf("the address is %q, want %s&v= and a version", full, fragment)
	}
	same, _ := openIn(t, b, "#"+full)
	wantEqual(t, same, other, "")
	old, _ := openIn(t, b, "#"+fragment+"&v=00c0ffee")
	wantText(t, old, other, "another version of the lab (00c0ffee; here is "+full[len(full)-8:])
	wantEqual(t, old, whole, full)
	old.Press("r")
	wantEqual(t, old, other, "")
}

// A page that is opened as a file says that it needs a server, and shows no empty boxes.
func TestFile(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser of its own takes seconds")
	}
	dir := t.TempDir()
	site, err := siteFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := write(dir, site); err != nil {
		t.Fatal(err)
	}
	p := browsertest.Start(t).OpenFile(filepath.Join(dir, "index.html"))
	p.Wait(`!document.getElementById("file").hidden`)
	wantText(t, p, `document.body.innerText`, "The lab needs a server")
	wantEqual(t, p, `[...document.querySelectorAll("button, select, section")].filter((e) => e.getClientRects().length).length`, 0)
	p.ScreenshotTo(pictures, "file.png")
}

// The page has words in Chinese too, and keeps the play when the language is changed.
func TestChinese(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser of its own takes seconds")
	}
	p := openLab(t, "?lang=zh#l=loss&d=2x2&at=2")
	wantEqual(t, p, `document.documentElement.lang`, "zh")
	wantText(t, p, "document.title", "丢包：回退 N 步")
	wantText(t, p, said, "你丢弃了报文 2：RDMA WRITE MIDDLE，PSN 1。")
	p.ScreenshotTo(pictures, "chinese.png")
	p.Click("#tries .try:nth-child(3)")
	wantEqual(t, p, link, "l=loss&d=2k&at=2")
	p.Run(`const s = document.getElementById("language"); s.value = "en"; s.dispatchEvent(new Event("change"))`)
	p.Wait(`document.documentElement.lang === "en" && !document.getElementById("main").hasAttribute("aria-busy")`)
	wantText(t, p, "document.title", "Loss: go-back-N")
	wantEqual(t, p, link, "l=loss&d=2k&at=2")
	for _, where := range browsertest.Eval[[]string](p, `import("./words.js").then(({ languages }) => {
		const faults = [], values = (t) => [...new Set(t.match(/\{\w+\}/g) ?? [])].filter((v) => v !== "{who}").sort().join();
		const compare = (a, b, at) => {
			if (typeof a !== typeof b) faults.push(at + " is missing, or too many");
			else if (typeof a === "string") {
				if (!b || values(a) !== values(b)) faults.push(at + " has other places for values: " + values(b) + ", want " + values(a));
			} else for (const k of new Set([...Object.keys(a), ...Object.keys(b)])) compare(a[k], b[k], at + "." + k);
		};
		for (const code in languages) compare(languages.en, languages[code], code);
		return faults;
	})`) {
		t.Errorf("the words of %s", where)
	}
}

// The messages of the connection manager are drawn field by field.
func TestMessages(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser of its own takes seconds")
	}
	p := openLab(t, "#l=connect")
	p.Press("sj")
	wantText(t, p, `document.getElementById("detailTitle").textContent`, "CM REQ")
	wantText(t, p, `document.getElementById("headers").textContent`, "service IDport 7471")
	wantText(t, p, `document.getElementById("headers").textContent`, "primary remote GID10.0.0.2")
	p.Size(1280, 2400)
	p.ScreenshotTo(pictures, "req.png")
}

func TestKeyboard(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser of its own takes seconds")
	}
	p := openLab(t, "#l=loss")
	p.Press("ssjjx")
	wantText(t, p, said, "You drop packet 2")
	p.Press("jl")
	wantText(t, p, said, "You delay packet 3")
	p.Press("u")
	wantEqual(t, p, link, "l=loss&d=2x2&at=2")
	p.Press("r")
	wantEqual(t, p, link, "l=loss")
	p.Press("?")
	wantEqual(t, p, `document.getElementById("dialog").open`, true)
	p.Press("\x1b")
	wantEqual(t, p, `document.getElementById("dialog").open`, false)
}

func TestSettings(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser of its own takes seconds")
	}
	p := openLab(t, "#l=mtu")
	p.Run(`document.getElementById("settings").open = true; document.getElementById("set-mtu").value = "256"; document.getElementById("form").requestSubmit()`)
	wantEqual(t, p, link, "l=mtu&mtu=256")
	p.Press("s")
	wantEqual(t, p, `document.querySelectorAll("#lane0 .packet").length`, 12)
	p.ScreenshotTo(pictures, "mtu.png")

	p.Run(`document.getElementById("set-loss").value = "99"; document.getElementById("form").requestSubmit()`)
	wantText(t, p, problem, "from 0 to 90")
	wantEqual(t, p, link, "l=mtu&mtu=256&at=1") // the play goes on
	p.Run(`location.hash = "#l=keys"`)
	p.Wait(`document.getElementById("lesson").value === "keys"`)
	wantEqual(t, p, problem, "")
	p.Run(`document.getElementById("until").value = "end"`)
	p.Press("e")
	p.Click(`#host0 .cq .bad button`)
	wantText(t, p, `document.getElementById("dialogText").textContent`, "rkey")
}

// Text and marks are the same in each form; these pictures are for people.
func TestForms(t *testing.T) {
	if os.Getenv(pictures) == "" {
		t.Skip(pictures + " names no directory")
	}
	p := openLab(t, "#l=selective&d=2x2.2x5&at=9")
	p.Click(`#packets [data-n="2"]`)
	p.ScreenshotTo(pictures, "selective.png")
	p.Size(1280, 2600)
	p.ScreenshotTo(pictures, "whole.png")
	p.Media("screen", "dark")
	p.ScreenshotTo(pictures, "dark.png")
	p.Size(390, 2800)
	p.ScreenshotTo(pictures, "narrow.png")
	p.Media("screen", "light")
	p.Size(1280, 2000)
	p.Run(`location.hash = "#l=connect&at=6"`)
	p.Wait(`document.getElementById("lesson").value === "connect"`)
	p.ScreenshotTo(pictures, "connect.png")
	if err := os.WriteFile(filepath.Join(os.Getenv(pictures), "print.pdf"), p.PDF(), 0o644); err != nil {
		t.Fatal(err)
	}
}
