package verbstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// Case is a script for two sides.
type Case struct {
	Name  string     // such as "rc/send"
	Needs Capability // without one of them the case is skipped
	A, B  func(*Side)
}

// Capability is what not every device offers.
type Capability uint32

// The capabilities.
const (
	UC Capability = 1 << iota
	UD
	SRQ
	MWType1
	MWType2
	Multicast
	Atomics
	Rereg
	CM // QP1 is to be had, and with it package rdmacm

	// All is every capability.
	All Capability = 1<<iota - 1
)

var capabilityNames = []string{"UC", "UD", "SRQ", "MWType1", "MWType2", "Multicast", "Atomics", "Rereg", "CM"}

// String joins the names of the capabilities by "|".
func (c Capability) String() string {
	var s []string
	for i, n := range capabilityNames {
		if c>>i&1 != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, "|")
}

// Config says what the suite runs on.
type Config struct {
	// Open opens the devices of a case, which closes them; whatever else Open made it gives to
	// t.Cleanup. The devices may be one that was opened twice, but not one Device: each has
	// asynchronous events of its own. RunAcross does without.
	Open func(t testing.TB) (a, b *verbs.Device)

	Port     int        // of both devices; 0 stands for 1
	GIDIndex int        // of both devices
	Require  Capability // a case fails, and is not skipped, if the device lacks one of these
	Cases    []Case     // nil: Cases()
}

func (c *Config) settings() settings {
	return settings{Port: max(1, c.Port), GIDIndex: c.GIDIndex, Require: c.Require}
}

func (c *Config) cases() []Case {
	if c.Cases == nil {
		return Cases()
	}
	return c.Cases
}

// Cases returns the suite.
func Cases() []Case {
	var all []Case
	for _, cs := range [][]Case{
		deviceCases, objectCases, stateCases, rcCases, orderCases, atomicCases, errorCases, loadCases, cqCases, eventCases,
		mrCases, ucCases, udCases, multicastCases, srqCases, mwCases, mw2Cases, cmCases,
	} {
		all = append(all, cs...)
	}
	return all
}

// Run runs the suite, each case as a subtest, with both sides in this process.
func Run(t *testing.T, c Config) {
	t.Helper()
	if c.Open == nil {
		t.Fatal("verbstest: Config.Open is nil")
	}
	each(t, c.cases(), func(t *testing.T, cs Case) result {
		x, y := c.Open(t)
		return runPair(cs, c.settings(), x, y)
	})
}

// each runs cases as subtests and says in the end how many were skipped.
func each(t *testing.T, cases []Case, run func(*testing.T, Case) result) {
	t.Helper()
	var skipped []string
	for _, cs := range cases {
		t.Run(cs.Name, func(t *testing.T) {
			r := run(t, cs)
			if r.outcome == skipped_ {
				skipped = append(skipped, cs.Name)
			}
			r.report(t)
		})
	}
	if len(skipped) > 0 {
		t.Logf("verbstest: %d of %d cases were skipped: %s", len(skipped), len(cases), strings.Join(skipped, ", "))
	}
}

// outcome is how a side, or a case, ended. The greater one of two sides' holds for the case.
type outcome int

const (
	passed   outcome = iota
	stopped          // because the other side failed or skipped
	skipped_         // skipped is a name above
	failed
)

// result is how a case ended, with what its sides had to say.
type result struct {
	outcome outcome
	lines   []string
}

func (r result) and(o result) result {
	return result{max(r.outcome, o.outcome), append(r.lines, o.lines...)}
}

func (r result) report(t testing.TB) {
	t.Helper()
	text := strings.Join(r.lines, "\n")
	switch r.outcome {
	case failed:
		t.Errorf("%s", text)
	case stopped: // both sides, each on the other's account
		t.Errorf("both sides stopped\n%s", text)
	case skipped_:
		t.Skip(text)
	default:
		if text != "" {
			t.Log(text)
		}
	}
}

// runPair runs both sides of a case in this process, and closes the devices.
func runPair(cs Case, set settings, x, y *verbs.Device) result {
	if x == y {
		return result{failed, []string{"verbstest: a case needs two Devices, if only one that is opened twice"}}
	}
	a, b := newSide("A", set, x), newSide("B", set, y)
	a.out = func(m message) error { b.deliver(m); return nil }
	b.out = func(m message) error { a.deliver(m); return nil }
	done := make(chan result)
	go func() { done <- b.run(cs.Needs, cs.B) }()
	r := a.run(cs.Needs, cs.A)
	return r.and(<-done).and(closing(x)).and(closing(y))
}

// closing closes a device, on which nothing may be left.
func closing(d *verbs.Device) result {
	if err := d.Close(); err != nil {
		return result{failed, []string{"at the end: " + err.Error()}}
	}
	return result{}
}

// lacks says which of the needed capabilities the device's attributes deny.
func lacks(d *verbs.Device, needs Capability) (Capability, error) {
	attr, err := d.Query()
	if err != nil {
		return 0, err
	}
	for _, c := range []struct {
		is   Capability
		have bool
		attr string
	}{
		{Atomics, attr.AtomicCap != verbs.AtomicNone, "atomic_cap is ATOMIC_NONE"},
		{SRQ, attr.MaxSRQ > 0, "max_srq is 0"},
		{Multicast, attr.MaxMcastGrp > 0, "max_mcast_grp is 0"},
		{MWType1, attr.DeviceCapFlags&verbs.DeviceMemWindow != 0, "no MEM_WINDOW"},
		{MWType2, attr.DeviceCapFlags&verbs.DeviceMemWindowType2B != 0, "no MEM_WINDOW_TYPE_2B"},
	} {
		if needs&c.is != 0 && !c.have {
			return c.is, fmt.Errorf("%s: %s", d.Name(), c.attr)
		}
	}
	return 0, nil
}
