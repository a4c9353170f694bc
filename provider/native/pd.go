//go:build linux && (amd64 || arm64)

package native

import (
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// pd is a protection domain.
type pd struct {
	d *device
	r ibv.Ref[ibv.PD]
}

// Close implements verbs.ProviderPD.
func (p *pd) Close() error { return fault(p.d.destroyed(p.d.lib.DeallocPD(p.r))) }

// ah is an address handle.
type ah struct {
	d *device
	r ibv.Ref[ibv.AH]
}

// CreateAH implements verbs.ProviderPD.
func (p *pd) CreateAH(a verbs.AHAttr) (verbs.ProviderAH, error) {
	path, err := pathOf(&a, a.Port)
	if err != nil {
		return nil, err
	}
	r, err := p.d.lib.CreateAH(p.r, path)
	if err != nil {
		return nil, fault(err)
	}
	return &ah{p.d, r}, nil
}

// Close implements verbs.ProviderAH.
func (a *ah) Close() error { return fault(a.d.destroyed(a.d.lib.DestroyAH(a.r))) }

// pathOf is a path as C has it, from a port of the device.
func pathOf(a *verbs.AHAttr, port int) (ibv.AHAttr, error) {
	if a.IsGlobal() && (a.SGIDIndex < 0 || a.SGIDIndex > maxGIDIndex) {
		return ibv.AHAttr{}, verbs.Errorf(verbs.ErrNotFound, "GID index %d: the verbs have 0 to %d", a.SGIDIndex, maxGIDIndex)
	}
	c := ibv.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), PortNum: uint8(port)}
	if a.IsGlobal() {
		c.IsGlobal = 1
		c.DGID, c.FlowLabel, c.SGIDIndex, c.HopLimit, c.TrafficClass = a.DGID, a.FlowLabel, uint8(a.SGIDIndex), a.HopLimit, a.TrafficClass
	}
	return c, nil
}

// Largest values that C's structures have room for.
const (
	maxGIDIndex  = 1<<8 - 1
	maxPKeyIndex = 1<<16 - 1
	maxAtATime   = 1<<8 - 1 // READs and atomics
)

// pathFrom is the path that C has.
func pathFrom(c *ibv.AHAttr) verbs.AHAttr {
	a := verbs.AHAttr{DLID: c.DLID, SL: c.SL, SrcPathBits: c.SrcPathBits, StaticRate: verbs.Rate(c.StaticRate), Port: int(c.PortNum)}
	if c.IsGlobal != 0 {
		a.DGID, a.FlowLabel, a.SGIDIndex, a.HopLimit, a.TrafficClass = c.DGID, c.FlowLabel, int(c.SGIDIndex), c.HopLimit, c.TrafficClass
	}
	return a
}

// mw is a memory window.
type mw struct {
	d    *device
	r    ibv.Ref[ibv.MW]
	rkey atomic.Uint32
}

// AllocMW implements verbs.ProviderPD.
func (p *pd) AllocMW(t verbs.MWType) (verbs.ProviderMW, error) {
	r, err := p.d.lib.AllocMW(p.r, int(t))
	if err != nil {
		return nil, fault(err)
	}
	m := &mw{d: p.d, r: r}
	m.rkey.Store(r.P().RKey)
	return m, nil
}

// RKey implements verbs.ProviderMW.
func (m *mw) RKey() verbs.RKey { return verbs.RKey(m.rkey.Load()) }

// bound notes the key of a bind that is posted. C takes the window's present key for the next bind from its ibv_mw, which
// programs keep.
func (m *mw) bound(k verbs.RKey) {
	m.r.P().RKey = uint32(k)
	m.rkey.Store(uint32(k))
}

// Close implements verbs.ProviderMW.
func (m *mw) Close() error { return fault(m.d.destroyed(m.d.lib.DeallocMW(m.r))) }

// bindInfo is the memory of a bind as C has it.
func bindInfo(b *verbs.MWBind) ibv.MWBindInfo {
	info := ibv.MWBindInfo{Addr: b.Addr, Length: b.Length, MWAccessFlags: uint32(b.Access)}
	if b.MR != nil {
		info.MR = b.MR.Provider().(*mr).r
	}
	return info
}
