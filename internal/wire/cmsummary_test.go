package wire

import (
	"strings"
	"testing"
)

func TestCMSummary(t *testing.T) {
	all := loadGoldenMADs(t)
	made := make(map[CMAttr][]byte)
	for _, m := range handMade(t) {
		made[m.attr] = m.mad
	}
	golden := func(name string) []byte {
		g, ok := all[name]
		if !ok {
			t.Fatalf("no golden MAD %s", name)
		}
		return g.mad
	}
	native := REQ{ServiceID: 1 << 32, LocalQPN: 5} // a service ID that is not made of a port: no addresses
	nativeHeader := NewCMHeader(CMREQ, 1)
	otherClass := NewCMHeader(CMREQ, 1)
	otherClass.MgmtClass = 4
	status := SIDRREP{RequestID: 7, Status: SIDRUnsupported}
	statusHeader := NewCMHeader(CMSIDRREP, 1)

	for _, tt := range []struct {
		mad  []byte
		want string
	}{
		{golden("rping-noresp/1"), " CM REQ id=0xfc55d50b service=0x0000000001061c06 localqp=0x000012 start=0x495d50" +
			" from=10.98.0.2:38160 to=10.98.0.1:7174"},
		{golden("rping_ipv6/1"), " CM REQ id=0x1310543c service=0x0000000001061c06 localqp=0x000022 start=0x21d925" +
			" from=[fd98::3]:38843 to=[fd98::2]:7174"},
		{golden("two-cm/3"), " CM REP id=0x05f5cd70 remote=0xc8dd8688 localqp=0x000021 start=0x1c90d9"},
		{golden("two-cm/4"), " CM RTU id=0xc8dd8688 remote=0x05f5cd70"},
		{golden("two-cm/17"), " CM DREQ id=0xc8dd8688 remote=0x05f5cd70 remoteqp=0x000021"},
		{golden("two-cm/18"), " CM DREP id=0x05f5cd70 remote=0xc8dd8688"},
		{golden("two-cm/34"), " CM REJ id=0x00000000 remote=0xcadd8688 message=0 reason=8 (nobody listens on the service ID)"},
		{golden("udaddy/1"), " CM SIDR_REQ id=0x1710543c service=0x0000000001111c06 from=10.98.0.3:33694 to=10.98.0.2:7174"},
		{golden("udaddy/2"), " CM SIDR_REP id=0x1710543c service=0x0000000001111c06 status=0 localqp=0x000019 localqkey=0x01234567"},
		{status.AppendTo(statusHeader.AppendTo(nil)), " CM SIDR_REP id=0x00000007 service=0x0000000000000000 status=1" +
			" localqp=0x000000 localqkey=0x00000000 (nobody listens on the service ID)"},
		{made[CMMRA], " CM MRA id=0x11223344 remote=0x55667788 message=1 timeout=24"},
		{made[CMLAP], " CM LAP id=0x11223344 remote=0x55667788 remoteqp=0xabcdef"},
		{made[CMAPR], " CM APR id=0x11223344 remote=0x55667788 status=2"},
		{native.AppendTo(nativeHeader.AppendTo(nil)), " CM REQ id=0x00000000 service=0x0000000100000000 localqp=0x000005 start=0x000000"},
		{native.AppendTo(otherClass.AppendTo(nil)), ""},
		{make([]byte, MADSize), ""},
	} {
		p := Packet{BTH: BTH{Opcode: UDSendOnly, DestQP: GSIQPN, PSN: 9},
			DETH: DETH{QKey: GSIQKey, SrcQP: GSIQPN}, Payload: tt.mad}
		const datagram = "UD SEND_ONLY qp=0x000001 psn=0x000009 srcqp=0x000001 qkey=0x80010000 payload=256"
		if got := p.String(); got != datagram+tt.want {
			t.Errorf("summary\n%s, want\n%s", got, datagram+tt.want)
		}
		p.DestQP = 0x17 // the same bytes to another QP mean nothing
		if got := p.String(); strings.Contains(got, "CM") {
			t.Errorf("datagram to QP 0x17: got %q, want no CM in it", got)
		}
	}
	short := Packet{BTH: BTH{Opcode: UDSendOnly, DestQP: GSIQPN}, Payload: golden("two-cm/4")[:MADSize-4]}
	if got := short.String(); strings.Contains(got, "CM") {
		t.Errorf("datagram of 252 bytes: got %q, want no CM in it", got)
	}
}
