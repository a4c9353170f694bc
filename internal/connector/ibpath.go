package connector

import (
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// subnetAdministration is what a software device on InfiniBand has besides. ok is false on other networks.
type subnetAdministration interface {
	IBPath(to netip.Addr, pkey uint16) (p link.IBPath, ok bool, err error)
	IBJoin(group netip.Addr, pkey uint16) (lid uint16, ok bool, err error)
	IBLeave(group netip.Addr) error
}

// ibPathTo asks subnet administration for the path to an address, which is a GID there, in a partition or in any: 0. On
// other networks there is nothing to ask, and the path is empty.
func ibPathTo(dev *verbs.Device, to netip.Addr, pkey verbs.PKey) (link.IBPath, error) {
	sa, ok := dev.Provider().(subnetAdministration)
	if !ok {
		return link.IBPath{}, nil
	}
	p, _, err := sa.IBPath(to, uint16(pkey))
	return p, err
}

// pathTo describes the path from one of the device's addresses to another address.
func pathTo(dev *verbs.Device, to netip.Addr, pkey verbs.PKey, sgid int, tos uint8) (verbs.AHAttr, error) {
	a := ahAttr(to, sgid, tos)
	p, err := ibPathTo(dev, to, pkey)
	a.DLID, a.SL = p.DLID, p.SL
	return a, err
}

// wayTo is ibPathTo for a REQ. It returns the path's MTU too, or else the one that it is given.
func wayTo(dev *verbs.Device, to netip.Addr, pkey verbs.PKey, mtu verbs.MTU) (cm.Way, verbs.MTU, error) {
	p, err := ibPathTo(dev, to, pkey)
	if p.MTU > 0 {
		mtu = min(mtu, verbs.MTU(p.MTU))
	}
	return cm.Way{LocalLID: p.SLID, RemoteLID: p.DLID, SL: p.SL, Routed: p.HopLimit > 0}, mtu, err
}

// ibJoin makes the port a member of a group of InfiniBand, and returns the group's LID. On other networks it does
// nothing.
func ibJoin(dev *verbs.Device, group netip.Addr, pkey verbs.PKey) (uint16, error) {
	sa, ok := dev.Provider().(subnetAdministration)
	if !ok {
		return 0, nil
	}
	lid, _, err := sa.IBJoin(group, uint16(pkey))
	if err != nil {
		return 0, fmt.Errorf("join: %w", err)
	}
	return lid, nil
}

// ibLeave undoes ibJoin.
func ibLeave(dev *verbs.Device, group netip.Addr) {
	if sa, ok := dev.Provider().(subnetAdministration); ok {
		_ = sa.IBLeave(group) // a subnet manager that does not answer forgets the port some day
	}
}

// pkeyIndex returns where the partition of a P_Key stands in the port's table, as a full member's or a limited one's. 0
// stands for the default partition, whose index is 0 too.
func pkeyIndex(dev *verbs.Device, pkey verbs.PKey) (index int, ok bool) {
	of := func(k verbs.PKey) bool { return wire.SamePartition(uint16(k), uint16(pkey)) }
	if pkey == 0 || of(wire.DefaultPKey) {
		return 0, true
	}
	return findPKey(dev, DevicePort, of)
}

// findPKey returns the index of the first P_Key in a port's table for which fits holds.
func findPKey(dev *verbs.Device, port int, fits func(verbs.PKey) bool) (index int, ok bool) {
	attr, err := dev.QueryPort(port)
	if err != nil {
		return 0, false
	}
	for i := range attr.PKeyTableLen {
		if k, err := dev.PKey(port, i); err == nil && fits(k) {
			return i, true
		}
	}
	return 0, false
}
