package verbstest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// Case is a script for two sides.
type Case struct {
	Name  string     // such as "rc/send"
	Needs Capability // the case is skipped on devices that lack one of these
	A, B  func(*Side)
}

// Capability is something that not every device offers.
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
	CM       // programs may have QP1, or the kernel connects for them, so package rdmacm works
	ByHand   // QPs go through their states by QP.Modify; on iWARP the connection manager takes them to RTS
	ResizeCQ // CQ.Resize works

	AtomicWrites    // ATOMIC WRITE
	FlushGlobal     // FLUSH that makes data visible
	FlushPersistent // FLUSH to storage
	XRC             // extended reliable connections
	XRCFlush        // FLUSH by XRC, which devices may lack that have both

	// What InfiniBand and RoCE have, and iWARP has not.

	Acknowledged // a SEND or WRITE completes when the peer has it, so that its completion tells of a refusal
	SendImm      // SEND with immediate data
	RNR          // a message waits until the peer has posted a receive
	SQD          // send queues can be drained

	// The guarantees that a device declares in DeviceAttr.Guarantees.

	ExactEvents     // verbs.GuaranteeExactEvents
	LastWordLast    // verbs.GuaranteeLastWordLast
	OverrunStatus   // verbs.GuaranteeOverrunStatus
	ResponderEvents // verbs.GuaranteeResponderEvents
	DatagramLimit   // verbs.GuaranteeDatagramLimit
	ExactStatus     // verbs.GuaranteeExactStatus: without it a failure may have any status but WCFlushErr

	Timestamps // completions tell when they came

	// All is every capability.
	All Capability = 1<<iota - 1
)

var capabilityNames = []string{
	"UC", "UD", "SRQ", "MWType1", "MWType2", "Multicast", "Atomics", "Rereg", "CM", "ByHand", "ResizeCQ",
	"AtomicWrites", "FlushGlobal", "FlushPersistent", "XRC", "XRCFlush",
	"Acknowledged", "SendImm", "RNR", "SQD",
	"ExactEvents", "LastWordLast", "OverrunStatus", "ResponderEvents", "DatagramLimit", "ExactStatus",
	"Timestamps",
}

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
	// Open opens the devices of one case. The case closes them. If Open makes anything else, it
	// registers the end of that with t.Cleanup. The two may be the same device, opened twice, but
	// not the same Device: each side waits for asynchronous events of its own. RunAcross does not
	// use Open.
	Open func(t testing.TB) (a, b *verbs.Device)

	Port     int        // of both devices; 0 stands for 1
	GIDIndex int        // of both devices
	Require  Capability // a case that lacks one of these fails, and is not skipped
	Cases    []Case     // nil stands for Cases()
	MLID     uint16     // of the multicast groups of the cases, on InfiniBand: one that the subnet manager has given; 0: none
	Secured  bool       // RC and UC QPs that are connected by hand encrypt their packets: see verbs.QP.SetSecurity
	Seed     uint64     // of the PSNs that QPs begin with; 0 stands for a random one. A failure prints it
}

func (c *Config) settings() settings {
	seed := c.Seed
	for seed == 0 {
		seed = rand.Uint64()
	}
	return settings{Port: max(1, c.Port), GIDIndex: c.GIDIndex, Require: c.Require, MLID: c.MLID, Secured: c.Secured, Seed: seed}
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
		deviceCases, objectCases, stateCases, rcCases, orderCases, atomicCases, placementCases, errorCases, loadCases, cqCases, cqAttrCases, eventCases,
		mrCases, ucCases, udCases, multicastCases, srqCases, xrcCases, mwCases, mw2Cases, cmCases,
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
	set := c.settings()
	each(t, c.cases(), set.Seed, func(t *testing.T, cs Case) result {
		x, y := c.Open(t)
		return runPair(cs, set, x, y)
	})
}

// each runs cases as subtests and says in the end how many were skipped.
func each(t *testing.T, cases []Case, seed uint64, run func(*testing.T, Case) result) {
	t.Helper()
	var skipped []string
	for _, cs := range cases {
		t.Run(cs.Name, func(t *testing.T) {
			r := run(t, cs)
			if r.outcome == skipped_ {
				skipped = append(skipped, cs.Name)
			}
			r.report(t)
			if t.Failed() {
				t.Logf("verbstest: the seed was %d (Config.Seed)", seed)
			}
		})
	}
	if len(skipped) > 0 {
		t.Logf("verbstest: %d of %d cases were skipped: %s", len(skipped), len(cases), strings.Join(skipped, ", "))
	}
}

