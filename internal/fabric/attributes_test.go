package fabric

import (
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A port has what its PortInfo says: attributes that a bit of the capability mask, or a capacity, announces.
func TestPortAttributes(t *testing.T) {
	f := newTree(t, 0)
	for _, d := range []struct {
		p    *Port
		want uint32
	}{{f.hosts[0], 0x02014862}, {f.hosts[1], 0x02014860}, {f.leaves[0].n.ports[0], 0x4848}} {
		info := wire.PortInfo{}
		ask := func(method uint8, attr uint16, mod uint32, data [wire.SMPDataSize]byte) ([wire.SMPDataSize]byte, uint16) {
			s := wire.SMP{MADHeader: wire.MADHeader{Method: method, AttrID: attr, AttrMod: mod}, Data: data}
			if !d.p.answer(&s) {
				t.Fatalf("%v does not answer for attribute %#x", d.p, attr)
			}
			return s.Data, s.Status
		}
		var none [wire.SMPDataSize]byte
		data, status := ask(wire.MADMethodGet, wire.AttrPortInfo, 0, none)
		if info = wire.DecodePortInfo(&data); status != 0 || info.CapMask != d.want {
			t.Errorf("%v: capability mask %#08x, status %d; want %#08x", d.p, info.CapMask, status, d.want)
		}
		if fast := info.SpeedExt != 0; fast != (info.CapMask&wire.CapExtendedSpeeds != 0) {
			t.Errorf("%v has extended speed %d and capability mask %#08x", d.p, info.SpeedExt, info.CapMask)
		}

		data, status = ask(wire.MADMethodGet, wire.AttrGUIDInfo, 0, none)
		if status != 0 || binary.BigEndian.Uint64(data[:]) != d.p.guid || data[8] != 0 || info.GUIDCap != 1 {
			t.Errorf("%v: GUIDInfo %x, status %d, for GUIDCap %d; want its GUID %#x alone", d.p, data[:16], status, info.GUIDCap, d.p.guid)
		}
		other := none
		other[0], other[8] = 9, 9
		if got, status := ask(wire.MADMethodSet, wire.AttrGUIDInfo, 0, other); status != 0 || got != data {
			t.Errorf("%v: a GUID is set: %x, status %d; want it as it was", d.p, got[:16], status)
		}
		if _, status := ask(wire.MADMethodGet, wire.AttrGUIDInfo, 1, none); status != wire.MADStatusBadField {
			t.Errorf("%v: GUIDs beyond GUIDCap: status %d", d.p, status)
		}

		lanes, status := ask(wire.MADMethodGet, wire.AttrSLtoVL, 0x0101, none)
		if status != 0 {
			t.Errorf("%v: the map of virtual lanes: status %d", d.p, status)
		}
		for sl := range uint8(16) {
			if got := lanes[sl/2] >> (4 * (1 - sl%2)) & 0xf; got != VL(sl) {
				t.Errorf("%v: service level %d has lane %d, want %d", d.p, sl, got, VL(sl))
			}
		}
		if _, status := ask(wire.MADMethodSet, wire.AttrSLtoVL, 0x0101, lanes); status != 0 {
			t.Errorf("%v: its own map of virtual lanes is set: status %d", d.p, status)
		}
		if _, status := ask(wire.MADMethodSet, wire.AttrSLtoVL, 0x0101, none); status != wire.MADStatusBadField {
			t.Errorf("%v: another map of virtual lanes is set: status %d", d.p, status)
		}
	}
	s := wire.SMP{MADHeader: wire.MADHeader{Method: wire.MADMethodGet, AttrID: wire.AttrSLtoVL, AttrMod: 0x2501}}
	if f.leaves[0].n.ports[1].answer(&s); s.Status != wire.MADStatusBadField {
		t.Errorf("the map of a port that a switch has not: status %d", s.Status)
	}
}
