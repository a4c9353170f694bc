package meaning

import "strings"

// cardCounters are counters of single drivers, which other cards do not have by these names. Each line has the names of one
// meaning, the most usual first.
var cardCounters = []struct {
	driver string
	names  string // apart by blanks, with a % for each priority
	brief  string
	see    []string // the same on other cards, and statuses
	causes []string
}{
	// Broadcom: rdma statistic, hw_counters and debugfs of bnxt_re
	{"bnxt_re", "seq_err_naks_rcvd", "sequence NAKs received: the peer missed a packet", []string{"packet_seq_err", "nak 0"}, lossOnTheWay},
	{"bnxt_re", "oos_drop_count res_oos_drop_count", "requests dropped because an earlier packet was missing", []string{"out_of_sequence", "nak 0"}, lossOnTheWay},
	{"bnxt_re", "rx_out_of_sequence", "packets that came out of order", []string{"out_of_sequence"}, lossOnTheWay},
	{"bnxt_re", "to_retransmits", "repeats because no answer came in time", []string{"local_ack_timeout_err"}, []string{"the peer or its answers are gone: a path that fails, or losses at the end of messages"}},
	{"bnxt_re", "max_retry_exceeded", "QPs that failed because a repeat too many went without an answer", []string{"status 12"}, nil},
	{"bnxt_re", "missing_resp", "answers that did not come, and were asked for again", []string{"local_ack_timeout_err"}, lossOnTheWay},
	{"bnxt_re", "rnr_naks_rcvd", "RNR NAKs received: the peer had no receive posted", []string{"rnr_nak_retry_err", "status 13"}, nil},
	{"bnxt_re", "dup_req dup_reqs", "requests that came again: the answer to the first was lost or late", []string{"duplicate_request"}, nil},
	{"bnxt_re, and ethtool of mlx5", "rx_out_of_buffer res_oob_drop_count", "messages or packets that found no receive posted", []string{"out_of_buffer"}, []string{"the program posts receives too late or too few"}},
	{"bnxt_re", "unrecoverable_err", "failures that ended a QP", []string{"status 12", "status 19"}, nil},
	{"bnxt_re", "recoverable_errors", "failures that a repeat has mended", nil, nil},
	{"bnxt_re", "bad_resp_err", "answers that fit no request", []string{"status 7"}, nil},
	{"bnxt_re", "local_qp_op_err", "work requests that the QP does not allow", []string{"status 2"}, nil},
	{"bnxt_re", "local_protection_err", "SGEs that their lkeys do not cover", []string{"status 4"}, nil},
	{"bnxt_re", "mem_mgmt_op_err", "binds, fast registrations and invalidations that failed", []string{"status 6"}, nil},
	{"bnxt_re", "remote_invalid_req_err", "requests that the peer found invalid", []string{"status 9"}, nil},
	{"bnxt_re", "remote_access_err", "requests whose access to memory the peer refused", []string{"status 10"}, nil},
	{"bnxt_re", "remote_op_err", "requests that the peer could not carry out", []string{"status 11"}, nil},
	{"bnxt_re", "res_exceed_max", "messages of the peer longer than this QP takes", []string{"status 9"}, nil},
	{"bnxt_re", "res_length_mismatch", "messages of the peer whose packets have another length in sum than was announced", []string{"status 9"}, nil},
	{"bnxt_re", "res_exceeds_wqe", "messages of the peer longer than the receive", []string{"status 1"}, nil},
	{"bnxt_re", "res_opcode_err", "packets of the peer with an opcode that was not expected", []string{"status 9"}, nil},
	{"bnxt_re", "res_unsup_opcode", "packets of the peer with an opcode that the card does not have", []string{"status 9"}, nil},
	{"bnxt_re", "res_rx_invalid_rkey res_tx_invalid_rkey", "requests of the peer with a wrong rkey: rx of WRITEs, tx of READs", []string{"status 10"}, nil},
	{"bnxt_re", "res_rx_domain_err res_tx_domain_err", "requests of the peer to a region of another PD: rx of WRITEs, tx of READs", []string{"status 10"}, nil},
	{"bnxt_re", "res_rx_no_perm res_tx_no_perm", "requests of the peer that the region's access flags do not allow: rx of WRITEs, tx of READs", []string{"status 10"}, nil},
	{"bnxt_re", "res_rx_range_err res_tx_range_err", "requests of the peer beyond the region: rx of WRITEs, tx of READs", []string{"status 10"}, nil},
	{"bnxt_re", "res_irrq_oflow", "READs and atomics of the peer beyond max_dest_rd_atomic", []string{"max_dest_rd_atomic", "status 9"}, nil},
	{"bnxt_re", "res_unaligned_atomic", "atomics of the peer whose address is not a multiple of 8", []string{"status 9"}, nil},
	{"bnxt_re", "res_rem_inv_err", "invalidations by the peer that failed", []string{"status 10"}, nil},
	{"bnxt_re", "res_mem_err res_mem_error64", "memory of this host that the card could not reach", []string{"status 11"}, nil},
	{"bnxt_re", "res_srq_err res_srq_load_err", "failures of the SRQ", []string{"event 14"}, nil},
	{"bnxt_re", "res_cmp_err res_cq_load_err", "completions that could not be written: the CQ ran over or failed", []string{"event 0"}, nil},
	{"bnxt_re", "res_invalid_dup_rkey", "READs that came again with another rkey", []string{"status 10"}, nil},
	{"bnxt_re", "res_wqe_format_err", "receives that the card could not read", []string{"status 2"}, nil},
	{"bnxt_re", "res_tx_pci_err res_rx_pci_err", "failures of PCIe: tx in reading the host's memory, rx in writing it", []string{"event 8"}, []string{"the PCIe link, or an IOMMU that refuses"}},
	{"bnxt_re", "rx_roce_errors rx_roce_error_pkts", "RoCE packets received with an error", []string{"rx_icrc_encapsulated"}, nil},
	{"bnxt_re", "rx_roce_discards rx_roce_discard_pkts", "RoCE packets received and dropped for lack of a buffer", []string{"rx_discards_phy"}, []string{"PFC is not on for the priority of this traffic", "PCIe or memory is too slow"}},
	{"bnxt_re", "tx_roce_discards tx_roce_errors", "RoCE packets that were not sent", nil, nil},
	{"bnxt_re", "tx_cnp_pkts cnp_tx_pkts", "congestion notifications sent: packets came with ECN's mark of congestion", []string{"np_cnp_sent"}, nil},
	{"bnxt_re", "rx_cnp_pkts cnp_rx_pkts", "congestion notifications received: this host's QPs slow down", []string{"rp_cnp_handled"}, []string{"the paths of this host's traffic are congested"}},
	{"bnxt_re", "rx_ecn_marked_pkts", "packets received with ECN's mark of congestion", []string{"np_ecn_marked_roce_packets"}, nil},
	{"bnxt_re", "pacing_alerts pacing_complete pacing_reschedule", "how often programs were slowed, since the card's queue of doorbells filled", nil, []string{"more doorbells than the card takes: many QPs with small messages"}},

	// Intel: irdma, and i40iw before it
	{"irdma", "cnpHandled", "congestion notifications handled: this host's QPs slow down", []string{"rp_cnp_handled"}, []string{"the paths of this host's traffic are congested"}},
	{"irdma", "cnpIgnored", "congestion notifications ignored", []string{"rp_cnp_ignored"}, nil},
	{"irdma", "cnpSent", "congestion notifications sent", []string{"np_cnp_sent"}, nil},
	{"irdma", "RxECNMrkd", "packets received with ECN's mark of congestion", []string{"np_ecn_marked_roce_packets"}, nil},
	{"irdma", "RetransSegs tcpRetransSegs", "iWARP: TCP segments sent again", []string{"local_ack_timeout_err"}, lossOnTheWay},
	{"irdma", "InOptErrors tcpInOptErrors", "iWARP: TCP segments with a wrong option", nil, nil},
	{"irdma", "InProtoErrors tcpInProtoErrors", "packets with a wrong header of transport", nil, nil},
	{"irdma", "iwRdmaInv RdmaInv", "invalidations done: no failures", nil, nil},
	{"irdma", "iwRdmaBnd RdmaBnd", "binds of windows done: no failures", nil, nil},
	{"irdma", "iwInRdmaReads InRdmaReads", "READs of the peer", nil, nil}, {"irdma", "iwInRdmaWrites InRdmaWrites", "WRITEs of the peer", nil, nil}, {"irdma", "iwInRdmaSends InRdmaSends", "SENDs of the peer", nil, nil},
	{"irdma", "iwOutRdmaReads OutRdmaReads", "READs sent", nil, nil}, {"irdma", "iwOutRdmaWrites OutRdmaWrites", "WRITEs sent", nil, nil}, {"irdma", "iwOutRdmaSends OutRdmaSends", "SENDs sent", nil, nil},
	{"irdma", "ip4InDiscards ip6InDiscards", "IP packets dropped by the card", nil, []string{"no buffer: PFC is not on for their priority", "packets for no QP, or for one that is closed"}},
	{"irdma", "ip4InTruncatedPkts ip6InTruncatedPkts", "IP packets that were cut short", nil, []string{"links with different MTUs"}},
	{"irdma", "ip4OutNoRoutes ip6OutNoRoutes", "IP packets for which the card had no route", []string{"ibv_modify_qp RTR ENETUNREACH"}, nil},
	{"irdma", "rxVlanErrors", "packets of another VLAN than the QP's", nil, []string{"the GID index of one end is of another VLAN"}},

	// HiSilicon
	{"hns", "rx_err_pkt", "RoCE packets received with an error", []string{"rx_icrc_encapsulated"}, nil},
	{"hns", "tx_err_pkt", "RoCE packets that could not be sent", nil, nil},
	{"hns", "rx_cnp_pkt", "congestion notifications received", []string{"rp_cnp_handled"}, nil},
	{"hns", "tx_cnp_pkt", "congestion notifications sent", []string{"np_cnp_sent"}, nil},
	{"hns", "get_mpt_err_pkt trp_get_mpt_err_pkt", "packets whose key named no region", []string{"status 10"}, nil},
	{"hns", "get_irrl_err_pkt trp_get_irrl_err_pkt", "answers to READs that fit none", []string{"status 7"}, nil},

	// NVIDIA: ethtool -S of mlx5
	{"ethtool, mlx5", "rx_prio3_discards rx_prio%_discards", "packets of a priority dropped for lack of a buffer", []string{"rx_discards_phy", "pfc"}, []string{"PFC is not on for this priority, or its buffer is too small", "the host takes packets too slowly: PCIe, memory, a full receive queue"}},
	{"ethtool, mlx5", "rx_prio5_cong_discard rx_prio%_cong_discard", "packets of a priority dropped because its buffer was congested", []string{"rx_discards_phy"}, lossOnTheWay},
	{"ethtool, mlx5", "rx_prio3_buf_discard rx_prio%_buf_discard", "packets of a priority dropped because no buffer was left for it", []string{"rx_discards_phy"}, []string{"the buffers of priorities are cut too small: mlnx_qos"}},
	{"ethtool, mlx5", "rx_prio3_pause_duration rx_prio%_pause_duration", "microseconds for which the switch held this host back", []string{"rx_prio0_pause"}, nil},
	{"ethtool, mlx5", "tx_pause_storm_warning_events tx_pause_storm_error_events", "how often this host held the switch back for long: a host that does not take what comes", []string{"pfc", "tx_prio0_pause"}, nil},
	{"ethtool, mlx5", "rx_vport_rdma_unicast_packets", "RDMA packets received by this function: traffic, and no failures", nil, nil},
	{"ethtool, mlx5", "tx_vport_rdma_unicast_packets", "RDMA packets sent by this function: traffic, and no failures", nil, nil},
	{"ethtool, mlx5", "rx_vport_rdma_unicast_bytes tx_vport_rdma_unicast_bytes", "bytes of RDMA packets of this function: traffic, and no failures", nil, nil},
	{"ethtool, mlx5", "rx_steer_missed_packets", "packets that no rule wanted: they are dropped", nil, []string{"packets for a MAC address, a VLAN or a QP that is not here"}},
	{"ethtool, mlx5", "outbound_pci_buffer_overflow", "packets dropped because PCIe was too slow", []string{"outbound_pci_stalled_wr"}, []string{"a slow or narrow PCIe link: lspci -vv, LnkSta"}},
	{"ethtool, mlx5", "rx_crc_errors_phy rx_symbol_err_phy", "errors on the physical link", []string{"symbol_error"}, []string{"a bad cable or transceiver"}},
	{"ethtool, mlx5", "link_down_events_phy", "how often the link went down", []string{"link_downed"}, nil},
	{"ethtool, mlx5", "tx_discards_phy", "packets that could not leave, and were dropped", nil, []string{"the link is down, or the switch holds this host back for too long"}},
}

// byPriority are the names of a counter for each priority, where it has a % for it.
func byPriority(name string) (list []string) {
	if !strings.Contains(name, "%") {
		return []string{name}
	}
	for p := '0'; p <= '7'; p++ {
		list = append(list, strings.ReplaceAll(name, "%", string(p)))
	}
	return list
}

// cardCounterEntries are entries of those counters of which none has another.
func cardCounterEntries(known map[string]bool) (list []Entry) {
	for _, c := range cardCounters {
		e := Entry{Brief: c.driver + ": " + c.brief, See: c.see, Causes: c.causes}
		var names []string
		for _, name := range strings.Fields(c.names) {
			names = append(names, byPriority(name)...)
		}
		for _, name := range names {
			switch {
			case known[name]:
			case e.Name == "":
				e.Name = name
			default:
				e.Also = append(e.Also, name)
			}
			known[name] = true
		}
		if e.Name != "" {
			list = append(list, e)
		}
	}
	return list
}
