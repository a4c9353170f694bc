package verbs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

var (
	providersMu sync.Mutex
	providers   = map[string]Provider{}
)

// Register is for implementers of providers: it makes the devices of p visible to [Devices] and
// [Open]. Providers call it from init. It panics if the name is taken.
func Register(name string, p Provider) {
	providersMu.Lock()
	defer providersMu.Unlock()
	if _, ok := providers[name]; ok {
		panic("verbs: Register called twice for provider " + name)
	}
	providers[name] = p
}

// Providers returns the names of the registered providers, sorted.
func Providers() []string {
	var names []string
	for _, p := range registered() {
		names = append(names, p.name)
	}
	return names
}

var (
	openMu sync.Mutex
	opened []*Device      // by Open, and not closed
	past   []DeviceTotals // for each name that was opened: of those that are closed
)

// forget takes a closed device off the list of open devices, and keeps its counters.
func forget(d *Device) {
	openMu.Lock()
	defer openMu.Unlock()
	i := slices.Index(opened, d)
	if i < 0 {
		return
	}
	opened = slices.Delete(opened, i, i+1)
	var t *DeviceTotals
	past, t = totalsFor(past, d.Name())
	t.add(d)
}

// namedProvider is a provider with the name that it registered under.
type namedProvider struct {
	name string
	Provider
}

// registered returns the providers in the order of their names.
func registered() (all []namedProvider) {
	providersMu.Lock()
	defer providersMu.Unlock()
	for name, p := range providers {
		all = append(all, namedProvider{name, p})
	}
	slices.SortFunc(all, func(a, b namedProvider) int { return strings.Compare(a.name, b.name) })
	return all
}

// devices lists the provider's devices, and fills in their provider's name.
func (p namedProvider) devices() ([]DeviceInfo, error) {
	ds, err := p.Devices()
	ds = slices.Clone(ds)
	for i := range ds {
		ds[i].Provider = p.name
	}
	return ds, wrap("list devices of provider", p.name, err)
}

// Devices lists the devices of every registered provider (ibv_get_device_list), in the order of
// the providers' names: so a card, which is of the provider native, comes before a software device,
// which is of the provider soft, whether or not they have the same address. A program that takes the
// first device, or the first one that has an address, gets the card.
//
// The variable ADVERB_DEVICES of the environment chooses otherwise. It has names of devices or of
// providers, or patterns such as mlx5_*, with commas. Devices then lists those that one of them takes
// and no others, in the order of the variable: soft is the software devices alone. It does not keep
// Open from a device that is named. A pattern that is none is an error of Devices, ErrInvalid.
//
// A provider that fails does not hide the devices of the others. The list then holds all devices
// that could be found, and the error, which is not nil, says for each provider that failed why it
// did; errors.Is finds each cause. So a caller uses the list even where there is an error.
func Devices() ([]DeviceInfo, error) {
	chosen, err := readChoice()
	if err != nil {
		return nil, wrap("list", "devices", err)
	}
	var all []DeviceInfo
	var errs []error
	ps := registered()
	for _, p := range ps {
		if !chosen.asks(p.name, ps) {
			continue
		}
		ds, err := p.devices()
		all = append(all, ds...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return chosen.of(all), join(errs)
}

// WatchDevices has changed called, on any goroutine, whenever the list of [Devices], or an address of those devices,
// may have changed: a network interface has come or gone, was set up or down, or has another address. A call says no
// more than that it is time to look. changed must not block. Providers that cannot tell are left out, and so are those
// that register later. stop ends it. A call may be under way when stop returns.
func WatchDevices(changed func()) (stop func()) {
	var stops []func()
	for _, p := range registered() {
		if w, ok := p.Provider.(ProviderWatcher); ok {
			stops = append(stops, w.Watch(changed))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Open opens a device by its name (ibv_open_device). A provider may take names that [Devices] does
// not list; the documentation of package provider/soft says which names that one takes. Where two
// providers have a device of the same name, Open takes the provider whose name sorts first.
//
// Open asks every provider until one opens the device. A provider that fails does not keep the
// others from opening it, and its failure is not reported if another one does. If none does:
//
//   - The error is the failures of the providers that failed; errors.Is finds each cause. It is
//     not ErrNotFound, since a provider that works might have the device.
//   - If no provider failed, the error is ErrNotFound, and its text lists the devices that exist.
func Open(name string) (*Device, error) {
	const verb = "open device"
	ps := registered()
	if len(ps) == 0 {
		return nil, wrap(verb, name, Errorf(ErrNotFound,
			"no provider is registered: import one for its side effect, such as github.com/adverb-rdma/adverb/provider/soft"))
	}
	var failed []string
	var errs []error
	for _, p := range ps {
		d, err := p.open(name)
		if err == nil {
			return d, nil
		}
		if !isNotFound(err) {
			failed = append(failed, p.name)
			errs = append(errs, err)
		}
	}
	switch len(errs) {
	case 0:
		return nil, &OpError{Verb: verb, Object: name, Err: noSuchDevice(ps)}
	case 1:
		return nil, wrap(verb, name, errs[0])
	}
	for i := range errs {
		errs[i] = fmt.Errorf("provider %s: %w", failed[i], errs[i])
	}
	return nil, &OpError{Verb: verb, Object: name, Err: join(errs)}
}

// open opens a device of one provider.
func (p namedProvider) open(name string) (*Device, error) {
	pd, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	d := NewDevice(pd)
	d.info.Provider = p.name
	if d.attrErr != nil {
		return nil, errors.Join(fmt.Errorf("query its attributes: %w", d.attrErr), pd.Close())
	}
	openMu.Lock()
	opened = append(opened, d)
	past, _ = totalsFor(past, d.Name())
	openMu.Unlock()
	if defaultLogger.Load() != nil {
		d.useDefaultLogger()
	}
	return d, nil
}

// noSuchDevice is an ErrNotFound that lists the devices that there are. The error of a provider
// that cannot list its devices stands behind the list.
func noSuchDevice(ps []namedProvider) error {
	var have []string
	var errs []error
	for _, p := range ps {
		ds, err := p.devices()
		for _, d := range ds {
			have = append(have, d.Name+" ("+p.name+")")
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if err := join(errs); err != nil {
		return Errorf(ErrNotFound, "no such device; %s; %w", thereAre(have), err)
	}
	return Errorf(ErrNotFound, "no such device; %s", thereAre(have))
}

func thereAre(have []string) string {
	if len(have) == 0 {
		return `there is none: is a network interface up, with an address? ("ip link set lo up" makes one)`
	}
	return fmt.Sprintf("there are %v", have)
}
