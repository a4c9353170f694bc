// Package browsertest opens pages in headless Chromium, for tests.
//
//	page := browsertest.Start(t).Open("http://127.0.0.1:8000/")
//	page.Wait(`document.title != ""`)
//	page.Press("n")
//	browsertest.Eval[int](page, `document.images.length`)
//
// A page that logs an error, throws, or asks for anything outside this machine fails its test.
package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// timeout bounds the time of one action. A machine of CI with two cores may be busy with other tests.
const timeout = 60 * time.Second

// programs are the names that Chromium has.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "chrome"}

// Browser is a Chromium that belongs to a test, and ends with it.
type Browser struct {
	t   testing.TB
	ctx context.Context
}

// Start starts Chromium. It skips the test where there is none, and fails it where CI is "true".
func Start(t testing.TB) *Browser {
	t.Helper()
	program := ""
	for _, name := range programs {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		if os.Getenv("CI") == "true" {
			t.Fatalf("find Chromium: none of %s is in PATH: install it", strings.Join(programs, ", "))
		}
		t.Skip("no Chromium is installed")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program),
		chromedp.NoSandbox, // root has none, in a container
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-crash-reporter", true),
		// A name that a page asks for by mistake is not looked up.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"),
		chromedp.WSURLReadTimeout(timeout),
	)
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf)) // canceled by stop, behind it
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // waits for the process
			t.Logf("end Chromium: %v", err)
		}
		stop()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return &Browser{t, ctx}
}

// Page is a tab of a browser.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	problems []string
	expected bool // the test has asked for them
	requests []string
}

// Open opens an address in a new tab of 1280 by 800 pixels, and waits until it has loaded.
func (b *Browser) Open(address string) *Page {
	b.t.Helper()
	ctx, stop := chromedp.NewContext(b.ctx)
	p := &Page{t: b.t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.listen); err != nil {
		b.t.Fatalf("open a tab: %v", err)
	}
	b.t.Cleanup(func() {
		stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.expected {
			for _, problem := range p.problems {
				b.t.Errorf("%s: %s", address, problem)
			}
		}
	})
	p.Do(Call(network.Enable, network.EnableParams{}), Call(log.Enable, cdp.Empty{}), chromedp.EmulateViewport(1280, 800))
	do(p, "open "+address, chromedp.Navigate(address))
	return p
}

// OpenFile opens a file in a new tab.
func (b *Browser) OpenFile(name string) *Page {
	b.t.Helper()
	name, err := filepath.Abs(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.Open(FileURL(name))
}

// FileURL is the address of a file by its absolute name.
func FileURL(name string) string {
	name = filepath.ToSlash(name)
	if !strings.HasPrefix(name, "/") {
		name = "/" + name
	}
	return (&url.URL{Scheme: "file", Path: name}).String()
}

// listen notes what a page must not do.
func (p *Page) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	note := func(format string, args ...any) { p.problems = append(p.problems, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		note("an exception: %v", &chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails})
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var words []string
			for _, a := range e.Args {
				words = append(words, string(a.Value)+a.Description)
			}
			note("console.%s: %s", e.Type, strings.Join(words, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			note("an error in the log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
		if !local(e.Request.URL) {
			note("a request to %s", e.Request.URL)
		}
	}
}

// local reports whether an address needs no network.
func local(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	switch u.Scheme {
	case "file", "data", "blob", "about":
		return true
	}
	return u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1"
}

// Problems returns the errors that have been noted, which then no longer fail the test: for a test that provokes them.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
	return slices.Clone(p.problems)
}

// Requests returns the addresses that the page has asked for.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// do carries out an action.
func do[T any](p *Page, what string, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	return value
}

// Do carries out actions of chromedp, for what the methods here do not cover.
func (p *Page) Do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	for _, action := range actions {
		do(p, "carry out an action", action)
	}
}

// Call is the action of a command of the DevTools protocol.
func Call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, command, params)
		return chromedp.Void{}, err
	}
}

// Eval returns the value of an expression of JavaScript, or what its promise gives.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return do(p, "evaluate "+expression, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Run runs JavaScript, and waits for its promise.
func (p *Page) Run(script string) {
	p.t.Helper()
	Eval[chromedp.Void](p, script)
}

// Wait waits until an expression of JavaScript is true.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	do(p, "wait for "+expression, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(timeout)))
}

// Click clicks the first element that a selector of CSS matches.
func (p *Page) Click(selector string) {
	p.t.Helper()
	do(p, "click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// Press presses keys, one after another: characters, or those of package kb of chromedp.
func (p *Page) Press(keys string) {
	p.t.Helper()
	do(p, "press keys", chromedp.KeyEvent(keys))
}

// Size changes the size of the page's window, in pixels.
func (p *Page) Size(width, height int64) {
	p.t.Helper()
	do(p, "change the size", chromedp.EmulateViewport(width, height))
}

// Media has the page shown on a medium ("screen" or "print") in a scheme of colours ("light" or "dark").
func (p *Page) Media(medium, scheme string) {
	p.t.Helper()
	p.Do(Call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))
}

// Screenshot returns a picture of the window as PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	return do(p, "take a picture", chromedp.CaptureScreenshot())
}

// ScreenshotTo writes a picture of the window into a directory that an environment variable names: for people, who
// look at it. Without the variable it does nothing.
func (p *Page) ScreenshotTo(variable, name string) {
	p.t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name), p.Screenshot(), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// PDF returns the page as it is printed.
func (p *Page) PDF() []byte {
	p.t.Helper()
	return do(p, "print", chromedp.PrintToPDF(chromedp.PDFPrintBackground()))
}

// Version returns the browser's name and version.
func (b *Browser) Version() string {
	b.t.Helper()
	v, err := chromedp.CallBrowser(b.ctx, browser.GetVersion, cdp.Empty{})
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Product
}
