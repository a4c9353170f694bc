package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/link"
)

// speedMbps is the speed that Netdevs of a simulated network claim: that of a common RoCE card.
const speedMbps = 100_000

// Netdev is a link.Netdev of a simulated network. It is up until SetUp(false).
type Netdev struct {
	net  *Network
	name string

	mu      sync.Mutex
	index   int
	gone    bool
	up      bool
	addrs   []netip.Addr
	changed chan struct{}
	closed  bool
}

var _ link.Netdev = (*Netdev)(nil)

// Netdev adds a network interface. Its index and its hardware address are given in the order in
// which interfaces are added.
func (n *Network) Netdev(name string, addrs ...netip.Addr) *Netdev {
	d := &Netdev{net: n, name: name, index: n.nextIndex(), up: true}
	for _, a := range addrs {
		d.AddAddr(a)
	}
	d.changed = make(chan struct{}, 1) // only now: nobody has seen an earlier state
	return d
}

// Name implements link.Netdev.
func (d *Netdev) Name() string { return d.name }

// State implements link.Netdev.
func (d *Netdev) State() (link.NetdevState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return link.NetdevState{}, link.ErrNoNetdev
	}
	return link.NetdevState{
		Index:        d.index,
		HardwareAddr: []byte{0x02, 0, 0, 0, byte(d.index >> 8), byte(d.index)}, // 02: locally administered
		MTU:          d.net.mtu,
		Up:           d.up,
		SpeedMbps:    speedMbps,
		Addrs:        slices.Clone(d.addrs),
	}, nil
}

// nextIndex returns the index of an interface that is added.
func (n *Network) nextIndex() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.netdevs++
	return n.netdevs
}

// Remove removes the interface. Nobody is told: see Changed.
func (d *Netdev) Remove() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = true
}

// Replace gives the interface's name to another interface, with another index. Nobody is told: see Changed.
func (d *Netdev) Replace() {
	index := d.net.nextIndex()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index, d.gone = index, false
}

// SetUp sets the interface up or down. While it is down, all datagrams that its links send, or that are sent to them,
// are lost.
func (d *Netdev) SetUp(up bool) {
	d.change(func() { d.up = up })
}

// AddAddr gives the interface an address.
func (d *Netdev) AddAddr(addr netip.Addr) {
	d.change(func() {
		if !slices.Contains(d.addrs, addr) {
			d.addrs = append(d.addrs, addr)
		}
	})
}

// RemoveAddr takes an address away. A link that is open on it stays open, but is cut off from the
// network.
func (d *Netdev) RemoveAddr(addr netip.Addr) {
	d.change(func() {
		d.addrs = slices.DeleteFunc(d.addrs, func(a netip.Addr) bool { return a == addr })
		d.net.station(addr).attached.Store(false)
	})
}

func (d *Netdev) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	for _, a := range d.addrs {
		d.net.station(a).attached.Store(d.up)
	}
	if d.closed {
		return
	}
	select {
	case d.changed <- struct{}{}: // never ready while the channel is nil
	default:
	}
}

// Changed implements link.Netdev.
func (d *Netdev) Changed() <-chan struct{} { return d.changed }

// Open implements link.Netdev. One link can be open on an address at a time.
func (d *Netdev) Open(addr netip.Addr) (link.Link, error) {
	d.mu.Lock()
	has := slices.Contains(d.addrs, addr)
	d.mu.Unlock()
	if !has {
		return nil, fmt.Errorf("open link on %v: %s does not have this address", addr, d.name)
	}
	l := &Link{
		net:     d.net,
		addr:    addr,
		at:      d.net.station(addr),
		headers: ipv6Headers,
		port:    link.PortOf(addr),
		done:    make(chan struct{}),
		signal:  make(chan struct{}, 1),
		groups:  make(map[netip.Addr]bool),
	}
	switch {
	case addr.Is4():
		l.headers = ipv4Headers
	case link.IsV1(addr):
		l.headers = link.GRHSize
	}
	l.ways.Store(&map[netip.Addr]*way{})
	if !l.at.open(l) {
		return nil, fmt.Errorf("open link on %v: a link of this simulated network is open on the address already; close it first", addr)
	}
	return l, nil
}

// Close implements link.Netdev.
func (d *Netdev) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errors.New("close " + d.name + ": closed already")
	}
	d.closed = true
	close(d.changed)
	return nil
}
