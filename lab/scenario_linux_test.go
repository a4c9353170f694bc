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

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/lab/agent"
)

const (
	patience   = 2 * time.Minute // the time limit of a scenario, unless it has its own
	dmesgLines = 25
)

// scenario is a row in the table of results, or a part of one.
type scenario struct {
	family  string // the heading of its table, such as "Pingpong"
	program string // the program, or the operation
	server  string // who serves, or responds: "kernel" or "adverb"
	v6      bool
	mtu     int
	variant string // such as "65536"; variants with the same result share a row
	note    string // behind the variant in the table

	foreign  bool          // both ends are kernels: a fault is not ours, and ends the scenario with notShown
	on       *Lab          // nil means the lab of that MTU that all scenarios share
	patience time.Duration // the time limit; 0 means the constant of that name
	// check says what the packets must be like. The zero value demands that all are good.
	check packetRules
	// leftOut says why the scenario is impossible, for example by a defect of the kernel. If it is
	// set, the scenario does not run.
	leftOut string
}

// packetRules are for scenarios that damage packets on purpose, and for those that send in one
// direction only.
type packetRules struct {
	oneWay bool // one end may send nothing
	// badICRCs returns bounds for the number of packets to the guest with a wrong ICRC. It is
	// called when the scenario is over. Nil means that there are none. Packets from the guest are
	// captured before anything can damage them.
	badICRCs func() (least, most int)
	// routed says that our WRITEs have the mark of adaptive routing.
	routed bool
	// noRepeats says that every packet is taken when it first comes: none is repeated, and none refused. Probes
	// of ours do not count: see countRepeats.
	noRepeats bool
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

// run runs f as a subtest. run captures and checks the packets, and records the outcome in the
// results.
func (s scenario) run(t *testing.T, f func(ctx context.Context, t *testing.T, l *Lab)) {
	if s.leftOut != "" {
		row := s.row()
		row.verdict = "left out: " + s.leftOut
		results.add(s.family, row, s.variant+s.note)
		return
	}
	t.Run(s.name(), func(t *testing.T) {
		recordTest(t, s.family, s.row(), s.variant+s.note)
		l := s.on
		if l == nil {
			l = network(t, s.mtu)
		}
		g := l.Guest(0)
		revive(t, g)
		capture := func() (*Capture, error) { return nil, nil }
		if !s.bySiw() { // whose packets are TCP's
			capture = g.Capture
		}
		c, err := capture()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() || t.Skipped() {
				explain(t, g)
			}
		})
		// This runs after the cleanups of f, because closing connections and devices sends packets
		// too.
		if c != nil {
			t.Cleanup(func() { s.checkCapture(t, c) })
		}
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

// revive boots a guest if it is dead because an earlier scenario has failed. Otherwise all later
// scenarios would wait for the guest.
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

// kill kills a guest. At the end of the test the guest boots again, since later scenarios need it.
func kill(ctx context.Context, t *testing.T, g *Guest) {
	t.Helper()
	t.Cleanup(func() {
		if err := g.Boot(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	g.Kill()
}

// checkCapture ends a capture and checks its packets. With the flag -keep, it also writes the
// capture to a file.
func (s *scenario) checkCapture(t *testing.T, c *Capture) {
	t.Helper()
	captured, err := c.Stop()
	if *keepFlag != "" {
		var pcap bytes.Buffer
		name := filepath.Join(*keepFlag, strings.ReplaceAll(strings.ReplaceAll(t.Name(), "/", "_"), "=", "-")+".pcap")
		if err := errors.Join(WritePcap(&pcap, captured), os.MkdirAll(*keepFlag, 0o755), os.WriteFile(name, pcap.Bytes(), 0o644)); err != nil {
			t.Error(err)
		}
	}
	var faults []error
	if err != nil {
		faults = append(faults, err)
	}
	s.checkPackets(t, captured, func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) })
	if t.Failed() || faults != nil { // an unreliable program waits for what was lost, and it matters where that was
		toGuest := 0
		for _, f := range captured {
			if f.ToGuest {
				toGuest++
			}
		}
		t.Logf("captured at the guest's interface: %d frames to it, %d from it", toGuest, len(captured)-toGuest)
	}
	if *keepFlag == "" && (t.Failed() || faults != nil) {
		t.Logf("to see the packets: make lab LABFLAGS='-run %s -args -keep=DIR'", runPattern(t.Name()))
	}
	if s.foreign && faults != nil {
		notShown(t, errors.Join(faults...))
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// checkPackets calls fault for each kind of fault in the packets of a capture.
func (s *scenario) checkPackets(t *testing.T, captured []Frame, fault func(format string, args ...any)) {
	t.Helper()
	var to, from packets
	var right []Frame
	var numbers []int
	for i, f := range captured {
		_, _, err := roceIP(f.Data)
		if limit := s.mtu + etherHeader; !errors.Is(err, errNotRoCE) && len(f.Data) > limit {
			fault("frame %d has %d bytes, limit %d: it is a train of packets that nobody has cut", i+1, len(f.Data), limit)
			return
		}
		direction := &from
		if f.ToGuest {
			direction = &to
		}
		if direction.add(i+1, f.Data) {
			right, numbers = append(right, f), append(numbers, i+1)
		}
	}
	s.checkCounts(t, &to, &from, fault)
	if strange := s.strangePackets(right, numbers); len(strange) > 0 {
		fault("%d packets to the kernel are not as the standard has them, want none: %s", len(strange), strings.Join(firstOf(strange), "\n"))
	}
	if s.check.noRepeats {
		toGuest, fromGuest, naks := countRepeats(t, right)
		if toGuest+fromGuest+naks > 0 {
			fault("%d packets to the guest and %d from it were repeated, and there were %d NAKs: nothing was lost", toGuest, fromGuest, naks)
		}
	}
	var decodable bytes.Buffer
	if err := WritePcap(&decodable, right); err != nil {
		fault("%w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	faults, err := CheckTshark(ctx, decodable.Bytes(), numbers)
	if err != nil {
		fault("%w", err)
	}
	if len(faults) > 0 {
		fault("tshark finds %d faults in %d RoCE packets, want none: %s", len(faults), len(right), strings.Join(firstOf(faults), "\n"))
	}
}

// strangePackets returns the deviations from the standard in packets from us to a kernel. Between
// two ends of ours such packets are right, and those between two kernels are not ours.
func (s *scenario) strangePackets(frames []Frame, numbers []int) (strange []string) {
	if s.family == ownGuestFamily || s.foreign {
		return nil
	}
	for i, f := range frames {
		if !f.ToGuest {
			continue
		}
		if err := checkStandard(f.Data, s.check.routed, s.check.badICRCs != nil); err != nil {
			strange = append(strange, fmt.Sprintf("frame %d: %v", numbers[i], err))
		}
	}
	return strange
}

// checkCounts checks the numbers of packets to and from the guest.
func (s *scenario) checkCounts(t *testing.T, to, from *packets, fault func(format string, args ...any)) {
	t.Helper()
	least, most := 0, 0
	if s.check.badICRCs != nil {
		least, most = s.check.badICRCs()
	}
	if n := len(to.wrong); n < least || n > most {
		fault("%d bad ICRCs to the guest, want %d to %d: %s", n, least, most, strings.Join(firstOf(to.wrong), "\n"))
	}
	if n := len(from.wrong); n > 0 {
		fault("%d bad ICRCs from the guest, want none: %s", n, strings.Join(firstOf(from.wrong), "\n"))
	}
	if s.check.oneWay && to.count()+from.count() > 0 || t.Skipped() {
		return
	}
	if to.count() == 0 {
		fault("no RoCE packet went to the guest, want some")
	}
	if from.count() == 0 {
		fault("no RoCE packet came from the guest, want some")
	}
}

// probeSilence is for how long our QP has sent nothing, at least, before it sends a probe.
const probeSilence = 3 * time.Millisecond

// countRepeats counts the requests of RC that were on the wire before, and the NAKs of either end. A probe of our
// end is none: one packet, after some silence, which asks a peer that acknowledges late whether it has come. How
// late an emulated guest does is up to the machine. Whoever repeats because of a NAK does so at once, and whoever
// repeats because of a timeout sends more than the first.
func countRepeats(t *testing.T, frames []Frame) (toGuest, fromGuest, naks int) {
	t.Helper()
	type request struct {
		toGuest bool
		qpn     uint32
		psn     wire.PSN
	}
	seen := map[request]bool{}
	latest := map[uint32]time.Time{} // packet to a QP of the guest
	for _, f := range frames {
		ip, header, err := roceIP(f.Data)
		if err != nil {
			t.Error(err)
			continue
		}
		var p wire.Packet
		if err := p.Decode(ip[header+udpHeader:]); err != nil {
			t.Error(err)
			continue
		}
		if p.Opcode == wire.RCAcknowledge && p.AETH.Syndrome.Kind() != wire.KindACK {
			naks++
		}
		if p.Opcode.Service() != wire.ServiceRC || !p.Opcode.IsRequest() {
			continue
		}
		r := request{f.ToGuest, p.DestQP, p.PSN}
		silence := time.Duration(0)
		if f.ToGuest {
			silence = f.Time.Sub(latest[p.DestQP])
			latest[p.DestQP] = f.Time
		}
		switch {
		case !seen[r]:
			seen[r] = true
		case f.ToGuest && silence < probeSilence:
			toGuest++
		case f.ToGuest:
		default:
			fromGuest++
		}
	}
	return toGuest, fromGuest, naks
}

// runPattern returns a pattern for -run that matches a test's name. Its characters have no meaning
// to make and to shells.
func runPattern(name string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/_=-,:", r) {
			return r
		}
		return '.'
	}, name)
}

// explain logs the end of the guest's kernel log.
func explain(t *testing.T, g *Guest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := g.Run(ctx, "dmesg")
	if err != nil {
		t.Logf("%v does not answer: %v; its console: %s", g, err, tail(g.Console(), dmesgLines))
		return
	}
	if _, since, _ := strings.Cut(out, g.Device+": added"); since != "\n" { // messages of the boot are left out
		t.Logf("the kernel of %v: %s", g, tail(since, dmesgLines))
	}
	for _, file := range []string{"/proc/net/dev", "/proc/net/snmp"} { // the kernel's counts of dropped packets
		if out, err := g.Run(ctx, "cat", file); err == nil {
			t.Logf("%s of %v since it was booted: %s", file, g, out)
		}
	}
}

// start starts a program, which is killed when the scenario ends. If the program cannot be started,
// the test fails.
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

// ends waits until programs have ended. It returns an error as soon as one of them has failed,
// since its peer may then wait for ever.
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

// sides returns the server's side and the client's side.
func sides(l *Lab, server string) (srv, client Side) {
	if server == "kernel" {
		return l.Guest(0), l.Host()
	}
	return l.Host(), l.Guest(0)
}

var lastPort atomic.Int32

// nextPort returns a TCP port that no earlier scenario has used, so that nothing of theirs can
// linger there.
func nextPort() string {
	const first = 20000
	return fmt.Sprint(first + lastPort.Add(1))
}
