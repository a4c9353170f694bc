package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Transport is the kind of network that a device speaks (enum ibv_transport_type).
type Transport int8

// The transports (IBV_TRANSPORT_*).
const (
	TransportUnknown     Transport = -1
	TransportIB          Transport = 0 // InfiniBand and RoCE
	TransportIWARP       Transport = 1 // RDMA over TCP; its connection manager takes QPs to RTS
	TransportUSNIC       Transport = 2
	TransportUSNICUDP    Transport = 3
	TransportUnspecified Transport = 4
)

var transportNames = names[Transport]{"TRANSPORT", map[Transport]string{
	TransportUnknown: "unknown", TransportIB: "InfiniBand", TransportIWARP: "iWARP",
	TransportUSNIC: "usNIC", TransportUSNICUDP: "usNIC UDP", TransportUnspecified: "unspecified",
}}

// String prints the transport as ibv_devinfo does, such as "InfiniBand".
func (t Transport) String() string { return transportNames.name(t) }

// DeviceInfo describes a device that [Devices] found (struct ibv_device).
type DeviceInfo struct {
	Name      string // such as "soft_eth0" or "mlx5_0"
	NodeGUID  GUID
	NodeType  string // "CA" for InfiniBand and RoCE, "RNIC" for iWARP
	Transport Transport
	Provider  string // the name under which its provider registered
	Netdev    string // the network interface under it, or empty

	// KernelName is the name that the kernel has for the device, such as "mlx5_0" or "rxe0". It is
	// empty for a device that the kernel does not know, such as a software device of this module.
	KernelName string
	// KernelDevice is the name of the kernel's character device for it (dev_name of struct
	// ibv_device), such as "uverbs0", or empty.
	KernelDevice string

	// SharesUDPPort names the kernel's RoCE devices, such as "mlx5_0" or "rxe0", that use UDP port
	// 4791 on the same network interface as this device. It is empty where there is none, and
	// where that cannot be known. Such a device gets in the way of one that receives RoCEv2 by a
	// UDP socket: a card takes the packets of port 4791 before any socket sees them, and the
	// kernel's rdma_rxe holds the port, so that a link cannot be opened.
	SharesUDPPort []string
}

// Device is an open device (struct ibv_context).
type Device struct {
	object
	p       ProviderDevice
	info    DeviceInfo
	attr    DeviceAttr
	attrErr error          // why attr could not be had, or nil
	links   []atomic.Int32 // by port, counted from 0: its LinkLayer plus 1, or 0 while not known

	sharedMu sync.Mutex
	shared   *PD // see SharedPD, or nil

	serial  serials
	manager atomic.Pointer[Manager] // or nil

	countMu sync.Mutex   // held while counters are read
	managed Counters     // the counters of managers that have ended
	final   *finalCounts // of a device that is closed
}

// NewDevice makes a Device of a provider's device without the registry, as sql.OpenDB does. If the
// attributes of the device cannot be queried, every verb of the Device but Close fails with the
// cause.
func NewDevice(p ProviderDevice) *Device {
	d := &Device{p: p, info: p.Info()}
	d.name = "device " + d.info.Name
	d.attr, d.attrErr = p.Query()
	d.links = make([]atomic.Int32, max(d.attr.PhysPortCnt, 0))
	return d
}

// Info returns the entry of the device in the list of [Devices].
func (d *Device) Info() DeviceInfo { return d.info }

// Name returns the device's name (ibv_get_device_name).
func (d *Device) Name() string { return d.info.Name }

// Provider returns the provider's side of the device, for implementers of providers, and for the methods
// that a provider has beyond the verbs.
func (d *Device) Provider() ProviderDevice { return d.p }

// Query returns the device's attributes (ibv_query_device, ibv_query_device_ex).
func (d *Device) Query() (DeviceAttr, error) {
	if err := d.check("query"); err != nil {
		return DeviceAttr{}, err
	}
	a, err := d.p.Query()
	return a, wrap("query", d.name, err)
}

// QueryPort returns the attributes of a port (ibv_query_port). Ports are counted from 1; the error
// for one that does not exist is ErrNotFound.
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if err := d.checkPort("query port of", port); err != nil {
		return PortAttr{}, err
	}
	a, err := d.p.QueryPort(port)
	return a, wrap("query port of", d.name, err)
}

