package verbs

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Transport is the kind of network that a device speaks (enum ibv_transport_type).
type Transport int8

// The transports (IBV_TRANSPORT_*).
const (
	TransportUnknown Transport = -1
	TransportIB      Transport = 0 // InfiniBand and RoCE
	TransportIWARP   Transport = 1
)

// DeviceInfo describes a device that Devices found (struct ibv_device).
type DeviceInfo struct {
	Name      string // such as "soft_eth0"
	NodeGUID  GUID
	NodeType  string // "CA" for all that this module drives
	Transport Transport
	Provider  string // the name under which its provider registered
	Netdev    string // the network interface under it, if there is one
}

// AtomicCap says against what a device's atomics are atomic (enum ibv_atomic_cap).
type AtomicCap uint8

// The atomic capabilities (IBV_ATOMIC_*).
const (
	AtomicNone AtomicCap = 0
	AtomicHCA  AtomicCap = 1 // among QPs of this device
	AtomicGlob AtomicCap = 2 // also with the host's own atomic instructions
)

var atomicCapNames = names[AtomicCap]{"ATOMIC", map[AtomicCap]string{
	AtomicNone: "ATOMIC_NONE", AtomicHCA: "ATOMIC_HCA", AtomicGlob: "ATOMIC_GLOB",
}}

func (c AtomicCap) String() string { return atomicCapNames.name(c) }

// DeviceAttr are the attributes of a device (struct ibv_device_attr and, for the rest of what
// ibv_devinfo -v prints, ibv_device_attr_ex). Counts are maxima.
type DeviceAttr struct {
	FWVer                 string
	NodeGUID              GUID
	SysImageGUID          GUID
	MaxMRSize             uint64 // bytes
	PageSizeCap           uint64 // bit mask of the supported page sizes
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 int
	MaxQPWR               int // work requests in one work queue
	DeviceCapFlags        DeviceCapFlags
	MaxSGE                int // SGEs in one work request
	MaxSGERd              int // SGEs in one READ
	MaxCQ                 int
	MaxCQE                int // entries in one CQ
	MaxMR                 int
	MaxPD                 int
	MaxQPRdAtom           int // READs and atomics that one QP answers at a time
	MaxEERdAtom           int
	MaxResRdAtom          int
	MaxQPInitRdAtom       int // READs and atomics that one QP has outstanding
	MaxEEInitRdAtom       int
	AtomicCap             AtomicCap
	MaxEE                 int
	MaxRDD                int
	MaxMW                 int
	MaxRawIPv6QP          int
	MaxRawEthyQP          int
	MaxMcastGrp           int
	MaxMcastQPAttach      int
	MaxTotalMcastQPAttach int
	MaxAH                 int
	MaxFMR                int
	MaxSRQ                int
	MaxSRQWR              int
	MaxSRQSGE             int
	MaxPKeys              int
	LocalCAAckDelay       uint8 // 4.096 µs × 2^n
	PhysPortCnt           int
	MaxInline             int // bytes of inline data in one work request
	NumCompVectors        int
	DeviceCapFlagsEx      uint64
}

// DeviceCapFlags are the capabilities of a device (enum ibv_device_cap_flags).
type DeviceCapFlags uint32

// The capability flags (IBV_DEVICE_*).
const (
	DeviceResizeMaxWR       DeviceCapFlags = 1 << 0
	DeviceBadPKeyCntr       DeviceCapFlags = 1 << 1
	DeviceBadQKeyCntr       DeviceCapFlags = 1 << 2
	DeviceRawMulti          DeviceCapFlags = 1 << 3
	DeviceAutoPathMig       DeviceCapFlags = 1 << 4
	DeviceChangePhyPort     DeviceCapFlags = 1 << 5
	DeviceUDAVPortEnforce   DeviceCapFlags = 1 << 6
	DeviceCurrQPStateMod    DeviceCapFlags = 1 << 7
	DeviceShutdownPort      DeviceCapFlags = 1 << 8
	DeviceInitType          DeviceCapFlags = 1 << 9
	DevicePortActiveEvent   DeviceCapFlags = 1 << 10
	DeviceSysImageGUID      DeviceCapFlags = 1 << 11
	DeviceRCRNRNAKGen       DeviceCapFlags = 1 << 12
	DeviceSRQResize         DeviceCapFlags = 1 << 13
	DeviceNNotifyCQ         DeviceCapFlags = 1 << 14
	DeviceMemWindow         DeviceCapFlags = 1 << 17
	DeviceUDIPCsum          DeviceCapFlags = 1 << 18
	DeviceXRC               DeviceCapFlags = 1 << 20
	DeviceMemMgtExtensions  DeviceCapFlags = 1 << 21
	DeviceMemWindowType2A   DeviceCapFlags = 1 << 23
	DeviceMemWindowType2B   DeviceCapFlags = 1 << 24
	DeviceRCIPCsum          DeviceCapFlags = 1 << 25
	DeviceRawIPCsum         DeviceCapFlags = 1 << 26
	DeviceManagedFlowSteers DeviceCapFlags = 1 << 29
)

