// Package bare tests the registry of package verbs in a program that imports no provider.
package bare

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// shelf is a provider of the simulated devices that a test puts on it.
type shelf struct {
	mu       sync.Mutex
	devs     []verbs.ProviderDevice
	listErr  error // of Devices, beside the devices
	openErr  error // of Open, for a name that is not on the shelf; nil stands for ErrNotFound
	lastOpen string
}

func (s *shelf) Devices() (all []verbs.DeviceInfo, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devs {
		all = append(all, d.Info())
	}
	return all, s.listErr
}

func (s *shelf) Open(name string) (verbs.ProviderDevice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastOpen = name
	for _, d := range s.devs {
		if d.Info().Name == name {
			return d, nil
		}
	}
	if s.openErr != nil {
		return nil, s.openErr
	}
	return nil, verbs.ErrNotFound
}

// set puts devices on the shelf, in place of those that were there, and has it work.
func (s *shelf) set(devs ...verbs.ProviderDevice) { s.fail(nil, nil, devs...) }

func (s *shelf) fail(list, open error, devs ...verbs.ProviderDevice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devs, s.listErr, s.openErr = devs, list, open
}

// Registration lasts as long as the process, so under -count the first run alone sees none.
var (
	upper, lower shelf
	registerOnce sync.Once
)

// register registers the two shelves. The provider "lower" is asked before "upper".
func register(t *testing.T) {
	registerOnce.Do(func() {
		_, err := verbs.Open("soft_eth0")
		wantErr(t, "without providers", err, verbs.ErrNotFound, "open device soft_eth0", "no provider is registered: import one", "provider/soft")
		verbs.Register("upper", &upper)
		verbs.Register("lower", &lower)
		if got := verbs.Providers(); !slices.Equal(got, []string{"lower", "upper"}) {
			t.Errorf("providers %v, want lower and upper", got)
		}
		wantPanic(t, "a second Register", func() { verbs.Register("lower", &lower) }, "lower")
	})
}

func TestOpen(t *testing.T) {
	register(t)
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	upper.set(a.Provider())
	lower.set(b.Provider())

	infos := must(verbs.Devices())(t)
	if len(infos) != 2 || infos[0].Name != "sim1" || infos[0].Provider != "lower" || infos[1].Name != "sim0" || infos[1].Provider != "upper" {
		t.Errorf("devices %+v, want sim1 of lower and sim0 of upper, in the order of their providers' names", infos)
	}
	d := must(verbs.Open("sim0"))(t)
	if d.Name() != "sim0" || d.Provider() != a.Provider() || d.Info().NodeType != "CA" || d.Info().Transport != verbs.TransportIB {
		t.Errorf("opened %+v, want sim0, a CA of transport InfiniBand", d.Info())
	}
	if got := d.Info().Provider; got != "upper" {
		t.Errorf("the open device is of provider %q, want upper", got)
	}
	_, err := verbs.Open("sim9")
	wantErr(t, "unknown name", err, verbs.ErrNotFound, "open device sim9: no such device", "sim0 (upper)", "sim1 (lower)")

	upper.set(a.Provider(), b.Provider())
	if d := must(verbs.Open("sim1"))(t); d.Info().Provider != "lower" {
		t.Errorf("sim1, which both providers have, was opened by %q, want lower, whose name sorts first", d.Info().Provider)
	}
}

