package fabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// tree is two leaf switches with two adapters each, below two spine switches. The manager is beside the first adapter.
type tree struct {
	*Fabric
	leaves, spines []*Switch
	hosts          []*Port
	manager        *Manager
}

// copies sends a packet to a group, and returns how many each adapter takes.
func (f *tree) copies(t testing.TB, from *Port, mgid [16]byte, mlid uint16) (got [4]int) {
	t.Helper()
	if err := from.Send(grouped(from, mgid, mlid)); err != nil {
		t.Fatal(err)
	}
	f.Settle()
	for i, h := range f.hosts {
		for h.Pending() > 0 {
			h.Recv()
			f.Settle()
			got[i]++
		}
	}
	return got
}

func newTree(t testing.TB, lmc uint8) *tree {
	t.Helper()
	f := &tree{Fabric: New()}
	connect := func(a, b *Port) {
		t.Helper()
		if err := f.Connect(a, b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		f.leaves = append(f.leaves, f.Switch(fmt.Sprintf("leaf%d", i), 36))
		f.spines = append(f.spines, f.Switch(fmt.Sprintf("spine%d", i), 36))
	}
	for i, leaf := range f.leaves {
		for j, spine := range f.spines {
			connect(leaf.Port(20+j), spine.Port(1+i))
		}
		for j := range 2 {
			h := f.Adapter(fmt.Sprintf("host%d", 2*i+j))
			connect(h, leaf.Port(1+j))
			f.hosts = append(f.hosts, h)
		}
	}
	f.manager = f.hosts[0].Manager(0, lmc)
	f.Settle()
	return f
}

// packet makes a packet of a length of payload, from one port to a LID.
func packet(from *Port, dlid uint16, payload int, n uint32) []byte {
	h := wire.LRH{LNH: wire.LNHLocal, DLID: dlid, SLID: from.State().LID}
	b := make([]byte, 0, wire.LRHSize+wire.BTHSize+payload+wire.ICRCSize+wire.VCRCSize)
	h.Length = uint16(wire.LRHSize+wire.BTHSize+payload+wire.ICRCSize) / 4
	b = h.AppendTo(b)
	bth := wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: 0x123456, PSN: wire.PSN(n)}
	b = bth.AppendTo(b)
	b = append(b, make([]byte, payload+wire.ICRCSize)...)
	f := wire.NewLocalFlow(h.SLID, dlid, 0)
	f.Seal(0, b[wire.LRHSize:])
	return b
}

func TestBringUp(t *testing.T) {
	f := newTree(t, 0)
	lids := map[uint16]bool{}
	for i, h := range f.hosts {
		s := h.State()
		if s.State != Active || s.LID == 0 || lids[s.LID] || s.SMLID != f.hosts[0].State().LID || s.Reregister != 1 || s.SMChanges != 1 {
			t.Errorf("host %d: %+v, want it active, with a LID of its own and that of the manager", i, s)
		}
		lids[s.LID] = true
	}
	if lid := f.hosts[0].State().LID; lid != 1 {
		t.Errorf("the manager's LID is %d, want 1", lid)
	}
	for _, s := range append(f.leaves, f.spines...) {
		if lids[s.LID()] || s.LID() == 0 {
			t.Errorf("a switch has the LID %d, want one of its own", s.LID())
		}
		lids[s.LID()] = true
	}
	for _, from := range f.hosts {
		for _, to := range f.hosts {
			if err := from.Send(packet(from, to.State().LID, 100, 7)); err != nil {
				t.Fatal(err)
			}
			f.Settle()
			got, ok := to.Recv()
			if !ok || to.Pending() != 0 || !bytes.Equal(got, packet(from, to.State().LID, 100, 7)) {
				t.Errorf("from %v to %v: the packet does not arrive once, as it was sent", from, to)
			}
		}
	}
	if n := f.manager.Sweeps(); n != 1 {
		t.Errorf("%d sweeps, want one", n)
	}
}

