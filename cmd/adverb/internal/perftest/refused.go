package perftest

import (
	"slices"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

const (
	// raw is for the flags of raw_ethernet_bw. Its UDP ports are those of packets that it makes itself.
	raw         = "raw Ethernet QPs are not offered"
	noGPU       = "memory of an accelerator needs its library: see PD.RegDmabuf"
	noMulticast = `multicast is not offered: "adverb mckey" sends to groups`
	noFile      = "memory of a file is not offered"
	noCrypto    = "encryption is a card's: --psk secures the packets"
	noCompare   = "not compared: the device verifies a checksum of each packet"
	noDC        = "DC QPs are not offered"
	noTPH       = "TLP processing hints are a card's"
	noBinding   = "the test is bound to no processor: start it by taskset or numactl"
	onePort     = "software devices have one port"
	noCycles    = "times come from the system's clock, in nanoseconds, and not in CPU cycles"
)

// refused are flags of the C programs, as of July 2026, that cannot have their effect here.
var refused = slices.Concat(
	refuse(noCycles, isLatency, cli.Flag{Short: 'C', Long: "report-cycles"}),
	refuse(noMulticast, isSend, cli.Flag{Short: 'g', Long: "mcg"}, cli.Flag{Short: 'M', Long: "MGID", Arg: "<gid>"},
		cli.Flag{Long: "connectionless"}),
	refuse(onePort, isBandwidth, cli.Flag{Short: 'O', Long: "dualport"}, cli.Flag{Long: "report-per-port"}),
	refuse("software devices have no counters in sysfs", nil, cli.Flag{Short: 'W', Long: "report-counters", Arg: "<names>"}),
	refuse("the use of the CPU is not measured", nil, cli.Flag{Long: "cpu_util"}),
	refuse(noBinding, nil, cli.Flag{Long: "pin_cores", Arg: "<list>"}, cli.Flag{Long: "numa_node", Arg: "<id>"}),
	refuse("LIDs are InfiniBand's", nil, cli.Flag{Long: "dlid", Arg: "<lid>"}),
	refuse("the device knows its link layer", nil, cli.Flag{Long: "force-link", Arg: "<type>"}),
	refuse(noFile, nil, cli.Flag{Long: "mmap", Arg: "<file>"}, cli.Flag{Long: "mmap-offset", Arg: "<n>"}),
	refuse("the payload cannot be chosen", nil, cli.Flag{Long: "payload_file_path", Arg: "<file>"}),
	refuse(noCompare, isBandwidth, cli.Flag{Long: "data_validation"}, cli.Flag{Long: "data_validation_debug"}),
	refuse("packet pacing is a card's: use --rate_limit", isBandwidth, cli.Flag{Long: "typical_pkt_size", Arg: "<n>"}),
	refuse("huge pages are not offered", nil, cli.Flag{Long: "use_hugepages"}),
	refuse("null memory regions are not offered", nil, cli.Flag{Long: "use-null-mr"}),
	refuse("a software device's queues always have locks", nil, cli.Flag{Long: "no_lock"}),
	refuse("WRITEs with immediate data are not measured", isWrite, cli.Flag{Long: "write_with_imm"}, cli.Flag{Long: "unsolicited_write"}),
	refuse("out-of-order placement is a card's", nil, cli.Flag{Long: "use_ooo"}, cli.Flag{Long: "no_enhanced_reorder"}),
	refuse("the device chooses how it answers congestion", nil, cli.Flag{Long: "congest_type", Arg: "<type>"}),
	refuse(noTPH, nil, cli.Flag{Long: "tph_mem", Arg: "<type>"}, cli.Flag{Long: "cpu_id", Arg: "<id>"}, cli.Flag{Long: "ph", Arg: "<hints>"}),
	refuse(noDC, nil, cli.Flag{Long: "log_dci_streams", Arg: "<n>"}, cli.Flag{Long: "log_active_dci_streams", Arg: "<n>"}),
	refuse("signatures of blocks are a card's", nil, cli.Flag{Long: "sig_offload"}),
	refuse(noCrypto, nil, cli.Flag{Long: "aes_xts"}, cli.Flag{Long: "encrypt_on_tx"}, cli.Flag{Long: "sig_before"},
		cli.Flag{Long: "aes_block_size", Arg: "<n>"}, cli.Flag{Long: "data_enc_keys_number", Arg: "<n>"},
		cli.Flag{Long: "kek_path", Arg: "<file>"}, cli.Flag{Long: "credentials_path", Arg: "<file>"},
		cli.Flag{Long: "data_enc_key_app_path", Arg: "<file>"}),
	refuse(noGPU, nil, cli.Flag{Long: "use_cuda", Arg: "<id>"}, cli.Flag{Long: "use_cuda_bus_id", Arg: "<id>"},
		cli.Flag{Long: "use_cuda_dmabuf"}, cli.Flag{Long: "use_cuda_pcie_mapping"}, cli.Flag{Long: "cuda_mem_type", Arg: "<type>"},
		cli.Flag{Long: "use_data_direct"}, cli.Flag{Long: "use_musa", Arg: "<id>"}, cli.Flag{Long: "use_musa_bus_id", Arg: "<id>"},
		cli.Flag{Long: "use_musa_dmabuf"}, cli.Flag{Long: "use_musa_pcie_mapping"}, cli.Flag{Long: "use_rocm", Arg: "<id>"},
		cli.Flag{Long: "use_rocm_dmabuf"}, cli.Flag{Long: "use_neuron", Arg: "<id>"}, cli.Flag{Long: "use_neuron_dmabuf"},
		cli.Flag{Long: "use_hl", Arg: "<id>"}, cli.Flag{Long: "use_mlu", Arg: "<id>"}, cli.Flag{Long: "use_mlu_dmabuf"},
		cli.Flag{Long: "use_opencl", Arg: "<id>"}, cli.Flag{Long: "opencl_platform_id", Arg: "<id>"},
		cli.Flag{Long: "use_ib_dm_dmabuf", Arg: "<dev>"}, cli.Flag{Long: "gpu_touch", Arg: "<how>"}),
	refuse(raw, nil, cli.Flag{Short: 'L', Long: "hop_limit", Arg: "<n>"}, cli.Flag{Short: 'B', Long: "source_mac", Arg: "<mac>"},
		cli.Flag{Short: 'E', Long: "dest_mac", Arg: "<mac>"}, cli.Flag{Short: 'G', Long: "use_rss"},
		cli.Flag{Short: 'J', Long: "dest_ip", Arg: "<addr>"}, cli.Flag{Short: 'K', Long: "dest_port", Arg: "<port>"},
		cli.Flag{Short: 'k', Long: "source_port", Arg: "<port>"}, cli.Flag{Short: 'Y', Long: "ethertype", Arg: "<type>"},
		cli.Flag{Short: 'Z', Long: "server"}, cli.Flag{Short: 'P', Long: "client"}, cli.Flag{Short: 'v', Long: "mac_fwd"},
		cli.Flag{Long: "local_mac", Arg: "<mac>"}, cli.Flag{Long: "remote_mac", Arg: "<mac>"}, cli.Flag{Long: "local_ip", Arg: "<addr>"},
		cli.Flag{Long: "remote_ip", Arg: "<addr>"}, cli.Flag{Long: "local_port", Arg: "<port>"},
		cli.Flag{Long: "remote_port", Arg: "<port>"}, cli.Flag{Long: "vlan_en"}, cli.Flag{Long: "vlan_pcp", Arg: "<n>"},
		cli.Flag{Long: "flows", Arg: "<n>"}, cli.Flag{Long: "flows_burst", Arg: "<n>"}, cli.Flag{Long: "promiscuous"},
		cli.Flag{Long: "reply_every", Arg: "<n>"}, cli.Flag{Long: "sniffer"}, cli.Flag{Long: "tcp"}, cli.Flag{Long: "raw_ipv6"},
		cli.Flag{Long: "raw_mcast"}),
)

// refuse makes flags that are refused for one reason.
func refuse(why string, has func(*kind) bool, flags ...cli.Flag) (list []flagDef) {
	for _, f := range flags {
		list = append(list, flagDef{Flag: f, has: has, refused: why})
	}
	return list
}
