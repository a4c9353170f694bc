package verbs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// The C library's enumerations, as "number name", without IBV_ and the prefix in front. "!" is a
// number that has no name there, and prints as such. A name with "?" is one that nothing here
// uses: package verbs may have it or not.
const (
	wcStatuses = "0 SUCCESS 1 LOC_LEN_ERR 2 LOC_QP_OP_ERR 3 LOC_EEC_OP_ERR 4 LOC_PROT_ERR 5 WR_FLUSH_ERR 6 MW_BIND_ERR " +
		"7 BAD_RESP_ERR 8 LOC_ACCESS_ERR 9 REM_INV_REQ_ERR 10 REM_ACCESS_ERR 11 REM_OP_ERR 12 RETRY_EXC_ERR 13 RNR_RETRY_EXC_ERR " +
		"14 LOC_RDD_VIOL_ERR 15 REM_INV_RD_REQ_ERR 16 REM_ABORT_ERR 17 INV_EECN_ERR 18 INV_EEC_STATE_ERR 19 FATAL_ERR " +
		"20 RESP_TIMEOUT_ERR 21 GENERAL_ERR 22 TM_ERR 23 TM_RNDV_INCOMPLETE 24 !"
	wcOpcodes = "0 SEND 1 RDMA_WRITE 2 RDMA_READ 3 COMP_SWAP 4 FETCH_ADD 5 BIND_MW 6 LOCAL_INV 7 TSO? 8 FLUSH? 9 ATOMIC_WRITE? 10 ! 127 ! " +
		"128 RECV 129 RECV_RDMA_WITH_IMM 130 TM_ADD? 133 TM_RECV? 255 !"
	wrOpcodes = "0 RDMA_WRITE 1 RDMA_WRITE_WITH_IMM 2 SEND 3 SEND_WITH_IMM 4 RDMA_READ 5 ATOMIC_CMP_AND_SWP 6 ATOMIC_FETCH_AND_ADD " +
		"7 LOCAL_INV 8 BIND_MW 9 SEND_WITH_INV 10 TSO? 11 DRIVER1? 12 ! 13 ! 14 FLUSH? 15 ATOMIC_WRITE? 16 !"
	qpStates   = "0 RESET 1 INIT 2 RTR 3 RTS 4 SQD 5 SQE 6 ERR 7 UNKNOWN? 8 ! 255 CLOSED" // the last is no C name
	qpTypes    = "0 SMI? 1 GSI? 2 RC 3 UC 4 UD 5 ! 8 RAW_PACKET? 9 XRC_SEND? 10 XRC_RECV? 255 DRIVER?"
	portStates = "0 NOP 1 DOWN 2 INIT 3 ARMED 4 ACTIVE 5 ACTIVE_DEFER 6 !"
	events     = "0 CQ_ERR 1 QP_FATAL 2 QP_REQ_ERR 3 QP_ACCESS_ERR 4 COMM_EST 5 SQ_DRAINED 6 PATH_MIG 7 PATH_MIG_ERR " +
		"8 DEVICE_FATAL 9 PORT_ACTIVE 10 PORT_ERR 11 LID_CHANGE 12 PKEY_CHANGE 13 SM_CHANGE 14 SRQ_ERR 15 SRQ_LIMIT_REACHED " +
		"16 QP_LAST_WQE_REACHED 17 CLIENT_REREGISTER 18 GID_CHANGE 19 WQ_FATAL 20 DEVICE_SPEED_CHANGE? 21 !"
	atomicCaps = "0 NONE 1 HCA 2 GLOB 3 !"
	rates      = "0 MAX 1 ! 2 2_5_GBPS 5 5_GBPS 3 10_GBPS 6 20_GBPS 4 30_GBPS 7 40_GBPS 8 60_GBPS 9 80_GBPS 10 120_GBPS 11 14_GBPS " +
		"12 56_GBPS 13 112_GBPS 14 168_GBPS 15 25_GBPS 16 100_GBPS 17 200_GBPS 18 300_GBPS 19 28_GBPS 20 50_GBPS 21 400_GBPS " +
		"22 600_GBPS 23 800_GBPS 24 1200_GBPS 25 !"

	// Flags have the number of the bit.
	sendFlags   = "0 FENCE 1 SIGNALED 2 SOLICITED 3 INLINE"
	accessFlags = "0 LOCAL_WRITE 1 REMOTE_WRITE 2 REMOTE_READ 3 REMOTE_ATOMIC 4 MW_BIND 5 ZERO_BASED 6 ON_DEMAND 7 HUGETLB " +
		"20 RELAXED_ORDERING"
	wcFlags    = "0 GRH 1 WITH_IMM 3 WITH_INV"
	guarantees = "0 EXACT_EVENTS 1 LAST_WORD_LAST 2 OVERRUN_STATUS 3 RESPONDER_EVENTS 4 DATAGRAM_LIMIT 5 EXACT_STATUS" // no C names
	deviceCaps = "0 RESIZE_MAX_WR 1 BAD_PKEY_CNTR 2 BAD_QKEY_CNTR 3 RAW_MULTI 4 AUTO_PATH_MIG 5 CHANGE_PHY_PORT " +
		"6 UD_AV_PORT_ENFORCE 7 CURR_QP_STATE_MOD 8 SHUTDOWN_PORT 9 INIT_TYPE 10 PORT_ACTIVE_EVENT 11 SYS_IMAGE_GUID " +
		"12 RC_RNR_NAK_GEN 13 SRQ_RESIZE 14 N_NOTIFY_CQ 17 MEM_WINDOW 18 UD_IP_CSUM 20 XRC 21 MEM_MGT_EXTENSIONS " +
		"23 MEM_WINDOW_TYPE_2A 24 MEM_WINDOW_TYPE_2B 25 RC_IP_CSUM 26 RAW_IP_CSUM 29 MANAGED_FLOW_STEERING"
)

