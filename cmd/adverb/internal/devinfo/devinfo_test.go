package devinfo

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

// rxe is the device of testdata/devinfo_rxe.txt: ibv_devinfo -v of the Linux kernel's rxe.
func rxe(t *testing.T) *report {
	guid := verbs.GUID{0x00, 0x98, 0x00, 0xff, 0xfe, 0x00, 0x10, 0x01}
	gid := func(s string) verbs.GID {
		g, err := verbs.ParseGID(s)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	return &report{
		info: verbs.DeviceInfo{Name: "rxe0", NodeGUID: guid, NodeType: "CA", Transport: verbs.TransportIB, Netdev: "eth0"},
		attr: verbs.DeviceAttr{
			FWVer: "0.0.0", NodeGUID: guid, SysImageGUID: guid, MaxMRSize: 1<<64 - 1, PageSizeCap: 0xfffff000,
			VendorID: 0xffffff, MaxQP: 1048560, MaxQPWR: 1048576, DeviceCapFlags: 0x01223c76,
			MaxSGE: 32, MaxSGERd: 32, MaxCQ: 1048576, MaxCQE: 32767, MaxMR: 524287, MaxPD: 1048576,
			MaxQPRdAtom: 128, MaxResRdAtom: 258048, MaxQPInitRdAtom: 128, AtomicCap: verbs.AtomicHCA, MaxMW: 524287,
			MaxMcastGrp: 8192, MaxMcastQPAttach: 56, MaxTotalMcastQPAttach: 458752, MaxAH: 32767,
			MaxSRQ: 917503, MaxSRQWR: 1048576, MaxSRQSGE: 27, MaxPKeys: 64, LocalCAAckDelay: 15,
			PhysPortCnt: 1, NumCompVectors: 2,
		},
		ports: []portinfo{{
			number: 1,
			attr: verbs.PortAttr{
				State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU1024, LinkLayer: verbs.LinkLayerEthernet,
				MaxMsgSize: 0x800000, PortCapFlags: 0x10000, MaxVLNum: 1, PKeyTableLen: 1, GIDTableLen: 1024,
				ActiveWidth: 1, ActiveSpeed: 1, PhysState: verbs.PhysLinkUp,
			},
			gids: []verbs.GIDEntry{
				{GID: gid("fe80::98:ff:fe00:1001"), Index: 0, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "eth0"},
				{GID: gid("10.98.0.2"), Index: 1, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "eth0"},
			},
		}},
	}
}

// TestDevinfoClock: clocks and on-demand paging, in the words of the C program.
func TestDevinfoClock(t *testing.T) {
	r := rxe(t)
	r.attr.TimestampMask, r.attr.HCACoreClock = 0x7fffffffffffffff, 1e6
	r.attr.ODPCaps = verbs.ODPCaps{General: verbs.ODPSupport | 1<<40, RC: verbs.ODPSend | verbs.ODPSRQRecv | 1<<20, UD: 1 << 21}
	var got strings.Builder
	r.print(&got, true)
	const want = "\tgeneral_odp_caps:\n\t\t\t\t\tODP_SUPPORT\n\t\t\t\t\tUnknown flags: 0x10000000000\n" +
		"\trc_odp_caps:\n\t\t\t\t\tSUPPORT_SEND\n\t\t\t\t\tSUPPORT_SRQ\n\t\t\t\t\tUnknown flags: 0x100000\n" +
		"\tuc_odp_caps:\n\t\t\t\t\tNO SUPPORT\n\tud_odp_caps:\n\t\t\t\t\tUnknown flags: 0x200000\n" +
		"\txrc_odp_caps:\n\t\t\t\t\tNO SUPPORT\n" +
		"\tcompletion timestamp_mask:\t\t\t0x7fffffffffffffff\n\thca_core_clock:\t\t\t1000000kHZ\n"
	if !strings.Contains(got.String(), want) {
		t.Errorf("got\n%s\nwant in it\n%s", got.String(), want)
	}
}

func TestDevinfoMatchesCapture(t *testing.T) {
	want, err := os.ReadFile("testdata/devinfo_rxe.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	rxe(t).print(&got, true)
	tooltest.DiffLines(t, got.String(), string(want))

	// Without -v the lines between the number of ports and the port are left out, and those
	// behind the link layer.
	head, rest, _ := strings.Cut(string(want), "\tmax_mr_size:")
	_, rest, _ = strings.Cut(rest, "\tnum_comp_vectors:\t\t2\n")
	port, _, _ := strings.Cut(rest, "\t\t\tmax_msg_sz:")
	got.Reset()
	rxe(t).print(&got, false)
	tooltest.DiffLines(t, got.String(), head+port+"\n")
}

// TestDevinfoDenied: a device says what the system, or its library, denies to it.
func TestDevinfoDenied(t *testing.T) {
	for _, tt := range []struct {
		name, text, line string
		attr             func(*verbs.DeviceAttr) *string
		json             func(reportJSON) string
	}{
		{"unshared_memory", "memfd_create: operation not permitted", "\tunshared_memory:\t\tmemfd_create: operation not permitted\n",
			func(a *verbs.DeviceAttr) *string { return &a.UnsharedMemory }, func(j reportJSON) string { return j.UnsharedMemory }},
		{"refused_options", "UDP_GRO: operation not permitted: more CPU", "\trefused_options:\t\tUDP_GRO: operation not permitted: more CPU\n",
			func(a *verbs.DeviceAttr) *string { return &a.RefusedOptions }, func(j reportJSON) string { return j.RefusedOptions }},
		{"missing_ops", "FLUSH: rdma-core has it from 45 on", "\tmissing_ops:\t\t\tFLUSH: rdma-core has it from 45 on\n",
			func(a *verbs.DeviceAttr) *string { return &a.MissingOps }, func(j reportJSON) string { return j.MissingOps }},
	} {
		r := rxe(t)
		*tt.attr(&r.attr) = tt.text
		var out strings.Builder
		r.print(&out, true)
		if !strings.Contains(out.String(), tt.line) {
			t.Errorf("devinfo -v: got\n%swant %q in it", out.String(), tt.line)
		}
		if got := tt.json(r.json()); got != tt.text {
			t.Errorf("devinfo --json: got %s %q, want %q", tt.name, got, tt.text)
		}
	}
}

// devinfoKeys are the names that lines of ibv_devinfo start with, tabs included.
func devinfoKeys(out string) []string {
	var keys []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, flagIndent) || strings.HasPrefix(line, "\t\t\tGID[") || strings.HasPrefix(line, "\tmax_srq_") {
			continue // not on every device
		}
		key, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		keys = append(keys, key)
	}
	return keys
}

