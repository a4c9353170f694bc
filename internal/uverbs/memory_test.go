//go:build linux

package uverbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestOnDemand: the device offers on-demand paging, and registers memory for it, which it remains after a change.
func TestOnDemand(t *testing.T) {
	x, y, xcq, _ := two(t)
	p := y.p
	var caps uapi.ExQueryDeviceResp
	p.do(uapi.CmdExQueryDevice, uapi.ExQueryDevice{}, nil, &caps, nil)
	if c := caps.ODPCaps; c.GeneralCaps != uapi.ODPSupport || c.RCODPCaps != 0x3f || c.UCODPCaps != 0 || c.UDODPCaps != 0x23 {
		t.Errorf("got capabilities %+v, want those of rxe", c)
	}
	var mr uapi.RegMRResp
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: 100, HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: uint32(verbs.AccessOnDemand) | 3}, nil, &mr, nil)
	write := func(id, remote uint64, rkey uint32) {
		t.Helper()
		x.post(send{id: id, op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte{byte(id)}, remote: remote, rkey: rkey})
		xcq.good(id)
		if got := p.arena[remote-arenaBase]; got != byte(id) {
			t.Errorf("written: %d, want %d", got, id)
		}
	}
	write(1, arenaBase+50, mr.RKey)
	var re uapi.ReregMRResp
	p.do(uapi.CmdReregMR, uapi.ReregMR{MRHandle: mr.MRHandle, Flags: uapi.ReregTrans, Start: arenaBase + 200, Length: 100, HCAVA: arenaBase + 200}, nil, &re, nil)
	write(2, arenaBase+250, re.RKey)
	var pinned, readable uapi.RegMRResp
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: 100, HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: 1}, nil, &pinned, nil)
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: 100, HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: uint32(verbs.AccessOnDemand)}, nil, &readable, nil)
	all := uapi.SGE{Addr: arenaBase + 200, Length: 100, LKey: re.LKey}
	for name, c := range map[string]struct {
		pd, flags uint32
		advice    uint64
		sge       uapi.SGE
		want      unix.Errno
	}{
		"prefetch":                        {pd: p.pd, sge: all},
		"prefetch for writing, and wait":  {pd: p.pd, flags: uapi.AdviseFlush, advice: uapi.AdvisePrefetchWrite, sge: all},
		"prefetch without a fault":        {pd: p.pd, advice: uapi.AdvisePrefetchNoFault, sge: all},
		"another advice":                  {pd: p.pd, advice: 3, sge: all, want: unix.EOPNOTSUPP},
		"another flag":                    {pd: p.pd, flags: 2, sge: all, want: unix.EOPNOTSUPP},
		"a PD that does not exist":        {pd: 999, sge: all, want: unix.EINVAL},
		"a key that does not exist":       {pd: p.pd, sge: uapi.SGE{Addr: all.Addr, Length: 1, LKey: 999}, want: unix.EINVAL},
		"memory that is not on demand":    {pd: p.pd, sge: uapi.SGE{Addr: arenaBase, Length: 1, LKey: pinned.LKey}, want: unix.EINVAL},
		"bytes before the region":         {pd: p.pd, sge: uapi.SGE{Addr: all.Addr - 1, Length: 1, LKey: re.LKey}, want: unix.EINVAL},
		"bytes behind the region":         {pd: p.pd, sge: uapi.SGE{Addr: all.Addr + 1, Length: 100, LKey: re.LKey}, want: unix.EINVAL},
		"bytes far behind the region":     {pd: p.pd, sge: uapi.SGE{Addr: 1<<64 - 1, Length: 100, LKey: re.LKey}, want: unix.EINVAL},
		"writing where that is forbidden": {pd: p.pd, advice: uapi.AdvisePrefetchWrite, sge: uapi.SGE{Addr: arenaBase, Length: 1, LKey: readable.LKey}, want: unix.EPERM},
	} {
		err := p.c.Advise(uapi.AdviseMR{PDHandle: c.pd, Advice: c.advice, Flags: c.flags, SGEs: []uapi.SGE{all, c.sge}})
		if c.want == 0 && err != nil || c.want != 0 && Errno(err) != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if p.onDemand != 3 {
		t.Errorf("registered on demand %d times, want 3", p.onDemand)
	}
}

// TestRereg gives a region other memory: a WRITE by its key goes there.
func TestRereg(t *testing.T) {
	x, y, xcq, _ := two(t)
	p := y.p
	var mr uapi.RegMRResp
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: 100, HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: 3}, nil, &mr, nil)
	var re uapi.ReregMRResp
	p.do(uapi.CmdReregMR, uapi.ReregMR{MRHandle: mr.MRHandle, Flags: uapi.ReregTrans, Start: arenaBase + 8192, Length: 100, HCAVA: arenaBase + 8192}, nil, &re, nil)
	attr, err := p.c.Device().Resources()
	if err != nil || len(attr.MR) != 2 {
		t.Fatalf("regions: got %v, %v, want the arena's and the other", attr.MR, err)
	}
	p.c.mu.RLock()
	addr := p.c.mrs[mr.MRHandle].v.Addr()
	p.c.mu.RUnlock()
	x.post(send{id: 1, op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte("moved"), remote: addr, rkey: re.RKey})
	xcq.good(1)
	if got := p.arena[8192:8197]; string(got) != "moved" {
		t.Errorf("written: %q, want moved", got)
	}
	if err := p.try(uapi.CmdReregMR, uapi.ReregMR{MRHandle: mr.MRHandle}, nil, &re, nil); Errno(err) != unix.EINVAL {
		t.Errorf("REREG_MR of nothing: got %v, want EINVAL", err)
	}
}
