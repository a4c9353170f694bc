package see

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/adverb-rdma/adverb/internal/browsertest"
)

// screenshots names the variable for a directory, into which the tests put pictures of the pages for people to look at.
const screenshots = "ADVERB_SCREENSHOTS"

// scene writes the capture of a demonstration, and the page of it.
func scene(t *testing.T, name string) (page string) {
	t.Helper()
	dir := t.TempDir()
	capture := filepath.Join(dir, name+".pcapng")
	page = filepath.Join(dir, name+".html")
	for _, args := range [][]string{{"demo", name, "--pcap", capture}, {"see", capture, "-o", page}} {
		if code, _, stderr := tool.Run(t.Context(), append([]string{"adverb"}, args...)...); code != 0 {
			t.Fatalf("adverb %q: status %d, %s", args, code, stderr)
		}
	}
	return page
}

// opened waits for a page.
func opened(p *browsertest.Page) {
	p.Wait(`window.ladderPage && ladderPage.drawn > 0`)
}

// expect compares the value of an expression.
func expect[T comparable](t *testing.T, p *browsertest.Page, expression string, want T) {
	t.Helper()
	if got := browsertest.Eval[T](p, expression); got != want {
		t.Errorf("%s: got %v, want %v", expression, got, want)
	}
}

const selected = `ladderPage.selected < 0 ? '' : ladderPage.line(ladderPage.selected)`