// ADVERB_DEVICES says which devices are listed, and in which order. A provider of which none is wanted is not asked.
func TestChoice(t *testing.T) {
	register(t)
	net := rdmatest.New(t)
	a, b, c := net.Device().Provider(), net.Device().Provider(), net.Device().Provider()
	broken := errors.New("broken")
	for _, tt := range []struct {
		say    string
		want   []string
		asked  bool // the provider lower, which fails too
		refuse string
	}{
		{"", []string{"sim0", "sim1", "sim2"}, true, ""},
		{" , ", []string{"sim0", "sim1", "sim2"}, true, ""},
		{"upper", []string{"sim1", "sim2"}, false, ""},
		{"lower", []string{"sim0"}, true, ""},
		{"upper, lower", []string{"sim1", "sim2", "sim0"}, true, ""},
		{"sim2,lower", []string{"sim2", "sim0"}, true, ""},
		{"sim[12]", []string{"sim1", "sim2"}, true, ""},
		{"sim2,sim*", []string{"sim2", "sim0", "sim1"}, true, ""},
		{"mlx5_*", nil, true, ""},
		{"upper,sim[", nil, false, `ADVERB_DEVICES: "sim[" is no pattern`},
	} {
		lower.fail(broken, nil, a)
		upper.set(b, c)
		t.Setenv("ADVERB_DEVICES", tt.say)
		infos, err := verbs.Devices()
		var got []string
		for _, d := range infos {
			got = append(got, d.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: devices %q, want %q", tt.say, got, tt.want)
		}
		switch {
		case tt.refuse != "":
			wantErr(t, tt.say, err, verbs.ErrInvalid, "list devices: ", tt.refuse)
		case errors.Is(err, broken) != tt.asked:
			t.Errorf("%q: error %v; want lower asked: %t", tt.say, err, tt.asked)
		}
		if d := must(verbs.Open("sim0"))(t); d.Name() != "sim0" {
			t.Errorf("%q: opened %s, want sim0, whatever is listed", tt.say, d.Name())
		}
	}
}

// One provider's failure hides no other provider's devices, and is reported beside them.
func TestProviderFails(t *testing.T) {
	register(t)
	net := rdmatest.New(t)
	a, b := net.Device().Provider(), net.Device().Provider()
	broken, torn := errors.New("broken"), verbs.Errorf(verbs.ErrUnsupported, "torn")
	names := func(infos []verbs.DeviceInfo) (ns []string) {
		for _, d := range infos {
			ns = append(ns, d.Name+" of "+d.Provider)
		}
		return ns
	}
	devices := func(want ...string) error {
		t.Helper()
		infos, err := verbs.Devices()
		if got := names(infos); !slices.Equal(got, want) {
			t.Errorf("devices %q, want %q", got, want)
		}
		return err
	}

	lower.fail(broken, broken) // the first one to be asked
	upper.set(a)
	wantErr(t, "Devices with one broken", devices("sim0 of upper"), broken, "list devices of provider lower: broken")
	if d := must(verbs.Open("sim0"))(t); d.Provider() != a {
		t.Errorf("opened %+v, want sim0 of the provider that works", d.Info())
	}
	_, err := verbs.Open("sim9")
	wantErr(t, "Open of an unknown name with one broken", err, broken, "open device sim9: broken")
	if errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("%v is ErrNotFound, although the broken provider may have the device, want another", err)
	}

	lower.fail(broken, broken, b) // found one before it broke
	upper.fail(torn, torn, a)
	err = devices("sim1 of lower", "sim0 of upper")
	wantErr(t, "Devices with both broken", err, broken, "list devices of provider lower: broken; list devices of provider upper: torn")
	wantErr(t, "Devices with both broken", err, torn)
	_, err = verbs.Open("sim9")
	wantErr(t, "Open with both broken", err, broken, "open device sim9: provider lower: broken; provider upper: torn")
	wantErr(t, "Open with both broken", err, verbs.ErrUnsupported)
	if upper.lastOpen != "sim9" {
		t.Errorf("the second provider was last asked for %q, want sim9", upper.lastOpen)
	}

	lower.fail(broken, nil) // cannot list, but knows that it does not have the device
	upper.set(a)
	_, err = verbs.Open("sim9")
	wantErr(t, "Open with one that cannot list", err, verbs.ErrNotFound,
		"open device sim9: no such device; there are [sim0 (upper)]; list devices of provider lower: broken")
	lower.set()
	upper.set()
	_, err = verbs.Open("sim9")
	wantErr(t, "Open where there is no device", err, verbs.ErrNotFound,
		"open device sim9: no such device; there is none: is a network interface up, with an address?")

	f := &foreign{ProviderDevice: b, queryErr: broken}
	lower.set(f)
	_, err = verbs.Open("sim1")
	wantErr(t, "Open of a device without attributes", err, broken, "open device sim1: query its attributes: broken")
	if !f.closed {
		t.Error("the device that could not be queried is left open")
	}
}

// foreign is a device whose attributes cannot be queried.
type foreign struct {
	verbs.ProviderDevice
	queryErr error
	closed   bool
}

func (f *foreign) Query() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{}, f.queryErr }

func (f *foreign) Close() error {
	f.closed = true
	return nil
}

// wantErr fails the test unless err is of the kind and has every one of the texts. It must be
// an OpError, as every error of a verb is.
func wantErr(t *testing.T, what string, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v, want an error that is %q", what, err, kind)
		return
	}
	if _, ok := errors.AsType[*verbs.OpError](err); !ok {
		t.Errorf("%s: %v is a %T, want an OpError", what, err, err)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q does not say %q, want it said", what, err, s)
		}
	}
}

// wantPanic fails the test unless f panics with every one of the texts.
func wantPanic(t *testing.T, what string, f func(), texts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		v := recover()
		if v == nil {
			t.Errorf("%s does not panic, want a panic", what)
			return
		}
		s, _ := v.(string)
		if err, ok := v.(error); ok {
			s = err.Error()
		}
		for _, text := range texts {
			if !strings.Contains(s, text) {
				t.Errorf("%s panics with %q, which does not say %q, want it said", what, s, text)
			}
		}
	}()
	f()
}

// must stops the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
