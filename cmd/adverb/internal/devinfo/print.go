package devinfo

import (
	"fmt"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// print prints the report in the format of the C program.
func (r *report) print(w io.Writer, verbose bool) {
	a := &r.attr
	fmt.Fprintf(w, "hca_id:\t%s\n", r.info.Name)
	fmt.Fprintf(w, "\ttransport:\t\t\t%s (%d)\n", transportName(r.info.Transport), r.info.Transport)
	if a.FWVer != "" {
		fmt.Fprintf(w, "\tfw_ver:\t\t\t\t%s\n", a.FWVer)
	}
	fmt.Fprintf(w, "\tnode_guid:\t\t\t%v\n", a.NodeGUID)
	fmt.Fprintf(w, "\tsys_image_guid:\t\t\t%v\n", a.SysImageGUID)
	fmt.Fprintf(w, "\tvendor_id:\t\t\t0x%04x\n", a.VendorID)
	fmt.Fprintf(w, "\tvendor_part_id:\t\t\t%d\n", a.VendorPartID)
	fmt.Fprintf(w, "\thw_ver:\t\t\t\t0x%X\n", a.HWVer)
	if r.board != "" {
		fmt.Fprintf(w, "\tboard_id:\t\t\t%s\n", r.board)
	}
	fmt.Fprintf(w, "\tphys_port_cnt:\t\t\t%d\n", a.PhysPortCnt)
	if verbose {
		printDeviceAttr(w, a)
		printKernelNames(w, &r.info)
		printDenied(w, a)
	}
	for i := range r.ports {
		r.ports[i].print(w, r.info.Transport, verbose)
	}
}

// printKernelNames prints names that the C program does not have: the kernel's name for the device, and the kernel's
// devices that get in its way at UDP port 4791.
func printKernelNames(w io.Writer, d *verbs.DeviceInfo) {
	if d.KernelName != "" {
		fmt.Fprintf(w, "\tkernel_name:\t\t\t%s\n", d.KernelName)
	}
	if len(d.SharesUDPPort) > 0 {
		fmt.Fprintf(w, "\tshares_udp_port:\t\t%s\n", strings.Join(d.SharesUDPPort, " "))
	}
}

// printDenied prints what the system denies to the device, which the C program does not have.
func printDenied(w io.Writer, a *verbs.DeviceAttr) {
	if a.UnsharedMemory != "" {
		fmt.Fprintf(w, "\tunshared_memory:\t\t%s\n", a.UnsharedMemory)
	}
	if a.RefusedOptions != "" {
		fmt.Fprintf(w, "\trefused_options:\t\t%s\n", a.RefusedOptions)
	}
	if a.MissingOps != "" {
		fmt.Fprintf(w, "\tmissing_ops:\t\t\t%s\n", a.MissingOps)
	}
}

// printDeviceAttr prints the additions of -v about the device. A feature that package verbs does not know is printed
// as on a card that does not offer it.
func printDeviceAttr(w io.Writer, a *verbs.DeviceAttr) {
	fmt.Fprintf(w, "\tmax_mr_size:\t\t\t0x%x\n", a.MaxMRSize)
	fmt.Fprintf(w, "\tpage_size_cap:\t\t\t0x%x\n", a.PageSizeCap)
	fmt.Fprintf(w, "\tmax_qp:\t\t\t\t%d\n", a.MaxQP)
	fmt.Fprintf(w, "\tmax_qp_wr:\t\t\t%d\n", a.MaxQPWR)
	fmt.Fprintf(w, "\tdevice_cap_flags:\t\t0x%08x\n", uint32(a.DeviceCapFlags))
	for _, n := range a.DeviceCapFlags.Names() {
		fmt.Fprintf(w, "%s%s\n", flagIndent, n)
	}
	if u := a.DeviceCapFlags & unknownCapFlags; u != 0 {
		fmt.Fprintf(w, "%sUnknown flags: 0x%X\n", flagIndent, uint32(u))
	}
	fmt.Fprintf(w, "\tmax_sge:\t\t\t%d\n", a.MaxSGE)
	fmt.Fprintf(w, "\tmax_sge_rd:\t\t\t%d\n", a.MaxSGERd)
	fmt.Fprintf(w, "\tmax_cq:\t\t\t\t%d\n", a.MaxCQ)
	fmt.Fprintf(w, "\tmax_cqe:\t\t\t%d\n", a.MaxCQE)
	fmt.Fprintf(w, "\tmax_mr:\t\t\t\t%d\n", a.MaxMR)
	fmt.Fprintf(w, "\tmax_pd:\t\t\t\t%d\n", a.MaxPD)
	fmt.Fprintf(w, "\tmax_qp_rd_atom:\t\t\t%d\n", a.MaxQPRdAtom)
	fmt.Fprintf(w, "\tmax_ee_rd_atom:\t\t\t%d\n", a.MaxEERdAtom)
	fmt.Fprintf(w, "\tmax_res_rd_atom:\t\t%d\n", a.MaxResRdAtom)
	fmt.Fprintf(w, "\tmax_qp_init_rd_atom:\t\t%d\n", a.MaxQPInitRdAtom)
	fmt.Fprintf(w, "\tmax_ee_init_rd_atom:\t\t%d\n", a.MaxEEInitRdAtom)
	fmt.Fprintf(w, "\tatomic_cap:\t\t\t%s (%d)\n", nameOf(atomicCapNames, a.AtomicCap, "invalid atomic capability"), a.AtomicCap)
	fmt.Fprintf(w, "\tmax_ee:\t\t\t\t%d\n", a.MaxEE)
	fmt.Fprintf(w, "\tmax_rdd:\t\t\t%d\n", a.MaxRDD)
	fmt.Fprintf(w, "\tmax_mw:\t\t\t\t%d\n", a.MaxMW)
	fmt.Fprintf(w, "\tmax_raw_ipv6_qp:\t\t%d\n", a.MaxRawIPv6QP)
	fmt.Fprintf(w, "\tmax_raw_ethy_qp:\t\t%d\n", a.MaxRawEthyQP)
	fmt.Fprintf(w, "\tmax_mcast_grp:\t\t\t%d\n", a.MaxMcastGrp)
	fmt.Fprintf(w, "\tmax_mcast_qp_attach:\t\t%d\n", a.MaxMcastQPAttach)
	fmt.Fprintf(w, "\tmax_total_mcast_qp_attach:\t%d\n", a.MaxTotalMcastQPAttach)
	fmt.Fprintf(w, "\tmax_ah:\t\t\t\t%d\n", a.MaxAH)
	fmt.Fprintf(w, "\tmax_fmr:\t\t\t%d\n", a.MaxFMR)
	if a.MaxFMR != 0 {
		fmt.Fprintf(w, "\tmax_map_per_fmr:\t\t%d\n", 0)
	}
	fmt.Fprintf(w, "\tmax_srq:\t\t\t%d\n", a.MaxSRQ)
	if a.MaxSRQ != 0 {
		fmt.Fprintf(w, "\tmax_srq_wr:\t\t\t%d\n", a.MaxSRQWR)
		fmt.Fprintf(w, "\tmax_srq_sge:\t\t\t%d\n", a.MaxSRQSGE)
	}
	fmt.Fprintf(w, "\tmax_pkeys:\t\t\t%d\n", a.MaxPKeys)
	fmt.Fprintf(w, "\tlocal_ca_ack_delay:\t\t%d\n", a.LocalCAAckDelay)
	printODPCaps(w, &a.ODPCaps)
	if a.TimestampMask != 0 {
		fmt.Fprintf(w, "\tcompletion timestamp_mask:\t\t\t0x%016x\n", a.TimestampMask)
	} else {
		fmt.Fprintf(w, "\tcompletion_timestamp_mask not supported\n")
	}
	if a.HCACoreClock != 0 {
		fmt.Fprintf(w, "\thca_core_clock:\t\t\t%dkHZ\n", a.HCACoreClock)
	} else {
		fmt.Fprintf(w, "\tcore clock not supported\n")
	}
	printCapFlagsEx(w, uint64(a.DeviceCapFlagsEx)|uint64(a.DeviceCapFlags))
	fmt.Fprintf(w, "\ttso_caps:\n\t\tmax_tso:\t\t\t0\n")
	fmt.Fprintf(w, "\trss_caps:\n")
	fmt.Fprintf(w, "\t\tmax_rwq_indirection_tables:\t\t\t0\n")
	fmt.Fprintf(w, "\t\tmax_rwq_indirection_table_size:\t\t\t0\n")
	fmt.Fprintf(w, "\t\trx_hash_function:\t\t\t\t0x0\n")
	fmt.Fprintf(w, "\t\trx_hash_fields_mask:\t\t\t\t0x0\n")
	fmt.Fprintf(w, "\tmax_wq_type_rq:\t\t\t0\n")
	fmt.Fprintf(w, "\tpacket_pacing_caps:\n\t\tqp_rate_limit_min:\t0kbps\n\t\tqp_rate_limit_max:\t0kbps\n")
	fmt.Fprintf(w, "\ttag matching not supported\n")
	fmt.Fprintf(w, "\tnum_comp_vectors:\t\t%d\n", a.NumCompVectors)
}

// Bits of on-demand paging that have names.
const (
	knownODP          = verbs.ODPSupport | verbs.ODPSupportImplicit
	knownODPTransport = verbs.ODPSend | verbs.ODPRecv | verbs.ODPWrite | verbs.ODPRead | verbs.ODPAtomic | verbs.ODPSRQRecv |
		verbs.ODPFlush | verbs.ODPAtomicWrite
)

func printODPCaps(w io.Writer, c *verbs.ODPCaps) {
	names := func(known fmt.Stringer, any bool, unknown uint64) {
		if any {
			fmt.Fprintf(w, "%s%s\n", flagIndent, strings.ReplaceAll(known.String(), "|", "\n"+flagIndent))
		}
		if unknown != 0 {
			fmt.Fprintf(w, "%sUnknown flags: 0x%X\n", flagIndent, unknown)
		}
	}
	fmt.Fprintf(w, "\tgeneral_odp_caps:\n")
	names(c.General&knownODP, c.General&knownODP != 0, uint64(c.General&^knownODP))
	for _, t := range []struct {
		name string
		caps verbs.ODPTransportCaps
	}{{"rc", c.RC}, {"uc", c.UC}, {"ud", c.UD}, {"xrc", c.XRC}} {
		fmt.Fprintf(w, "\t%s_odp_caps:\n", t.name)
		if t.caps == 0 {
			fmt.Fprintf(w, "%sNO SUPPORT\n", flagIndent)
		}
		names(t.caps&knownODPTransport, t.caps&knownODPTransport != 0, uint64(t.caps&^knownODPTransport))
	}
}

const flagIndent = "\t\t\t\t\t"

// unknownCapFlags are the bits of the device flags that have no name in the C program.
const unknownCapFlags verbs.DeviceCapFlags = 0xd8498000

// capFlagsEx are the names of the upper half of the extended flags.
var capFlagsEx = []struct {
	bit  uint64
	name string
}{
	{1 << 34, "RAW_SCATTER_FCS"}, {1 << 36, "PCI_WRITE_END_PADDING"}, {1 << 41, "CC_DMA_BOUNCE"},
}

func printCapFlagsEx(w io.Writer, flags uint64) {
	fmt.Fprintf(w, "\tdevice_cap_flags_ex:\t\t0x%X\n", flags)
	rest := flags >> 32 << 32
	for _, f := range capFlagsEx {
		if rest&f.bit != 0 {
			fmt.Fprintf(w, "%s%s\n", flagIndent, f.name)
			rest &^= f.bit
		}
	}
	if rest != 0 {
		fmt.Fprintf(w, "%sUnknown flags: 0x%X\n", flagIndent, rest)
	}
}

func (p *portinfo) print(w io.Writer, t verbs.Transport, verbose bool) {
	a := &p.attr
	fmt.Fprintf(w, "\t\tport:\t%d\n", p.number)
	fmt.Fprintf(w, "\t\t\tstate:\t\t\t%s (%d)\n", nameOf(portStateNames, a.State, "invalid state"), a.State)
	fmt.Fprintf(w, "\t\t\tmax_mtu:\t\t%s (%d)\n", mtuName(a.MaxMTU), a.MaxMTU)
	fmt.Fprintf(w, "\t\t\tactive_mtu:\t\t%s (%d)\n", mtuName(a.ActiveMTU), a.ActiveMTU)
	fmt.Fprintf(w, "\t\t\tsm_lid:\t\t\t%d\n", a.SMLID)
	fmt.Fprintf(w, "\t\t\tport_lid:\t\t%d\n", a.LID)
	fmt.Fprintf(w, "\t\t\tport_lmc:\t\t0x%02x\n", a.LMC)
	fmt.Fprintf(w, "\t\t\tlink_layer:\t\t%s\n", nameOf(linkLayerNames, a.LinkLayer, "Unknown"))
	if verbose {
		p.printVerbose(w, t)
	}
	fmt.Fprintf(w, "\n")
}

func (p *portinfo) printVerbose(w io.Writer, t verbs.Transport) {
	a := &p.attr
	fmt.Fprintf(w, "\t\t\tmax_msg_sz:\t\t0x%x\n", a.MaxMsgSize)
	fmt.Fprintf(w, "\t\t\tport_cap_flags:\t\t0x%08x\n", a.PortCapFlags)
	fmt.Fprintf(w, "\t\t\tport_cap_flags2:\t0x%04x\n", a.PortCapFlags2)
	fmt.Fprintf(w, "\t\t\tmax_vl_num:\t\t%s (%d)\n", nameOf(vlNames, a.MaxVLNum, "invalid value"), a.MaxVLNum)
	fmt.Fprintf(w, "\t\t\tbad_pkey_cntr:\t\t0x%x\n", a.BadPKeyCntr)
	fmt.Fprintf(w, "\t\t\tqkey_viol_cntr:\t\t0x%x\n", a.QKeyViolCntr)
	fmt.Fprintf(w, "\t\t\tsm_sl:\t\t\t%d\n", a.SMSL)
	fmt.Fprintf(w, "\t\t\tpkey_tbl_len:\t\t%d\n", a.PKeyTableLen)
	fmt.Fprintf(w, "\t\t\tgid_tbl_len:\t\t%d\n", a.GIDTableLen)
	fmt.Fprintf(w, "\t\t\tsubnet_timeout:\t\t%d\n", a.SubnetTimeout)
	fmt.Fprintf(w, "\t\t\tinit_type_reply:\t%d\n", a.InitTypeReply)
	fmt.Fprintf(w, "\t\t\tactive_width:\t\t%sX (%d)\n", nameOf(widthNames, a.ActiveWidth, "invalid width"), a.ActiveWidth)
	fmt.Fprintf(w, "\t\t\tactive_speed:\t\t%s (%d)\n", nameOf(speedNames, a.ActiveSpeed, "invalid speed"), a.ActiveSpeed)
	if t == verbs.TransportIB {
		fmt.Fprintf(w, "\t\t\tphys_state:\t\t%s (%d)\n", nameOf(physStateNames, a.PhysState, "invalid physical state"), a.PhysState)
	}
	for _, e := range p.gids {
		if [8]byte(e.GID[8:]) == [8]byte{} {
			continue
		}
		text := device.SysfsGID(e.GID)
		if e.Type == verbs.GIDTypeRoCEv2 {
			text = e.GID.String()
		}
		if a.LinkLayer == verbs.LinkLayerEthernet {
			v := "RoCE v1"
			if e.Type == verbs.GIDTypeRoCEv2 {
				v = "RoCE v2"
			}
			text += ", " + v
		}
		fmt.Fprintf(w, "\t\t\tGID[%3d]:\t\t%s\n", e.Index, text)
	}
}

// The C program's names of codes.
var (
	transportNames = map[verbs.Transport]string{0: "InfiniBand", 1: "iWARP", 2: "usNIC", 3: "usNIC UDP", 4: "unspecified"}
	portStateNames = map[verbs.PortState]string{1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", 4: "PORT_ACTIVE"}
	mtuNames       = map[verbs.MTU]string{1: "256", 2: "512", 3: "1024", 4: "2048", 5: "4096"}
	atomicCapNames = map[verbs.AtomicCap]string{0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB"}
	vlNames        = map[uint8]string{1: "1", 2: "2", 3: "4", 4: "8", 5: "15"}
	widthNames     = map[uint8]string{1: "1", 2: "4", 4: "8", 8: "12", 16: "2"}
	speedNames     = map[uint32]string{1: "2.5 Gbps", 2: "5.0 Gbps", 4: "10.0 Gbps", 8: "10.0 Gbps", 16: "14.0 Gbps",
		32: "25.0 Gbps", 64: "50.0 Gbps", 128: "100.0 Gbps", 256: "200.0 Gbps"}
	physStateNames = map[verbs.PhysState]string{1: "SLEEP", 2: "POLLING", 3: "DISABLED",
		4: "PORT_CONFIGURATION TRAINNING", // the C program spells it so
		5: "LINK_UP", 6: "LINK_ERROR_RECOVERY", 7: "PHY TEST"}
	linkLayerNames = map[verbs.LinkLayer]string{0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
)

func nameOf[T comparable](names map[T]string, v T, other string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return other
}

func transportName(t verbs.Transport) string { return nameOf(transportNames, t, "invalid transport") }

func mtuName(m verbs.MTU) string { return nameOf(mtuNames, m, "invalid MTU") }
