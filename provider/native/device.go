//go:build linux && (amd64 || arm64)

package native

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// device is an open device: a context of libibverbs.
type device struct {
	lib    *ibv.Lib
	c      ibv.Ref[ibv.Context]
	info   verbs.DeviceInfo
	quirks quirks
	ops    extendedOps
	feed   *feed
	events queue.Events
	qpns   numbers

	// closing is held while a QP is destroyed, and shared while one is made: the number of a QP that is destroyed
	// is not given again before its last completions have found it.
	closing sync.RWMutex

	cqs  table[ibv.Ref[ibv.CQ], *cq]
	qps  table[ibv.Ref[ibv.QP], *qp]
	srqs table[ibv.Ref[ibv.SRQ], *srq]
	mrs  table[uint32, *mr] // by L_Key

	targets targets

	gone atomic.Pointer[goneError] // why the device works no more
	left leftMemory
}

// open opens a device, whose file is in the directory nodes.
func open(l *ibv.Lib, r ibv.Ref[ibv.Device], nodes string) (*device, error) {
	c, err := l.Open(r)
	if err != nil {
		return nil, openFault(err, filepath.Join(nodes, text(r.P().DevName[:])))
	}
	d := &device{lib: l, c: c, info: describe(l, r)}
	if a, err := l.QueryDevice(c); err == nil {
		d.quirks = quirksOf(a.VendorID)
		d.ops = findOps(l, c, verbs.DeviceCapFlagsEx(a.DeviceCapsExt))
	}
	if d.feed, err = d.newFeed(); err != nil {
		_ = l.Close(c) // the first error is the one to tell
		return nil, fault(err)
	}
	return d, nil
}

// Close implements verbs.ProviderDevice. It may be called again if it fails with ErrBusy.
func (d *device) Close() error {
	d.events.Close()
	if err := d.feed.close(); err != nil {
		return fault(err)
	}
	if err := d.lib.Close(d.c); err != nil {
		return fault(err)
	}
	d.left.free()
	return nil
}

// Info implements verbs.ProviderDevice.
func (d *device) Info() verbs.DeviceInfo { return d.info }

// unshared says why memory is not shared with other processes: the card reaches it, and no process needs to.
const unshared = "a device of the kernel needs no memory of other processes"

// Query implements verbs.ProviderDevice.
func (d *device) Query() (verbs.DeviceAttr, error) {
	a, err := d.lib.QueryDevice(d.c)
	if err != nil {
		return verbs.DeviceAttr{}, fault(err)
	}
	return verbs.DeviceAttr{
		FWVer: text(a.FWVer[:]), NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID, MaxMRSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap,
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVer: a.HWVer,
		MaxQP: int(a.MaxQP), MaxQPWR: int(a.MaxQPWR), DeviceCapFlags: verbs.DeviceCapFlags(a.DeviceCapFlags),
		MaxSGE: int(a.MaxSGE), MaxSGERd: int(a.MaxSGERd), MaxCQ: int(a.MaxCQ), MaxCQE: int(a.MaxCQE), MaxMR: int(a.MaxMR), MaxPD: int(a.MaxPD),
		MaxQPRdAtom: int(a.MaxQPRdAtom), MaxEERdAtom: int(a.MaxEERdAtom), MaxResRdAtom: int(a.MaxResRdAtom),
		MaxQPInitRdAtom: int(a.MaxQPInitRdAtom), MaxEEInitRdAtom: int(a.MaxEEInitRdAtom), AtomicCap: verbs.AtomicCap(a.AtomicCap),
		MaxEE: int(a.MaxEE), MaxRDD: int(a.MaxRDD), MaxMW: int(a.MaxMW), MaxRawIPv6QP: int(a.MaxRawIPv6QP), MaxRawEthyQP: int(a.MaxRawEthyQP),
		MaxMcastGrp: int(a.MaxMcastGrp), MaxMcastQPAttach: int(a.MaxMcastQPAttach), MaxTotalMcastQPAttach: int(a.MaxTotalMcastQPAttach),
		MaxAH: int(a.MaxAH), MaxFMR: int(a.MaxFMR), MaxSRQ: int(a.MaxSRQ), MaxSRQWR: int(a.MaxSRQWR), MaxSRQSGE: int(a.MaxSRQSGE),
		MaxPKeys: int(a.MaxPKeys), LocalCAAckDelay: a.LocalCAAckDelay, PhysPortCnt: int(a.PhysPortCnt),
		MaxInline: verbs.MaxInlineUnknown, NumCompVectors: int(d.c.P().NumCompVectors),
		DeviceCapFlagsEx: d.ops.usable(verbs.DeviceCapFlagsEx(a.DeviceCapsExt)), TimestampMask: a.TimestampMask, HCACoreClock: a.HCACoreClock,
		ODPCaps: verbs.ODPCaps{General: verbs.ODPGeneralCaps(a.ODPGeneralCaps), RC: verbs.ODPTransportCaps(a.RCODPCaps),
			UC: verbs.ODPTransportCaps(a.UCODPCaps), UD: verbs.ODPTransportCaps(a.UDODPCaps), XRC: verbs.ODPTransportCaps(a.XRCODPCaps)},
		UnsharedMemory: unshared, MissingOps: d.ops.why,
	}, nil
}

