package demo

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// sceneSubnet tells how a subnet of InfiniBand comes into service.
func sceneSubnet(s *stage) {
	f := fabric.New()
	a, b, sw := f.Adapter("A"), f.Adapter("B"), f.Switch("switch", 4)
	s.must(f.Connect(a, sw.Port(1)))
	s.must(f.Connect(b, sw.Port(2)))
	ports := func() {
		for _, p := range []*fabric.Port{a, b} {
			i := p.State()
			s.note("%s: port %s, LID %d, the subnet manager at LID %d, GID %v", i.Name, portStates[i.State], i.LID, i.SMLID, netip.AddrFrom16(i.GID))
		}
	}
	f.Tap = func(from *fabric.Port, packet []byte) { s.tellMAD(from, packet) }

	s.say("Two channel adapters, A and B, each with a cable to a switch. That is all. Nobody has configured anything.")

	s.next("The cables work, so the ports are in INIT: they take subnet management packets, SMPs, and no data. A port's GUID is burnt in, and a GID is " +
		"a subnet's prefix and the GUID. A LID it has none yet, and there is nobody who could give one.")
	ports()

	s.next("A subnet manager (SM) starts beside A's port. Its SMPs have directed routes: each names the ports by which to leave the switches on the way, " +
		"since no LID leads anywhere yet. It asks whom it finds (NodeInfo), and for the state of each port (PortInfo).")
	s.smps = &smpTeller{}
	a.Manager(0, 0)
	f.Settle()
	discovery, setup := s.smps.split()
	s.tellLines(discovery)

	s.next("Now it knows the subnet. It computes the shortest ways, and writes: into the switch which port leads to which LID, the linear forwarding " +
		"table; into the ports their LIDs, and the states ARMED and then ACTIVE.")
	s.tellLines(setup)
	s.smps = nil
	ports()
	for lid := range uint16(4) {
		if out := sw.Forwards(lid); out < 0xff {
			s.note("the switch forwards LID %d by port %d%s", lid, out, map[bool]string{true: ", to itself"}[out == 0])
		}
	}

	s.next("B knows A's GID, and asks subnet administration (SA), which is beside the manager, for the path. That is a packet of QP1, and goes by LIDs.")
	s.smps = &smpTeller{}
	r, err := b.Path(a.GID(), 0)
	s.must(err)
	s.tellLines(s.smps.lines)
	s.note("path record: to LID %d, from LID %d, service level %d, MTU code %d, rate code %d, hop limit %d", r.DLID, r.SLID, r.SL, r.MTU, r.Rate, r.HopLimit)

	s.next("B's cable is pulled out, and put back. The switch sends the manager a trap, and the manager looks at the subnet again. The LIDs stay.")
	s.smps = nil
	b.SetOff(true)
	f.Settle()
	ports()
	b.SetOff(false)
	f.Settle()
	ports()
}

var portStates = map[uint8]string{fabric.Down: "DOWN", fabric.Init: "INIT", fabric.Armed: "ARMED", fabric.Active: "ACTIVE"}

// smpTeller collects lines about management packets.
type smpTeller struct {
	lines []string
	sets  int // where those begin that give LIDs and ways
}

// split returns the lines of before the forwarding tables, and the rest.
func (t *smpTeller) split() (before, rest []string) { return t.lines[:t.sets], t.lines[t.sets:] }

var madMethods = map[uint8]string{wire.MADMethodGet: "Get", wire.MADMethodSet: "Set", wire.MADMethodGetResp: "GetResp", wire.MADMethodTrap: "Trap"}

var smpAttrs = map[uint16]string{
	wire.AttrNodeInfo: "NodeInfo", wire.AttrNodeDesc: "NodeDescription", wire.AttrPortInfo: "PortInfo", wire.AttrPKeyTable: "P_KeyTable",
	wire.AttrSMInfo: "SMInfo", wire.AttrSwitch: "SwitchInfo", wire.AttrLFT: "LinearForwardingTable", wire.AttrMFT: "MulticastForwardingTable",
	wire.AttrPathRecord: "PathRecord",
}

// tellMAD notes a question of management where it begins its way.
func (s *stage) tellMAD(from *fabric.Port, packet []byte) {
	if s.smps == nil || strings.HasPrefix(from.String(), "switch") {
		return
	}
	h := must(wire.DecodeLRH(packet))
	var p wire.Packet
	s.must(p.Decode(packet[wire.LRHSize : len(packet)-wire.VCRCSize]))
	m, err := wire.DecodeMADHeader(p.Payload)
	s.must(err)
	if m.Method&wire.MADMethodResponse != 0 && p.DestQP == wire.SMIQPN {
		return
	}
	line := fmt.Sprintf("%s of %s", madMethods[m.Method], smpAttrs[m.AttrID])
	if p.DestQP == wire.SMIQPN {
		smp := must(wire.DecodeSMP(p.Payload))
		var hops []string
		for i := range int(smp.HopCount) {
			hops = append(hops, fmt.Sprint(smp.Out[1+i]))
		}
		line += fmt.Sprintf("  VL %d, route %s", h.VL, strings.Join(hops, " "))
		if m.AttrID == wire.AttrPortInfo {
			i := wire.DecodePortInfo(&smp.Data)
			line += fmt.Sprintf(", port %d", m.AttrMod)
			if m.Method == wire.MADMethodSet {
				line += fmt.Sprintf(": LID %d", i.LID)
				if state, changes := portStates[i.State]; changes {
					line += ", state " + state
				}
			}
		}
		if m.AttrID == wire.AttrLFT && s.smps.sets == 0 {
			s.smps.sets = len(s.smps.lines)
		}
	} else {
		line += fmt.Sprintf("  VL %d, LID %d to %d", h.VL, h.SLID, h.DLID)
	}
	s.smps.lines = append(s.smps.lines, line)
}

func (s *stage) tellLines(lines []string) {
	for _, l := range lines {
		what, where, _ := strings.Cut(l, "  ")
		if !s.quiet {
			fmt.Fprintf(s.w, "     %-32s %s\n", what, where)
		}
	}
}
