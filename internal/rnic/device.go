package rnic

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config configures a Device. All fields are optional.
type Config struct {
	Name    string                           // empty stands for iw_ and the interface's
	CRC     bool                             // ask peers for CRCs
	Markers bool                             // ask peers for markers, which cost them a copy: for tests
	Wrap    func(net.Conn) net.Conn          // put around each stream, for captures
	Closers []io.Closer                      // closed with the device
	Spin    int                              // bounds the polls more that a program makes before it blocks
	Yielder *queue.Yielder                   // gives the core to others between such polls, or nil
	Claim   func(block uint32) (bool, error) // asks for a block of 4096 QPNs
}

// Device is a software RNIC on a network interface. It has one port.
type Device struct {
	device.Base
	config Config

	retired retired
	qps     idtable.Table[qp]
	began   time.Time
	turn    int // turnSize; tests have shorter ones

	mu      sync.Mutex
	state   link.NetdevState
	downed  uint64 // how often state.Up became false
	polling atomic.Pointer[poller]
	streams sync.WaitGroup // those that have a socket, and goroutines of theirs
	watcher sync.WaitGroup
}

var (
	_ verbs.ProviderDevice   = (*Device)(nil)
	_ verbs.ProviderCounters = (*Device)(nil)
	_ verbs.ProviderLogger   = (*Device)(nil)
)

// NamePrefix stands before the interface's name in the name of a device.
const NamePrefix = "iw_"

// Open makes a device on a network interface, which its Close closes too.
func Open(netdev link.Netdev, c Config) (*Device, error) {
	d := &Device{config: c, began: time.Now(), turn: turnSize}
	d.Init(cmp.Or(c.Name, NamePrefix+netdev.Name()), netdev, nil)
	d.qps.Limit, d.qps.Claim = limits.MaxQP, c.Claim
	changed := netdev.Changed()
	s, err := d.Look(true)
	if err != nil {
		netdev.Close()
		return nil, err
	}
	d.state = s
	d.watcher.Go(func() {
		for range changed {
			d.refresh()
		}
	})
	return d, nil
}

// refresh takes over the state of the network interface, and has those who follow the device's addresses look at them.
func (d *Device) refresh() {
	if d.IsGone() {
		return
	}
	s, err := d.Look(false)
	if err != nil {
		s = link.NetdevState{HardwareAddr: d.snapshot().HardwareAddr}
	}
	d.mu.Lock()
	before := d.state
	d.state = s
	if !s.Up && before.Up {
		d.downed++
	}
	d.mu.Unlock()
	if !slices.Equal(s.Addrs, before.Addrs) {
		d.Raise(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
	}
	d.TellChanged()
	d.RaisePort(before.Up, s.Up, err)
}

// now is the time of the device's clock.
func (d *Device) now() time.Duration { return time.Since(d.began) }

func (d *Device) snapshot() link.NetdevState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Describe returns the result of Device.Info, without opening a device.
func Describe(netdev link.Netdev, name string) (verbs.DeviceInfo, error) {
	s, err := netdev.State()
	if err != nil {
		return verbs.DeviceInfo{}, err
	}
	if name == "" {
		name = NamePrefix + netdev.Name()
	}
	return info(name, s, netdev), nil
}

func info(name string, s link.NetdevState, netdev link.Netdev) verbs.DeviceInfo {
	return verbs.DeviceInfo{Name: name, NodeGUID: guidOf(s), NodeType: "RNIC", Transport: verbs.TransportIWARP, Netdev: netdev.Name()}
}

// gidOf makes the one GID of an iWARP port: the interface's MAC address, filled up with zeros.
func gidOf(s link.NetdevState) (g verbs.GID) {
	if len(s.HardwareAddr) == 6 && slices.Max(s.HardwareAddr) != 0 {
		copy(g[:], s.HardwareAddr)
	} else if len(s.Addrs) > 0 {
		a := s.Addrs[0].As16()
		g[0] = 2
		copy(g[1:6], a[11:])
	}
	return g
}

func guidOf(s link.NetdevState) (guid verbs.GUID) {
	g := gidOf(s)
	return verbs.GUID{g[0] ^ 2, g[1], g[2], 0xff, 0xfe, g[3], g[4], g[5]}
}

// Info implements verbs.ProviderDevice.
func (d *Device) Info() verbs.DeviceInfo { return info(d.Name, d.snapshot(), d.Netdev) }

// guarantees are those of the software HCA that iWARP can give. A socket's copies go where they belong
// without a promise which byte comes last, and there are no datagrams.
const guarantees = verbs.AllGuarantees &^ (verbs.GuaranteeLastWordLast | verbs.GuaranteeDatagramLimit)

// Query implements verbs.ProviderDevice.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	caps := verbs.DevicePortActiveEvent | verbs.DeviceSysImageGUID | verbs.DeviceSRQResize | verbs.DeviceMemWindow |
		verbs.DeviceMemMgtExtensions | verbs.DeviceMemWindowType2B
	guid := guidOf(d.snapshot())
	a := limits.Attr()
	a.NodeGUID, a.SysImageGUID = guid, guid
	a.DeviceCapFlags, a.DeviceCapFlagsEx = caps, verbs.DeviceCapFlagsEx(caps)
	a.Guarantees = guarantees
	a.ODPCaps.UC, a.ODPCaps.UD = 0, 0
	return a, nil
}

