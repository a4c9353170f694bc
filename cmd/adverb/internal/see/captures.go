package see

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/ladder"
)

// captures reads captures for a ladder, and diagnoses them at the same time if that is asked for.
type captures struct {
	*ladder.Collector
	diagnoses bool
	names     []string
	reports   []*diagnose.Report // of each capture; nil for one that has no diagnosis
}

func newCaptures(diagnoses bool) *captures {
	return &captures{Collector: ladder.NewCollector(), diagnoses: diagnoses}
}

func (c *captures) readAll(files []string, stdin io.Reader) error {
	for _, name := range files {
		if err := c.readOne(name, stdin); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (c *captures) readOne(name string, stdin io.Reader) error {
	if name == "-" {
		return c.read("standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the caller names the file
		}
		return err
	}
	defer f.Close()
	return c.read(filepath.Base(name), f)
}

// read reads a capture once, also for the diagnosis.
func (c *captures) read(name string, r io.Reader) error {
	c.names = append(c.names, name)
	if !c.diagnoses {
		return c.Read(r)
	}
	copied, w := io.Pipe()
	reported := make(chan *diagnose.Report)
	go func() {
		report, err := diagnose.File(copied, diagnose.Options{})
		if err != nil {
			report = nil // the ladder says why it cannot be read
		}
		_, _ = io.Copy(io.Discard, copied) // what follows damage
		reported <- report
	}()
	err := c.Read(io.TeeReader(r, w))
	_ = w.Close()
	c.reports = append(c.reports, <-reported)
	return err
}

// diagnosis is what a page says of the captures.
func (c *captures) diagnosis() (d ladder.Diagnosis) {
	for i, report := range c.reports {
		if report == nil {
			continue
		}
		if d.Verdict == "" || len(d.Findings) == 0 && len(report.Findings) > 0 {
			d.Verdict = report.Verdict
		}
		for _, f := range append(report.Findings, report.Notes...) {
			where := f.Where
			switch {
			case len(c.reports) > 1 && where != "":
				where = c.names[i] + ", " + where
			case len(c.reports) > 1:
				where = c.names[i]
			}
			d.Findings = append(d.Findings, ladder.Finding{
				File: i, Severity: f.Severity.String(), Certainty: f.Certainty.String(), Title: f.Title, Where: where, Words: f.Words,
				Remedy: f.Remedy, WrongIf: f.WrongIf, Filter: f.Filter, Count: f.Count, Frames: f.Frames,
			})
		}
	}
	return d
}
