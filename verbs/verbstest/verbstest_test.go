package verbstest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// noDevice is a name that openAlone does not open.
const noDevice = "none"

func TestMain(m *testing.M) {
	Main(openAlone)
	os.Exit(m.Run())
}

// openAlone opens a device on a network of its own: enough for cases that send nothing.
func openAlone(name string) (*verbs.Device, error) {
	if name == noDevice {
		return nil, errors.New("no such device, as the test wants it")
	}
	addr := netip.AddrFrom4([4]byte{10, 0, 0, 1})
	p, err := hca.Open(sim.New(sim.Config{}).Netdev(name, addr), hca.Config{Name: name})
	if err != nil {
		return nil, err
	}
	return verbs.NewDevice(p), nil
}

func nothing(*Side) {}

// TestOutcomes plays cases that end in every way a side can.
func TestOutcomes(t *testing.T) {
	unsupported := fmt.Errorf("this test's: %w", verbs.ErrUnsupported)
	for _, tt := range []struct {
		name    string
		c       Case
		require Capability
		want    outcome
		texts   []string // "!" before one that must not be there
	}{
		{"passes", Case{A: nothing, B: nothing}, 0, passed, nil},
		{"one side has no script", Case{A: nothing}, 0, passed, nil},
		{"an exchange", Case{
			A: func(s *Side) { want(s, "theirs", Exchange(s, 1), 2); s.Barrier() },
			B: func(s *Side) { want(s, "theirs", Exchange(s, 2), 1); s.Barrier() },
		}, 0, passed, nil},
		{"A fails", Case{A: func(s *Side) { s.Fatalf("broken") }, B: func(s *Side) { s.Barrier() }}, 0, failed,
			[]string{"A verbstest_test.go:", "broken", "stopped, as the other side did"}},
		{"B fails and goes on", Case{A: nothing, B: func(s *Side) { s.Errorf("one"); s.Errorf("two") }}, 0, failed,
			[]string{"B verbstest_test.go:", "one", "two", "!stopped"}},
		{"B waits for what A does not send", Case{
			A: func(s *Side) { s.Fatalf("broken") },
			B: func(s *Side) { s.next(s.createCQ(1)) },
		}, 0, failed, []string{"broken", "stopped, as the other side did"}},
		{"B panics", Case{A: nothing, B: func(s *Side) { panic("oh") }}, 0, failed, []string{"panic: oh", "verbstest_test.go"}},
		{"an error that is nil", Case{A: func(s *Side) { s.wantErr("it", nil, verbs.ErrBusy) }}, 0, failed, []string{"it: got error <nil>"}},
		{"an error of another kind", Case{A: func(s *Side) { s.wantErr("it", &verbs.OpError{Err: verbs.ErrState}, verbs.ErrBusy) }}, 0, failed, []string{"it: got error"}},
		{"an error that is no OpError", Case{A: func(s *Side) { s.wantErr("it", verbs.ErrBusy, verbs.ErrBusy) }}, 0, failed, []string{"want an OpError"}},
		{"data that differ", Case{A: func(s *Side) {
			b := make([]byte, 100)
			fill(b, 1)
			s.verify("same", b, 1)
			b[99]++
			s.verify("data", b, 1)
		}}, 0, failed, []string{"data: 100 bytes, want 100, differ from byte 99 on", "!same"}},
		{"a guard that was touched", Case{A: func(s *Side) {
			b := make([]byte, 9)
			paint(b)
			s.untouched("same", b)
			b[8] = 0
			s.untouched("guard", b)
		}}, 0, failed, []string{"guard: byte 8 of 9 was touched", "!same"}},
		{"out of step", Case{A: func(s *Side) { Exchange(s, 1) }, B: nothing}, 0, failed, []string{"out of step: this side is at 1, int, the other at 1, Barrier"}},
		{"a capability is missing", Case{A: func(s *Side) { s.need(UD, unsupported) }, B: func(s *Side) { s.Barrier() }}, All &^ UD, skipped_,
			[]string{"the device has no UD", "this test's"}},
		{"a capability is missing and required", Case{A: nothing, B: func(s *Side) { s.need(UD, unsupported) }}, UD, failed, []string{"UD is required", "this test's"}},
		{"another error where a capability is needed", Case{A: func(s *Side) { s.need(UD, verbs.ErrLimit) }}, 0, failed, []string{"limit exceeded"}},
		{"something is left open", Case{A: func(s *Side) {
			if _, err := s.Device.AllocPD(); err != nil {
				s.Fatalf("%v", err)
			}
		}}, 0, failed, []string{"at the end: close device sim0: still in use by pd 1"}},
		{"what is made is closed, last first", Case{A: func(s *Side) {
			e := s.newEnd(setup{})
			e.mr(10)
		}}, 0, passed, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			net := rdmatest.New(t)
			start := time.Now()
			r := runPair(tt.c, settings{Port: 1, Require: tt.require}, net.Device(), net.Device())
			if took := time.Since(start); took > Patience/2 {
				t.Errorf("took %v: the sides do not hear of each other's end, want them to, within %v", took, Patience/2)
			}
			checkResult(t, r, tt.want, tt.texts)
		})
	}
}

