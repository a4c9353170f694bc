package wire

import (
	"bytes"
	"testing"
)

func TestSMP(t *testing.T) {
	s := SMP{
		MADHeader: MADHeader{BaseVersion: 1, MgmtClass: MADClassSMDirect, ClassVersion: 1, Method: MADMethodGetResp, Status: MADStatusBadAttr, TID: 7, AttrID: AttrPortInfo, AttrMod: 3},
		Back:      true, HopPointer: 2, HopCount: 3, MKey: 0x1122334455667788, DrSLID: PermissiveLID, DrDLID: 9,
	}
	copy(s.Data[:], "data")
	copy(s.Out[1:], "\x01\x02\x03")
	copy(s.In[1:], "\x04\x05\x06")
	b := s.AppendTo([]byte("before"))[6:]
	if len(b) != MADSize || !bytes.Equal(b[:8], []byte{1, 0x81, 1, 0x81, 0x80, 0x0c, 2, 3}) {
		t.Fatalf("%d bytes that begin with % x", len(b), b[:8])
	}
	if !bytes.Equal(b[24:36], []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xff, 0xff, 0, 9}) || string(b[64:68]) != "data" ||
		!bytes.Equal(b[128:132], []byte{0, 1, 2, 3}) || !bytes.Equal(b[192:196], []byte{0, 4, 5, 6}) {
		t.Errorf("fields are elsewhere: % x", b)
	}
	if got, err := DecodeSMP(b); err != nil || got != s {
		t.Errorf("%+v comes back as %+v, %v", s, got, err)
	}
	if _, err := DecodeSMP(b[:MADSize-1]); err != ErrShortMAD {
		t.Errorf("a short SMP: %v", err)
	}
}

func TestSubnetAttributes(t *testing.T) {
	var b [SMPDataSize]byte
	n := NodeInfo{Type: NodeSwitch, Ports: 36, SystemImageGUID: 1, NodeGUID: 2, PortGUID: 3, PartitionCap: 4, DeviceID: 5, Revision: 6, LocalPort: 7, VendorID: 0x2c9}
	if n.Put(&b); DecodeNodeInfo(&b) != n || b[36] != 7 || !bytes.Equal(b[37:40], []byte{0, 2, 0xc9}) {
		t.Errorf("%+v comes back as %+v", n, DecodeNodeInfo(&b))
	}
	s := SwitchInfo{LinearCap: 0xc000, MulticastCap: 1024, LinearTop: 7, LifeTime: 18, PortChanged: true}
	if s.Put(&b); DecodeSwitchInfo(&b) != s {
		t.Errorf("%+v comes back as %+v", s, DecodeSwitchInfo(&b))
	}
	p := PortInfo{
		MKey: 1, Prefix: 0xfe80 << 48, LID: 2, SMLID: 3, CapMask: 4, LocalPort: 5, Width: 2, State: 4, PhysState: 5, LMC: 6, Speed: 4, MTU: 5, SMSL: 7,
		VLCap: 4, InitType: 3, InitTypeReply: 2, MTUCap: 5, OperationalVLs: 4, PKeyViolations: 10, QKeyViolations: 11, GUIDCap: 12, Reregister: true,
		SubnetTimeout: 18, RespTime: 16, SpeedExt: 2,
	}
	if p.Put(&b); DecodePortInfo(&b) != p {
		t.Errorf("%+v comes back as %+v", p, DecodePortInfo(&b))
	}
	m := SMInfo{GUID: 1, Key: 2, Activity: 3, Priority: 4, State: 3}
	if m.Put(&b); DecodeSMInfo(&b) != m {
		t.Errorf("%+v comes back as %+v", m, DecodeSMInfo(&b))
	}
}

func TestSubnetAdministration(t *testing.T) {
	p := PathRecord{Service: 1, DGID: [16]byte{0: 1, 15: 2}, SGID: [16]byte{0: 3, 15: 4}, DLID: 5, SLID: 6, FlowLabel: 0xabcde, HopLimit: 7, TrafficClass: 8,
		Reversible: true, Count: 9, PKey: 0x8001, SL: 10, MTU: 4, Rate: 3, Lifetime: 18}
	s := SAMAD{MADHeader: MADHeader{BaseVersion: 1, MgmtClass: MADClassSA, ClassVersion: MADVersionSA, Method: MADMethodGet, TID: 1, AttrID: AttrPathRecord}, Mask: PathDGID | PathSGID}
	p.Put(&s)
	b := s.AppendTo(nil)
	got, err := DecodeSAMAD(b)
	if err != nil || got != s || DecodePathRecord(&got.Data) != p || got.RecordWords != 8 {
		t.Errorf("%+v comes back as %+v, %v", p, DecodePathRecord(&got.Data), err)
	}
	if b[56+54] != 0x84 || b[56+53] != 10 || !bytes.Equal(b[48:56], []byte{0, 0, 0, 0, 0, 0, 0, 0x0c}) {
		t.Errorf("fields are elsewhere: % x", b)
	}
	m := MCMemberRecord{MGID: [16]byte{0xff}, Port: [16]byte{0xfe}, QKey: 1, MLID: 0xc001, MTU: 4, TrafficClass: 2, PKey: 0xffff, Rate: 3, Lifetime: 18, SL: 4,
		FlowLabel: 5, HopLimit: 6, Scope: 2, JoinState: 1}
	if m.Put(&s); DecodeMCMemberRecord(&s.Data) != m {
		t.Errorf("%+v comes back as %+v", m, DecodeMCMemberRecord(&s.Data))
	}
	if _, err := DecodeSAMAD(b[:100]); err != ErrShortMAD {
		t.Errorf("a short message: %v", err)
	}
}

func FuzzSMP(f *testing.F) {
	s := SMP{MADHeader: MADHeader{MgmtClass: MADClassSMDirect}, Back: true}
	f.Add(s.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeSMP(b); err == nil {
			if again, err := DecodeSMP(s.AppendTo(nil)); err != nil || again != s {
				t.Errorf("%+v comes back as %+v, %v", s, again, err)
			}
			DecodeNodeInfo(&s.Data)
			DecodeSwitchInfo(&s.Data)
			DecodePortInfo(&s.Data)
			DecodeSMInfo(&s.Data)
		}
		if s, err := DecodeSAMAD(b); err == nil {
			DecodePathRecord(&s.Data)
			DecodeMCMemberRecord(&s.Data)
		}
	})
}