// QueryPort implements verbs.ProviderDevice. The MTU is the interface's, rounded down to one that the verbs
// have: nothing depends on it, since TCP cuts the stream.
func (d *Device) QueryPort(int) (verbs.PortAttr, error) {
	s := d.snapshot()
	a := verbs.PortAttr{
		State: verbs.PortDown, PhysState: verbs.PhysDisabled, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096,
		GIDTableLen: 1, PortCapFlags: 1 << 16, MaxMsgSize: limits.MaxMessageSize, MaxVLNum: 1, LinkLayer: verbs.LinkLayerEthernet,
		ActiveWidth: 1, ActiveSpeed: 8,
	}
	for a.ActiveMTU > verbs.MTU256 && a.ActiveMTU.Bytes() > s.MTU {
		a.ActiveMTU--
	}
	if s.Up {
		a.State, a.PhysState = verbs.PortActive, verbs.PhysLinkUp
	}
	return a, nil
}

// GID implements verbs.ProviderDevice.
func (d *Device) GID(_, index int) (verbs.GIDEntry, error) {
	if index != 0 {
		return verbs.GIDEntry{}, verbs.Errorf(verbs.ErrNotFound, "GID index %d: an iWARP port has one, its MAC address", index)
	}
	return verbs.GIDEntry{GID: gidOf(d.snapshot()), Port: 1, Type: verbs.GIDTypeIB, Netdev: d.Netdev.Name()}, nil
}

// PKey implements verbs.ProviderDevice.
func (d *Device) PKey(_, index int) (verbs.PKey, error) {
	return 0, verbs.Errorf(verbs.ErrNotFound, "P_Key index %d: iWARP has no P_Keys", index)
}

// Addrs returns the addresses from which the device connects.
func (d *Device) Addrs() []netip.Addr { return slices.Clone(d.snapshot().Addrs) }

// Asks reports whether the device asks peers for CRCs, and for markers in the stream that they send.
func (d *Device) Asks() (crc, markers bool) { return d.config.CRC, d.config.Markers }

// Claim takes a TCP port, alone or with others who share it too.
func (d *Device) Claim(local netip.AddrPort, shared bool) (*tcp.Port, error) {
	if shared {
		return tcp.Share(d.zoned(local))
	}
	return tcp.Claim(d.zoned(local))
}

// zoned adds the interface to an address that is one of many networks.
func (d *Device) zoned(a netip.AddrPort) netip.AddrPort {
	if ip := a.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() && ip.Zone() == "" {
		return netip.AddrPortFrom(ip.WithZone(d.Netdev.Name()), a.Port())
	}
	return a
}

// Dial connects to a peer, from a claimed port if from is not nil.
func (d *Device) Dial(ctx context.Context, local, remote netip.AddrPort, from *tcp.Port) (net.Conn, error) {
	if from != nil {
		return from.Dial(ctx, d.zoned(remote))
	}
	return tcp.Dial(ctx, d.zoned(local), d.zoned(remote))
}

// Wrap wraps a stream in the middleware that shows its bytes.
func (d *Device) Wrap(c net.Conn) net.Conn {
	if d.config.Wrap == nil {
		return c
	}
	return d.config.Wrap(c)
}

// pd is a protection domain.
type pd struct {
	device.PD
	dev *Device
}

// AllocPD implements verbs.ProviderDevice.
func (d *Device) AllocPD() (verbs.ProviderPD, error) {
	p, err := d.NewPD()
	if err != nil {
		return nil, err
	}
	return &pd{p, d}, nil
}

// CreateAH implements verbs.ProviderPD.
func (p *pd) CreateAH(verbs.AHAttr) (verbs.ProviderAH, error) {
	return nil, verbs.Errorf(verbs.ErrUnsupported, "iWARP has no datagrams, so nothing that an address handle could serve: use a software device of RoCE")
}

// Close implements verbs.ProviderDevice.
func (d *Device) Close() error {
	d.End()
	err := d.Netdev.Close()
	d.watcher.Wait()
	d.streams.Wait()
	if p := d.polling.Load(); p != nil {
		p.close()
	}
	return d.Release(d.config.Closers, err)
}
