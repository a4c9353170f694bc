package meaning_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// valueOf reads a field of up to 64 bits.
func valueOf(t *testing.T, h meaning.Header, data []byte, name string) (v uint64) {
	t.Helper()
	at := 0
	for _, f := range h.Fields {
		if f.Name != name {
			at += f.Bits
			continue
		}
		for i := at; i < at+f.Bits; i++ {
			v = v<<1 | uint64(data[i/8]>>(7-i%8)&1)
		}
		return v
	}
	t.Errorf("%s has no field %q", h.Name, name)
	return 0
}

// The fields of each message stand where package wire writes them, and fill the message.
func TestCMFields(t *testing.T) {
	req := wire.REQ{LocalCommID: 0x11223344, ServiceID: wire.RDMAServiceID(wire.PortSpaceTCP, 7471), LocalQPN: 0xabcdef, ResponderResources: 5, InitiatorDepth: 6, RemoteCMTimeout: 21, Transport: 1,
		FlowControl: true, StartingPSN: 0x123456, LocalCMTimeout: 19, RetryCount: 6, PKey: 0x8005, MTU: 4, RNRRetryCount: 5, MaxCMRetries: 13, SRQ: true, ExtTransport: 1,
		Primary: wire.CMPath{LocalLID: 7, RemoteLID: 9, FlowLabel: 0x54321, Rate: 3, TrafficClass: 106, HopLimit: 64, SL: 2, SubnetLocal: true, ACKTimeout: 14}, Alternate: wire.CMPath{ACKTimeout: 18}}
	binary.BigEndian.PutUint16(req.PrivateData[2:], 4791)
	rep := wire.REP{LocalCommID: 1, RemoteCommID: 2, LocalQPN: 3, StartingPSN: 4, ResponderResources: 5, InitiatorDepth: 6, TargetACKDelay: 7, Failover: 1, RNRRetryCount: 7, SRQ: true, LocalGUID: 8}
	for _, tt := range []struct {
		attr wire.CMAttr
		m    interface{ AppendTo([]byte) []byte }
		want map[string]uint64
	}{
		{wire.CMREQ, &req, map[string]uint64{"local communication ID": 0x11223344, "service ID": req.ServiceID, "local QPN": 0xabcdef, "responder resources": 5, "initiator depth": 6, "remote CM timeout": 21,
			"transport": 1, "F": 1, "starting PSN": 0x123456, "local CM timeout": 19, "retry count": 6, "P_Key": 0x8005, "path MTU": 4, "RNR retry": 5, "max CM retries": 13, "S": 1, "ext. transport": 1,
			"primary local LID": 7, "primary remote LID": 9, "primary flow label": 0x54321, "primary rate": 3, "primary traffic class": 106, "primary hop limit": 64, "primary SL": 2, "L": 1,
			"primary ACK timeout": 14, "alternate ACK timeout": 18, "source port": 4791}},
		{wire.CMREP, &rep, map[string]uint64{"local communication ID": 1, "remote communication ID": 2, "local QPN": 3, "starting PSN": 4, "responder resources": 5, "initiator depth": 6, "target ACK delay": 7,
			"failover": 1, "RNR retry": 7, "S": 1, "local CA GUID": 8}},
		{wire.CMRTU, &wire.RTU{LocalCommID: 1, RemoteCommID: 2}, map[string]uint64{"remote communication ID": 2}},
		{wire.CMREJ, &wire.REJ{RemoteCommID: 2, Message: 1, ARILen: 3, Reason: 26}, map[string]uint64{"message rejected": 1, "info length": 3, "reason": 26}},
		{wire.CMMRA, &wire.MRA{RemoteCommID: 2, Message: 1, ServiceTimeout: 20}, map[string]uint64{"message received": 1, "service timeout": 20}},
		{wire.CMDREQ, &wire.DREQ{RemoteQPN: 0x1234}, map[string]uint64{"remote QPN": 0x1234}},
		{wire.CMDREP, &wire.DREP{RemoteCommID: 2}, map[string]uint64{"remote communication ID": 2}},
		{wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 7, PKey: 0xffff, ServiceID: 99}, map[string]uint64{"request ID": 7, "P_Key": 0xffff, "service ID": 99}},
		{wire.CMSIDRREP, &wire.SIDRREP{RequestID: 7, Status: 2, QPN: 5, ServiceID: 99, QKey: 77}, map[string]uint64{"status": 2, "QPN": 5, "service ID": 99, "Q_Key": 77}},
	} {
		header := wire.NewCMHeader(tt.attr, 1)
		mad := tt.m.AppendTo(header.AppendTo(nil))
		h, ok := meaning.CMMessage(mad)
		if !ok || h.Name != "CM "+tt.attr.String() {
			t.Errorf("%v: %+v, %v", tt.attr, h.Name, ok)
			continue
		}
		bits := 0
		for _, f := range h.Fields {
			bits += f.Bits
		}
		if bits != 8*wire.CMDataSize {
			t.Errorf("%v: the fields have %d bits, want %d", tt.attr, bits, 8*wire.CMDataSize)
		}
		for name, want := range tt.want {
			if got := valueOf(t, h, mad[wire.MADHeaderSize:], name); got != want {
				t.Errorf("%v: %s is %#x, want %#x", tt.attr, name, got, want)
			}
		}
		e := meaning.Explain(tt.attr.String())
		if len(e) == 0 || e[0].Kind != meaning.KindHeader {
			t.Errorf("%v is not explained as a header", tt.attr)
			continue
		}
		for _, line := range strings.Split(e[0].Drawing, "\n")[1:] {
			if len(line) != 65 {
				t.Errorf("%v: a line of the drawing has %d characters, want 65: %s", tt.attr, len(line), line)
			}
		}
	}
	if _, ok := meaning.CMMessage(make([]byte, 256)); ok {
		t.Error("a datagram of nothing is a message of the connection manager")
	}
}