var deviceCapNames = []flagName{
	{uint64(DeviceResizeMaxWR), "RESIZE_MAX_WR"}, {uint64(DeviceBadPKeyCntr), "BAD_PKEY_CNTR"},
	{uint64(DeviceBadQKeyCntr), "BAD_QKEY_CNTR"}, {uint64(DeviceRawMulti), "RAW_MULTI"},
	{uint64(DeviceAutoPathMig), "AUTO_PATH_MIG"}, {uint64(DeviceChangePhyPort), "CHANGE_PHY_PORT"},
	{uint64(DeviceUDAVPortEnforce), "UD_AV_PORT_ENFORCE"}, {uint64(DeviceCurrQPStateMod), "CURR_QP_STATE_MOD"},
	{uint64(DeviceShutdownPort), "SHUTDOWN_PORT"}, {uint64(DeviceInitType), "INIT_TYPE"},
	{uint64(DevicePortActiveEvent), "PORT_ACTIVE_EVENT"}, {uint64(DeviceSysImageGUID), "SYS_IMAGE_GUID"},
	{uint64(DeviceRCRNRNAKGen), "RC_RNR_NAK_GEN"}, {uint64(DeviceSRQResize), "SRQ_RESIZE"},
	{uint64(DeviceNNotifyCQ), "N_NOTIFY_CQ"}, {uint64(DeviceMemWindow), "MEM_WINDOW"},
	{uint64(DeviceUDIPCsum), "UD_IP_CSUM"}, {uint64(DeviceXRC), "XRC"},
	{uint64(DeviceMemMgtExtensions), "MEM_MGT_EXTENSIONS"}, {uint64(DeviceMemWindowType2A), "MEM_WINDOW_TYPE_2A"},
	{uint64(DeviceMemWindowType2B), "MEM_WINDOW_TYPE_2B"}, {uint64(DeviceRCIPCsum), "RC_IP_CSUM"},
	{uint64(DeviceRawIPCsum), "RAW_IP_CSUM"}, {uint64(DeviceManagedFlowSteers), "MANAGED_FLOW_STEERING"},
}

// Names returns the names of the set bits as ibv_devinfo prints them, lowest bit first.
func (f DeviceCapFlags) Names() []string {
	var s []string
	for _, b := range deviceCapNames {
		if uint64(f)&b.bit != 0 {
			s = append(s, b.name)
		}
	}
	return s
}

func (f DeviceCapFlags) String() string { return flagNames(uint64(f), deviceCapNames) }

var (
	providersMu sync.Mutex
	providers   = map[string]Provider{}
)

// Register makes the devices of p visible to Devices and Open. Providers call it from init;
// it panics if the name is taken.
func Register(name string, p Provider) {
	providersMu.Lock()
	defer providersMu.Unlock()
	if _, ok := providers[name]; ok {
		panic("verbs: Register called twice for provider " + name)
	}
	providers[name] = p
}

// registered returns the providers in the order of their names.
func registered() (ns []string, ps []Provider) {
	providersMu.Lock()
	defer providersMu.Unlock()
	for n := range providers {
		ns = append(ns, n)
	}
	slices.Sort(ns)
	for _, n := range ns {
		ps = append(ps, providers[n])
	}
	return ns, ps
}