func TestMinimumHops(t *testing.T) {
	f := newTree(t, 1)
	up := map[uint8]int{}
	for _, h := range f.hosts[2:] {
		lid := h.State().LID
		if lid&1 != 0 || h.State().LMC != 1 {
			t.Errorf("LID %d with LMC %d, want an even one with 1", lid, h.State().LMC)
		}
		for bits := range uint16(2) {
			out := f.leaves[0].Forwards(lid + bits)
			up[out]++
			spine := f.spines[out-20]
			if down := spine.Forwards(lid + bits); down != 2 {
				t.Errorf("LID %d: a spine forwards by port %d, want 2", lid+bits, down)
			}
			if last := f.leaves[1].Forwards(lid + bits); f.leaves[1].Port(int(last)).peer != h {
				t.Errorf("LID %d leaves the last switch by port %d, where its port is not", lid+bits, last)
			}
		}
	}
	if up[20] != 2 || up[21] != 2 {
		t.Errorf("paths by the ports of the spines: %v, want them spread evenly", up)
	}
}

// No packet is lost by congestion: three ports send to one whose owner takes nothing for a while.
func TestCredits(t *testing.T) {
	const each = 100
	f := newTree(t, 0)
	to := f.hosts[3]
	for n := range each {
		for _, from := range f.hosts[:3] {
			if err := from.Send(packet(from, to.State().LID, 4096, uint32(n))); err != nil {
				t.Fatal(err)
			}
			f.Settle()
		}
	}
	if got, most := to.Pending(), bufferSize/(4096+64); got == 0 || got > most {
		t.Errorf("%d packets wait at the receiver, want some and at most %d", got, most)
	}
	next := map[uint16]uint32{}
	for range 3 * each {
		got, ok := to.Recv()
		if !ok {
			t.Fatalf("after %v packets nothing comes", next)
		}
		f.Settle()
		slid, psn := binary.BigEndian.Uint16(got[6:]), binary.BigEndian.Uint32(got[wire.LRHSize+8:])&0xffffff
		if psn != next[slid] {
			t.Fatalf("from LID %d packet %d comes, want %d", slid, psn, next[slid])
		}
		next[slid]++
	}
	waited := uint64(0)
	for _, n := range f.nodes {
		for _, p := range n.ports {
			if p != nil {
				waited += p.Stats.Waited
				if p.Stats.Discarded+p.Stats.Damaged > 0 {
					t.Errorf("%v has lost packets: %+v", p, p.Stats)
				}
				for vl, c := range p.credits {
					if p.peer != nil && c != bufferSize {
						t.Errorf("%v has %d bytes of credits on lane %d at the end, want all %d back", p, c, vl, bufferSize)
					}
				}
			}
		}
	}
	if waited == 0 {
		t.Error("no packet has waited for credits")
	}
}

// Packets that wait for a port are lost with its cable, and hold up nobody behind them.
func TestCableFailsFull(t *testing.T) {
	f := newTree(t, 0)
	from, slow, other := f.hosts[0], f.hosts[1], f.hosts[2]
	for n := range 100 {
		if err := from.Send(packet(from, slow.State().LID, 4096, uint32(n))); err != nil {
			t.Fatal(err)
		}
	}
	f.Settle()
	if err := from.Send(packet(from, other.State().LID, 8, 1)); err != nil {
		t.Fatal(err)
	}
	f.Settle()
	if other.Pending() != 0 {
		t.Fatal("the buffers on the way are not full")
	}
	slow.SetOff(true)
	f.Settle()
	if other.Pending() != 1 {
		t.Errorf("after the cable has failed %d packets come to another port, want 1", other.Pending())
	}
}

func TestSwitchFails(t *testing.T) {
	f := newTree(t, 0)
	a, b := f.hosts[0], f.hosts[3]
	lid := b.State().LID
	reach := func() bool {
		for b.Pending() > 0 {
			b.Recv()
		}
		if err := a.Send(packet(a, lid, 8, 1)); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		return b.Pending() > 0
	}
	used := int(f.leaves[0].Forwards(lid)) - 20
	f.spines[used].Fail()
	f.Settle() // the leaves' traps make the manager look
	if !reach() || int(f.leaves[0].Forwards(lid)) != 20+1-used || b.State().LID != lid || b.State().SMChanges != 1 {
		t.Errorf("without a spine packets do not go by the other: %+v", b.State())
	}
	f.spines[1-used].Fail()
	f.Settle()
	if reach() {
		t.Error("without spines packets arrive")
	}
	if _, err := a.Path(b.GID(), 0); err != SAError(wire.SAStatusBadGID) {
		t.Errorf("a path to a port that is out of reach: %v, want that the GID is unknown", err)
	}
	f.spines[used].Repair()
	f.Settle()
	if !reach() || b.State().LID != lid {
		t.Error("with a spine again packets do not arrive")
	}
	b.SetOff(true)
	f.Settle()
	if s := b.State(); s.State != Down || reach() {
		t.Errorf("without a cable: %+v", s)
	}
	if err := b.Send(packet(b, 1, 8, 1)); err != ErrNotActive {
		t.Errorf("sending without a cable: %v", err)
	}
	b.SetOff(false)
	f.Settle()
	if s := b.State(); s.State != Active || s.LID != lid || !reach() {
		t.Errorf("with a cable again: %+v", s)
	}
}