// withClock are the names of the lines of a device whose completions tell the time.
var withClock = strings.NewReplacer("completion_timestamp_mask not supported", "completion timestamp_mask", "core clock not supported", "hca_core_clock")

// A software device prints the lines that a kernel device prints, in their order. It has a clock, which rxe has not.
func TestDevinfoOfSoftDevice(t *testing.T) {
	want, err := os.ReadFile("testdata/devinfo_rxe.txt")
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := tool.Run(t.Context(), "ibv_devinfo", "-v", "-d", serverDevice)
	if code != 0 || stderr != "" {
		t.Fatalf("got status %d, stderr %s, want status 0 and no stderr", code, stderr)
	}
	tooltest.DiffLines(t, strings.Join(devinfoKeys(stdout), "\n"), withClock.Replace(strings.Join(devinfoKeys(string(want)), "\n")))
	for _, s := range []string{"hca_id:\t" + serverDevice + "\n", "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
		"\t\t\tlink_layer:\t\tEthernet\n", "\t\t\tGID[  0]:\t\t::ffff:127.0.88.31, RoCE v2\n\n"} {
		if !strings.Contains(stdout, s) {
			t.Errorf("got\n%swant %q in it", stdout, s)
		}
	}
}

// The lists of devices agree, whatever the machine has.
func TestDeviceLists(t *testing.T) {
	_, out, _ := tool.Run(t.Context(), "adverb", "devices", "--json")
	var devices []deviceJSON
	if err := json.Unmarshal([]byte(out), &devices); err != nil || len(devices) == 0 {
		t.Fatalf("got %s (%v), want a list of devices", out, err)
	}
	_, classic, _ := tool.Run(t.Context(), "ibv_devices")
	_, list, _ := tool.Run(t.Context(), "ibv_devinfo", "-l", "--nonsense")
	_, gids, _ := tool.Run(t.Context(), "show_gids")
	_, info, _ := tool.Run(t.Context(), "ibv_devinfo")
	for _, d := range devices {
		guid := strings.ReplaceAll(d.NodeGUID, ":", "")
		for name, has := range map[string]bool{
			"ibv_devices":    strings.Contains(classic, d.Name) && strings.Contains(classic, "\t"+guid+"\n"),
			"ibv_devinfo -l": strings.Contains(list, "\t"+d.Name+"\n"),
			"ibv_devinfo":    strings.Contains(info, "hca_id:\t"+d.Name+"\n"),
			"show_gids":      strings.Contains(gids, d.Name+"\t1\t0\t"),
		} {
			if !has {
				t.Errorf("%s: got nothing about %s, want it listed", name, d.Name)
			}
		}
	}
	code, out, _ := tool.Run(t.Context(), "adverb", "gids", "--json", serverDevice)
	if code != 0 || !strings.Contains(out, `"gid": "::ffff:127.0.88.31"`) {
		t.Errorf("gids of %s: got status %d: %s, want status 0 and the device's address", serverDevice, code, out)
	}
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"ibv_devinfo -d nope", 255, "IB device 'nope' wasn't found\nadverb: "},
		{"ibv_devinfo -i 2 -d " + serverDevice, 4, "Invalid port requested for device\nadverb: "},
		{"show_gids nope", 1, "adverb: open device nope: no such device"},
	} {
		code, _, stderr := tool.Run(t.Context(), strings.Fields(tt.args)...)
		if code != tt.code || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: got status %d, stderr %s, want status %d, stderr %q…", tt.args, code, stderr, tt.code, tt.stderr)
		}
	}
}