// A page opens, and its filters, search, keys, panels, colours and print do what they say. The browser sees no error and
// no request.
func TestPage(t *testing.T) {
	p := browsertest.Start(t).OpenFile(scene(t, "loss"))
	opened(p)
	if list := p.Requests(); len(list) != 1 {
		t.Errorf("the page asked for %q, want itself alone", list)
	}
	expect(t, p, `document.getElementById('summary').textContent`, "76 packets and 18 records of the devices between 2 ends in 539 ms")
	p.ScreenshotTo(screenshots, "loss.png")

	t.Run("keys", func(t *testing.T) {
		p.Press("j")
		expect(t, p, `ladderPage.at(ladderPage.selected)`, 0)
		p.Press("jj" + kb.ArrowDown + "k")
		expect(t, p, `ladderPage.at(ladderPage.selected)`, 2)
		p.Press(kb.End)
		expect(t, p, `ladderPage.at(ladderPage.selected)`, 93)
		expect(t, p, `ladderPage.picture.place(93) <= ladderPage.scroller.scrollTop + ladderPage.scroller.clientHeight`, true)
		p.Press(kb.Home + "n")
		expect(t, p, selected, "Frame 2, 0.000000 s, A to B, lost, RDMA_WRITE_MIDDLE, QP 0x03455c, PSN 1, 1024 bytes, lost: frame 7 asks for it again")
		expect(t, p, `document.getElementById(ladderPage.scroller.getAttribute('aria-activedescendant')).textContent == ladderPage.line(ladderPage.selected)`, true)
		p.Press("N")
		expect(t, p, `ladderPage.model.marks(ladderPage.selected)[0].text`, "it failed: adverb explain status 12") // round the end
		p.Press("n")
		expect(t, p, `ladderPage.model.p.frame[ladderPage.selected]`, 2)
		p.Press(kb.Escape)
		expect(t, p, `ladderPage.selected`, -1)
	})

	t.Run("search", func(t *testing.T) {
		p.Press("/")
		expect(t, p, `document.activeElement.id`, "search")
		p.Run(`document.getElementById('search').value = ''`) // DevTools types the slash though the page has taken it
		p.Press("psn 1")
		expect(t, p, `document.getElementById('found').textContent`, "3 matches")
		p.Press(kb.Enter + kb.Enter)
		expect(t, p, `ladderPage.model.p.frame[ladderPage.selected]`, 7)
		p.Run(`document.getElementById('search').value = 'NAK asks'; document.getElementById('search').dispatchEvent(new Event('input'))`)
		expect(t, p, `document.getElementById('found').textContent`, "1 match")
		p.Run(`document.getElementById('search').value = 'no such words'; document.getElementById('search').dispatchEvent(new Event('input'))`)
		expect(t, p, `document.getElementById('found').textContent`, "no match")
		p.Run(`document.getElementById('search').value = ''; document.getElementById('search').dispatchEvent(new Event('input'))`)
		p.Press(kb.Escape + kb.Escape)
		expect(t, p, `document.activeElement.id`, "scroller")
	})

	choose := func(id, text string) {
		t.Helper()
		p.Run(`{const s = document.getElementById('` + id + `'); s.value = [...s.options].find((o) => o.textContent.includes('` + text + `')).value; s.dispatchEvent(new Event('change'))}`)
	}
	t.Run("filter", func(t *testing.T) {
		choose("byOpcode", "ACKNOWLEDGE")
		expect(t, p, `ladderPage.view.length`, 5)
		choose("byQP", "0x03455c")
		expect(t, p, `ladderPage.view.length`, 5) // the answers to what went to that QP
		choose("byOpcode", "RDMA_WRITE_MIDDLE")
		expect(t, p, `ladderPage.view.length`, 4)
		p.Press("m")
		expect(t, p, `ladderPage.view.length`, 3)
		p.Run(`ladderPage.goTo(0)`) // what the filter leaves out takes it away
		expect(t, p, `ladderPage.view.length`, 94)
		choose("byEnd", "10.0.0.2")
		choose("byOpcode", "WQE")
		expect(t, p, `ladderPage.view.length`, 0) // A alone posts
		p.ScreenshotTo(screenshots, "empty.png")
		choose("byEnd", "all")
		expect(t, p, `ladderPage.view.length`, 5)
		choose("byOpcode", "all")
	})

	t.Run("zoom", func(t *testing.T) {
		for range 12 {
			p.Press("-")
		}
		expect(t, p, `ladderPage.picture.rowHeight < 6`, true)
		p.ScreenshotTo(screenshots, "far.png")
		p.Press("t")
		expect(t, p, `ladderPage.picture.byTime`, true)
		for range 20 {
			p.Press("+")
		}
		expect(t, p, `ladderPage.picture.height > 20000 && ladderPage.picture.height < 16e6`, true)
		p.Run(`ladderPage.goTo(0); new Promise(requestAnimationFrame)`)
		p.ScreenshotTo(screenshots, "time.png")
		p.Press("t0")
		expect(t, p, `ladderPage.picture.rowHeight`, 20)
	})

	t.Run("panels", func(t *testing.T) {
		p.Press("2")
		expect(t, p, `document.querySelector('.finding.error h3').textContent`, "A peer stopped answering")
		p.Click(".finding.error .link")
		expect(t, p, `ladderPage.model.p.frame[ladderPage.selected]`, 22)
		p.Press("3" + kb.End)
		expect(t, p, `document.querySelector('.region h3').textContent`, "B, rkey 0x7a2b006d")
		// The 6144 bytes of two messages once, the lost packet not; their repeats behind the NAK; then 100 bytes seven times.
		expect(t, p, `[ladderPage.memory.size[0], Math.max(...ladderPage.memory.fill(7, 8)[0].cells)].join()`, "6144,0")
		expect(t, p, `ladderPage.memory.fill(10, 6)[0].cells.join()`, "2,0,0,0,0,0")
		expect(t, p, `ladderPage.memory.fill(14, 6)[0].cells.join()`, "2,0,2,2,2,2")
		expect(t, p, `ladderPage.memory.fill(16, 6)[0].cells.join()`, "2,2,2,2,2,2")
		p.ScreenshotTo(screenshots, "memory.png")
		p.Press("4")
		expect(t, p, `[...document.querySelectorAll('#panel td')].filter((d) => d.textContent == 'ERR').length`, 1)
		p.ScreenshotTo(screenshots, "qps.png")
		p.Press("5")
		expect(t, p, `document.querySelector('#panel li').textContent`, "A 10.0.0.1")
		p.Press("?")
		expect(t, p, `document.getElementById('help').open`, true)
		p.ScreenshotTo(screenshots, "help.png")
		p.Press(kb.Escape)
		expect(t, p, `document.getElementById('help').open`, false)
	})

	t.Run("colours", func(t *testing.T) {
		const ground = `getComputedStyle(document.body).backgroundColor`
		light := browsertest.Eval[string](p, ground)
		p.Media("screen", "dark")
		dark := browsertest.Eval[string](p, ground)
		if dark == light {
			t.Errorf("where the system is dark the ground is %s, as where it is light", dark)
		}
		p.Wait(`ladderPage.picture.colors.ground == '#0d1117'`)
		p.Press("1")
		p.Run(`ladderPage.goTo(10); new Promise(requestAnimationFrame)`)
		p.ScreenshotTo(screenshots, "dark.png")
		p.Press("d")
		expect(t, p, ground, light)
		p.Media("screen", "light")
		p.Press("d")
		expect(t, p, ground, dark)
		p.Press("d")
	})

	t.Run("narrow", func(t *testing.T) {
		p.Size(480, 900)
		p.Wait(`ladderPage.ladder.clientWidth <= 480`)
		expect(t, p, `document.documentElement.scrollWidth <= innerWidth`, true)
		p.Size(420, 800)
		p.Wait(`ladderPage.ladder.clientWidth <= 420`)
		expect(t, p, `document.documentElement.scrollWidth <= innerWidth`, true)
		const words = "RDMA_WRITE_MIDDLE, PSN 12" // have room
		room := browsertest.Eval[float64](p, `ladderPage.ladder.clientWidth - ladderPage.picture.wordsLeft`)
		need := browsertest.Eval[float64](p, `(() => { const g = ladderPage.ladder.getContext('2d'); g.font = ladderPage.picture.colors.text; return g.measureText('`+words+`').width; })()`)
		if room < need {
			t.Errorf("words have %.0f px at a width of 420, and %q needs %.0f", room, words, need)
		}
		p.ScreenshotTo(screenshots, "narrow.png")
		p.Size(1280, 800)
	})

	t.Run("print", func(t *testing.T) {
		p.Press(kb.Home)
		p.Run(`new Promise(requestAnimationFrame)`)
		p.Media("print", "dark")
		p.Wait(`document.querySelectorAll('#print tbody tr').length > 10`)
		expect(t, p, `getComputedStyle(document.querySelector('main')).display`, "none")
		expect(t, p, `getComputedStyle(document.body).backgroundColor`, "rgb(255, 255, 255)")
		expect(t, p, `document.getElementById('print').innerText.includes('lost: frame 7 asks for it again')`, true)
		p.ScreenshotTo(screenshots, "print.png")
		if pdf := p.PDF(); len(pdf) < 10_000 {
			t.Errorf("the print has %d bytes", len(pdf))
		}
	})
}

