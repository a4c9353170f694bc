package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/adverb-rdma/adverb/lab/agent"
)

const (
	patience   = time.Minute // for a scenario, unless it says otherwise
	dmesgLines = 25
)

// scenario is a row, or a part of one, in the table of results.
type scenario struct {
	family  string // heading of its table: "Pingpong"
	program string // or operation
	server  string // who serves, or responds: "kernel" or "adverb"
	v6      bool
	mtu     int
	variant string // "65536": those with the same result share a row

	on       *Lab          // nil: the network of that MTU which all share
	patience time.Duration // 0: the constant
	// check says what the packets must be like, if not good throughout.
	check packetRules
	// leftOut is why the scenario cannot be: a defect of the kernel, say. It then does not run.
	leftOut string
}

// packetRules are for scenarios that hurt packets on purpose, and for those that send few.
type packetRules struct {
	oneWay bool // one end may send nothing
	// badICRCs returns how many packets to the guest have a wrong ICRC: so many at least, and at most. It is
	// asked when the scenario is over; nil: none. Nothing hurts what comes from the guest before it is captured.
	badICRCs func() (least, most int)
}

func (s *scenario) ip() string {
	if s.v6 {
		return "IPv6"
	}
	return "IPv4"
}

func (s *scenario) row() resultRow {
	return resultRow{program: s.program, server: s.server, ip: s.ip(), mtu: s.mtu}
}

func (s *scenario) name() string {
	parts := []string{s.program, "server=" + s.server, s.ip(), fmt.Sprint("MTU=", s.mtu), s.variant}
	return strings.ReplaceAll(strings.Join(parts, "/"), " ", "_")
}

// run is a subtest. Its packets are captured and checked, and its outcome goes into the results.
func (s scenario) run(t *testing.T, f func(ctx context.Context, t *testing.T, l *Lab)) {
	if s.leftOut != "" {
		row := s.row()
		row.verdict = "left out: " + s.leftOut
		results.add(s.family, row, s.variant)
		return
	}
	t.Run(s.name(), func(t *testing.T) {
		recordTest(t, s.family, s.row(), s.variant)
		l := s.on
		if l == nil {
			l = network(t, s.mtu)
		}
		g := l.Guest(0)
		revive(t, g)
		c, err := g.Capture()
		if err != nil {
			t.Fatal(err)
		}
		// Behind the cleanups of f: what connections and devices send when they are closed is of the scenario too.
		t.Cleanup(func() {
			s.checkCapture(t, c)
			if t.Failed() {
				explain(t, g)
			}
		})
		if s.patience == 0 {
			s.patience = patience
		}
		f(within(t, s.patience), t, l)
	})
}

// within returns a context that ends with the test, and after d at the latest.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("not done after %v", d))
	t.Cleanup(cancel)
	return ctx
}