// GID returns an entry of the port's GID table (ibv_query_gid, ibv_query_gid_ex). Indexes count
// from 0. The error for a free entry, and for an index beyond PortAttr.GIDTableLen, is ErrNotFound.
func (d *Device) GID(port, index int) (GIDEntry, error) {
	if err := d.checkPort("query gid of", port); err != nil {
		return GIDEntry{}, err
	}
	e, err := d.p.GID(port, index)
	return e, wrap("query gid of", d.name, err)
}

// GIDs returns the used entries of the port's GID table (ibv_query_gid_table), in the order of
// their indexes.
func (d *Device) GIDs(port int) ([]GIDEntry, error) {
	a, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	var es []GIDEntry
	for i := range a.GIDTableLen {
		e, err := d.p.GID(port, i)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return es, wrap("query gid of", d.name, err)
		}
		es = append(es, e)
	}
	return es, nil
}

// PKey returns an entry of the port's partition key table (ibv_query_pkey). Indexes count from 0.
// The error for an index beyond PortAttr.PKeyTableLen is ErrNotFound.
func (d *Device) PKey(port, index int) (PKey, error) {
	if err := d.checkPort("query pkey of", port); err != nil {
		return 0, err
	}
	k, err := d.p.PKey(port, index)
	return k, wrap("query pkey of", d.name, err)
}

// NextEvent waits for an asynchronous event and returns it (ibv_get_async_event). It returns
// early with ctx's error when ctx ends, and with ErrClosed when the device is closed. Events wait
// in a queue until somebody asks for them. An event is a value and needs no acknowledgement.
func (d *Device) NextEvent(ctx context.Context) (AsyncEvent, error) {
	if err := d.check("wait for an event of"); err != nil {
		return AsyncEvent{}, err
	}
	e, err := d.p.NextEvent(ctx)
	return e, wrap("wait for an event of", d.name, err)
}

// Close closes the device (ibv_close_device). It fails with ErrBusy while the device has open
// objects, SharedPD without any in it aside. To close a second time does nothing, as with every Close
// of this package.
func (d *Device) Close() error {
	d.sharedMu.Lock()
	defer d.sharedMu.Unlock()
	if d.shared != nil && d.has(&d.shared.object) == 1 {
		_ = d.shared.Close() // if it fails the device is busy, and the error names the dependents
	}
	return d.close(func() error {
		d.keepCounts()
		forget(d) // whatever comes of it: it is closed
		return d.p.Close()
	})
}

// check returns an error if the device is closed, or if its attributes are not known.
func (d *Device) check(verb string) error {
	if err := d.object.check(verb); err != nil {
		return err
	}
	return d.checkAttr(verb)
}

func (d *Device) checkAttr(verb string) error {
	if d.attrErr != nil {
		return wrap(verb, d.name, fmt.Errorf("the device's attributes could not be queried: %w", d.attrErr))
	}
	return nil
}

func (d *Device) checkPort(verb string, port int) error {
	if err := d.check(verb); err != nil {
		return err
	}
	if !d.hasPort(port) {
		return wrap(verb, d.name, Errorf(ErrNotFound, "no port %d: ports are 1 to %d", port, d.attr.PhysPortCnt))
	}
	return nil
}

func (d *Device) hasPort(port int) bool { return port >= 1 && port <= d.attr.PhysPortCnt }

// linkLayer returns the link layer of a port that exists. It is asked for once: a port whose link
// layer changes comes back as another device.
func (d *Device) linkLayer(port int) (LinkLayer, error) {
	known := &d.links[port-1]
	if l := known.Load(); l != 0 {
		return LinkLayer(l - 1), nil
	}
	a, err := d.p.QueryPort(port)
	if err != nil {
		return 0, fmt.Errorf("query port %d: %w", port, err)
	}
	known.Store(int32(a.LinkLayer) + 1)
	return a.LinkLayer, nil
}

// serials numbers the objects of a device, for their names.
type serials struct {
	mu   sync.Mutex
	last map[string]int
}

func (s *serials) next(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]int{}
	}
	s.last[kind]++
	return fmt.Sprintf("%s %d", kind, s.last[kind])
}
