package verbstest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// foreign is a simulated device that says of itself what devices of another kind say.
type foreign struct {
	verbs.ProviderDevice
	transport verbs.Transport
	attr      func(*verbs.DeviceAttr)
	link      verbs.LinkLayer
	lid       uint16
	loose     bool // it keeps none of the guarantees that cases ask for
}

func (f *foreign) CreateCQ(entries int, cq *verbs.CQ) (verbs.ProviderCQ, error) {
	p, err := f.ProviderDevice.CreateCQ(entries, cq)
	if err != nil || !f.loose {
		return p, err
	}
	return &looseCQ{ProviderCQ: p, user: cq}, nil
}

func (f *foreign) AllocPD() (verbs.ProviderPD, error) {
	p, err := f.ProviderDevice.AllocPD()
	if err != nil || !f.loose {
		return p, err
	}
	return loosePD{p}, nil
}

// looseCQ raises an event when it is armed while a completion waits.
type looseCQ struct {
	verbs.ProviderCQ
	user *verbs.CQ

	mu    sync.Mutex
	taken []verbs.WC // from the queue, to see whether one waits
}

func (c *looseCQ) Poll(wcs []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wcs, c.taken)
	c.taken = c.taken[n:]
	m, err := c.ProviderCQ.Poll(wcs[n:])
	return n + m, err
}

func (c *looseCQ) Arm(solicitedOnly bool) error {
	if err := c.ProviderCQ.Arm(solicitedOnly); err != nil {
		return err
	}
	c.mu.Lock()
	var wcs [1]verbs.WC
	n, err := c.ProviderCQ.Poll(wcs[:])
	c.taken = append(c.taken, wcs[:n]...)
	waits := len(c.taken) > 0
	c.mu.Unlock()
	if waits {
		c.user.Notified()
	}
	return err
}

type loosePD struct{ verbs.ProviderPD }

func (p loosePD) CreateQP(attr *verbs.ProviderQPInitAttr, qp *verbs.QP) (verbs.ProviderQP, error) {
	inner := *attr
	inner.SendCQ, inner.RecvCQ = attr.SendCQ.(*looseCQ).ProviderCQ, attr.RecvCQ.(*looseCQ).ProviderCQ
	q, err := p.ProviderPD.CreateQP(&inner, qp)
	attr.Cap = inner.Cap
	return looseQP{q}, err
}

// looseQP takes datagrams of any length, and loses those that are too long.
type looseQP struct{ verbs.ProviderQP }

func (q looseQP) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.ProviderQP.PostSend(wrs)
	if n == len(wrs)-1 && errors.Is(err, verbs.ErrLimit) {
		return len(wrs), nil
	}
	return n, err
}

func (f *foreign) Info() verbs.DeviceInfo {
	i := f.ProviderDevice.Info()
	i.Transport = f.transport
	return i
}

func (f *foreign) Query() (verbs.DeviceAttr, error) {
	a, err := f.ProviderDevice.Query()
	a.DeviceCapFlagsEx &^= verbs.DeviceFlushPersistent // it maps no files
	a.DeviceCapFlags &^= verbs.DeviceXRC               // nor has it domains
	if f.attr != nil {
		f.attr(&a)
	}
	return a, err
}

func (f *foreign) QueryPort(port int) (verbs.PortAttr, error) {
	a, err := f.ProviderDevice.QueryPort(port)
	a.LinkLayer, a.LID = f.link, f.lid
	return a, err
}

// TestForeignDevices plays the suite on devices that say they are of other kinds: cases ask for what
// they need, and skip; none fails. What is listed is skipped, and nothing else.
func TestForeignDevices(t *testing.T) {
	promisesNothing := func(a *verbs.DeviceAttr) { a.Guarantees, a.MaxInline = 0, verbs.MaxInlineUnknown }
	for _, tt := range []struct {
		name    string
		device  foreign
		skipped []string // names, and groups with a slash behind
		plays   []string // the exceptions in these groups
		not     []string // prefixes of cases for which the simulated device is not enough of another kind
	}{
		{"a card", foreign{attr: promisesNothing, link: verbs.LinkLayerEthernet, loose: true},
			[]string{"rc/watching memory", "cq/exact events", "cq/resize", "cq/overflow", "cq/timestamps", "cm/", "rc/flush to a file", "xrc/"}, nil,
			[]string{"mr/rereg"}}, // it knows the PDs of its own kind alone
		{"InfiniBand", foreign{link: verbs.LinkLayerInfiniBand, lid: 5},
			[]string{"ud/multicast", "ud/multicast to many QPs", "ud/multicast errors", "cq/timestamps", "cm/", "rc/flush to a file", "xrc/"}, nil,
			[]string{"ud/send and answer"}}, // its completions do not bear the sender's LID
		{"iWARP", foreign{transport: verbs.TransportIWARP, link: verbs.LinkLayerEthernet},
			[]string{"state/", "rc/", "uc/", "ud/", "srq/", "mw/", "event/", "cq/", "mr/", "xrc/"},
			[]string{"mr/slices", "mr/rereg errors", "mr/rereg keeps addresses", "mw/arguments", "event/waiting in vain"},
			[]string{"srq/attributes", "cm/"}}, // its QPs want a P_Key index, and its CM QP1
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cs := range Cases() {
				if slices.ContainsFunc(tt.not, func(n string) bool { return strings.HasPrefix(cs.Name, n) }) {
					continue
				}
				t.Run(cs.Name, func(t *testing.T) {
					config := rdmatest.Config{}
					if cs.Name == "ud/too large" {
						config.MTU = 1500 // so that a datagram can be too large for the port, and not for verbs
					}
					net := rdmatest.New(t, config)
					device := func() *verbs.Device {
						f := tt.device
						f.ProviderDevice = net.Device().Provider()
						return verbs.NewDevice(&f)
					}
					r := runPair(cs, settings{Port: 1, Seed: 1}, device(), device())
					group, _, _ := strings.Cut(cs.Name, "/")
					want := passed
					if slices.Contains(tt.skipped, cs.Name) || slices.Contains(tt.skipped, group+"/") && !slices.Contains(tt.plays, cs.Name) {
						want = skipped_
					}
					checkResult(t, r, want, nil)
				})
			}
		})
	}
}

