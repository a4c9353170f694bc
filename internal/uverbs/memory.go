//go:build linux

package uverbs

import (
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// optionalAccess are the access flags that a driver may ignore: IB_ACCESS_OPTIONAL.
const optionalAccess = 0x3ff << 20

// accessFlags returns the access flags of a program's memory as verbs has them. Flags beyond are refused. That memory may be
// flushed to storage is refused as Linux's rxe refuses it for memory that is not persistent.
func accessFlags(flags uint32) (verbs.Access, error) {
	const known = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
		verbs.AccessMWBind | verbs.AccessZeroBased | verbs.AccessOnDemand | verbs.AccessHugeTLB | verbs.AccessFlushGlobal
	a := verbs.Access(flags &^ optionalAccess)
	switch {
	case a&verbs.AccessFlushPersistent != 0:
		return 0, unix.EINVAL
	case a&^known != 0:
		return 0, unix.EOPNOTSUPP
	case a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && a&verbs.AccessLocalWrite == 0:
		return 0, unix.EINVAL
	}
	return a, nil
}

func (c *Context) allocPD(k *call) error {
	resp := uapi.AllocPDResp{}
	if err := k.needs(resp, nil); err != nil {
		return err
	}
	pd, err := c.dev.AllocPD()
	if err != nil {
		return err
	}
	resp.PDHandle = c.handle()
	if err := k.out(resp, nil); err != nil {
		_ = pd.Close()
		return err
	}
	c.pds[resp.PDHandle] = pd
	return nil
}

func (c *Context) deallocPD(k *call) error {
	var in uapi.DeallocPD
	if err := k.in(&in); err != nil {
		return err
	}
	return closeIn(c.pds, in.PDHandle)
}

// closeIn closes an object that has a handle, and forgets it unless it stays open.
func closeIn[T interface{ Close() error }](t table[T], handle uint32) error {
	v, err := t.get(handle)
	if err != nil {
		return err
	}
	if err := v.Close(); err != nil {
		return err
	}
	delete(t, handle)
	return nil
}

// region is a memory region of the program's.
type region struct {
	v                   *verbs.MR
	start, length, iova uint64
}

// Advise takes the advice of a program on memory that is registered on demand (ibv_advise_mr). It makes the checks of
// Linux's rxe. There is nothing to prefetch: a copy reaches the program's pages at once.
func (c *Context) Advise(a uapi.AdviseMR) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if a.Advice > uapi.AdvisePrefetchNoFault || a.Flags&^uapi.AdviseFlush != 0 {
		return unix.EOPNOTSUPP
	}
	pd, err := c.pds.get(a.PDHandle)
	if err != nil {
		return err
	}
	for _, s := range a.SGEs {
		r := c.regionOf(s.LKey)
		switch {
		case r == nil, r.v.PD() != pd, r.v.Access()&verbs.AccessOnDemand == 0,
			s.Addr < r.iova, s.Addr-r.iova > r.length, uint64(s.Length) > r.length-(s.Addr-r.iova):
			return unix.EINVAL
		case a.Advice == uapi.AdvisePrefetchWrite && r.v.Access()&verbs.AccessLocalWrite == 0:
			return unix.EPERM
		}
	}
	return nil
}

// regionOf returns the region with a local key, or nil. The caller holds c.mu.
func (c *Context) regionOf(lkey uint32) *region {
	for _, r := range c.mrs {
		if uint32(r.v.LKey()) == lkey {
			return r
		}
	}
	return nil
}

// register registers memory of the program's.
func (c *Context) register(k *call, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	if access&verbs.AccessOnDemand == 0 {
		return c.memory.Register(k.Caller, pd, start, length, iova, access)
	}
	if start == 0 && length == 1<<64-1 { // the whole address space, which the device does not offer: ODPSupportImplicit
		return nil, unix.EINVAL
	}
	return c.memory.RegisterOnDemand(k.Caller, pd, start, length, iova, access)
}

func (c *Context) regMR(k *call) error {
	var in uapi.RegMR
	if err := k.in(&in); err != nil {
		return err
	}
	var resp uapi.RegMRResp
	if err := k.needs(resp, nil); err != nil {
		return err
	}
	access, err := accessFlags(in.AccessFlags)
	if err != nil {
		return err
	}
	if in.Start&(page-1) != in.HCAVA&(page-1) && access&verbs.AccessZeroBased == 0 {
		return unix.EINVAL // as Linux demands: the two have the same place in their pages
	}
	pd, err := c.pds.get(in.PDHandle)
	if err != nil {
		return err
	}
	mr, err := c.register(k, pd, in.Start, in.Length, in.HCAVA, access)
	if err != nil {
		return err
	}
	resp = uapi.RegMRResp{MRHandle: c.handle(), LKey: uint32(mr.LKey()), RKey: uint32(mr.RKey())}
	if err := k.out(resp, nil); err != nil {
		_ = c.memory.Deregister(mr)
		return err
	}
	c.mrs[resp.MRHandle] = &region{mr, in.Start, in.Length, in.HCAVA}
	put(&c.named, c.named.mrs, resp.LKey, mr)
	return nil
}

