package fabric

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A cable that comes back has credits for what is free alone.
func TestCreditsOfPending(t *testing.T) {
	f := newTree(t, 0)
	from, to := f.hosts[0], f.hosts[3]
	send := func() {
		t.Helper()
		for range 40 {
			if err := from.Send(packet(from, to.State().LID, 4096, 1)); err != nil {
				t.Fatal(err)
			}
		}
		f.Settle()
	}
	send()
	before := to.Pending()
	to.SetOff(true)
	f.Settle()
	to.SetOff(false)
	f.Settle()
	send()
	if n := to.Pending(); before == 0 || n != before {
		t.Errorf("%d packets wait at a port whose owner takes nothing, and after its cable was away %d; want no more", before, n)
	}
}

// Packets that wait for a port whose cable breaks are lost, and do not block those behind them.
func TestDownBlocksNobody(t *testing.T) {
	f := newTree(t, 0)
	from, to, other := f.hosts[0], f.hosts[3], f.hosts[2]
	for range 100 { // more than the buffers on the way take
		if err := from.Send(packet(from, to.State().LID, 4096, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Send(packet(from, other.State().LID, 8, 2)); err != nil {
		t.Fatal(err)
	}
	f.Settle()
	if other.Pending() > 0 {
		t.Fatal("no packet waits")
	}
	to.SetOff(true)
	f.Settle()
	if n := other.Pending(); n != 1 {
		t.Errorf("behind packets to a port without a cable %d packets come, want 1", n)
	}
}

// A damaged packet is taken nowhere, and the cable has its credits back.
func TestDamagedData(t *testing.T) {
	f := newTree(t, 0)
	from, to := f.hosts[0], f.hosts[1]
	p := packet(from, to.State().LID, 64, 1)
	f.Fault = func(port *Port, packet []byte) []byte {
		if port == from {
			packet = bytes.Clone(packet)
			packet[wire.LRHSize+wire.BTHSize] ^= 1
		}
		return packet
	}
	for range 1000 { // more than there are credits for at a time
		if err := from.Send(bytes.Clone(p)); err != nil {
			t.Fatal(err)
		}
	}
	f.Settle()
	if n := from.peer.Stats.Damaged; n != 1000 || to.Pending() > 0 {
		t.Errorf("%d packets are known to be damaged, and %d arrive; want 1000 and none", n, to.Pending())
	}
}

// A switch that was without power forwards nothing until a manager has written its table.
func TestRepairForgets(t *testing.T) {
	f := newTree(t, 0)
	lid := f.hosts[3].State().LID
	if f.leaves[1].Forwards(lid) == noPort {
		t.Fatal("the switch does not know its own host")
	}
	f.manager.Stop()
	f.leaves[1].Fail()
	f.leaves[1].Repair()
	f.Settle()
	if out := f.leaves[1].Forwards(lid); out != noPort {
		t.Errorf("after it has failed the switch forwards by port %d, want none", out)
	}
}

// A port becomes ARMED and then ACTIVE, and neither out of turn.
func TestPortStates(t *testing.T) {
	f := New()
	p, q := f.Adapter("a"), f.Adapter("b")
	if err := f.Connect(p, q); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		to uint8
		ok bool
	}{{Active, false}, {Down, false}, {Armed, true}, {Init, false}, {Active, true}, {Armed, false}, {Active, true}} {
		v, was := p.info, p.info.State
		v.State = step.to
		if status := p.set(v); status == 0 != step.ok || step.ok && p.info.State != step.to || !step.ok && p.info.State != was {
			t.Errorf("from state %d to %d: status %d, and then state %d", was, step.to, status, p.info.State)
		}
	}
	v := p.info
	v.LID = wire.MulticastLID
	if p.set(v) == 0 {
		t.Error("a port takes the LID of a group")
	}
}

// A manager that becomes master once more does not go by what it knew when it was master before.
func TestManagerAgain(t *testing.T) {
	f := newTree(t, 0)
	mgid := [16]byte{0xff, 0x12, 15: 9}
	if _, err := f.hosts[1].Join(mgid, 0, 0); err != nil {
		t.Fatal(err)
	}
	second := f.hosts[2].Manager(1, 0)
	f.Settle()
	f.Poll()
	f.Settle()
	if !second.IsMaster() || f.manager.IsMaster() {
		t.Fatal("the manager of the higher priority is not the only master")
	}
	second.Stop()
	f.Poll()
	f.Settle()
	if !f.manager.IsMaster() {
		t.Fatal("the first manager does not take over")
	}
	if g := f.manager.m.groups[mgid]; g != nil {
		t.Errorf("it knows %v of the time before", g.record)
	}
}

// A router asks again for a LID that may have changed.
func TestRouterLearns(t *testing.T) {
	c := newChain(t, 2)
	a, b := c.hosts[0][1], c.hosts[1][1]
	send := func() bool {
		t.Helper()
		if err := a.Send(global(a, b.GID(), c.routers[0].Port(1).State().LID, 9, 8)); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		_, ok := b.Recv()
		return ok
	}
	if !send() {
		t.Error("nothing comes")
	}
	c.managers[1].m.lids[b.guid] = 40
	c.Poll()
	c.Settle()
	if lid := b.State().LID; lid != 40 || !send() {
		t.Errorf("a packet does not come by the new LID %d", lid)
	}
}

// Of managers of the same priority that start at the same time the one of the lowest GUID becomes master.
func TestLowestGUID(t *testing.T) {
	f := New()
	a, b, s := f.Adapter("a"), f.Adapter("b"), f.Switch("switch", 4)
	for i, p := range []*Port{a, b} {
		if err := f.Connect(p, s.Port(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	second, first := b.Manager(0, 0), a.Manager(0, 0)
	f.Settle()
	f.Poll()
	f.Settle()
	if !first.IsMaster() || second.IsMaster() {
		t.Errorf("the manager of the lower GUID is master: %v, the other: %v", first.IsMaster(), second.IsMaster())
	}
}
