package fabric

import (
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Of the P_Keys of newPartitions: full members have whole, and limited ones half.
const (
	whole = 0x8001
	half  = 0x0001
	other = 0x8002
)

// newPartitions is a tree whose hosts 0 and 1 are full members of a partition, and hosts 2 and 3 limited ones.
func newPartitions(t *testing.T, lmc uint8) *tree {
	t.Helper()
	f := newTree(t, lmc)
	f.Partitions = []Partition{{PKey: whole, Members: f.hosts[:2]}, {PKey: half, Members: f.hosts[2:]}, {PKey: other, Members: f.hosts[:1]}}
	f.Poll()
	f.Settle()
	return f
}

// Subnet administration tells of a path between ports that have the LIDs and share the P_Key that are asked for, and of no
// other.
func TestPathRefused(t *testing.T) {
	f := newPartitions(t, 1)
	a, b := f.hosts[0], f.hosts[2]
	lid := func(p *Port) uint16 { return p.State().LID }
	stranger := [16]byte{0xfe, 0x80, 15: 1}
	const gids = wire.PathSGID | wire.PathDGID
	for _, c := range []struct {
		what string
		mask uint64
		q    wire.PathRecord
		want error
	}{
		{"of a partition", gids | wire.PathPKey, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), PKey: whole}, nil},
		{"by the limited members' P_Key", gids | wire.PathPKey, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), PKey: half}, nil},
		{"of a P_Key that nobody has", gids | wire.PathPKey, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), PKey: 0x8123}, SAError(wire.SAStatusNoRecords)},
		{"of a P_Key that one end has", gids | wire.PathPKey, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), PKey: other}, SAError(wire.SAStatusNoRecords)},
		{"of P_Key 0", gids | wire.PathPKey, wire.PathRecord{SGID: a.GID(), DGID: b.GID()}, SAError(wire.SAStatusNoRecords)},
		{"between limited members", gids | wire.PathPKey, wire.PathRecord{SGID: b.GID(), DGID: f.hosts[3].GID(), PKey: half}, SAError(wire.SAStatusNoRecords)},
		{"by each LID of the ports", gids | wire.PathSLID | wire.PathDLID, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SLID: lid(a) + 1, DLID: lid(b) + 1}, nil},
		{"by LIDs alone", wire.PathSLID | wire.PathDLID, wire.PathRecord{SLID: lid(a), DLID: lid(b)}, nil},
		{"to a LID of another port's", gids | wire.PathDLID, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), DLID: lid(f.hosts[1])}, SAError(wire.SAStatusNoRecords)},
		{"to a LID of nobody's", gids | wire.PathDLID, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), DLID: 0x1234}, SAError(wire.SAStatusNoRecords)},
		{"from a LID of another port's", gids | wire.PathSLID, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SLID: lid(b)}, SAError(wire.SAStatusNoRecords)},
		{"from a LID of nobody's alone", wire.PathSLID | wire.PathDGID, wire.PathRecord{SLID: 0x1234, DGID: b.GID()}, SAError(wire.SAStatusNoRecords)},
		{"from a GID of nobody's", gids, wire.PathRecord{SGID: stranger, DGID: b.GID()}, SAError(wire.SAStatusBadGID)},
		{"to a GID of nobody's", gids, wire.PathRecord{SGID: a.GID(), DGID: stranger}, SAError(wire.SAStatusBadGID)},
		{"to a group", gids, wire.PathRecord{SGID: a.GID(), DGID: [16]byte{0xff, 0x12}}, SAError(wire.SAStatusNoRecords)},
		{"of a service level", gids | wire.PathSL, wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SL: 5}, nil},
	} {
		s, err := a.Ask(wire.MADMethodGet, wire.AttrPathRecord, c.mask, c.q.Put)
		if err != c.want {
			t.Errorf("a path %s: %v, want %v", c.what, err, c.want)
			continue
		}
		if err != nil {
			continue
		}
		want := wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SLID: lid(a), DLID: lid(b), PKey: 0xffff, SL: c.q.SL, Reversible: true, MTU: 5, Rate: 16, Lifetime: 18}
		for _, v := range []struct {
			bit uint64
			to  *uint16
			v   uint16
		}{{wire.PathPKey, &want.PKey, c.q.PKey}, {wire.PathSLID, &want.SLID, c.q.SLID}, {wire.PathDLID, &want.DLID, c.q.DLID}} {
			if c.mask&v.bit != 0 {
				*v.to = v.v
			}
		}
		if got := wire.DecodePathRecord(&s.Data); got != want {
			t.Errorf("a path %s: %+v, want %+v", c.what, got, want)
		}
	}
	if r, err := a.Path(b.GID(), whole); err != nil || r.PKey != whole {
		t.Errorf("Path: P_Key %#x, %v; want %#x", r.PKey, err, whole)
	}
	if _, err := a.Path(b.GID(), other); err != SAError(wire.SAStatusNoRecords) {
		t.Errorf("Path of a P_Key that one end has: %v", err)
	}
}

