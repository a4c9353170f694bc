package devinfo

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// onInfiniBand is the report of a device on InfiniBand in memory, with the LID of which a subnet manager runs. mtu is in
// bytes.
func onInfiniBand(t *testing.T, mtu int) *report {
	t.Helper()
	dev := rdmatest.New(t, rdmatest.Config{InfiniBand: true, MTU: mtu}).Device()
	r := &report{info: dev.Info(), ports: []portinfo{{number: 1}}}
	var err error
	if r.attr, err = dev.Query(); err != nil {
		t.Fatal(err)
	}
	p := &r.ports[0]
	if p.attr, err = dev.QueryPort(1); err != nil {
		t.Fatal(err)
	}
	if p.gids, err = dev.GIDs(1); err != nil {
		t.Fatal(err)
	}
	return r
}

func guid(b ...byte) (g verbs.GUID) {
	copy(g[:], b)
	return g
}

// transcript is what a tutorial shows of a card on InfiniBand, whose host runs the subnet manager. Its C program had
// the line "Device ports:" before the ports, which today's has not.
const transcript = `hca_id:	mlx4_0
	transport:			InfiniBand (0)
	fw_ver:				2.9.1000
	node_guid:			10d2:c910:0000:6bd0
	sys_image_guid:			10d2:c910:0000:6bd3
	vendor_id:			0x02c9
	vendor_part_id:			26428
	hw_ver:				0xB0
	board_id:			MT_0D90110009
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			port_lid:		1
			port_lmc:		0x00
			link_layer:		InfiniBand

`

// All that tells one card from another is set here. The port is the simulation's.
func TestDevinfoInfiniBand(t *testing.T) {
	r := onInfiniBand(t, 4096)
	r.info.Name, r.board = "mlx4_0", "MT_0D90110009"
	r.attr.FWVer, r.attr.VendorID, r.attr.VendorPartID, r.attr.HWVer = "2.9.1000", 0x2c9, 26428, 0xb0
	r.attr.NodeGUID, r.attr.SysImageGUID = guid(0x10, 0xd2, 0xc9, 0x10, 0, 0, 0x6b, 0xd0), guid(0x10, 0xd2, 0xc9, 0x10, 0, 0, 0x6b, 0xd3)
	var got strings.Builder
	r.print(&got, false)
	tooltest.DiffLines(t, got.String(), transcript)
}

// card is what a reader of another tutorial shows by -v of a card on InfiniBand. The C program of the time wrote "IB" for
// the link layer, and had fewer lines than today's.
const card = `hca_id: mlx4_0
transport: InfiniBand (0)
fw_ver: 2.7.5558
node_guid: 0025:90ff:ff07:4370
sys_image_guid: 0025:90ff:ff07:4373
vendor_id: 0x02c9
vendor_part_id: 26428
hw_ver: 0xA0
board_id: SM_1051000009
phys_port_cnt: 1
max_mr_size: 0xffffffffffffffff
page_size_cap: 0xfffffe00
max_qp: 261056
max_qp_wr: 16351
device_cap_flags: 0x007c9c76
max_sge: 32
max_sge_rd: 0
max_cq: 65408
max_cqe: 4194303
max_mr: 524272
max_pd: 32764
max_qp_rd_atom: 16
max_ee_rd_atom: 0
max_res_rd_atom: 4176896
max_qp_init_rd_atom: 128
max_ee_init_rd_atom: 0
atomic_cap: ATOMIC_HCA (1)
max_ee: 0
max_rdd: 0
max_mw: 0
max_raw_ipv6_qp: 0
max_raw_ethy_qp: 1
max_mcast_grp: 8192
max_mcast_qp_attach: 120
max_total_mcast_qp_attach: 983040
max_ah: 0
max_fmr: 0
max_srq: 65472
max_srq_wr: 16383
max_srq_sge: 31
max_pkeys: 128
local_ca_ack_delay: 15
port: 1
state: PORT_ACTIVE (4)
max_mtu: 2048 (4)
active_mtu: 2048 (4)
sm_lid: 1
port_lid: 1
port_lmc: 0x00
link_layer: IB
max_msg_sz: 0x40000000
port_cap_flags: 0x0251086a
max_vl_num: 8 (4)
bad_pkey_cntr: 0x0
qkey_viol_cntr: 0x0
sm_sl: 0
pkey_tbl_len: 128
gid_tbl_len: 128
subnet_timeout: 18
init_type_reply: 0
active_width: 4X (2)
active_speed: 10.0 Gbps (4)
phys_state: LINK_UP (5)
GID[ 0]: fe80:0000:0000:0000:0025:90ff:ff07:4371`

func TestDevinfoInfiniBandVerbose(t *testing.T) {
	r := onInfiniBand(t, 2048)
	var own strings.Builder
	r.print(&own, true)
	for _, line := range []string{
		"pkey_tbl_len:\t\t16\n", "active_speed:\t\t25.0 Gbps (32)\n", "port_cap_flags:\t\t0x02014862\n", "GID[  0]:\t\tfe80:0000:0000:0000:0200:0000:0000:0201\n",
	} {
		if !strings.Contains(own.String(), line) {
			t.Errorf("no %q in\n%s", line, own.String())
		}
	}
	r.info.Name, r.board = "mlx4_0", "SM_1051000009"
	r.attr = verbs.DeviceAttr{
		FWVer: "2.7.5558", VendorID: 0x2c9, VendorPartID: 26428, HWVer: 0xa0, PhysPortCnt: 1,
		NodeGUID: guid(0, 0x25, 0x90, 0xff, 0xff, 7, 0x43, 0x70), SysImageGUID: guid(0, 0x25, 0x90, 0xff, 0xff, 7, 0x43, 0x73),
		MaxMRSize: 1<<64 - 1, PageSizeCap: 0xfffffe00, MaxQP: 261056, MaxQPWR: 16351, DeviceCapFlags: 0x7c9c76, MaxSGE: 32, MaxCQ: 65408, MaxCQE: 4194303,
		MaxMR: 524272, MaxPD: 32764, MaxQPRdAtom: 16, MaxResRdAtom: 4176896, MaxQPInitRdAtom: 128, AtomicCap: verbs.AtomicHCA, MaxRawEthyQP: 1,
		MaxMcastGrp: 8192, MaxMcastQPAttach: 120, MaxTotalMcastQPAttach: 983040, MaxSRQ: 65472, MaxSRQWR: 16383, MaxSRQSGE: 31, MaxPKeys: 128, LocalCAAckDelay: 15,
	}
	p := &r.ports[0]
	// What the card's port can do, and its GUID. The rest is from the simulation.
	p.attr.PortCapFlags, p.attr.PKeyTableLen, p.attr.GIDTableLen = 0x251086a, 128, 128
	p.attr.MaxMsgSize, p.attr.ActiveSpeed = 0x40000000, 4
	copy(p.gids[0].GID[8:], []byte{0, 0x25, 0x90, 0xff, 0xff, 7, 0x43, 0x71})
	var out strings.Builder
	r.print(&out, true)
	words := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	rest := strings.Split(out.String(), "\n")
	for _, line := range strings.Split(card, "\n") {
		want := words(line)
		if want == "link_layer: IB" {
			want = "link_layer: InfiniBand"
		}
		for len(rest) > 0 && words(rest[0]) != want {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			t.Fatalf("no %q, or not in this order, in\n%s", want, out.String())
		}
	}
}