// numbered calls f for each pair of a list.
func numbered(t *testing.T, list string, f func(n int, name string)) {
	t.Helper()
	words := strings.Fields(list)
	for i := 0; i+1 < len(words); i += 2 {
		var n int
		if _, err := fmt.Sscan(words[i], &n); err != nil {
			t.Fatalf("%q: %v", words[i], err)
		}
		f(n, words[i+1])
	}
}

// enum checks the names of the numbers of an enumeration.
func enum(t *testing.T, prefix, list string, text func(n int) string) {
	t.Helper()
	numbered(t, list, func(n int, name string) {
		got, number := text(n), fmt.Sprintf("%s(%d)", prefix, n)
		name, open := strings.CutSuffix(name, "?")
		want := prefix + "_" + name
		if name == "!" || open && got == number {
			want = number
		}
		if got != want {
			t.Errorf("%s %d prints %q, want %q", prefix, n, got, want)
		}
	})
}

// flags checks the names of single bits, of all bits together, and of none.
func flags(t *testing.T, prefix, list string, text func(v uint64) string) {
	t.Helper()
	var all uint64
	var names []string
	numbered(t, list, func(n int, name string) {
		if got := text(1 << n); got != prefix+name {
			t.Errorf("bit %d prints %q, want %q", n, got, prefix+name)
		}
		all |= 1 << n
		names = append(names, prefix+name)
	})
	if got, want := text(all), strings.Join(names, "|"); got != want {
		t.Errorf("%#x prints %q, want %q", all, got, want)
	}
	if got := text(0); got != "0" {
		t.Errorf("no flag prints %q, want \"0\"", got)
	}
}

func TestNames(t *testing.T) {
	enum(t, "WC", wcStatuses, func(n int) string { return verbs.WCStatus(n).String() })
	enum(t, "WC", wcOpcodes, func(n int) string { return verbs.WCOpcode(n).String() })
	enum(t, "WR", wrOpcodes, func(n int) string { return verbs.Opcode(n).String() })
	enum(t, "QPS", qpStates, func(n int) string { return verbs.QPState(n).String() })
	enum(t, "QPT", qpTypes, func(n int) string { return verbs.QPType(n).String() })
	enum(t, "PORT", portStates, func(n int) string { return verbs.PortState(n).String() })
	enum(t, "EVENT", events, func(n int) string { return verbs.EventType(n).String() })
	enum(t, "ATOMIC", atomicCaps, func(n int) string { return verbs.AtomicCap(n).String() })
	enum(t, "RATE", rates, func(n int) string { return verbs.Rate(n).String() })
	flags(t, "SEND_", sendFlags, func(v uint64) string { return verbs.SendFlags(v).String() })
	flags(t, "ACCESS_", accessFlags, func(v uint64) string { return verbs.Access(v).String() })
	flags(t, "WC_", wcFlags, func(v uint64) string { return verbs.WCFlags(v).String() })
	flags(t, "", guarantees, func(v uint64) string { return verbs.Guarantees(v).String() })
	if got := verbs.AllGuarantees; got != 1<<6-1 {
		t.Errorf("AllGuarantees is %v, want the lowest six bits", got)
	}
	flags(t, "", deviceCaps, func(v uint64) string { return verbs.DeviceCapFlags(v).String() })
	if got := (verbs.AccessRemoteRead | 1<<30).String(); got != "ACCESS_REMOTE_READ|0x40000000" {
		t.Errorf("an unknown bit prints %q, want its number", got)
	}
}