// QueryPort implements verbs.ProviderDevice.
func (d *device) QueryPort(port int) (verbs.PortAttr, error) {
	a, err := d.lib.QueryPort(d.c, port)
	if err != nil {
		return verbs.PortAttr{}, fault(err)
	}
	speed := a.ActiveSpeedEx
	if speed == 0 {
		speed = uint32(a.ActiveSpeed)
	}
	return verbs.PortAttr{
		State: verbs.PortState(a.State), MaxMTU: verbs.MTU(a.MaxMTU), ActiveMTU: verbs.MTU(a.ActiveMTU), GIDTableLen: int(a.GIDTblLen),
		PortCapFlags: a.PortCapFlags, PortCapFlags2: a.PortCapFlags2, MaxMsgSize: a.MaxMsgSz, BadPKeyCntr: a.BadPKeyCntr,
		QKeyViolCntr: a.QKeyViolCntr, PKeyTableLen: int(a.PKeyTblLen), LID: a.LID, SMLID: a.SMLID, LMC: a.LMC, MaxVLNum: a.MaxVLNum,
		SMSL: a.SMSL, SubnetTimeout: a.SubnetTimeout, InitTypeReply: a.InitTypeReply, ActiveWidth: a.ActiveWidth, ActiveSpeed: speed,
		PhysState: verbs.PhysState(a.PhysState), LinkLayer: verbs.LinkLayer(a.LinkLayer), Flags: a.Flags,
	}, nil
}

// GID implements verbs.ProviderDevice.
func (d *device) GID(port, index int) (verbs.GIDEntry, error) {
	if index < 0 {
		return verbs.GIDEntry{}, verbs.ErrNotFound
	}
	e, err := d.lib.QueryGID(d.c, port, index)
	if errors.Is(err, syscall.EINVAL) {
		return verbs.GIDEntry{}, d.noGID(port, index, err)
	}
	if err != nil {
		return verbs.GIDEntry{}, noEntry(err)
	}
	g := verbs.GIDEntry{GID: e.GID, Index: index, Port: port, Type: verbs.GIDType(e.GIDType)}
	if g.GID.IsZero() {
		return verbs.GIDEntry{}, verbs.ErrNotFound
	}
	g.Netdev = interfaceName(e.NDevIfindex)
	return g, nil
}

// interfaceName returns the name of a network interface. Package net would list all of the host's, for each entry of a table.
func interfaceName(index uint32) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("none")
	if err != nil {
		return ""
	}
	req.SetUint32(index)
	if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, req) != nil {
		return ""
	}
	return req.Name()
}

// noGID tells an empty entry from one that cannot be read: of both libibverbs says EINVAL, where it reads sysfs.
func (d *device) noGID(port, index int, cause error) error {
	b, err := os.ReadFile(filepath.Join("/sys/class/infiniband", d.info.Name, "ports", strconv.Itoa(port), "gids", strconv.Itoa(index)))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINVAL):
		return err
	case strings.Trim(string(b), "0:\n") != "":
		return fault(cause)
	}
	return verbs.Errorf(verbs.ErrNotFound, "%w", cause)
}

// PKey implements verbs.ProviderDevice.
func (d *device) PKey(port, index int) (verbs.PKey, error) {
	if index < 0 {
		return 0, verbs.ErrNotFound
	}
	k, err := d.lib.QueryPKey(d.c, port, index)
	if err != nil {
		return 0, noEntry(err)
	}
	return verbs.PKey(k[0])<<8 | verbs.PKey(k[1]), nil
}

// NextEvent implements verbs.ProviderDevice.
func (d *device) NextEvent(ctx context.Context) (verbs.AsyncEvent, error) { return d.events.Next(ctx) }

// AllocPD implements verbs.ProviderDevice.
func (d *device) AllocPD() (verbs.ProviderPD, error) {
	p, err := d.lib.AllocPD(d.c)
	if err != nil {
		return nil, fault(err)
	}
	return &pd{d, p}, nil
}
