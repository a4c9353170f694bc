package fabric

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// watchManagers notes what subnet managers set of each other, with the statuses of the answers, and their traps. Each stands
// there once, as it leaves a channel adapter.
func watchManagers(f *Fabric) *[]string {
	var seen []string
	f.Tap = func(from *Port, packet []byte) {
		whole, _ := wire.CutVCRC(packet)
		h, pk, ok := readMAD(whole)
		if !ok || h.VL != wire.ManagementVL || from.node.kind != wire.NodeCA {
			return
		}
		s, err := wire.DecodeSMP(pk.Payload)
		switch {
		case err != nil:
		case s.Method == wire.MADMethodTrap:
			seen = append(seen, fmt.Sprintf("%v trap %d", from, uint16(s.Data[4])<<8|uint16(s.Data[5])))
		case s.AttrID == wire.AttrSMInfo && s.AttrMod != 0:
			by := wire.DecodeSMInfo(&s.Data)
			seen = append(seen, fmt.Sprintf("%v method %#x modifier %d state %d status %d", from, s.Method, s.AttrMod, by.State, s.Status))
		}
	}
	return &seen
}

// A manager of a higher priority stands by and sends trap 144. The master hands over to it, and it acknowledges.
func TestHandoverPackets(t *testing.T) {
	f := newTree(t, 0)
	seen := watchManagers(f.Fabric)
	heir := f.hosts[2].Manager(5, 0)
	f.Settle()
	want := []string{
		"host2/1 trap 144",
		"host0/1 method 0x2 modifier 1 state 3 status 0",
		"host2/1 method 0x81 modifier 1 state 2 status 0",
		"host2/1 method 0x2 modifier 2 state 2 status 0",
		"host0/1 method 0x81 modifier 2 state 2 status 0",
	}
	if !heir.IsMaster() || f.manager.IsMaster() || !slices.Equal(*seen, want) {
		t.Errorf("the heir is master: %v, the other: %v, after\n%q, want\n%q", heir.IsMaster(), f.manager.IsMaster(), *seen, want)
	}
	if s := f.hosts[1].State(); s.SMLID != f.hosts[2].State().LID || s.SMChanges != 2 {
		t.Errorf("after the handover %+v, want the heir's LID, and one change more", s)
	}

	// Of several that are above it a master takes the highest.
	*seen = nil
	last := f.hosts[1].Manager(9, 0)
	f.hosts[3].Manager(7, 0) // which is nearer
	f.Settle()
	handovers := slices.DeleteFunc(*seen, func(s string) bool { return !strings.Contains(s, "method 0x2 modifier 1 ") })
	if !last.IsMaster() || len(handovers) != 1 {
		t.Errorf("the highest is master: %v, after the handovers %q; want one", last.IsMaster(), handovers)
	}
}

// A master that does not hear of an heir's answer goes on, and hands over when it looks again.
func TestHandoverLost(t *testing.T) {
	f := newTree(t, 0)
	lost := true
	f.Fault = func(from *Port, packet []byte) []byte {
		whole, _ := wire.CutVCRC(packet)
		if _, pk, ok := readMAD(whole); ok && from == f.hosts[0] {
			if s, err := wire.DecodeSMP(pk.Payload); err == nil && s.AttrID == wire.AttrSMInfo && s.Method == wire.MADMethodSet && lost {
				return nil
			}
		}
		return packet
	}
	heir := f.hosts[2].Manager(5, 0)
	f.Settle()
	if heir.IsMaster() || !f.manager.IsMaster() {
		t.Fatal("a handover that is lost takes place")
	}
	f.hosts[3].SetOff(true)
	f.hosts[3].SetOff(false)
	f.Settle()
	if s := f.hosts[3].State(); s.State != Active {
		t.Errorf("%+v, want that the master brings it into service", s)
	}
	lost = false
	f.Poll()
	f.Settle()
	if !heir.IsMaster() || f.manager.IsMaster() {
		t.Error("the master does not hand over when it looks again")
	}
}

// What no master and nobody who stands by may set of a manager, and what is left out, is refused.
func TestSMInfoRefused(t *testing.T) {
	f := newTree(t, 0)
	standby := f.hosts[2].Manager(0, 0)
	f.Settle()
	if standby.m.state != smStandby {
		t.Fatalf("the second manager is in state %d", standby.m.state)
	}
	sweeps := standby.Sweeps()
	for _, v := range []struct {
		at    *Port
		mod   uint32
		state uint8
		ok    bool
	}{
		{f.hosts[2], wire.SMHandover, smStandby, false},
		{f.hosts[2], wire.SMHandover, smDiscovering, false},
		{f.hosts[2], wire.SMAcknowledge, smMaster, false},
		{f.hosts[2], wire.SMAcknowledge, smStandby, true},
		{f.hosts[0], wire.SMAcknowledge, smStandby, false}, // a master has handed nothing over
		{f.hosts[2], 0, smMaster, false},
		{f.hosts[2], 3, smMaster, false}, // DISABLE
		{f.hosts[2], 4, smMaster, false}, // STANDBY
		{f.hosts[2], 5, smMaster, false}, // DISCOVER
	} {
		s := wire.SMP{MADHeader: wire.MADHeader{Method: wire.MADMethodSet, AttrID: wire.AttrSMInfo, AttrMod: v.mod}}
		(&wire.SMInfo{GUID: 1, State: v.state}).Put(&s.Data)
		if v.at.answer(&s); (s.Status == 0) != v.ok || !v.ok && s.Status != wire.MADStatusBadField {
			t.Errorf("%v: modifier %d from state %d: status %d", v.at, v.mod, v.state, s.Status)
		}
	}
	f.Settle()
	if standby.IsMaster() || standby.Sweeps() != sweeps {
		t.Error("what is refused has an effect")
	}
	s := wire.SMP{MADHeader: wire.MADHeader{Method: wire.MADMethodSet, AttrID: wire.AttrSMInfo, AttrMod: wire.SMHandover}}
	if f.hosts[1].answer(&s); s.Status != wire.MADStatusBadAttr {
		t.Errorf("a port without a manager: status %d", s.Status)
	}
}

// A cable makes one subnet of two. The higher master changes nothing until the lower one has handed over.
func TestTwoMasters(t *testing.T) {
	f := New()
	var switches [2]*Switch
	var hosts [2]*Port
	var managers [2]*Manager
	connect := func(a, b *Port) {
		t.Helper()
		if err := f.Connect(a, b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range switches {
		switches[i], hosts[i] = f.Switch(fmt.Sprintf("switch%d", i), 4), f.Adapter(fmt.Sprintf("host%d", i))
		connect(hosts[i], switches[i].Port(1))
		managers[i] = hosts[i].Manager(0, 0)
	}
	f.Settle()
	before := hosts[1].State()
	if !managers[0].IsMaster() || !managers[1].IsMaster() || before.LID != hosts[0].State().LID {
		t.Fatal("each subnet has no master of its own, with LIDs of its own")
	}
	connect(switches[0].Port(2), switches[1].Port(2))
	managers[0].m.sweep()
	if s := hosts[1].State(); s != before || !managers[0].IsMaster() {
		t.Errorf("before the handover the port of the other subnet is %+v, want %+v", s, before)
	}
	f.Settle()
	if s := hosts[1].State(); !managers[0].IsMaster() || managers[1].IsMaster() || s.SMLID != hosts[0].State().LID || s.LID == before.LID || s.State != Active {
		t.Errorf("after the handover %+v, want another LID, and the manager at %d", s, hosts[0].State().LID)
	}
}
