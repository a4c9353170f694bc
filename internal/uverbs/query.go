//go:build linux

package uverbs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// notServed are the abilities of the device that programs do not get: the kernel's device that they see lacks them.
const notServed = verbs.DeviceXRC

// deviceResp returns the device's attributes as a program is told them. What verbs has no objects for is 0.
func (c *Context) deviceResp() uapi.QueryDeviceResp {
	a := &c.attr
	const maxAH = 32767
	return uapi.QueryDeviceResp{FWVer: firmware(a.FWVer), NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID, MaxMRSize: a.MaxMRSize,
		PageSizeCap: a.PageSizeCap, VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVer: a.HWVer,
		MaxQP: u32(a.MaxQP), MaxQPWR: u32(a.MaxQPWR), DeviceCapFlags: uint32(a.DeviceCapFlags &^ notServed), MaxSGE: u32(a.MaxSGE), MaxSGERd: u32(a.MaxSGERd),
		MaxCQ: u32(a.MaxCQ), MaxCQE: u32(min(a.MaxCQE, maxCQE)), MaxMR: u32(a.MaxMR), MaxPD: u32(a.MaxPD),
		MaxQPRdAtom: u32(a.MaxQPRdAtom), MaxEERdAtom: u32(a.MaxEERdAtom), MaxResRdAtom: u32(a.MaxResRdAtom),
		MaxQPInitRdAtom: u32(a.MaxQPInitRdAtom), MaxEEInitRdAtom: u32(a.MaxEEInitRdAtom), AtomicCap: uint32(a.AtomicCap),
		MaxEE: u32(a.MaxEE), MaxRDD: u32(a.MaxRDD), MaxMW: u32(a.MaxMW), MaxRawIPv6QP: u32(a.MaxRawIPv6QP), MaxRawEthyQP: u32(a.MaxRawEthyQP),
		MaxMcastGrp: u32(a.MaxMcastGrp), MaxMcastQPAttach: u32(a.MaxMcastQPAttach), MaxTotalMcastQPAttach: u32(a.MaxTotalMcastQPAttach),
		MaxAH: u32(min(a.MaxAH, maxAH)), MaxFMR: u32(a.MaxFMR), MaxSRQ: u32(a.MaxSRQ), MaxSRQWR: u32(a.MaxSRQWR), MaxSRQSGE: u32(a.MaxSRQSGE),
		MaxPKeys: uint16(min(a.MaxPKeys, 0xffff)), LocalCAACKDelay: a.LocalCAAckDelay, PhysPortCnt: uint8(a.PhysPortCnt)}
}

// u32 returns n where it fits, and else the most that does.
func u32(n int) uint32 { return uint32(min(max(int64(n), 0), 1<<31-1)) }

// firmware returns a version of the form a.b.c as the word that rxe's provider prints it from.
func firmware(version string) uint64 {
	var a, b, c uint16
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &a, &b, &c)
	return uint64(a)<<32 | uint64(b)<<16 | uint64(c)
}

func (c *Context) queryDevice(k *call) error {
	r := c.deviceResp()
	if err := k.needs(r, nil); err != nil {
		return err
	}
	return k.out(r, nil)
}

// exQueryDevice answers with as much as the program has room for.
func (c *Context) exQueryDevice(k *call) error {
	var in uapi.ExQueryDevice
	if err := k.inPrefix(8, &in); err != nil {
		return err
	}
	if in.CompMask != 0 || in.Reserved != 0 {
		return unix.EINVAL
	}
	r := uapi.ExQueryDeviceResp{Base: c.deviceResp(), DeviceCapFlagsEx: uint64(c.attr.DeviceCapFlagsEx &^ verbs.DeviceCapFlagsEx(notServed)), ODPCaps: odpCaps}
	all := uapi.Append(nil, r)
	r.ResponseLength = uint32(min(len(all), k.cmd.Out.Length))
	return k.put(k.cmd.Out, uapi.Append(nil, r))
}

// odpCaps are those of Linux's rxe.
var odpCaps = uapi.ODPCaps{
	GeneralCaps: uapi.ODPSupport,
	RCODPCaps: uapi.ODPSupportSend | uapi.ODPSupportRecv | uapi.ODPSupportWrite | uapi.ODPSupportRead | uapi.ODPSupportAtomic |
		uapi.ODPSupportSRQRecv,
	UDODPCaps: uapi.ODPSupportSend | uapi.ODPSupportRecv | uapi.ODPSupportSRQRecv,
}

func (c *Context) queryPort(k *call) error {
	var in uapi.QueryPort
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.QueryPortResp{}, nil); err != nil {
		return err
	}
	p, err := c.dev.QueryPort(int(in.PortNum))
	if err != nil {
		return unix.EINVAL
	}
	gids, err := c.dev.GIDs(int(in.PortNum))
	if err != nil {
		return err
	}
	p.GIDTableLen = gidEntries(gids) // as sysfs shows it
	return k.out(portResp(&p), nil)
}

func portResp(p *verbs.PortAttr) uapi.QueryPortResp {
	return uapi.QueryPortResp{PortCapFlags: p.PortCapFlags, MaxMsgSz: p.MaxMsgSize, BadPKeyCntr: p.BadPKeyCntr, QKeyViolCntr: p.QKeyViolCntr,
		GIDTblLen: u32(p.GIDTableLen), PKeyTblLen: uint16(min(p.PKeyTableLen, 0xffff)), LID: p.LID, SMLID: p.SMLID, State: uint8(p.State),
		MaxMTU: uint8(p.MaxMTU), ActiveMTU: uint8(p.ActiveMTU), LMC: p.LMC, MaxVLNum: p.MaxVLNum, SMSL: p.SMSL, SubnetTimeout: p.SubnetTimeout,
		InitTypeReply: p.InitTypeReply, ActiveWidth: p.ActiveWidth, ActiveSpeed: uint8(min(p.ActiveSpeed, 0xff)), PhysState: uint8(p.PhysState),
		LinkLayer: uint8(p.LinkLayer), Flags: p.Flags}
}
