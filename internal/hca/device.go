package hca

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config is what a Device is given beside its network interface. All of it is optional.
type Config struct {
	Name       string            // the device's; empty stands for soft_ and the interface's
	Middleware []link.Middleware // put around each link, see link.Chain
	Closers    []io.Closer       // closed after the last link, such as a packet capture

	// Claim asks for a block of 4096 QPNs for this device alone. The block is given by the upper 12
	// bits of its QPNs. Claim returns false where somebody else has the block. Where Claim is nil
	// every block is free.
	Claim func(block uint32) (bool, error)

	// ClaimService asks for the messages to QP1 that want a service at an address, until release is
	// called. It returns false where somebody else gets them. Where it is nil every service is free.
	ClaimService func(addr netip.Addr, service uint64) (release func(), ok bool, err error)
	// ServeGSI is told whether the device has a QP1, which can take messages to QP1 that nobody has
	// claimed. It may be nil.
	ServeGSI func(on bool)
}

// Device is a software HCA on a network interface. It has one port.
type Device struct {
	name   string
	netdev link.Netdev
	config Config
	start  time.Time

	port   port
	events queue.Events
	qps    idtable.Table[qp]
	keys   *mem.Keys
	pds    atomic.Int64
	cqs    atomic.Int64
	ahs    atomic.Int64
	srqs   atomic.Int64
	groups groups
	gsi    gsi

	gone    chan struct{} // closed with the device, or when its network interface vanishes
	setGone func()

	mu      sync.Mutex // engines being opened
	closed  bool
	engines atomic.Pointer[[]*engine]
	watcher sync.WaitGroup
}

var _ verbs.ProviderDevice = (*Device)(nil)

// Open makes a device on a network interface. The device's Close closes the interface too.
func Open(netdev link.Netdev, c Config) (*Device, error) {
	d := &Device{name: c.Name, netdev: netdev, config: c, start: time.Now(), gone: make(chan struct{})}
	d.setGone = sync.OnceFunc(func() { close(d.gone) })
	if d.name == "" {
		d.name = namePrefix + netdev.Name()
	}
	d.qps.Limit, d.qps.Claim, d.qps.Rest = maxQP, c.Claim, qpnRest
	d.keys = mem.NewKeys(maxMR, nil)
	d.gsi.dev = d
	d.engines.Store(new([]*engine))
	d.port.netdevName = netdev.Name()
	changed := netdev.Changed() // before the first look, so that no change is missed
	if err := d.port.refresh(d, true); err != nil {
		netdev.Close()
		return nil, fmt.Errorf("open %s: %w", d.name, err)
	}
	d.watcher.Go(func() {
		for range changed {
			d.port.refresh(d, false)
		}
	})
	return d, nil
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
func (d *Device) now() time.Duration { return time.Since(d.start) }

// Info implements verbs.ProviderDevice.
func (d *Device) Info() verbs.DeviceInfo {
	return info(d.name, d.port.guid(), d.netdev)
}

// Query implements verbs.ProviderDevice.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	caps := verbs.DeviceBadPKeyCntr | verbs.DeviceBadQKeyCntr | verbs.DevicePortActiveEvent | verbs.DeviceSysImageGUID |
		verbs.DeviceRCRNRNAKGen | verbs.DeviceSRQResize | verbs.DeviceNNotifyCQ | verbs.DeviceMemWindow |
		verbs.DeviceMemMgtExtensions | verbs.DeviceMemWindowType2B
	return verbs.DeviceAttr{
		FWVer:                 "0.0.0",
		NodeGUID:              d.port.guid(),
		SysImageGUID:          d.port.guid(),
		MaxMRSize:             maxMRSize,
		PageSizeCap:           0xfffff000,
		VendorID:              0xffffff, // none assigned, as for the kernel's software device
		MaxQP:                 maxQP,
		MaxQPWR:               maxQPWR,
		DeviceCapFlags:        caps,
		DeviceCapFlagsEx:      uint64(caps),
		MaxSGE:                maxSGE,
		MaxSGERd:              maxSGE,
		MaxCQ:                 maxCQ,
		MaxCQE:                maxCQE,
		MaxMR:                 maxMR,
		MaxPD:                 maxPD,
		MaxQPRdAtom:           maxRDAtomic,
		MaxResRdAtom:          maxRDAtomic * maxQP,
		MaxQPInitRdAtom:       maxRDAtomic,
		AtomicCap:             verbs.AtomicGlob,
		MaxPKeys:              1,
		MaxMW:                 maxMR,
		MaxAH:                 maxAH,
		MaxMcastGrp:           maxMcastGrp,
		MaxMcastQPAttach:      maxMcastQPAttach,
		MaxTotalMcastQPAttach: maxMcastGrp * maxMcastQPAttach,
		MaxSRQ:                maxSRQ,
		MaxSRQWR:              maxSRQWR,
		MaxSRQSGE:             maxSGE,
		LocalCAAckDelay:       localACKDelay,
		PhysPortCnt:           1,
		MaxInline:             maxInline,
		NumCompVectors:        1,
		Guarantees:            verbs.AllGuarantees,
	}, nil
}

// QueryPort implements verbs.ProviderDevice.
func (d *Device) QueryPort(int) (verbs.PortAttr, error) { return d.port.query(), nil }

// GID implements verbs.ProviderDevice.
func (d *Device) GID(_, index int) (verbs.GIDEntry, error) { return d.port.gid(index) }

// PKey implements verbs.ProviderDevice. RoCE devices know one partition.
func (d *Device) PKey(_, index int) (verbs.PKey, error) {
	if index != 0 {
		return 0, verbs.Errorf(verbs.ErrNotFound, "P_Key index %d: the table has one entry", index)
	}
	return wire.DefaultPKey, nil
}

// NextEvent implements verbs.ProviderDevice.
func (d *Device) NextEvent(ctx context.Context) (verbs.AsyncEvent, error) { return d.events.Next(ctx) }

// pd is a protection domain. Its memory is that of package mem.
type pd struct {
	*mem.PD
	dev *Device
}

// AllocPD implements verbs.ProviderDevice.
func (d *Device) AllocPD() (verbs.ProviderPD, error) {
	if !d.take(&d.pds, maxPD) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d PDs (max_pd)", maxPD)
	}
	return &pd{d.keys.NewPD(), d}, nil
}

func (p *pd) Close() error {
	p.dev.pds.Add(-1)
	return nil
}

// take counts an object. It returns false, and does not count, where the device has its limit.
func (d *Device) take(n *atomic.Int64, limit int64) bool {
	if n.Add(1) > limit {
		n.Add(-1)
		return false
	}
	return true
}

// Close implements verbs.ProviderDevice.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true // from here on engines stay as they are
	d.mu.Unlock()
	d.setGone()
	d.events.Close()
	err := d.netdev.Close()
	d.watcher.Wait()
	for _, e := range *d.engines.Load() {
		e.close()
	}
	errs := []error{err}
	// The facade closes no device with open regions, but rdmatest does at the end of a test. Allocated
	// memory stays: a goroutine that outlives the test would die of its absence.
	d.keys.Unpin()
	for _, c := range d.config.Closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// progress receives and works off what has arrived, on every link at which nobody else is doing so.
func (d *Device) progress() {
	for _, e := range *d.engines.Load() {
		e.poll()
	}
}

// expectWait prepares for a goroutine that is about to block for a completion.
func (d *Device) expectWait() {
	for _, e := range *d.engines.Load() {
		e.expectWait()
	}
}
