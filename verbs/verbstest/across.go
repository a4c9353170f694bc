package verbstest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// envChild is set in the other process of RunAcross. Its value is the name of the device there.
const envChild = "ADVERB_VERBSTEST_CHILD"

// warmUp is the name of the case that is played before the others. The first packets between two processes or hosts may be
// lost, or overtake each other, until each knows the way to the other.
const warmUp = "rc/ping-pong"

func warmUpCase() Case {
	return loadCases[slices.IndexFunc(loadCases, func(cs Case) bool { return cs.Name == warmUp })]
}

// opener opens devices. It is the argument of Main.
var opener func(name string) (*verbs.Device, error)

// Main must be called, from TestMain or init, by every test binary that calls RunAcross. In the process
// that RunAcross starts, Main plays side B and does not return. open opens a device that RunAcross
// names; for registered providers it is verbs.Open.
func Main(open func(name string) (*verbs.Device, error)) {
	opener = open
	name, child := os.LookupEnv(envChild)
	if !child {
		return
	}
	d, err := open(name)
	if err == nil {
		use := func(set settings, _ bool) (*verbs.Device, settings, error) { return d, set, nil }
		err = errors.Join(serve(use, os.Stdin, os.Stdout), d.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verbstest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// RunAcross runs the suite with side A in this process, on device a, and side B in another process, on
// device b. The two names may be the same. Main must have been called. The devices stay open from one
// case to the next.
func RunAcross(t *testing.T, c Config, a, b string) {
	t.Helper()
	if opener == nil {
		t.Fatal("verbstest: RunAcross starts this test binary anew: call verbstest.Main in TestMain")
	}
	p := &pair{set: c.settings(), a: a, b: b}
	defer func() {
		if err := p.end(); err != nil {
			t.Errorf("at the end: %v", err)
		}
	}()
	each(t, c.cases(), p.set.Seed, func(t *testing.T, cs Case) result {
		if p.child == nil {
			if err := p.start(); err != nil {
				t.Fatal(err)
			}
		}
		r := p.child.play(cs, p.set, p.device, false)
		if r.hasFailed() {
			p.end() // the next case begins without what a failure has left behind
		}
		return r
	})
}

// pair is the two processes of RunAcross, with a device each.
type pair struct {
	set    settings
	a, b   string
	device *verbs.Device
	child  *child
}

// start opens both devices, and has them talk for a while: see warmUp.
func (p *pair) start() (err error) {
	if p.device, err = opener(p.a); err != nil {
		return err
	}
	if p.child, err = startChild(p.b); err != nil {
		p.device.Close()
		return err
	}
	if r := p.child.play(warmUpCase(), p.set, p.device, false); r.outcome != passed {
		err = fmt.Errorf("warming up by %s: %s\n%w", warmUp, strings.Join(r.lines, "\n"), p.end())
	}
	return err
}

func (p *pair) end() error {
	if p.child == nil {
		return nil
	}
	err := errors.Join(p.device.Close(), p.child.end())
	p.child = nil
	return err
}

// line is one message between the processes, as JSON on a line of its own.
type line struct {
	Start   *start   `json:",omitempty"` // to the child
	Message *message `json:",omitempty"` // both ways
	Result  *final   `json:",omitempty"` // from the child
}

type start struct {
	Case     string
	Settings settings
	Anew     bool `json:",omitempty"` // the device is to be opened anew
}

type final struct {
	Outcome outcome
	Lines   []string
}

// lineWriter writes lines. Several goroutines may use it.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *lineWriter) write(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.w.Write(append(b, '\n'))
	return err
}

// child is the other process of RunAcross, as this one sees it.
type child struct {
	remote
	cmd    *exec.Cmd
	in     io.Closer
	stderr bytes.Buffer
	gone   bool
}

// remote is the other end of a connection, as side A sees it.
type remote struct {
	out   *lineWriter
	lines *json.Decoder
	ended func() error // says why no more lines come
}

func newRemote(r io.Reader, w io.Writer, ended func() error) remote {
	return remote{&lineWriter{w: w}, json.NewDecoder(bufio.NewReader(r)), ended}
}

func startChild(device string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), envChild+"="+device)
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.in, c.remote = in, newRemote(out, in, c.end)
	return c, c.cmd.Start()
}

// end closes the standard input of the process, upon which the process ends, and waits for that.
func (c *child) end() error {
	if c.gone {
		return nil
	}
	c.gone = true
	c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the other process: %w\n%s", err, c.stderr.Bytes())
	}
	return nil
}

// play plays side A of a case here, on d, and side B at the other end, where the device is opened anew if need be.
func (c *remote) play(cs Case, set settings, d *verbs.Device, anew bool) result {
	a := newSide("A", set, d)
	a.out = func(m message) error { return c.out.write(line{Message: &m}) }
	if err := c.out.write(line{Start: &start{cs.Name, set, anew}}); err != nil {
		a.cancel(errPeerEnded)
	}
	theirs := make(chan result)
	go func() { theirs <- c.listen(a) }()
	mine := a.run(cs.Needs, cs.A)
	return mine.and(<-theirs)
}

// listen hands the other end's messages to a, until its result comes.
func (c *remote) listen(a *Side) result {
	for {
		var l line
		if err := c.lines.Decode(&l); err != nil {
			a.cancel(errPeerEnded)
			return result{failed, []string{fmt.Sprintf("B: its process has ended (%v): %v", err, c.ended())}}
		}
		switch {
		case l.Message != nil:
			a.deliver(*l.Message)
		case l.Result != nil:
			return result{l.Result.Outcome, l.Result.Lines}
		}
	}
}

// serve plays side B of each case that r asks for, on the device that use returns, and writes messages and results to w.
func serve(use func(set settings, anew bool) (*verbs.Device, settings, error), r io.Reader, w io.Writer) error {
	known := map[string]Case{}
	for _, cs := range Cases() {
		known[cs.Name] = cs
	}
	out := &lineWriter{w: w}
	dec := json.NewDecoder(bufio.NewReader(r))
	var mu sync.Mutex
	var b *Side // of the case that is being played
	for {
		var l line
		if err := dec.Decode(&l); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case l.Message != nil:
			mu.Lock()
			if b != nil {
				b.deliver(*l.Message)
			}
			mu.Unlock()
		case l.Start != nil:
			cs, ok := known[l.Start.Case]
			if !ok {
				cs.B = func(s *Side) { s.Fatalf("no case of this name in the other process") }
			}
			d, set, err := use(l.Start.Settings, l.Start.Anew)
			if err != nil {
				return err
			}
			s := newSide("B", set, d)
			s.out = func(m message) error { return out.write(line{Message: &m}) }
			mu.Lock()
			b = s
			mu.Unlock()
			go func() {
				r := s.run(cs.Needs, cs.B)
				mu.Lock()
				b = nil
				mu.Unlock()
				out.write(line{Result: &final{r.outcome, r.lines}})
			}()
		}
	}
}
