package diagnose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
)

const (
	tick = time.Second // how often news are told
	now  = 10 * time.Second
	last = time.Second // for the end of a pipe whose writer Ctrl-C ends too
)

// live is the options of a capture that goes on.
type live struct {
	iface string
	limit time.Duration // 0 is none
	ports []uint16      // of TCP
	json  bool
}

// parseLimit reads how long to capture.
func parseLimit(arg string) (time.Duration, error) {
	d, err := time.ParseDuration(arg)
	if seconds, e := strconv.ParseFloat(arg, 64); err != nil && e == nil {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no length of time: 30, 30s, 5m", arg)
	}
	return d, nil
}

// parsePorts reads a list of TCP ports.
func parsePorts(arg string) (ports []uint16, err error) {
	for s := range strings.SplitSeq(arg, ",") {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is no list of TCP ports: 7471 or 7471,18515", arg)
		}
		ports = append(ports, uint16(n))
	}
	return ports, nil
}

// teller prints findings while a capture goes on.
type teller struct {
	inv  *cli.Invocation
	json bool
}

// line is a line of JSON: a finding when it becomes certain, and in the end the report.
type line struct {
	Time    string            `json:"time"`
	Finding *diagnose.Finding `json:"finding,omitempty"`
	Report  *diagnose.Report  `json:"report,omitempty"`
}

func (t *teller) encode(l line) {
	l.Time = time.Now().Format(time.RFC3339Nano)
	json.NewEncoder(t.inv.Stdout).Encode(l) // an error is that of standard output, which the tool reports
}

func (t *teller) tell(news []*diagnose.Finding) {
	const most = 5 // of a kind at once
	told := map[string]int{}
	for _, f := range news {
		if t.json {
			t.encode(line{Finding: f})
			continue
		}
		if told[f.ID]++; told[f.ID] > most {
			continue
		}
		s := fmt.Sprintf("%s %s %s: %s", time.Now().Format(time.TimeOnly), strings.ToUpper(f.Severity.String()), f.ID, f.Title)
		if f.Where != "" {
			s += " (" + f.Where + ")"
		}
		if f.Count > 1 {
			s += fmt.Sprintf(", %d times so far", f.Count)
		}
		t.inv.Printf("%s\n", s)
	}
	for id, n := range told {
		if n > most {
			t.inv.Printf("%s %s: %d more of this kind\n", time.Now().Format(time.TimeOnly), id, n-most)
		}
	}
}

// report prints the result, and returns the exit status.
func (t *teller) report(r *diagnose.Report) int {
	if t.json {
		t.encode(line{Report: r})
	} else {
		t.inv.Printf("\n")
		if err := r.Print(t.inv.Stdout); err != nil {
			return t.inv.Fail(err, "")
		}
	}
	return statusOf(r)
}

// watch captures at an interface until Ctrl-C, or as long as it shall.
func (l *live) watch(inv *cli.Invocation, o diagnose.Options) int {
	in, err := capture.OpenLive(l.iface)
	if err != nil {
		inv.Explain(err)
		return exitUnreadable
	}
	defer in.Close()
	a, t := diagnose.New(o), teller{inv, l.json}
	begun, ticked, known := time.Now(), time.Now(), -1
	if !l.json {
		inv.Printf("Capturing at %s. Ctrl-C ends it with the report.\n", l.iface)
	}
	for !inv.Interrupted() && (l.limit == 0 || time.Since(begun) < l.limit) {
		f, err := in.Next()
		switch {
		case err == nil:
			a.Frame(f)
		case !errors.Is(err, capture.ErrQuiet):
			a.Broken(err)
			inv.Explain(err)
			return t.report(a.Report())
		}
		if n := len(a.TCPPorts()); n != known {
			known = n
			if err := in.Follow(append(l.ports, a.TCPPorts()...)); err != nil {
				inv.Explain(err)
			}
		}
		if err == nil && f.Number%64 != 0 { // look at the clock now and then
			continue
		}
		if time.Since(ticked) >= tick {
			ticked = time.Now()
			a.Lost(in.Lost())
			a.Tick(ticked.UnixNano())
			t.tell(a.News())
		}
	}
	a.Lost(in.Lost())
	return t.report(a.Report())
}

// follow diagnoses a pipe. While frames come that are being captured now, news are told. Ctrl-C ends it with the report. isLive
// says that there were such frames.
func (l *live) follow(inv *cli.Invocation, r io.Reader, o diagnose.Options) (report *diagnose.Report, isLive bool, err error) {
	var (
		mu     sync.Mutex // of the following, and isLive
		a      = diagnose.New(o)
		frames int
	)
	done := make(chan error, 1)
	go func() {
		done <- diagnose.Frames(r, func(f capture.Frame) {
			mu.Lock()
			defer mu.Unlock()
			if age := time.Since(time.Unix(0, f.Time)); frames == 0 {
				isLive = age < now && age > -now
			}
			frames++
			a.Frame(f)
		})
	}()
	t := teller{inv, l.json}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var limit <-chan time.Time
	if l.limit > 0 {
		limit = time.After(l.limit)
	}
	interrupted := inv.Ctx.Done()
	for {
		select {
		case err := <-done:
			report, err := a.Result(err)
			return report, isLive, err
		case <-ticker.C:
			mu.Lock()
			if isLive {
				a.Tick(time.Now().UnixNano())
				t.tell(a.News())
			}
			mu.Unlock()
		case <-interrupted:
			interrupted, limit = nil, time.After(last)
		case <-limit:
			mu.Lock() // and keep it: the reader may wait for its next frame without end
			return a.Report(), isLive, nil
		}
	}
}

// isPipe reports whether a file may grow while it is read.
func isPipe(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket|os.ModeCharDevice) != 0
}
