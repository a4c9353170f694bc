package rdmacm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// opened are the devices of registered providers that this package has opened. They stay open, as
// those of librdmacm do, until CloseDevices.
var opened = struct {
	mu     sync.Mutex
	byName map[string]openedDevice
	failed []openedDevice // that nobody gets any more, and that are to be closed once nothing uses them
}{byName: map[string]openedDevice{}}

// openedDevice is a device with its agent, which stays as well, so that not every ID that comes and
// goes opens a connector.
type openedDevice struct {
	*verbs.Device
	agent *agent
}

// open returns a registered device. It opens the device at first use.
func open(name string) (*verbs.Device, error) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if o, ok := opened.byName[name]; ok {
		return o.Device, nil
	}
	opened.failed, _ = closeFailed(opened.failed) // so that an interface that comes and goes leaves one device at most
	d, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	a, err := acquireAgent(d)
	if err != nil {
		d.Close()
		return nil, err
	}
	opened.byName[name] = openedDevice{d, a}
	return d, nil
}

// closeUnused closes devices that have failed and that nothing uses any more.
func closeUnused() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.failed, _ = closeFailed(opened.failed)
}

// CloseDevices closes the devices that this package has opened: those for IDs, listeners and
// connections that were given none. They are opened again when they are needed. So a program, or a
// test that counts goroutines, leaves nothing behind. Call it at a program's end if other programs use
// the same address: packets that have come to the program's socket for them in that moment are passed
// on then.
//
// A device that is in use stays open, and CloseDevices fails with verbs.ErrBusy: close all IDs,
// listeners and connections first, and the memory that was registered in their PD.
func CloseDevices() error {
	opened.mu.Lock()
	all, failed := opened.byName, opened.failed
	opened.byName, opened.failed = map[string]openedDevice{}, nil
	opened.mu.Unlock()
	failed, errs := closeFailed(failed)
	opened.mu.Lock()
	opened.failed = append(opened.failed, failed...)
	opened.mu.Unlock()
	for name, o := range all {
		if err := o.close(); err != nil {
			errs = append(errs, err)
			o.keep(name)
		}
	}
	return errors.Join(errs...)
}

// closeFailed closes devices that have failed. It returns those that are still in use, and why. It may wait for
// the goroutine of a connector that nobody uses any more, which wants no lock of this file's by then.
func closeFailed(failed []openedDevice) (left []openedDevice, errs []error) {
	for _, o := range failed {
		if err := o.close(); err != nil {
			left, errs = append(left, o), append(errs, err)
		}
	}
	return left, errs
}

// close closes a device that nothing uses. After an error it may be called again.
func (o openedDevice) close() error {
	if !o.agent.over() && !o.agent.releaseLast() {
		return &OpError{Op: "close device " + o.Name(), Err: verbs.Errorf(verbs.ErrBusy, "it has IDs, listeners or connections: close them first")}
	}
	return o.Device.Close()
}

// keep keeps a device that could not be closed. If it was opened anew meanwhile, or has failed, it is only to be
// closed once nothing uses it.
func (o openedDevice) keep(name string) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	_, anew := opened.byName[name]
	if !anew && o.agent.over() { // otherwise others use it
		if a, err := acquireAgent(o.Device); err == nil {
			o.agent = a
		}
	}
	if anew || o.agent.gone || o.agent.over() {
		opened.failed = append(opened.failed, o)
		return
	}
	opened.byName[name] = o
}

// openedWith returns the opened device that has a local address, or nil. Of several, such as those of RoCE
// and of iWARP on one network interface, it is the one that is listed first.
func openedWith(addr netip.Addr) *verbs.Device {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	var found []*verbs.Device
	for _, o := range opened.byName {
		if hasAddr(o.Device, addr) {
			found = append(found, o.Device)
		}
	}
	if len(found) < 2 {
		if len(found) == 1 {
			return found[0]
		}
		return nil
	}
	infos, _ := verbs.Devices()
	for _, info := range infos {
		if i := slices.IndexFunc(found, func(d *verbs.Device) bool { return d.Name() == info.Name }); i >= 0 {
			return found[i]
		}
	}
	return found[0]
}

// forget lets go of a device that has failed. It stays open as long as it is in use.
func forget(a *agent) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	a.gone = true
	if o := opened.byName[a.dev.Name()]; o.Device == a.dev {
		delete(opened.byName, a.dev.Name())
		opened.failed = append(opened.failed, o)
	}
}

// all returns those devices that IDs of the channel may use and that can be opened.
func (ch *EventChannel) all() ([]*verbs.Device, error) {
	if len(ch.devices) > 0 {
		return ch.devices, nil
	}
	devs, errs, err := present()
	switch {
	case err != nil:
		return nil, err
	case len(devs) > 0:
		return devs, nil
	case len(errs) > 0:
		return nil, errors.Join(errs...)
	}
	return nil, noDevices()
}

// present opens all devices of the host, and returns those that can be opened. errs says why others cannot, and err why
// the list of them may lack some.
func present() (devs []*verbs.Device, errs []error, err error) {
	infos, err := verbs.Devices()
	for _, info := range infos {
		d, err := open(info.Name)
		if err != nil {
			if !errors.Is(err, verbs.ErrUnsupported) { // no connector serves the device
				errs = append(errs, err)
			}
			continue
		}
		devs = append(devs, d)
	}
	return devs, errs, err
}