// outcome is how a side, or a case, ended. The outcome of a case is the greater one of its sides'.
type outcome int

const (
	passed   outcome = iota
	stopped          // because the other side failed or skipped
	skipped_         // the underscore sets it apart from the list in each
	failed
)

// result is how a case ended, with the lines that its sides have written.
type result struct {
	outcome outcome
	lines   []string
}

func (r result) and(o result) result {
	return result{max(r.outcome, o.outcome), append(r.lines, o.lines...)}
}

// hasFailed reports whether a side has failed, or both have stopped: objects may be left behind.
func (r result) hasFailed() bool { return r.outcome == stopped || r.outcome == failed }

func (r result) report(t testing.TB) {
	t.Helper()
	text := strings.Join(r.lines, "\n")
	switch r.outcome {
	case failed:
		t.Errorf("%s", text)
	case stopped: // both sides, each because the other did
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

// closing closes a device. Nothing may be open on it.
func closing(d *verbs.Device) result {
	if err := d.Close(); err != nil {
		return result{failed, []string{"at the end: " + err.Error()}}
	}
	return result{}
}

// lacks returns the first of the needed capabilities that the device's attributes deny, with an error
// that names the attribute. It returns no error for the capabilities that show only when they are used.
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
		{XRC, attr.DeviceCapFlags&verbs.DeviceXRC != 0, "no XRC"},
		{AtomicWrites, attr.DeviceCapFlagsEx&verbs.DeviceAtomicWrite != 0, "no ATOMIC_WRITE"},
		{FlushGlobal, attr.DeviceCapFlagsEx&verbs.DeviceFlushGlobal != 0, "no FLUSH_GLOBAL"},
		{FlushPersistent, attr.DeviceCapFlagsEx&verbs.DeviceFlushPersistent != 0, "no FLUSH_PERSISTENT"},
		{SRQ, attr.MaxSRQ > 0, "max_srq is 0"},
		{Multicast, attr.MaxMcastGrp > 0, "max_mcast_grp is 0"},
		{MWType1, attr.DeviceCapFlags&verbs.DeviceMemWindow != 0, "no MEM_WINDOW"},
		{MWType2, attr.DeviceCapFlags&verbs.DeviceMemWindowType2B != 0, "no MEM_WINDOW_TYPE_2B"},
		{UC, d.Info().Transport != verbs.TransportIWARP, "iWARP has RC QPs only"},
		{UD, d.Info().Transport != verbs.TransportIWARP, "iWARP has RC QPs only"},
		{ByHand, d.Info().Transport != verbs.TransportIWARP, "on iWARP the connection manager connects QPs"},
		{Acknowledged, d.Info().Transport != verbs.TransportIWARP, "on iWARP a message is complete when TCP has it"},
		{SendImm, d.Info().Transport != verbs.TransportIWARP, "iWARP has no SEND with immediate data"},
		{RNR, d.Info().Transport != verbs.TransportIWARP, "on iWARP a message that finds no receive ends the connection"},
		{SQD, d.Info().Transport != verbs.TransportIWARP, "iWARP has no state SQD"},
		{ExactEvents, attr.Guarantees&verbs.GuaranteeExactEvents != 0, "it does not guarantee EXACT_EVENTS"},
		{LastWordLast, attr.Guarantees&verbs.GuaranteeLastWordLast != 0, "it does not guarantee LAST_WORD_LAST"},
		{OverrunStatus, attr.Guarantees&verbs.GuaranteeOverrunStatus != 0, "it does not guarantee OVERRUN_STATUS"},
		{ResponderEvents, attr.Guarantees&verbs.GuaranteeResponderEvents != 0, "it does not guarantee RESPONDER_EVENTS"},
		{DatagramLimit, attr.Guarantees&verbs.GuaranteeDatagramLimit != 0, "it does not guarantee DATAGRAM_LIMIT"},
		{ExactStatus, attr.Guarantees&verbs.GuaranteeExactStatus != 0, "it does not guarantee EXACT_STATUS"},
		{Timestamps, attr.TimestampMask != 0, "completion_timestamp_mask is 0"},
	} {
		if needs&c.is != 0 && !c.have {
			return c.is, fmt.Errorf("%s: %s", d.Name(), c.attr)
		}
	}
	return 0, nil
}