// Devices lists the devices of every registered provider (ibv_get_device_list).
func Devices() ([]DeviceInfo, error) {
	var all []DeviceInfo
	ns, ps := registered()
	for i, p := range ps {
		ds, err := p.Devices()
		if err != nil {
			return all, wrap("list devices of provider", ns[i], err)
		}
		for _, d := range ds {
			d.Provider = ns[i]
			all = append(all, d)
		}
	}
	return all, nil
}

// Open opens a device by its name (ibv_open_device). A provider may take names that Devices
// does not list; package soft says which.
func Open(name string) (*Device, error) {
	ns, ps := registered()
	if len(ps) == 0 {
		return nil, wrap("open device", name, Errorf(ErrNotFound,
			"no provider is registered: import one for its side effect, such as github.com/adverb-rdma/adverb/provider/soft"))
	}
	var have []string
	for i, p := range ps {
		pd, err := p.Open(name)
		if err == nil {
			return NewDevice(pd), nil
		}
		if !isNotFound(err) {
			return nil, wrap("open device", name, err)
		}
		ds, _ := p.Devices()
		for _, d := range ds {
			have = append(have, d.Name+" ("+ns[i]+")")
		}
	}
	return nil, wrap("open device", name, Errorf(ErrNotFound, "no such device; there are %v", have))
}

// Device is an open device (struct ibv_context).
type Device struct {
	object
	p    ProviderDevice
	info DeviceInfo
	attr DeviceAttr

	serial serials
}

// NewDevice wraps an open provider device without the registry, as sql.OpenDB does.
func NewDevice(p ProviderDevice) *Device {
	d := &Device{p: p, info: p.Info()}
	d.name = "device " + d.info.Name
	d.attr, _ = p.Query()
	return d
}

// Info returns what Devices would list of the device.
func (d *Device) Info() DeviceInfo { return d.info }

// Name returns the device's name (ibv_get_device_name).
func (d *Device) Name() string { return d.info.Name }

// Provider returns the provider's side of the device, for what a provider offers beyond the
// verbs.
func (d *Device) Provider() ProviderDevice { return d.p }

// Query returns the device's attributes (ibv_query_device).
func (d *Device) Query() (DeviceAttr, error) {
	if err := d.check("query"); err != nil {
		return DeviceAttr{}, err
	}
	a, err := d.p.Query()
	return a, wrap("query", d.name, err)
}

// QueryPort returns the attributes of a port, counted from 1 (ibv_query_port).
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if err := d.checkPort("query port of", port); err != nil {
		return PortAttr{}, err
	}
	a, err := d.p.QueryPort(port)
	return a, wrap("query port of", d.name, err)
}

// GID returns an entry of the port's GID table (ibv_query_gid). A free entry, and an index
// beyond PortAttr.GIDTableLen, is ErrNotFound.
func (d *Device) GID(port, index int) (GIDEntry, error) {
	if err := d.checkPort("query gid of", port); err != nil {
		return GIDEntry{}, err
	}
	e, err := d.p.GID(port, index)
	return e, wrap("query gid of", d.name, err)
}

// GIDs returns the used entries of the port's GID table (ibv_query_gid_table).
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

// PKey returns an entry of the port's partition key table (ibv_query_pkey).
func (d *Device) PKey(port, index int) (PKey, error) {
	if err := d.checkPort("query pkey of", port); err != nil {
		return 0, err
	}
	k, err := d.p.PKey(port, index)
	return k, wrap("query pkey of", d.name, err)
}

// NextEvent blocks for an asynchronous event (ibv_get_async_event). The event is a value and
// needs no acknowledgement. Events wait in a queue while nobody asks.
func (d *Device) NextEvent(ctx context.Context) (AsyncEvent, error) {
	if err := d.check("wait for an event of"); err != nil {
		return AsyncEvent{}, err
	}
	e, err := d.p.NextEvent(ctx)
	return e, wrap("wait for an event of", d.name, err)
}

// Close closes the device (ibv_close_device). It fails with ErrBusy while the device has
// open objects. Like every Close here it is idempotent.
func (d *Device) Close() error { return d.close(d.p.Close) }

func (d *Device) checkPort(verb string, port int) error {
	if err := d.check(verb); err != nil {
		return err
	}
	if port < 1 || port > d.attr.PhysPortCnt {
		return wrap(verb, d.name, Errorf(ErrNotFound, "no port %d: ports are 1 to %d", port, d.attr.PhysPortCnt))
	}
	return nil
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