func checkResult(t *testing.T, r result, want outcome, texts []string) {
	t.Helper()
	text := strings.Join(r.lines, "\n")
	if r.outcome != want {
		t.Errorf("outcome %d, want %d:\n%s", r.outcome, want, text)
	}
	for _, w := range texts {
		if w, not := strings.CutPrefix(w, "!"); strings.Contains(text, w) == not {
			t.Errorf("has %q: %v, want %v:\n%s", w, not, !not, text)
		}
	}
}

// One Device cannot be both sides': its events would go to either.
func TestOneDevice(t *testing.T) {
	d := rdmatest.New(t).Device()
	checkResult(t, runPair(Case{}, settings{Port: 1}, d, d), failed, []string{"two Devices"})
}

// TestOtherProcess plays B in children, of which one has no device.
func TestOtherProcess(t *testing.T) {
	there, err := startChild("there")
	if err != nil {
		t.Fatal(err)
	}
	absent, err := startChild(noDevice)
	if err != nil {
		t.Fatal(err)
	}
	play := func(c *child, cs Case) result {
		t.Helper()
		d, err := openAlone("here")
		if err != nil {
			t.Fatal(err)
		}
		r := c.play(cs, settings{Port: 1}, d, false)
		return r.and(closing(d))
	}
	cs := deviceCases[0]
	checkResult(t, play(there, cs), passed, nil)
	checkResult(t, play(absent, cs), failed, []string{"B: its process has ended", "no such device, as the test wants it"})
	checkResult(t, play(there, Case{Name: "nosuch", A: nothing}), failed, []string{"B", "no case of this name"})
	cs.A = func(s *Side) { s.Fatalf("broken") }
	checkResult(t, play(there, cs), failed, []string{"A verbstest_test.go:", "broken", "B", "stopped, as the other side did"})
	cs.A = func(s *Side) { s.Skipf("not today") }
	checkResult(t, play(there, cs), skipped_, []string{"not today"})
	if err := there.end(); err != nil {
		t.Error(err)
	}
}

func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if c.Name == "" || seen[c.Name] || strings.Count(c.Name, "/") != 1 {
			t.Errorf("case %q: names are unique and have a group, want one like \"group/case\"", c.Name)
		}
		if c.A == nil && c.B == nil || c.Needs&^All != 0 {
			t.Errorf("case %q has no script or needs what is not known: %v, want a script, and needs of All", c.Name, c.Needs)
		}
		seen[c.Name] = true
	}
	if !seen[warmUp] {
		t.Errorf("there is no case %q, want it", warmUp)
	}
	if s := (UC | Atomics).String(); s != "UC|Atomics" {
		t.Errorf("UC|Atomics prints as %q, want the same", s)
	}
	if strings.Count(All.String(), "|") != len(capabilityNames)-1 {
		t.Errorf("All is %v, want %d names", All, len(capabilityNames))
	}
}