func TestDevinfoOddValues(t *testing.T) {
	r := rxe(t)
	r.attr.DeviceCapFlags |= 1 << 31
	r.attr.DeviceCapFlagsEx = 1<<36 | 1<<40
	p := &r.ports[0]
	p.attr.State, p.attr.PhysState, p.attr.LinkLayer = 5, 7, verbs.LinkLayerInfiniBand
	p.gids = append(p.gids, verbs.GIDEntry{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 1}, Index: 2, Type: verbs.GIDTypeIB},
		verbs.GIDEntry{GID: verbs.GID{0: 0xfe, 1: 0x80}, Index: 3})
	var b strings.Builder
	r.print(&b, true)
	for _, want := range []string{
		"\t\t\t\t\tUnknown flags: 0x80000000\n",
		"\tdevice_cap_flags_ex:\t\t0x11081223C76\n\t\t\t\t\tPCI_WRITE_END_PADDING\n\t\t\t\t\tUnknown flags: 0x10000000000\n",
		"\t\t\tstate:\t\t\tinvalid state (5)\n",
		"\t\t\tphys_state:\t\tPHY TEST (7)\n",
		"\t\t\tGID[  2]:\t\tfe80:0000:0000:0000:0000:0000:0000:0001\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%swant %q in it", b.String(), want)
		}
	}
	if strings.Contains(b.String(), "GID[  3]") {
		t.Errorf("got\n%swant no GID without an interface ID", b.String())
	}
}

