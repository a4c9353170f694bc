package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Access is the access that is allowed to a memory region, or through a QP (enum ibv_access_flags).
// Local reads are always allowed.
type Access uint32

// The access flags (IBV_ACCESS_*).
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4
	AccessZeroBased    Access = 1 << 5 // the region's first byte has address 0

	// AccessOnDemand: pages are not pinned, and the device has them brought in when it needs them. The error is
	// ErrUnsupported on devices without: see DeviceAttr.ODPCaps. No effect on software devices, which pin nothing.
	AccessOnDemand Access = 1 << 6

	// AccessHugeTLB: the memory consists of huge pages. [PD.AllocMR] takes those that the host has set aside
	// (vm.nr_hugepages), and the error without any is ErrLimit. No effect on software devices.
	AccessHugeTLB Access = 1 << 7

	AccessFlushGlobal     Access = 1 << 8 // peers may have data made visible: see OpFlush
	AccessFlushPersistent Access = 1 << 9 // and stored: of memory that is a shared mapping of a file

	// AccessRelaxedOrdering: the bytes of incoming messages may appear in any order, as PCI Express can carry them
	// faster. A completion still says that all are there. It is a wish: devices and systems that know nothing of it
	// ignore it, as software devices do.
	AccessRelaxedOrdering Access = 1 << 20
)

var accessNames = []flagName{
	{uint64(AccessLocalWrite), "ACCESS_LOCAL_WRITE"}, {uint64(AccessRemoteWrite), "ACCESS_REMOTE_WRITE"},
	{uint64(AccessRemoteRead), "ACCESS_REMOTE_READ"}, {uint64(AccessRemoteAtomic), "ACCESS_REMOTE_ATOMIC"},
	{uint64(AccessMWBind), "ACCESS_MW_BIND"}, {uint64(AccessZeroBased), "ACCESS_ZERO_BASED"},
	{uint64(AccessOnDemand), "ACCESS_ON_DEMAND"}, {uint64(AccessHugeTLB), "ACCESS_HUGETLB"},
	{uint64(AccessFlushGlobal), "ACCESS_FLUSH_GLOBAL"}, {uint64(AccessFlushPersistent), "ACCESS_FLUSH_PERSISTENT"},
	{uint64(AccessRelaxedOrdering), "ACCESS_RELAXED_ORDERING"},
}

// String joins the names of the flags by "|", such as ACCESS_LOCAL_WRITE|ACCESS_REMOTE_READ.
func (a Access) String() string { return flagNames(uint64(a), accessNames) }

const (
	knownAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
		AccessMWBind | AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersistent | AccessRelaxedOrdering
	remoteChange = AccessRemoteWrite | AccessRemoteAtomic
)

func checkAccess(a Access) error {
	if bad := a &^ knownAccess; bad != 0 {
		return invalidf("unknown access flags %#x", uint32(bad))
	}
	if a&remoteChange != 0 && a&AccessLocalWrite == 0 {
		return invalidf("%v needs ACCESS_LOCAL_WRITE as well", a&remoteChange)
	}
	return nil
}

// checkAccess is for a region of the device.
func (d *Device) checkAccess(a Access) error {
	if err := checkAccess(a); err != nil {
		return err
	}
	if a&AccessOnDemand != 0 && d.attr.ODPCaps.General&ODPSupport == 0 {
		return Errorf(ErrUnsupported, "the device has no on-demand paging (general_odp_caps): leave ACCESS_ON_DEMAND out, and the pages are pinned")
	}
	return nil
}

// MR is a registered memory region (struct ibv_mr). One MR and its R_Key serve any number of peers
// and any address inside the region.
type MR struct {
	object
	pd     *PD
	p      ProviderMR
	buf    []byte // nil for memory that the processor does not reach
	n      int    // bytes
	addr   uint64
	lkey   LKey
	rkey   RKey
	access Access

	allocated bool        // by the provider: Close takes the memory away
	gone      atomic.Bool // it is closed, and the memory is gone
}

// mrName is the name of the region that has the key.
func (k LKey) mrName() string { return fmt.Sprintf("mr lkey %v", k) }

