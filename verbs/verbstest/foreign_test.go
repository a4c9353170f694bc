package verbstest

import (
	"slices"
	"strings"
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
}

func (f *foreign) Info() verbs.DeviceInfo {
	i := f.ProviderDevice.Info()
	i.Transport = f.transport
	return i
}

func (f *foreign) Query() (verbs.DeviceAttr, error) {
	a, err := f.ProviderDevice.Query()
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
		not     []string // cases for which the simulated device is not enough of another kind
	}{
		{"a card", foreign{attr: promisesNothing, link: verbs.LinkLayerEthernet},
			[]string{"rc/watching memory", "cq/resize", "cq/overflow", "cm/"}, nil, nil},
		{"InfiniBand", foreign{link: verbs.LinkLayerInfiniBand, lid: 5},
			[]string{"ud/multicast", "ud/multicast to many QPs", "ud/multicast errors", "cm/"}, nil,
			[]string{"ud/send and answer"}}, // its completions do not bear the sender's LID
		{"iWARP", foreign{transport: verbs.TransportIWARP, link: verbs.LinkLayerEthernet},
			[]string{"state/", "rc/", "uc/", "ud/", "srq/", "mw/", "event/", "cq/", "mr/", "cm/"},
			[]string{"mr/slices", "mr/rereg errors", "mr/rereg keeps addresses", "mw/arguments", "event/waiting in vain"},
			[]string{"srq/attributes"}}, // its QPs want a P_Key index
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cs := range Cases() {
				if slices.Contains(tt.not, cs.Name) {
					continue
				}
				t.Run(cs.Name, func(t *testing.T) {
					net := rdmatest.New(t)
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