func TestHandover(t *testing.T) {
	f := newTree(t, 0)
	second := f.hosts[2].Manager(0, 0)
	f.Settle()
	if !f.manager.IsMaster() || second.IsMaster() {
		t.Fatal("the second manager of the same priority is master, want the first")
	}
	before := f.hosts[1].State()
	f.manager.Stop()
	f.Settle()
	if second.IsMaster() {
		t.Fatal("the second manager knows of the first's end without asking")
	}
	if _, err := f.hosts[1].Path(f.hosts[3].GID(), 0); err == nil {
		t.Fatal("a manager that is stopped answers")
	}
	f.Poll()
	f.Settle()
	after := f.hosts[1].State()
	if !second.IsMaster() || after.SMLID != f.hosts[2].State().LID || after.SMChanges != before.SMChanges+1 || after.Reregister != before.Reregister+1 || after.LID != before.LID {
		t.Errorf("after the handover %+v, want the LID as it was, another manager's, and a wish to register anew", after)
	}
	if _, err := f.hosts[1].Path(f.hosts[3].GID(), 0); err != nil {
		t.Errorf("the second manager: %v", err)
	}
	f.manager.Start()
	f.Settle()
	if second.IsMaster() || !f.manager.IsMaster() {
		t.Error("the master of the higher GUID does not hand over to the first manager, which is back")
	}
	third := f.hosts[3].Manager(5, 0)
	f.Settle()
	f.Poll()
	f.Settle()
	if !third.IsMaster() || second.IsMaster() || f.manager.IsMaster() {
		t.Error("a manager of a higher priority does not become master")
	}
}

func TestPath(t *testing.T) {
	f := newTree(t, 0)
	a, b := f.hosts[1], f.hosts[3]
	r, err := a.Path(b.GID(), 0)
	want := wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SLID: a.State().LID, DLID: b.State().LID, Reversible: true, PKey: 0xffff, MTU: 5, Rate: 16, Lifetime: 18}
	if err != nil || r != want {
		t.Errorf("path %+v, %v; want %+v", r, err, want)
	}
	if _, err := a.Path([16]byte{15: 1}, 0); err != SAError(wire.SAStatusBadGID) {
		t.Errorf("a GID that is nobody's: %v", err)
	}
	for attr, want := range map[uint16]SAError{wire.AttrPathRecord: wire.SAStatusMissing, 0x99: wire.MADStatusBadAttr} {
		if _, err := a.Ask(wire.MADMethodGet, attr, 0, func(*wire.SAMAD) {}); err != want {
			t.Errorf("attribute %#x without components: %v, want %v", attr, err, want)
		}
	}
}

func TestGroup(t *testing.T) {
	f := newTree(t, 0)
	mgid := [16]byte{0xff, 0x12, 15: 9}
	var lid uint16
	for i, h := range []*Port{f.hosts[0], f.hosts[1], f.hosts[3]} {
		r, err := h.Join(mgid, 0, 0)
		if err != nil || r.MLID < 0xc000 || i > 0 && r.MLID != lid {
			t.Fatalf("join: %+v, %v", r, err)
		}
		lid = r.MLID
	}
	send := func(from *Port) [4]int { return f.copies(t, from, mgid, lid) }
	if got := send(f.hosts[0]); got != [4]int{1, 1, 0, 1} {
		t.Errorf("from a member: copies %v, want one for each member", got)
	}
	if got := send(f.hosts[2]); got != [4]int{1, 1, 0, 1} {
		t.Errorf("from outside: copies %v, want one for each member", got)
	}
	if err := f.hosts[1].Leave(mgid); err != nil {
		t.Fatal(err)
	}
	if got := send(f.hosts[0]); got != [4]int{1, 0, 0, 1} {
		t.Errorf("after one has left: copies %v", got)
	}
	if err := f.hosts[1].Leave(mgid); err != SAError(wire.SAStatusInvalid) {
		t.Errorf("leaving twice: %v", err)
	}
	if _, err := f.hosts[1].Join([16]byte{15: 1}, 0, 0); err != SAError(wire.SAStatusBadGID) {
		t.Errorf("joining no group: %v", err)
	}
}