// revive boots a guest again that a scenario before has killed, or else all that follow would wait for it.
func revive(t *testing.T, g *Guest) {
	t.Helper()
	if g.alive() {
		return
	}
	t.Logf("%v was dead, and boots again; its console said: %s", g, tail(g.Console(), dmesgLines))
	if err := g.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// checkCapture ends a capture, and keeps it where the flag says so.
func (s *scenario) checkCapture(t *testing.T, c *Capture) {
	t.Helper()
	captured, err := c.Stop()
	if err != nil {
		t.Error(err)
	}
	if *keepFlag != "" {
		var pcap bytes.Buffer
		name := filepath.Join(*keepFlag, strings.ReplaceAll(strings.ReplaceAll(t.Name(), "/", "_"), "=", "-")+".pcap")
		if err := errors.Join(WritePcap(&pcap, captured), os.MkdirAll(*keepFlag, 0o755), os.WriteFile(name, pcap.Bytes(), 0o644)); err != nil {
			t.Error(err)
		}
	}
	var to, from packets
	var right []Frame
	var numbers []int
	for i, f := range captured {
		_, _, err := roceIP(f.Data)
		if limit := s.mtu + etherHeader; !errors.Is(err, errNotRoCE) && len(f.Data) > limit {
			t.Errorf("frame %d: %d bytes, limit %d: a train of packets that nobody has cut", i+1, len(f.Data), limit)
			return
		}
		way := &from
		if f.ToGuest {
			way = &to
		}
		if way.add(i+1, f.Data) {
			right, numbers = append(right, f), append(numbers, i+1)
		}
	}
	s.checkCounts(t, &to, &from)
	var decodable bytes.Buffer
	if err := WritePcap(&decodable, right); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	faults, err := CheckTshark(ctx, decodable.Bytes(), numbers)
	if err != nil {
		t.Error(err)
	}
	if len(faults) > 0 {
		t.Errorf("of %d RoCE packets: %s", len(right), strings.Join(firstOf(faults), "\n"))
	}
	if t.Failed() && *keepFlag == "" {
		t.Logf("to see the packets: make lab LABFLAGS='-run %s -args -keep=DIR'", runPattern(t.Name()))
	}
}

// checkCounts checks what went to and from the guest.
func (s *scenario) checkCounts(t *testing.T, to, from *packets) {
	t.Helper()
	least, most := 0, 0
	if s.check.badICRCs != nil {
		least, most = s.check.badICRCs()
	}
	if n := len(to.wrong); n < least || n > most {
		t.Errorf("%d bad ICRCs to the guest, want %d to %d: %s", n, least, most, strings.Join(firstOf(to.wrong), "\n"))
	}
	if n := len(from.wrong); n > 0 {
		t.Errorf("%d bad ICRCs from the guest: %s", n, strings.Join(firstOf(from.wrong), "\n"))
	}
	if s.check.oneWay && to.count()+from.count() > 0 || t.Skipped() {
		return
	}
	if to.count() == 0 {
		t.Error("no RoCE packet went to the guest")
	}
	if from.count() == 0 {
		t.Error("no RoCE packet went from the guest")
	}
}

// runPattern returns what picks a test by -run, of characters that mean nothing to make and to shells.
func runPattern(name string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/_=-,:", r) {
			return r
		}
		return '.'
	}, name)
}

// explain logs what the guest's kernel has to say.
func explain(t *testing.T, g *Guest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := g.Run(ctx, "dmesg")
	if err != nil {
		t.Logf("%v does not answer: %v; its console: %s", g, err, tail(g.Console(), dmesgLines))
		return
	}
	if _, since, _ := strings.Cut(out, g.Device+": added"); since != "\n" { // what the boot said is of no interest
		t.Logf("the kernel of %v: %s", g, tail(since, dmesgLines))
	}
}

// start runs a program until the scenario ends, or fails the test.
func start(ctx context.Context, t *testing.T, side Side, argv ...string) *Process {
	t.Helper()
	p, err := side.Start(ctx, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// finish waits for programs, and fails the test unless all of them succeed.
func finish(t *testing.T, programs ...*Process) []Result {
	t.Helper()
	left, err := ends(programs...)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// ends waits until programs have ended. It returns an error as soon as one of them has failed, since its peer may
// then wait for ever.
func ends(programs ...*Process) ([]Result, error) {
	type outcome struct {
		i   int
		res Result
		err error
	}
	outcomes := make(chan outcome, len(programs))
	for i, p := range programs {
		go func() {
			res, err := p.Wait()
			outcomes <- outcome{i, res, err}
		}()
	}
	left := make([]Result, len(programs))
	for range programs {
		o := <-outcomes
		left[o.i] = o.res
		if o.err != nil || o.res.Status != (agent.Status{}) {
			var reports strings.Builder
			for _, p := range programs {
				reports.WriteString(p.Report())
			}
			return left, errors.New(reports.String())
		}
	}
	return left, nil
}

// sides returns who serves and who calls.
func sides(l *Lab, server string) (srv, client Side) {
	if server == "kernel" {
		return l.Guest(0), l.Host()
	}
	return l.Host(), l.Guest(0)
}

var lastPort atomic.Int32

// nextPort returns a TCP port that no scenario before has used: nothing of theirs can linger there.
func nextPort() string {
	const first = 20000
	return fmt.Sprint(first + lastPort.Add(1))
}