func TestDevinfoJSON(t *testing.T) {
	b, err := json.Marshal(newReportsJSON([]*report{rxe(t)}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name":"rxe0"`, `"node_guid":"0098:00ff:fe00:1001"`, `"max_qp":1048560`,
		`"active_mtu":1024`, `"state":"PORT_ACTIVE"`, `"gid":"::ffff:10.98.0.2"`, `"type":"RoCE v2"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("got %s, want %s in it", b, want)
		}
	}
}

// Values that a device does not tell are left out, and the kernel's part in that is named.
func TestDevinfoOfKernelDevices(t *testing.T) {
	card, soft := rxe(t), rxe(t)
	card.attr.MaxInline, card.info.KernelName = verbs.MaxInlineUnknown, "mlx5_0"
	soft.attr.MaxInline, soft.info.SharesUDPPort = 0, []string{"mlx5_0", "rxe1"}
	const name, shares = `"kernel_name":"mlx5_0"`, `"shares_udp_port":["mlx5_0","rxe1"]`
	const nameLine, sharesLine = "\n\tkernel_name:\t\t\tmlx5_0\n", "\n\tshares_udp_port:\t\tmlx5_0 rxe1\n"
	for _, tt := range []struct {
		r             *report
		with, without []string
		line, noLine  string
	}{
		{card, []string{name}, []string{"max_inline_data", "shares_udp_port"}, nameLine, "shares_udp_port"},
		{soft, []string{shares, `"max_inline_data":0`}, []string{"kernel_name"}, sharesLine, "kernel_name"},
	} {
		b, err := json.Marshal(tt.r.json())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tt.with {
			if !strings.Contains(string(b), want) {
				t.Errorf("got %s, want %s in it", b, want)
			}
		}
		for _, not := range tt.without {
			if strings.Contains(string(b), not) {
				t.Errorf("got %s, want no %s in it", b, not)
			}
		}
		var verbose, plain strings.Builder
		tt.r.print(&verbose, true)
		tt.r.print(&plain, false)
		if v := verbose.String(); !strings.Contains(v, tt.line) || strings.Contains(v, tt.noLine) || strings.Contains(plain.String(), tt.line) {
			t.Errorf("got\n%swant %q in it and no %s, and without -v neither", v, tt.line, tt.noLine)
		}
	}
}

func TestDevicesFormat(t *testing.T) {
	var b strings.Builder
	printDevices(&b, []verbs.DeviceInfo{rxe(t).info})
	want := "    device          \t   node GUID\n    ------          \t----------------\n    rxe0            \t009800fffe001001\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestGIDsFormat(t *testing.T) {
	var all []gid
	for _, e := range rxe(t).ports[0].gids {
		all = append(all, gid{"rxe0", e})
	}
	all = append(all, gid{"soft_lo", verbs.GIDEntry{Port: 1, GID: verbs.GIDFromAddr(netip.IPv6Loopback()), Type: verbs.GIDTypeRoCEv2, Netdev: "lo"}})
	all = append(all, gid{"rxe0", verbs.GIDEntry{}}, gid{"rxe0", verbs.GIDEntry{GID: linkLocalPrefix}})
	var b strings.Builder
	printGIDs(&b, all)
	want := "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n" +
		"---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n" +
		"rxe0\t1\t0\tfe80:0000:0000:0000:0098:00ff:fe00:1001\t\t\tv2\teth0\n" +
		"rxe0\t1\t1\t0000:0000:0000:0000:0000:ffff:0a62:0002\t10.98.0.2  \tv2\teth0\n" +
		"soft_lo\t1\t0\t0000:0000:0000:0000:0000:0000:0000:0001\t\t\tv2\tlo\n" +
		"n_gids_found=3\n"
	tooltest.DiffLines(t, b.String(), want)
}
