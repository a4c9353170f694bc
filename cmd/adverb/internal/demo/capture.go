package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
)

// captures are the captures of a demonstration, as far as they are asked for.
type captures struct {
	file    *os.File     // of --pcap, or nil: each packet once
	seen    bytes.Buffer // for --see and --svg: each packet at both ends
	frames  bytes.Buffer // for a scene: each packet once
	writers []*pcap.Writer
}

// open begins the captures. now is the time that they have; nil is the system's.
func (c *captures) open(f flags, now func() time.Time) (err error) {
	if f.pcap != "" {
		if c.file, err = os.Create(f.pcap); err != nil {
			return err
		}
		if err = c.add(c.file, pcap.Options{OutgoingOnly: true, Now: now}); err != nil {
			return err
		}
	}
	if f.draws() {
		return c.add(&c.seen, pcap.Options{Now: now})
	}
	return nil
}

// keepFrames keeps all packets for a scene.
func (c *captures) keepFrames(now func() time.Time) error {
	return c.add(&c.frames, pcap.Options{OutgoingOnly: true, Now: now})
}

func (c *captures) flush() error {
	var errs []error
	for _, p := range c.writers {
		errs = append(errs, p.Flush())
	}
	return errors.Join(errs...)
}

func (c *captures) add(w io.Writer, o pcap.Options) error {
	p, err := pcap.New(w, o)
	if err == nil {
		c.writers = append(c.writers, p)
	}
	return err
}

// middleware captures the packets of a link.
func (c *captures) middleware() (mw []link.Middleware) {
	for _, p := range c.writers {
		mw = append(mw, p.Middleware())
	}
	return mw
}

// recorder records what a device does beside packets, also for shown, which may be nil. It is nil if nothing is captured.
func (c *captures) recorder(shown func(journal.Event)) func(journal.Event) {
	if len(c.writers) == 0 {
		return shown
	}
	return func(e journal.Event) {
		for _, p := range c.writers {
			p.Journal(e)
		}
		if shown != nil {
			shown(e)
		}
	}
}

func (c *captures) close() error {
	var errs []error
	for _, p := range c.writers {
		errs = append(errs, p.Close())
	}
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	return errors.Join(errs...)
}

// draw draws the packets, after close: behind the story, which quiet leaves out, and into the file of --svg.
func (c *captures) draw(w io.Writer, f flags, quiet bool) error {
	if !f.draws() {
		return nil
	}
	l := ladder.NewCollector()
	if err := l.Read(&c.seen); err != nil {
		return err
	}
	drawn := l.Ladder(ladder.Options{})
	if f.svg != "" {
		var b bytes.Buffer
		if err := drawn.SVG(&b, f.name); err != nil {
			return err
		}
		if err := os.WriteFile(f.svg, b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	if !f.see {
		return nil
	}
	if !quiet {
		fmt.Fprintln(w)
	}
	return drawn.Text(w)
}