// A manager repeats what is lost, and what is damaged is never taken for good.
func TestBadCable(t *testing.T) {
	f := newTree(t, 0)
	n, damaged := 0, 0
	f.Fault = func(_ *Port, packet []byte) []byte {
		if n++; n%31 == 0 {
			return nil
		}
		if n%23 == 0 {
			damaged++
			packet = bytes.Clone(packet)
			packet[n%len(packet)] ^= 0x10
		}
		return packet
	}
	f.hosts[3].SetOff(true)
	f.Settle()
	f.hosts[3].SetOff(false)
	for range 3 {
		f.Poll()
		f.Settle()
	}
	if s := f.hosts[3].State(); s.State != Active {
		t.Errorf("over bad cables %+v, want it active", s)
	}
	seen := uint64(0)
	for _, n := range f.nodes {
		for _, p := range n.ports {
			if p != nil {
				seen += p.Stats.Damaged
			}
		}
	}
	if damaged == 0 || seen != uint64(damaged) {
		t.Errorf("%d packets were damaged, and %d were noticed", damaged, seen)
	}
}

func TestPartitions(t *testing.T) {
	f := newTree(t, 0)
	f.Partitions = []Partition{{PKey: 0x8001, Members: f.hosts[:2]}}
	f.Poll()
	f.Settle()
	for i, h := range f.hosts {
		s := h.State()
		if got, want := slices.Contains(s.PKeys[:], 0x8001), i < 2; got != want {
			t.Errorf("host %d is in the partition: %v, want %v", i, got, want)
		}
	}
}

func TestHostilePackets(t *testing.T) {
	f := newTree(t, 0)
	for _, kind := range []uint8{wire.MADClassSM, wire.MADClassSMDirect, wire.MADClassSA} {
		for attr := range uint16(0x40) {
			for _, method := range []uint8{wire.MADMethodGet, wire.MADMethodSet, wire.MADMethodTrap, wire.MADMethodGetResp} {
				s := wire.SMP{MADHeader: wire.MADHeader{MgmtClass: kind, Method: method, AttrID: attr, AttrMod: 0xffffffff}, HopPointer: 1, HopCount: uint8(attr)}
				for i := range s.Data {
					s.Data[i] = 0xff
				}
				f.hosts[1].sendSMP(&s, 0xffff, 0xffff)
				_ = f.hosts[1].Send(mad(wire.LRH{DLID: 1, SLID: 0xbfff}, wire.GSIQPN, 1, wire.GSIQKey, s.AppendTo(nil)))
				f.Settle()
				for f.hosts[0].Pending() > 0 { // what is for no manager goes to the owner
					f.hosts[0].Recv()
				}
			}
		}
	}
	f.Poll()
	f.Settle()
	if _, err := f.hosts[1].Path(f.hosts[3].GID(), 0); err != nil {
		t.Errorf("after such packets: %v", err)
	}
}

