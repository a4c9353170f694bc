package hca

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/clock"
	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config is the configuration of a Device. All fields are optional.
type Config struct {
	Name       string            // the device's; empty stands for soft_ and the interface's
	Middleware []link.Middleware // put around each link, see link.Chain
	Closers    []io.Closer       // closed after the last link, such as a packet capture

	// Journal, unless nil, is given what programs post, what completes, and the states of QPs. Any goroutine may call it,
	// with locks held.
	Journal func(journal.Event)

	// ClaimService asks for the messages to QP1 that want a service at an address, until release is
	// called. It returns false where somebody else gets these messages. If ClaimService is nil, every service is free.
	ClaimService func(addr netip.Addr, service uint64) (release func(), ok bool, err error)
	// LastWords has another process send a message to QP1, if this process ends before revoke is
	// called. If LastWords is nil, nobody sends the message.
	LastWords func(from, to netip.Addr, class uint8, mad []byte) (revoke func())
	// ServeGSI is told whether the device has a QP1, which can take messages to QP1 that nobody has
	// claimed. It may be nil.
	ServeGSI func(on bool)
	// ShareService is ClaimService for a service that several may share, of whom none gets messages. claim makes the share a
	// claim: it returns false while others share. If ShareService is nil, nobody else shares.
	ShareService func(addr netip.Addr, service uint64) (claim func() (ok bool, err error), release func(), ok bool, err error)

	Ways           // of the first shard
	Shards []Shard // further ones

	// Random, unless nil, gives the numbers that QPNs, keys and a connection manager's numbers are made of,
	// in place of the system's, so that a simulation replays. Any goroutine may call it.
	Random func() uint32

	// IOVA, unless nil, gives the address of each region that is allocated. If it returns false, the region has the address
	// of its memory.
	IOVA func() (addr uint64, ok bool)

	// Spin bounds a spin: a goroutine that finds nothing looks at a link up to Spin times more before it
	// sleeps. It looks as often only while its sleeps are short.
	Spin int

	// Clock tells the time, if not nil. Without it the runtime's clock does, which is right in simulations, and slower.
	Clock *clock.Clock

	// Yielder, unless nil, gives the core to other threads between such looks.
	Yielder *queue.Yielder

	// Congestion is the congestion control of QPs until they are told otherwise.
	Congestion verbs.CongestionControl

	// Routing is the RC QPs' setting for adaptive routing until they are told otherwise. Defaults are filled in.
	Routing verbs.AdaptiveRouting

	// Standard has RC QPs use no extension toward adverbs either, as toward cards: after a loss they go back, and do not
	// repeat selectively.
	Standard bool

	// Alone says why this process shares neither memory nor addresses with others, if it should and does not. It is for
	// the log.
	Alone error

	// Refused are the socket options that the system denies to the device's links, for the log and the attributes.
	Refused []link.Refusal

	// Driven makes a device without goroutines. Whoever opened the device calls Drive, at the latest when NextDrive
	// says so. Driven is for simulations: they replay only if one goroutine does everything.
	Driven bool
}

// Device is a software HCA on a network interface. It has one port.
type Device struct {
	device.Base
	config Config
	driven driven

	port    port
	isIB    bool // its port is one of InfiniBand
	shards  []*shard
	qpCount atomic.Int64 // without QP1
	ahs     atomic.Int64
	groups  groups
	gsi     gsi
	retired retired
	xrc     xrc
	woken   atomic.Uint64 // how often a program that waits for a CQ was told

	mu           sync.Mutex // engines being opened, shards being chosen
	closed       bool
	spread       int // CQs that were given a shard
	engines      engineList
	firstEngines engineList // those of the first shard
	watcher      sync.WaitGroup
}

var (
	_ verbs.ProviderDevice     = (*Device)(nil)
	_ verbs.ProviderCounters   = (*Device)(nil)
	_ verbs.ProviderQPCounters = (*qp)(nil)
)

// Open makes a device on a network interface. The device's Close closes the interface too.
func Open(netdev link.Netdev, c Config) (*Device, error) {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	d := &Device{config: c}
	d.Init(cmp.Or(c.Name, namePrefix+netdev.Name()), netdev, c.Random)
	for i, w := range append([]Shard{{netdev, c.Ways}}, c.Shards...) {
		d.shards = append(d.shards, newShard(i, w, c.Random))
	}
	d.gsi.dev = d
	d.engines.Store(new([]*engine))
	d.firstEngines.Store(new([]*engine))
	d.port.netdevName = netdev.Name()
	changed := netdev.Changed() // before the first look, so that no change is missed
	if err := d.port.refresh(d, true); err != nil {
		d.closeNetdevs()
		return nil, fmt.Errorf("open %s: %w", d.Name, err)
	}
	d.isIB = d.port.state.IB != nil
	if c.Driven {
		d.driven.changed = changed
		return d, nil
	}
	d.watcher.Go(func() {
		for range changed {
			d.look()
		}
	})
	return d, nil
}