// register gives a new region its provider's side, and the name of its key. n is its length where the program gave no
// memory.
func (mr *MR) register(p ProviderMR, n int) {
	mr.p, mr.buf, mr.addr, mr.lkey, mr.rkey = p, p.Bytes(), p.Addr(), p.LKey(), p.RKey()
	mr.n = max(len(mr.buf), n)
	mr.setName(mr.lkey.mrName())
}

// Provider returns the provider's side of the region, for implementers of providers.
func (mr *MR) Provider() ProviderMR { return mr.p }

// PD returns the protection domain of the region.
func (mr *MR) PD() *PD { return mr.pd }

// Bytes returns the memory. A peer's writes appear in it. Until a completion or a message says that
// a write is done, only Load32, Load64 and the other methods that access words atomically may touch
// those bytes: other accesses are data races. docs/guide/memory.md has the order that they see.
//
// After Close the memory of AllocMR is gone, and Bytes panics. To use a slice that was kept ends the
// program with a fault on Linux, until about a thousand more regions are closed or addresses run short;
// then it may be another region's memory. ADVERB_DEBUG=mr makes the fault last for ever, and tells on
// stderr the addresses of each closed region, and who closed it.
func (mr *MR) Bytes() []byte {
	mr.alive("Bytes")
	return mr.buf
}

// alive panics, in a method, if the region is closed and its memory gone.
func (mr *MR) alive(method string) {
	if mr.gone.Load() {
		mr.panicClosed(method)
	}
}

func (mr *MR) panicClosed(method string) {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	panic(fmt.Sprintf("verbs: MR.%s of %s, which is closed: its memory is gone", method, mr.name))
}

// Len returns the region's length in bytes.
func (mr *MR) Len() int { return mr.n }

// Addr returns the address of the region's first byte, as SGEs and peers use it. It is 0 for a
// zero-based region.
func (mr *MR) Addr() uint64 { return mr.addr }

// LKey returns the key for local use, in SGEs. It is not the RKey: on software devices they always
// differ, and on cards they may.
func (mr *MR) LKey() LKey { return mr.lkey }

// RKey returns the key to give to peers. The key gives a peer the access that the region's remote
// access flags allow.
func (mr *MR) RKey() RKey { return mr.rkey }

// Access returns the flags that the region was registered with, or that Rereg gave it.
func (mr *MR) Access() Access { return mr.access }

// Remote returns how a peer names the region from offset off on. It panics if off is outside the
// region; the offset just behind the last byte is allowed.
func (mr *MR) Remote(off int) RemoteAddr {
	if off < 0 || off > mr.n {
		panic(fmt.Sprintf("verbs: MR.Remote(%d) of a region of %d bytes", off, mr.n))
	}
	return RemoteAddr{VA: mr.addr + uint64(off), RKey: mr.rkey}
}

// SGE returns the SGE that names the bytes [off, off+n). It panics if they are not all inside the
// region, as slicing does, and if n is larger than MaxSGELength.
func (mr *MR) SGE(off, n int) SGE {
	if off < 0 || n < 0 || off > mr.n || n > mr.n-off {
		panic(fmt.Sprintf("verbs: MR.SGE(%d, %d) of a region of %d bytes", off, n, mr.n))
	}
	if uint64(n) > MaxSGELength {
		panic(fmt.Sprintf("verbs: MR.SGE(%d, %d): an SGE holds at most %d bytes", off, n, uint64(MaxSGELength)))
	}
	return SGE{Addr: mr.addr + uint64(off), Length: uint32(n), LKey: mr.lkey}
}

// Closed reports whether the region is closed.
func (mr *MR) Closed() bool { return mr.isClosed() }

// Close deregisters the region (ibv_dereg_mr). When it has returned, no device touches the buffer
// any more; work requests that still name the region fail. The memory of AllocMR is then gone: see
// Bytes. The error is ErrBusy while a memory window is bound to the region.
func (mr *MR) Close() error {
	return mr.close(func() error {
		mr.gone.Store(mr.allocated)
		err := mr.p.Close()
		if errors.Is(err, ErrBusy) {
			mr.gone.Store(false)
		}
		return err
	})
}