// FuzzCable has packets of any bytes come from a cable, with right CRCs: nothing fails by them, and the subnet still works
// once its manager has looked at it again.
func FuzzCable(f *testing.F) {
	smp := wire.SMP{MADHeader: wire.MADHeader{MgmtClass: wire.MADClassSMDirect, Method: wire.MADMethodSet, AttrID: wire.AttrPortInfo}, HopPointer: 1, HopCount: 1}
	sa := wire.SAMAD{MADHeader: wire.MADHeader{MgmtClass: wire.MADClassSA, ClassVersion: wire.MADVersionSA, Method: wire.MADMethodSet, AttrID: wire.AttrMCMemberRecord}}
	f.Add(mad(wire.LRH{VL: wire.ManagementVL, DLID: wire.PermissiveLID, SLID: wire.PermissiveLID}, wire.SMIQPN, wire.SMIQPN, 0, smp.AppendTo(nil)))
	f.Add(mad(wire.LRH{DLID: 1, SLID: 2}, wire.GSIQPN, wire.GSIQPN, wire.GSIQKey, sa.AppendTo(nil)))
	f.Add(packet(newTree(f, 0).hosts[1], 1, 64, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < wire.LRHSize+wire.MinDatagramLen {
			return
		}
		f := newTree(t, 0)
		flow := wire.NewLocalFlow(binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint16(b[2:]), b[1]>>4)
		flow.Seal(0, b[wire.LRHSize:])
		for _, p := range []*Port{f.hosts[0], f.hosts[1], f.leaves[0].Port(1), f.spines[0].Port(1)} {
			if vl := int(b[0] >> 4); vl < dataVLs {
				p.arrive(wire.AppendVCRC(bytes.Clone(b)), vl)
			} else {
				f.mgmt = append(f.mgmt, delivery{p, wire.AppendVCRC(bytes.Clone(b))})
			}
			f.Settle()
		}
		for _, h := range f.hosts {
			h.SetOff(true)
			h.SetOff(false)
			for h.Pending() > 0 {
				h.Recv()
			}
		}
		for range 2 {
			f.Poll()
			f.Settle()
		}
		if _, err := f.hosts[1].Path(f.hosts[3].GID(), 0); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// With 128 LIDs for each port a subnet has room for 383 ports. Others stay out of service.
func TestLIDsRunOut(t *testing.T) {
	const ports = 400
	f := New()
	m := f.Adapter("manager").Manager(0, 7).m
	for i := range uint64(ports) {
		m.subnet.nodes = append(m.subnet.nodes, &found{guid: 1000 + i, portGUID: 1000 + i, num: 1, ports: []*wire.PortInfo{nil, {}}, links: map[uint8]far{}})
	}
	m.number()
	lids := map[uint16]bool{}
	for _, lid := range m.lids {
		if lid >= wire.MulticastLID || lid%128 != 0 || lids[lid] {
			t.Errorf("LID %#x, want one of unicast, divisible by 128, and each once", lid)
		}
		lids[lid] = true
	}
	if want := wire.MulticastLID/128 - 1; len(lids) != want {
		t.Errorf("%d ports have LIDs, want %d", len(lids), want)
	}
}

// tshark takes the packets of the bring-up, of subnet administration and of data for what they are.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var file bytes.Buffer
	le := binary.LittleEndian
	head := make([]byte, 24)
	le.PutUint32(head, 0xa1b2c3d4)
	le.PutUint16(head[4:], 2)
	le.PutUint16(head[6:], 4)
	le.PutUint32(head[16:], 1<<16)
	le.PutUint32(head[20:], 197) // LINKTYPE_ERF: tshark reads InfiniBand's packets by ERF's headers alone
	file.Write(head)
	f := newTree(t, 0)
	n := 0
	f.Tap = func(_ *Port, p []byte) {
		n++
		rec := make([]byte, 32)
		le.PutUint32(rec, uint32(n))
		le.PutUint32(rec[8:], uint32(16+len(p)))
		le.PutUint32(rec[12:], uint32(16+len(p)))
		le.PutUint64(rec[16:], uint64(n)<<32)
		rec[24] = 21 // InfiniBand
		binary.BigEndian.PutUint16(rec[26:], uint16(16+len(p)))
		binary.BigEndian.PutUint16(rec[30:], uint16(len(p)))
		file.Write(rec)
		file.Write(p)
	}
	f.hosts[3].SetOff(true)
	f.Settle()
	f.hosts[3].SetOff(false)
	f.Settle()
	if _, err := f.hosts[1].Path(f.hosts[3].GID(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.hosts[1].Join([16]byte{0xff, 0x12, 15: 9}, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.hosts[1].Send(packet(f.hosts[1], f.hosts[3].State().LID, 100, 1)); err != nil {
		t.Fatal(err)
	}
	f.Settle()
	name := filepath.Join(t.TempDir(), "fabric.pcap")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "_ws.expert.message", "-e", "_ws.col.Info", "-e", "infiniband.mad.attributeid").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, line := range strings.Split(strings.Trim(string(out), "\n"), "\n") {
		if strings.HasPrefix(line, "\t") || strings.Contains(line, "Running as user") {
			continue
		}
		t.Errorf("tshark warns: %s", line)
	}
	for _, want := range []string{"NodeInfo", "PortInfo", "PathRecord", "MCMemberRecord", "RC Send Only"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("tshark finds no %s", want)
		}
	}
}
