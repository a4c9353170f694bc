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

	patience time.Duration // 0: the constant
	// check says what the packets must be like, if not good throughout.
	check packetRules
	// leftOut is why the scenario cannot be: a defect of the kernel, say. It then does not run.
	leftOut string
}

// packetRules are for scenarios that hurt packets on purpose.
type packetRules struct {
	badICRC   bool // some ICRCs may be wrong
	malformed bool // some packets may be malformed
	oneWay    bool // one end may send nothing
}

func (s *scenario) ip() string {
	if s.v6 {
		return "IPv6"
	}
	return "IPv4"
}

func (s *scenario) name() string {
	parts := []string{s.program, "server=" + s.server, s.ip(), fmt.Sprint("MTU=", s.mtu), s.variant}
	return strings.ReplaceAll(strings.Join(parts, "/"), " ", "_")
}

// run is a subtest. Its packets are captured and checked, and its outcome goes into the results.
func (s scenario) run(t *testing.T, f func(ctx context.Context, t *testing.T, l *Lab)) {
	if s.leftOut != "" {
		s.record("left out: " + s.leftOut)
		return
	}
	t.Run(s.name(), func(t *testing.T) {
		l := network(t, s.mtu)
		verdict := "FAILED"
		defer func() { s.record(verdict) }()
		g := l.Guest(0)
		c, err := g.Capture()
		if err != nil {
			t.Fatal(err)
		}
		if s.patience == 0 {
			s.patience = patience
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), s.patience, fmt.Errorf("not done after %v", s.patience))
		defer cancel()
		func() {
			defer s.checkCapture(t, c) // also after t.Fatal
			f(ctx, t, l)
		}()
		if t.Failed() {
			explain(t, g)
			return
		}
		verdict = "ok"
	})
}

func (s *scenario) record(verdict string) {
	results.add(s.family, resultRow{program: s.program, server: s.server, ip: s.ip(), mtu: s.mtu, verdict: verdict}, s.variant)
}

// checkCapture ends a capture, and keeps it where the flag says so.
func (s *scenario) checkCapture(t *testing.T, c *Capture) {
	t.Helper()
	captured, err := c.Stop()
	if err != nil {
		t.Error(err)
	}
	var pcap bytes.Buffer
	if err := WritePcap(&pcap, captured); err != nil {
		t.Error(err)
	}
	if *keepFlag != "" {
		name := filepath.Join(*keepFlag, strings.ReplaceAll(strings.ReplaceAll(t.Name(), "/", "_"), "=", "-")+".pcap")
		if err := errors.Join(os.MkdirAll(*keepFlag, 0o755), os.WriteFile(name, pcap.Bytes(), 0o644)); err != nil {
			t.Error(err)
		}
	}
	var frames [2][][]byte // to the guest, from the guest
	var all [][]byte
	for i, f := range captured {
		_, _, err := roceIP(f.Data)
		if limit := s.mtu + etherHeader; !errors.Is(err, errNotRoCE) && len(f.Data) > limit {
			t.Errorf("frame %d: %d bytes, limit %d: a train of packets that nobody has cut", i+1, len(f.Data), limit)
			return
		}
		from := 1
		if f.ToGuest {
			from = 0
		}
		frames[from] = append(frames[from], f.Data)
		all = append(all, f.Data)
	}
	packets, faults := CheckICRCs(all)
	if len(faults) > 0 && !s.check.badICRC {
		t.Errorf("ICRCs: %s", strings.Join(faults, "\n"))
	}
	for i, way := range []string{"to", "from"} {
		if n, _ := CheckICRCs(frames[i]); n == 0 && !s.check.oneWay {
			t.Errorf("no RoCE packet went %s the guest", way)
		}
	}
	decoded, faults, err := CheckTshark(t.Context(), pcap.Bytes())
	if err != nil {
		t.Error(err)
	}
	if !s.check.malformed && (len(faults) > 0 || decoded != packets) {
		t.Errorf("tshark decoded %d of %d RoCE packets: %s", decoded, packets, strings.Join(faults, "\n"))
	}
	if t.Failed() && *keepFlag == "" {
		t.Logf("to see the packets: make lab LABFLAGS='-run %s -args -keep=DIR'", t.Name())
	}
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

// finish waits for programs, all of which must end well. Once one has failed, nobody need wait for
// its peer.
func finish(t *testing.T, programs ...*Process) []Result {
	t.Helper()
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
			for _, p := range programs {
				t.Errorf("%s", p.Report())
			}
			t.FailNow()
		}
	}
	return left
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