// join asks for a membership with all components, as q has them.
func (p *Port) join(q wire.MCMemberRecord) (wire.MCMemberRecord, error) {
	q.Port = p.GID()
	s, err := p.Ask(wire.MADMethodSet, wire.AttrMCMemberRecord, memberComponents, q.Put)
	return wire.DecodeMCMemberRecord(&s.Data), err
}

// A group is of the partition with which it was made, and ports outside are not let in.
func TestGroupPartition(t *testing.T) {
	f := newPartitions(t, 0)
	mgid := [16]byte{0xff, 0x12, 15: 9}
	invalid := SAError(wire.SAStatusInvalid)
	full := wire.MCMemberRecord{MGID: mgid, JoinState: wire.JoinFull}
	of := func(pkey uint16) wire.MCMemberRecord { q := full; q.PKey = pkey; return q }
	for _, pkey := range []uint16{0x8123, other, 0, 0x8000} {
		if r, err := f.hosts[1].join(of(pkey)); err != invalid {
			t.Errorf("a port makes a group of P_Key %#x, which it has not: %+v, %v", pkey, r, err)
		}
	}
	few := of(whole)
	few.Port = f.hosts[1].GID()
	if _, err := f.hosts[1].Ask(wire.MADMethodSet, wire.AttrMCMemberRecord, wire.MemberMGID|wire.MemberPort|wire.MemberState, few.Put); err != SAError(wire.SAStatusMissing) {
		t.Errorf("a port makes a group without naming a P_Key: %v", err)
	}
	q := of(other)
	q.QKey, q.TrafficClass, q.SL, q.FlowLabel = 0x11111111, 4, 3, 77
	r, err := f.hosts[0].join(q)
	want := q
	want.Port, want.MLID, want.MTU, want.Rate, want.Lifetime, want.Scope = f.hosts[0].GID(), wire.MulticastLID, 5, 16, 18, 2
	if err != nil || r != want {
		t.Fatalf("a group is made: %+v, %v; want %+v", r, err, want)
	}
	if r, err := f.hosts[1].Join(mgid, 0, other); err != invalid {
		t.Errorf("a port joins a group of another partition: %+v, %v", r, err)
	}
	if r, err := f.hosts[0].Join(mgid, 0, whole); err != invalid {
		t.Errorf("a port joins by another P_Key than the group's: %+v, %v", r, err)
	}
	if err := f.hosts[0].Leave(mgid); err != nil {
		t.Fatal(err)
	}
	for i, h := range f.hosts {
		pkey := uint16(whole)
		if i >= 2 {
			pkey = half
		}
		if r, err := h.Join(mgid, 0, pkey); err != nil || r.PKey != whole {
			t.Errorf("%v joins a group of its partition: %+v, %v; want P_Key %#x", h, r, err, whole)
		}
	}
}