// A link to a frame opens the page there.
func TestPageFrame(t *testing.T) {
	p := browsertest.Start(t).Open(browsertest.FileURL(scene(t, "rnr")) + "#frame=2")
	opened(p)
	expect(t, p, `ladderPage.model.p.frame[ladderPage.selected]`, 2)
	p.ScreenshotTo(screenshots, "rnr.png")
}

// Captures of Linux kernels open, with all their packets, and so does a page of nothing.
func TestPageKernels(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata, "*.pcap"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	b := browsertest.Start(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(testdata, name+".pcap") }
	for _, args := range [][]string{{"--addr=1.2.3.4", files[0]}, files, {in("mckey")}, {in("rc_pingpong_ipv6")}, {in("srq_pingpong")}, {in("read_lat")}} {
		page := filepath.Join(dir, "page.html")
		if code, _, stderr := tool.Run(t.Context(), append([]string{"adverb", "see", "-o", page}, args...)...); code != 0 {
			t.Fatal(stderr)
		}
		p := b.OpenFile(page)
		opened(p)
		name := filepath.Base(args[0])
		if len(args) > 1 {
			name = "several"
		}
		p.ScreenshotTo(screenshots, "kernel-"+name+".png")
		p.Press(kb.End + "12345t")
		_, rest, _ := strings.Cut(browsertest.Eval[string](p, `document.getElementById('summary').textContent`), " packet")
		if !strings.Contains(rest, "end") || browsertest.Eval[int](p, `ladderPage.model.p.n`) == 0 && args[0][0] != '-' {
			t.Errorf("%s: the summary is %q", name, rest)
		}
	}
}

// What a capture or its name says is text to the page, and nothing but the page's own script runs.
func TestPageHostile(t *testing.T) {
	const name = `<img src=x onerror=hacked=1>'"&<script>hacked=1<`
	dir := t.TempDir()
	capture := filepath.Join(dir, name)
	b, err := os.ReadFile(filepath.Join(testdata, "rping.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(capture, b, 0o600); err != nil {
		t.Skip("no such names here: ", err)
	}
	t.Chdir(dir)
	if code, _, stderr := tool.Run(t.Context(), "adverb", "see", name, "-o", "page.html"); code != 0 {
		t.Fatal(stderr)
	}
	p := browsertest.Start(t).OpenFile("page.html")
	opened(p)
	expect(t, p, `document.querySelector('h1').textContent`, name)
	expect(t, p, `typeof hacked`, "undefined")
	expect(t, p, `document.images.length`, 0)
	p.Run(`document.body.append(Object.assign(document.createElement('script'), {textContent: 'hacked = 1'}))`)
	expect(t, p, `typeof hacked`, "undefined")
	if all := strings.Join(p.Problems(), "\n"); !strings.Contains(all, "Content Security Policy") {
		t.Errorf("the browser's problems are %q, want its word that the policy forbids another script", all)
	}
}