// Names that ibv_devinfo prints in words of its own.
func TestNamesOfDevinfo(t *testing.T) {
	tests := []struct {
		got  fmt.Stringer
		want string
	}{
		{verbs.LinkLayerUnspecified, "Unspecified"}, {verbs.LinkLayerInfiniBand, "InfiniBand"},
		{verbs.LinkLayerEthernet, "Ethernet"}, {verbs.LinkLayer(3), "LINK_LAYER(3)"},
		{verbs.PhysPolling, "POLLING"}, {verbs.PhysDisabled, "DISABLED"}, {verbs.PhysLinkUp, "LINK_UP"},
		{verbs.PhysState(0), "PHYS_STATE(0)"},
		{verbs.GIDTypeIB, "IB"}, {verbs.GIDTypeRoCEv1, "RoCE v1"}, {verbs.GIDTypeRoCEv2, "RoCE v2"}, {verbs.GIDType(9), "GID_TYPE(9)"},
		{verbs.MTU256, "MTU_256"}, {verbs.MTU4096, "MTU_4096"}, {verbs.MTU(0), "MTU(0)"}, {verbs.MTU(6), "MTU(6)"},
		{verbs.QPN(0x11), "0x000011"}, {verbs.PSN(0xabcdef), "0xabcdef"}, {verbs.LKey(0x1ff), "0x000001ff"},
		{verbs.RKey(0x1ff), "0x000001ff"}, {verbs.PKey(0xffff), "0xffff"}, {verbs.QKey(0x80010000), "0x80010000"},
		{verbs.GUID{0, 0x98, 0, 0xff, 0xfe, 0, 0x10, 1}, "0098:00ff:fe00:1001"},
		{verbs.Peer{QPN: 1, PSN: 2, GID: verbs.GID{0xfe, 0x80, 15: 1}}, "qp 0x000001 psn 0x000002 gid fe80::1"},
		{verbs.Peer{QPN: 1, PSN: 2, LID: 3}, "qp 0x000001 psn 0x000002 lid 0x0003 gid ::"},
		{verbs.TransportUnknown, "unknown"}, {verbs.TransportIB, "InfiniBand"}, {verbs.TransportIWARP, "iWARP"},
		{verbs.TransportUSNIC, "usNIC"}, {verbs.TransportUSNICUDP, "usNIC UDP"}, {verbs.TransportUnspecified, "unspecified"},
		{verbs.Transport(5), "TRANSPORT(5)"},
	}
	for _, tt := range tests {
		if got := tt.got.String(); got != tt.want {
			t.Errorf("%T prints %q, want %q", tt.got, got, tt.want)
		}
	}
	if got := (verbs.DeviceBadPKeyCntr | verbs.DeviceXRC).Names(); len(got) != 2 || got[0] != "BAD_PKEY_CNTR" || got[1] != "XRC" {
		t.Errorf("names %q, want BAD_PKEY_CNTR and XRC", got)
	}
}

func TestMTU(t *testing.T) {
	for m, bytes := range map[verbs.MTU]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if got, ok := verbs.MTUFromBytes(bytes); got != m || !ok || m.Bytes() != bytes || !m.Valid() {
			t.Errorf("%d bytes are %v (%v), and MTU code %d has %d bytes; want them to match", bytes, got, ok, m, m.Bytes())
		}
	}
	for _, bytes := range []int{-1, 0, 128, 255, 257, 1500, 8192} {
		if got, ok := verbs.MTUFromBytes(bytes); ok || got != 0 {
			t.Errorf("%d bytes are %v, want no MTU", bytes, got)
		}
	}
	for _, m := range []verbs.MTU{0, 6, 255} {
		if m.Valid() || m.Bytes() != 0 {
			t.Errorf("MTU code %d is valid, or has %d bytes; want neither", m, m.Bytes())
		}
	}
}

func TestGID(t *testing.T) {
	tests := []struct{ in, out string }{
		{"10.0.0.1", "::ffff:10.0.0.1"}, {"::ffff:10.0.0.1", "::ffff:10.0.0.1"}, {"fe80::1", "fe80::1"},
		{"0000:0000:0000:0000:0000:ffff:0a00:0001", "::ffff:10.0.0.1"}, {"::", "::"},
		{"FE80:0:0:0:0:0:0:1", "fe80::1"},
	}
	for _, tt := range tests {
		g, err := verbs.ParseGID(tt.in)
		if err != nil || g.String() != tt.out {
			t.Errorf("%s: %v, %v, want %s", tt.in, g, err, tt.out)
			continue
		}
		if back := must(verbs.ParseGID(g.String()))(t); back != g {
			t.Errorf("%s: %v prints as %v, which parses as %v, want the same", tt.in, [16]byte(g), g, [16]byte(back))
		}
		if verbs.GIDFromAddr(g.Addr()) != g || g.IsZero() != (tt.in == "::") {
			t.Errorf("%s: address %v, zero %v; want the GID of the address to be this one, and zero for :: alone", tt.in, g.Addr(), g.IsZero())
		}
	}
	if g := must(verbs.ParseGID("10.0.0.1"))(t); g != (verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}) || !g.Addr().Is4() {
		t.Errorf("10.0.0.1 is % x, want it IPv4-mapped", g[:])
	}
	for in, why := range map[string]string{"": "parse GID", "10.0.0": "parse GID", "fe80::1%eth0": "a GID has no zone; leave out %eth0"} {
		if g, err := verbs.ParseGID(in); !errorHas(err, why) || !g.IsZero() {
			t.Errorf("%q: %v, %v, want %q", in, g, err, why)
		}
	}
}