// A device that promises what it does not keep fails the cases that look.
func TestGuaranteeBroken(t *testing.T) {
	for name, text := range map[string]string{
		"cq/exact events": "an event of the CQ for a completion from before Notify, want none",
		"ud/too large":    "a datagram larger than the MTU: got error <nil>",
	} {
		net := rdmatest.New(t, rdmatest.Config{MTU: 1500}) // below the limit of all devices, which verbs checks
		device := func() *verbs.Device {
			return verbs.NewDevice(&foreign{ProviderDevice: net.Device().Provider(), link: verbs.LinkLayerEthernet, loose: true})
		}
		i := slices.IndexFunc(Cases(), func(cs Case) bool { return cs.Name == name })
		checkResult(t, runPair(Cases()[i], settings{Port: 1, Seed: 1}, device(), device()), failed, []string{text})
	}
}

// TestExactStatus: a failure has its own status if the devices of both ends promise so; otherwise any but that of success and
// that of a flushed one.
func TestExactStatus(t *testing.T) {
	for _, tt := range []struct {
		ours, theirs bool
		got          verbs.WCStatus
		want         []verbs.WCStatus
		is           bool
	}{
		{true, true, verbs.WCLocProtErr, []verbs.WCStatus{verbs.WCLocLenErr, verbs.WCLocProtErr}, true},
		{true, true, verbs.WCLocQPOpErr, []verbs.WCStatus{verbs.WCLocProtErr}, false},
		{false, true, verbs.WCLocQPOpErr, []verbs.WCStatus{verbs.WCLocProtErr}, true},
		{true, false, verbs.WCLocQPOpErr, []verbs.WCStatus{verbs.WCLocProtErr}, true},
		{false, false, verbs.WCSuccess, []verbs.WCStatus{verbs.WCLocProtErr}, false},
		{false, false, verbs.WCFlushErr, []verbs.WCStatus{verbs.WCLocProtErr}, false},
		{false, false, verbs.WCLocProtErr, []verbs.WCStatus{verbs.WCFlushErr}, false},
		{false, false, verbs.WCFlushErr, []verbs.WCStatus{verbs.WCFlushErr}, true},
	} {
		d := verbs.NewDevice(&foreign{ProviderDevice: rdmatest.New(t).Device().Provider(), attr: func(a *verbs.DeviceAttr) {
			if !tt.ours {
				a.Guarantees &^= verbs.GuaranteeExactStatus
			}
		}})
		e := &end{Side: newSide("A", settings{}, d), to: peer{Peer: verbs.Peer{QPN: 1}, Exact: tt.theirs}}
		if is := e.isStatus(tt.got, tt.want...); is != tt.is {
			t.Errorf("promised here %v, there %v: %v in place of %v passes: %v, want %v", tt.ours, tt.theirs, tt.got, tt.want, is, tt.is)
		}
	}
}

// What a device does not promise fails a case that is required to find it.
func TestGuaranteeRequired(t *testing.T) {
	for _, c := range []struct {
		needs Capability
		play  func(*Side)
	}{
		{OverrunStatus, nothing},
		{0, func(s *Side) { s.has(OverrunStatus) }},
	} {
		for require, want := range map[Capability]outcome{OverrunStatus: failed, ExactEvents: passed} {
			if c.needs != 0 && want == passed {
				want = skipped_
			}
			net := rdmatest.New(t)
			device := func() *verbs.Device {
				return verbs.NewDevice(&foreign{ProviderDevice: net.Device().Provider(), link: verbs.LinkLayerEthernet,
					attr: func(a *verbs.DeviceAttr) { a.Guarantees &^= verbs.GuaranteeOverrunStatus }})
			}
			r := runPair(both("x/y", c.needs, c.play), settings{Port: 1, Require: require}, device(), device())
			texts := []string{"does not guarantee OVERRUN_STATUS"}
			if want == passed {
				texts = nil
			}
			checkResult(t, r, want, texts)
		}
	}
}