// reregMR registers the memory anew, and then ends the region as it was. If the command fails the region stays.
func (c *Context) reregMR(k *call) error {
	var in uapi.ReregMR
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.ReregMRResp{}, nil); err != nil {
		return err
	}
	old, err := c.mrs.get(in.MRHandle)
	if err != nil {
		return err
	}
	if in.Flags == 0 || in.Flags&^(uapi.ReregTrans|uapi.ReregPD|uapi.ReregAccess) != 0 {
		return unix.EINVAL
	}
	next, pd, access := *old, old.v.PD(), old.v.Access()
	if in.Flags&uapi.ReregTrans != 0 {
		next.start, next.length, next.iova = in.Start, in.Length, in.HCAVA
	}
	if in.Flags&uapi.ReregPD != 0 {
		if pd, err = c.pds.get(in.PDHandle); err != nil {
			return err
		}
	}
	if in.Flags&uapi.ReregAccess != 0 {
		if access, err = accessFlags(in.AccessFlags); err != nil {
			return err
		}
	}
	if next.v, err = c.register(k, pd, next.start, next.length, next.iova, access); err != nil {
		return err
	}
	was := uint32(old.v.LKey())
	if err := c.memory.Deregister(old.v); err != nil {
		_ = c.memory.Deregister(next.v)
		return err
	}
	c.mrs[in.MRHandle] = &next
	drop(&c.named, c.named.mrs, was)
	put(&c.named, c.named.mrs, uint32(next.v.LKey()), next.v)
	return k.out(uapi.ReregMRResp{LKey: uint32(next.v.LKey()), RKey: uint32(next.v.RKey())}, nil)
}

func (c *Context) deregMR(k *call) error {
	var in uapi.DeregMR
	if err := k.in(&in); err != nil {
		return err
	}
	r, err := c.mrs.get(in.MRHandle)
	if err != nil {
		return err
	}
	was := uint32(r.v.LKey())
	if err := c.memory.Deregister(r.v); err != nil {
		return err
	}
	drop(&c.named, c.named.mrs, was)
	delete(c.mrs, in.MRHandle)
	return nil
}

func (c *Context) allocMW(k *call) error {
	var in uapi.AllocMW
	if err := k.in(&in); err != nil {
		return err
	}
	var resp uapi.AllocMWResp
	if err := k.needs(resp, nil); err != nil {
		return err
	}
	pd, err := c.pds.get(in.PDHandle)
	if err != nil {
		return err
	}
	mw, err := pd.AllocMW(verbs.MWType(in.MWType))
	if err != nil {
		return err
	}
	resp = uapi.AllocMWResp{MWHandle: c.handle(), RKey: uint32(mw.RKey())}
	if err := k.out(resp, nil); err != nil {
		_ = mw.Close()
		return err
	}
	c.mws[resp.MWHandle] = mw
	put(&c.named, c.named.mws, resp.RKey>>8, mw)
	return nil
}

func (c *Context) deallocMW(k *call) error {
	var in uapi.DeallocMW
	if err := k.in(&in); err != nil {
		return err
	}
	mw, err := c.mws.get(in.MWHandle)
	if err != nil {
		return err
	}
	key := uint32(mw.RKey()) >> 8
	if err := closeIn(c.mws, in.MWHandle); err != nil {
		return err
	}
	drop(&c.named, c.named.mws, key)
	return nil
}

// flowLabelMask has the bits of a flow label. Linux takes the other bits for nothing, and UCX sets them.
const flowLabelMask = 1<<20 - 1

// ahAttr returns a path as verbs has it.
func ahAttr(a *uapi.AHAttr) verbs.AHAttr {
	v := verbs.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: verbs.Rate(a.StaticRate), Port: int(a.PortNum)}
	if a.IsGlobal != 0 {
		g := &a.GRH
		v.DGID, v.FlowLabel, v.SGIDIndex, v.HopLimit, v.TrafficClass = g.DGID, g.FlowLabel&flowLabelMask, int(g.SGIDIndex), g.HopLimit, g.TrafficClass
	}
	return v
}

// createAH makes an address handle. Its number in work requests is its handle.
func (c *Context) createAH(k *call) error {
	var in uapi.CreateAH
	if err := k.in(&in); err != nil {
		return err
	}
	var (
		resp   uapi.CreateAHResp
		driver uapi.RxeCreateAHResp
	)
	if err := k.needs(resp, driver); err != nil {
		return err
	}
	pd, err := c.pds.get(in.PDHandle)
	if err != nil {
		return err
	}
	ah, err := pd.CreateAH(ahAttr(&in.Attr))
	if err != nil {
		return err
	}
	resp.AHHandle = c.handle()
	driver.AHNum = resp.AHHandle
	if err := k.out(resp, driver); err != nil {
		_ = ah.Close()
		return err
	}
	c.ahs[resp.AHHandle] = ah
	put(&c.named, c.named.ahs, resp.AHHandle, ah)
	return nil
}

func (c *Context) destroyAH(k *call) error {
	var in uapi.DestroyAH
	if err := k.in(&in); err != nil {
		return err
	}
	if err := closeIn(c.ahs, in.AHHandle); err != nil {
		return err
	}
	drop(&c.named, c.named.ahs, in.AHHandle)
	return nil
}