// isNoneYet reports whether an error says that the host has no device, and that there are providers which would find one.
func isNoneYet(err error) bool { return errors.Is(err, ErrNoDevice) && len(verbs.Providers()) > 0 }

// isAmbiguous reports whether an address lacks the zone without which it may be on several networks.
func isAmbiguous(addr netip.Addr) bool {
	return addr.Is6() && addr.Zone() == "" && (addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast())
}

// interfaceOf returns the name of an interface that has an address, or one that stands for any.
func interfaceOf(addr netip.Addr) string {
	all, _ := net.Interfaces()
	for _, ifi := range all {
		if netdevHas(ifi.Name, addr) {
			return ifi.Name
		}
	}
	return "eth0"
}

// isInZone reports whether a network interface is the one that the zone of an address means.
func isInZone(netdev string, addr netip.Addr) bool {
	zone := addr.Zone()
	if zone == "" || zone == netdev {
		return true
	}
	ifi, err := net.InterfaceByName(netdev)
	return err == nil && strconv.Itoa(ifi.Index) == zone
}

// hasAddr reports whether a device has an address, of the zone that it names. The networks of tests have no zones.
func hasAddr(d *verbs.Device, addr netip.Addr) bool {
	return connector.CheckAddr(d, addr) == nil && (d.Info().Provider == "" || isInZone(d.Info().Netdev, addr))
}

// deviceOf returns the device that has a local address as GID.
func (ch *EventChannel) deviceOf(addr netip.Addr) (*verbs.Device, error) {
	if len(ch.devices) > 0 {
		for _, d := range ch.devices {
			if hasAddr(d, addr) {
				return d, nil
			}
		}
		return nil, noDevice(addr, ch.devices)
	}
	if d := openedWith(addr); d != nil {
		return d, nil
	}
	infos, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	// Only devices whose interface has the address need to be opened.
	var others []string
	var firstErr error
	for _, info := range infos {
		if !isInZone(info.Netdev, addr) || !netdevHas(info.Netdev, addr) {
			others = append(others, info.Name)
			continue
		}
		d, err := open(info.Name)
		if err == nil {
			if err = connector.CheckAddr(d, addr); err == nil {
				return d, nil
			}
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	if firstErr != nil {
		return nil, firstErr
	}
	if len(infos) == 0 {
		return nil, noDevices()
	}
	return nil, verbs.Errorf(ErrNoDevice, "no RDMA device has the address %v; there are %s", addr, strings.Join(others, ", "))
}

// noDevices says why there is no device at all.
func noDevices() error {
	ps := verbs.Providers()
	if len(ps) == 0 {
		return verbs.Errorf(ErrNoDevice, "there is no RDMA device: import a provider for its side effect, such as github.com/adverb-rdma/adverb/provider/soft")
	}
	return verbs.Errorf(ErrNoDevice, "there is no RDMA device: provider %s has found none; software devices need a network interface that is up and has an address (\"ip link set lo up\" makes one)",
		strings.Join(ps, ", "))
}

func noDevice(addr netip.Addr, devs []*verbs.Device) error {
	var have []string
	for _, d := range devs {
		addrs, _ := connector.Addrs(d)
		have = append(have, fmt.Sprintf("%s (%s)", d.Name(), strings.Trim(fmt.Sprint(addrs), "[]")))
	}
	return verbs.Errorf(ErrNoDevice, "no RDMA device has the address %v; there are %s", addr, strings.Join(have, ", "))
}

// netdevHas reports whether a network interface has an address.
func netdevHas(name string, addr netip.Addr) bool {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr.WithZone("") {
			return true
		}
	}
	return false
}

// sourceFor asks the host which of its addresses it would use to reach dst. Nothing is sent. It fails
// with ErrNoRoute or, for the broadcast address of a network, with verbs.ErrInvalid.
func sourceFor(dst netip.Addr) (netip.Addr, error) {
	own, err := localAddr(dst, false)
	if errors.Is(err, syscall.EACCES) { // for a broadcast address, but also where an administrator has said so
		if _, any := localAddr(dst, true); any == nil {
			return netip.Addr{}, errBroadcast(dst)
		}
	}
	if err != nil {
		return netip.Addr{}, noRoute(dst, err)
	}
	return own, nil
}

// noRoute says why the host has no address to reach dst from.
func noRoute(dst netip.Addr, err error) error {
	infos, _ := verbs.Devices()
	switch {
	case isAmbiguous(dst):
		return verbs.Errorf(ErrNoRoute, "no route to %v: such an address is one of many networks: name the interface, as in %v%%eth0: %w", dst, dst, err)
	case len(infos) == 0:
		return verbs.Errorf(ErrNoRoute, "no route to %v: %w; %w", dst, err, noDevices())
	}
	return verbs.Errorf(ErrNoRoute, "no route to %v: %w", dst, err)
}

// routeProbePort can be any port. The route does not depend on it.
const routeProbePort = 4791
