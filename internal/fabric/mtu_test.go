package fabric

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A cable has the smaller MTU of its ends, and a path the smallest on its way. Longer packets are lost, and counted where a
// switch would have sent them.
func TestPathMTU(t *testing.T) {
	f := New()
	connect := func(a, b *Port) {
		t.Helper()
		if err := f.Connect(a, b); err != nil {
			t.Fatal(err)
		}
	}
	near, far, old := f.Switch("near", 8), f.Switch("far", 8), f.Switch("old", 4)
	old.SetMTU(3)
	connect(near.Port(8), old.Port(1))
	connect(old.Port(2), far.Port(8))
	a, b, c := f.Adapter("a"), f.Adapter("b"), f.Adapter("c")
	f.MTU = 4
	d := f.Adapter("d")
	for i, p := range []*Port{a, b, d} {
		connect(p, near.Port(1+i))
	}
	connect(c, far.Port(1))
	m := a.Manager(0, 0)
	f.Settle()
	for _, v := range []struct {
		p        *Port
		mtu, cap uint8
	}{{a, 5, 5}, {d, 4, 4}, {near.Port(3), 4, 5}, {near.Port(8), 3, 5}, {old.Port(1), 3, 3}, {old.n.ports[0], 3, 3}, {far.Port(1), 5, 5}} {
		if v.p.info.MTU != v.mtu || v.p.info.MTUCap != v.cap {
			t.Errorf("%v has NeighborMTU %d and MTUCap %d, want %d and %d", v.p, v.p.info.MTU, v.p.info.MTUCap, v.mtu, v.cap)
		}
	}
	if s := d.State(); s.MTU != 4 || s.MaxMTU != 4 {
		t.Errorf("the owner of %v sees %+v", d, s)
	}
	for _, v := range []struct {
		from, to *Port
		mtu      uint8
	}{{a, b, 5}, {a, d, 4}, {d, a, 4}, {a, c, 3}, {c, d, 3}, {a, a, 5}, {b, old.n.ports[0], 3}, {old.n.ports[0], c, 3}} {
		r, err := a.Ask(wire.MADMethodGet, wire.AttrPathRecord, wire.PathSLID|wire.PathDLID, func(s *wire.SAMAD) {
			(&wire.PathRecord{SLID: v.from.info.LID, DLID: v.to.info.LID}).Put(s)
		})
		if got := wire.DecodePathRecord(&r.Data).MTU; err != nil || got != v.mtu {
			t.Errorf("the path from %v to %v has MTU %d, %v; want %d", v.from, v.to, got, err, v.mtu)
		}
	}

	send := func(from, to *Port, payload int) (came bool, err error) {
		err = from.Send(packet(from, to.info.LID, payload, 1))
		f.Settle()
		for to.Pending() > 0 {
			to.Recv()
			f.Settle()
			came = true
		}
		return came, err
	}
	for _, v := range []struct {
		to      *Port
		payload int
		came    bool
		at      *Port // that counts it
	}{{b, 4096, true, nil}, {c, 1024, true, nil}, {c, 2048, false, near.Port(8)}, {d, 2048, true, nil}, {d, 4096, false, near.Port(3)}} {
		before := uint64(0)
		if v.at != nil {
			before = v.at.Stats.Discarded
		}
		if came, err := send(a, v.to, v.payload); came != v.came || err != nil || v.at != nil && v.at.Stats.Discarded != before+1 {
			t.Errorf("a packet of %d bytes comes to %v: %v, %v; want %v", v.payload, v.to, came, err, v.came)
		}
	}
	before := d.Stats.Discarded
	if came, err := send(d, a, 4096); came || err != ErrTooLong || d.Stats.Discarded != before+1 {
		t.Errorf("a packet that is too long for the own cable: %v, comes: %v", err, came)
	}

	// A group has the MTU of the port by which it is made.
	mgid := [16]byte{0xff, 0x12, 15: 1}
	if r, err := a.Join(mgid, 0, 0); err != nil || r.MTU != 5 {
		t.Errorf("a group of MTU %d, %v; want 5", r.MTU, err)
	}
	if r, err := d.Join(mgid, 0, 0); err != SAError(wire.SAStatusInvalid) {
		t.Errorf("a port of a smaller MTU joins: %+v, %v", r, err)
	}
	if err := a.Leave(mgid); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Port{d, a} {
		if r, err := p.Join(mgid, 0, 0); err != nil || r.MTU != 4 {
			t.Errorf("%v joins a group of MTU %d, %v; want 4", p, r.MTU, err)
		}
	}

	v := d.info
	v.State, v.MTU = 0, 5
	if status := d.set(v); status != wire.MADStatusBadField || d.info.MTU != 4 {
		t.Errorf("a port takes a NeighborMTU above what it can: status %d, MTU %d", status, d.info.MTU)
	}
	if n := m.Sweeps(); n != 1 {
		t.Errorf("%d sweeps, want one", n)
	}
}
