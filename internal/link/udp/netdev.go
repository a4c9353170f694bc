package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// pollInterval is how often a Netdev is looked at where the system does not report changes, and when it is time for
// another look after one that failed.
const pollInterval = 2 * time.Second

// Netdev is a network interface of this host, or one address of an interface.
type Netdev struct {
	name string
	only netip.Addr // the only address to use, or the zero Addr for all

	mu      sync.Mutex
	changed chan struct{}
	stop    func()      // ends the watch; nil while there is none
	again   *time.Timer // for the next look after a state that could not be read; nil when there is none to come
	closed  bool
}

var _ link.Netdev = (*Netdev)(nil)

// Netdevs returns the interfaces that have an address, in the order of their indexes.
func Netdevs() ([]*Netdev, error) {
	ifis, err := interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	slices.SortFunc(ifis, func(a, b net.Interface) int { return a.Index - b.Index })
	var devs []*Netdev
	for i := range ifis {
		if prefixes, err := prefixesOf(&ifis[i]); err == nil && len(prefixes) > 0 {
			devs = append(devs, newNetdev(ifis[i].Name, netip.Addr{}))
		}
	}
	return devs, nil
}

// OpenNetdev returns the interface of that name.
func OpenNetdev(name string) (*Netdev, error) {
	if _, err := interfaceByName(name); err != nil {
		return nil, err
	}
	return newNetdev(name, netip.Addr{}), nil
}

// NetdevForAddr returns an interface restricted to one of its addresses. On a loopback interface the address may be
// any IPv4 address of the interface's networks, so any of 127.0.0.0/8.
func NetdevForAddr(name string, addr netip.Addr) (*Netdev, error) {
	d := newNetdev(name, addr.WithZone("").Unmap())
	s, err := d.State()
	if err != nil {
		return nil, err
	}
	if len(s.Addrs) == 0 {
		return nil, noAddress(name, d.only)
	}
	return d, nil
}

// Again returns another Netdev of the same interface and address.
func (d *Netdev) Again() *Netdev { return newNetdev(d.name, d.only) }

func newNetdev(name string, only netip.Addr) *Netdev {
	return &Netdev{name: name, only: only, changed: make(chan struct{}, 1)}
}

func noAddress(name string, addr netip.Addr) error {
	ifi, err := interfaceByName(name)
	if err != nil {
		return err
	}
	prefixes, err := prefixesOf(ifi)
	if err != nil {
		return err
	}
	has := "it has none"
	if len(prefixes) > 0 {
		var all []string
		for _, p := range prefixes {
			all = append(all, p.Addr().String())
		}
		has = "it has " + strings.Join(all, ", ")
	}
	return fmt.Errorf("open link on %v: network interface %s does not have this address: %s", addr, name, has)
}

// interfaces is a variable for tests of systems that do not list them.
var interfaces = net.Interfaces

// interfaceByName asks the system once. So an interface does not exist only if the list lacks it, and never because
// one of two questions went unanswered.
func interfaceByName(name string) (*net.Interface, error) {
	all, err := interfaces()
	if err != nil {
		return nil, fmt.Errorf("find network interface %s: %w", name, err)
	}
	var names []string
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	return nil, fmt.Errorf("find network interface %s (there are %s): %w", name, strings.Join(names, ", "), link.ErrNoNetdev)
}

// prefixesOf returns the addresses of an interface with their networks, without zones.
func prefixesOf(ifi *net.Interface) ([]netip.Prefix, error) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of network interface %s: %w", ifi.Name, err)
	}
	var prefixes []netip.Prefix
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		ones, bits := n.Mask.Size()
		if addr.Is4() && bits == 128 {
			ones -= 96
		}
		prefixes = append(prefixes, netip.PrefixFrom(addr, ones))
	}
	return prefixes, nil
}

// holds reports whether datagrams to addr reach the interface.
func holds(ifi *net.Interface, prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
		return p.Addr() == addr || ifi.Flags&net.FlagLoopback != 0 && addr.Is4() && p.Contains(addr)
	})
}

// Name implements link.Netdev.
func (d *Netdev) Name() string { return d.name }

// State implements link.Netdev. Addresses have no zone. A process may be short of descriptors for a moment, and then
// nothing can be read. A caller that has got that error learns by Changed when to look again.
func (d *Netdev) State() (link.NetdevState, error) {
	s, err := d.read()
	if err != nil && !errors.Is(err, link.ErrNoNetdev) {
		d.lookAgain()
	}
	return s, err
}

func (d *Netdev) read() (link.NetdevState, error) {
	ifi, err := interfaceByName(d.name)
	if err != nil {
		return link.NetdevState{}, err
	}
	prefixes, err := prefixesOf(ifi)
	if err != nil {
		return link.NetdevState{}, err
	}
	s := link.NetdevState{
		Index:        ifi.Index,
		HardwareAddr: ifi.HardwareAddr,
		MTU:          ifi.MTU,
		Up:           ifi.Flags&net.FlagUp != 0 && ifi.Flags&net.FlagRunning != 0,
		SpeedMbps:    speedMbps(d.name),
	}
	if d.only.IsValid() {
		if holds(ifi, prefixes, d.only) {
			s.Addrs = []netip.Addr{d.only}
		}
		return s, nil
	}
	for _, p := range prefixes {
		s.Addrs = append(s.Addrs, p.Addr())
	}
	return s, nil
}

// Open implements link.Netdev. It takes the same addresses as NetdevForAddr.
func (d *Netdev) Open(addr netip.Addr) (link.Link, error) {
	addr, index, err := d.resolve(addr)
	if err != nil {
		return nil, err
	}
	return openLink(addr, index)
}

// resolve returns addr without its zone, and the index of the interface. If the interface does not have addr, resolve
// fails.
func (d *Netdev) resolve(addr netip.Addr) (netip.Addr, int, error) {
	addr = addr.WithZone("").Unmap()
	ifi, err := interfaceByName(d.name)
	if err != nil {
		return addr, 0, err
	}
	prefixes, err := prefixesOf(ifi)
	if err != nil {
		return addr, 0, err
	}
	if d.only.IsValid() && addr != d.only || !holds(ifi, prefixes, addr) {
		return addr, 0, noAddress(d.name, addr)
	}
	return addr, ifi.Index, nil
}

// Changed implements link.Netdev. The first call starts the watch, so call State after it.
func (d *Netdev) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop == nil && !d.closed {
		d.stop = Watch(d.notify)
	}
	return d.changed
}

// notify makes Changed receive a value.
func (d *Netdev) notify() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// lookAgain makes Changed receive a value in a while, if somebody watches.
func (d *Netdev) lookAgain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop == nil || d.closed || d.again != nil {
		return
	}
	d.again = time.AfterFunc(pollInterval, func() {
		d.mu.Lock()
		d.again = nil
		d.mu.Unlock()
		d.notify()
	})
}

// Close implements link.Netdev.
func (d *Netdev) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("close network interface %s: closed already", d.name)
	}
	d.closed = true
	stop := d.stop
	if d.again != nil {
		d.again.Stop()
	}
	close(d.changed)
	d.mu.Unlock()
	if stop != nil {
		stop()
	}
	return nil
}
