package verbstest

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// Outcome says how a case has ended.
type Outcome uint8

// The outcomes.
const (
	Passed Outcome = iota
	Skipped
	Failed
)

var outcomeNames = []string{"pass", "skip", "fail"}

// String returns "pass", "skip" or "fail".
func (o Outcome) String() string { return outcomeNames[o] }

// Result is how a case has ended for a program that is no test.
type Result struct {
	Case    string
	Outcome Outcome
	Text    string // of both sides: why the case failed or was skipped
}

func (r result) public(name string) Result {
	o := [...]Outcome{passed: Passed, stopped: Failed, skipped_: Skipped, failed: Failed}[r.outcome]
	return Result{Case: name, Outcome: o, Text: strings.Join(r.lines, "\n")}
}

// Play is Run for a program that is no test. open opens the two devices of a case, in place of Config.Open, and report
// gets how each case has ended. Play fails if open does, and when ctx has ended, which it looks at between cases.
func Play(ctx context.Context, c Config, open func() (a, b *verbs.Device, err error), report func(Result)) error {
	set := c.settings()
	for _, cs := range c.cases() {
		if err := ctx.Err(); err != nil {
			return err
		}
		a, b, err := open()
		if err != nil {
			return err
		}
		report(runPair(cs, set, a, b).public(cs.Name))
	}
	return nil
}

// PlayAcross is Play with side B at the other end of a connection, where Serve plays it. open opens the device of
// side A: at the beginning, and after a case that has failed.
func PlayAcross(ctx context.Context, c Config, conn io.ReadWriter, open func() (*verbs.Device, error), report func(Result)) error {
	set := c.settings()
	r := newRemote(conn, conn, func() error { return nil })
	d := &reopened{open: open}
	defer d.close()
	cases := append([]Case{warmUpCase()}, c.cases()...)
	anew := true
	for i, cs := range cases {
		if err := ctx.Err(); err != nil {
			return err
		}
		dev, err := d.get(anew)
		if err != nil {
			return err
		}
		res := r.play(cs, set, dev, anew)
		anew = res.hasFailed()
		if i > 0 {
			report(res.public(cs.Name))
		}
	}
	return nil
}

// Serve plays side B for PlayAcross at the other end of a connection, with this end's Port and GIDIndex. It returns nil when
// the other end has closed the connection.
func Serve(c Config, conn io.ReadWriter, open func() (*verbs.Device, error)) error {
	d := &reopened{open: open}
	own := c.settings()
	err := serve(func(set settings, anew bool) (*verbs.Device, settings, error) {
		set.Port, set.GIDIndex = own.Port, own.GIDIndex
		dev, err := d.get(anew)
		return dev, set, err
	}, conn, conn)
	return errors.Join(err, d.close())
}

// reopened is a device that is opened anew now and then.
type reopened struct {
	open func() (*verbs.Device, error)
	d    *verbs.Device
}

// get returns the device. A device that cannot be closed, because a failure has left objects behind, stays open beside a
// new one.
func (r *reopened) get(anew bool) (d *verbs.Device, err error) {
	if r.d != nil && !anew {
		return r.d, nil
	}
	_ = r.close()
	r.d, err = r.open()
	return r.d, err
}

func (r *reopened) close() error {
	if r.d == nil {
		return nil
	}
	return r.d.Close()
}