// Random32 implements verbs.ProviderRandom.
func (d *Device) Random32() uint32 {
	if d.config.Random != nil {
		return d.config.Random()
	}
	return idtable.Random32()
}

// namePrefix stands before the interface's name in the name of a device.
const namePrefix = "soft_"

// Describe returns what Device.Info would, without opening a device.
func Describe(netdev link.Netdev, name string) (verbs.DeviceInfo, error) {
	s, err := netdev.State()
	if err != nil {
		return verbs.DeviceInfo{}, err
	}
	if name == "" {
		name = namePrefix + netdev.Name()
	}
	return info(name, guidOf(s), netdev), nil
}

func info(name string, guid verbs.GUID, netdev link.Netdev) verbs.DeviceInfo {
	return verbs.DeviceInfo{Name: name, NodeGUID: guid, NodeType: "CA", Transport: verbs.TransportIB, Netdev: netdev.Name()}
}

// now is the time that the transport runs by.
func (d *Device) now() time.Duration { return d.config.Clock.Now() }

// Info implements verbs.ProviderDevice.
func (d *Device) Info() verbs.DeviceInfo {
	return info(d.Name, d.port.guid(), d.Netdev)
}

// Query implements verbs.ProviderDevice.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	caps := verbs.DeviceBadPKeyCntr | verbs.DeviceBadQKeyCntr | verbs.DevicePortActiveEvent | verbs.DeviceSysImageGUID |
		verbs.DeviceRCRNRNAKGen | verbs.DeviceSRQResize | verbs.DeviceNNotifyCQ | verbs.DeviceMemWindow |
		verbs.DeviceMemMgtExtensions | verbs.DeviceMemWindowType2B | verbs.DeviceXRC
	a := limits.Attr()
	a.NodeGUID, a.SysImageGUID = d.port.guid(), d.port.guid()
	if d.isIB {
		caps |= verbs.DeviceAutoPathMig
	}
	a.DeviceCapFlags, a.DeviceCapFlagsEx = caps, verbs.DeviceCapFlagsEx(caps)|verbs.DeviceFlushGlobal|verbs.DeviceAtomicWrite
	if mem.CanPersist() {
		a.DeviceCapFlagsEx |= verbs.DeviceFlushPersistent
	}
	a.MaxPKeys = len(d.port.pkeys())
	a.MaxAH = maxAH
	a.MaxMcastGrp, a.MaxMcastQPAttach, a.MaxTotalMcastQPAttach = maxMcastGrp, maxMcastQPAttach, maxMcastGrp*maxMcastQPAttach
	a.LocalCAAckDelay = localACKDelay
	a.Guarantees = verbs.AllGuarantees
	a.RefusedOptions = link.Refusals(d.config.Refused)
	return a, nil
}

// QueryPort implements verbs.ProviderDevice.
func (d *Device) QueryPort(int) (verbs.PortAttr, error) { return d.port.query(), nil }

// GID implements verbs.ProviderDevice.
func (d *Device) GID(_, index int) (verbs.GIDEntry, error) { return d.port.gid(index) }

// PKey implements verbs.ProviderDevice.
func (d *Device) PKey(_, index int) (verbs.PKey, error) {
	keys := d.port.pkeys()
	if index < 0 || index >= len(keys) {
		return 0, verbs.Errorf(verbs.ErrNotFound, "P_Key index %d: the table has %d entries", index, len(keys))
	}
	return verbs.PKey(keys[index]), nil
}

// pd is a protection domain.
type pd struct {
	device.PD
	dev *Device
	gsi atomic.Bool // QP1 is of this PD
}

// AllocPD implements verbs.ProviderDevice.
func (d *Device) AllocPD() (verbs.ProviderPD, error) {
	p, err := d.NewPD()
	if err != nil {
		return nil, err
	}
	return &pd{PD: p, dev: d}, nil
}

// RegMR implements verbs.ProviderPD.
func (p *pd) RegMR(attr verbs.MRAttr) (verbs.ProviderMR, error) {
	if ask := p.dev.config.IOVA; ask != nil && attr.Buf == nil && attr.Access&verbs.AccessZeroBased == 0 {
		attr.IOVA, attr.HasIOVA = ask()
	}
	mr, err := p.PD.RegMR(attr)
	if err == nil && p.dev.config.Journal != nil {
		p.dev.recordRegion(mr, &attr)
	}
	return mr, err
}

// Close implements verbs.ProviderDevice.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true // from here on engines stay as they are
	d.mu.Unlock()
	d.End()
	// The engines come first: packets for other processes that their links have received go by way of the interface.
	for _, e := range *d.engines.Load() {
		e.close()
	}
	err := d.closeNetdevs()
	d.watcher.Wait()
	return d.Release(d.config.Closers, err)
}

func (d *Device) closeNetdevs() error {
	var errs []error
	for _, s := range d.shards {
		errs = append(errs, s.Netdev.Close())
	}
	return errors.Join(errs...)
}

// expectWait prepares for a goroutine that is about to block for a completion.
func (d *Device) expectWait() {
	for _, e := range *d.engines.Load() {
		e.expectWait()
	}
}