// grouped makes a packet to a group.
func grouped(from *Port, mgid [16]byte, mlid uint16) []byte {
	p := packet(from, mlid, 8, 1)
	g := wire.GRH{NextHeader: wire.GRHNextHeader, SGID: from.GID(), DGID: mgid, Length: uint16(len(p) - wire.LRHSize)}
	p = append(g.AppendTo(append([]byte(nil), p[:wire.LRHSize]...)), p[wire.LRHSize:]...)
	p[1] |= 1 // a GRH follows
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)/4))
	return p
}

// A member takes a group's packets or only sends, and keeps the group in being or does not, as its JoinState says.
func TestJoinStates(t *testing.T) {
	f := newTree(t, 0)
	mgid := [16]byte{0xff, 0x12, 15: 9}
	as := func(state uint8) wire.MCMemberRecord {
		return wire.MCMemberRecord{MGID: mgid, PKey: wire.DefaultPKey, JoinState: state}
	}
	invalid := SAError(wire.SAStatusInvalid)
	for _, state := range []uint8{0, wire.JoinNonMember, wire.JoinSendOnly} {
		if r, err := f.hosts[0].join(as(state)); err != invalid {
			t.Errorf("a port makes a group with JoinState %d: %+v, %v", state, r, err)
		}
	}
	receiver, sender, non := f.hosts[0], f.hosts[2], f.hosts[1]
	r, err := receiver.Join(mgid, 0, 0)
	if err != nil || r.JoinState != wire.JoinFull {
		t.Fatalf("a full member: %+v, %v", r, err)
	}
	reach := func() [4]int {
		t.Helper()
		for _, h := range f.hosts {
			h.groups[mgid] = h != sender // all adapters would take the packets
		}
		return f.copies(t, sender, mgid, r.MLID)
	}
	if got := reach(); got != [4]int{} {
		t.Errorf("from a port whose switch has nobody in the group packets come to %v", got)
	}
	if m, err := sender.join(as(wire.JoinSendOnly)); err != nil || m.JoinState != wire.JoinSendOnly || m.MLID != r.MLID {
		t.Errorf("a member that only sends: %+v, %v", m, err)
	}
	if got := reach(); got != [4]int{0: 1} {
		t.Errorf("from a member that only sends packets come to %v, want to the full member alone", got)
	}
	sender.groups[mgid] = true
	before := sender.Pending()
	if err := receiver.Send(grouped(receiver, mgid, r.MLID)); err != nil {
		t.Fatal(err)
	}
	f.Settle()
	if sender.Pending() != before {
		t.Error("a member that only sends receives")
	}
	receiver.Recv() // its own copy
	f.Settle()
	if m, err := non.join(as(wire.JoinNonMember)); err != nil || m.JoinState != wire.JoinNonMember {
		t.Errorf("a non-member: %+v, %v", m, err)
	}
	if got := reach(); got != [4]int{1, 1} {
		t.Errorf("with a non-member packets come to %v, want to it too", got)
	}
	if m, err := non.join(as(wire.JoinSendOnlyFull)); err != nil || m.JoinState != wire.JoinNonMember|wire.JoinSendOnlyFull {
		t.Errorf("a second JoinState: %+v, %v; want both", m, err)
	}
	leave := func(p *Port, state uint8) error {
		q := as(state)
		q.Port = p.GID()
		_, err := p.Ask(wire.MADMethodDelete, wire.AttrMCMemberRecord, wire.MemberMGID|wire.MemberPort|wire.MemberState, q.Put)
		return err
	}
	if err := leave(non, wire.JoinFull|wire.JoinNonMember); err != invalid {
		t.Errorf("a port leaves with a JoinState that it has not: %v", err)
	}
	if err := receiver.Leave(mgid); err != nil {
		t.Fatal(err)
	}
	if got := reach(); got != [4]int{1: 1} {
		t.Errorf("when the first full member has left, packets come to %v, want to the non-member", got)
	}
	if err := leave(non, wire.JoinSendOnlyFull); err != nil {
		t.Fatal(err)
	}
	if got := reach(); got != [4]int{} {
		t.Errorf("without a full member packets come to %v", got)
	}
	if err := leave(non, wire.JoinNonMember); err != invalid {
		t.Errorf("a port leaves a group that is no more: %v", err)
	}
}
