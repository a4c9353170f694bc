package meaning

import (
	"cmp"

	"github.com/adverb-rdma/adverb/verbs"
)

// lossOnTheWay are the causes of lost packets, and steps.
var (
	lossOnTheWay  = []string{"congestion: switches drop, because PFC or ECN is not set up for the priority of this traffic", "a bad cable or transceiver", "packets that take several ways and overtake each other"}
	lookForLosses = []string{"the switch ports' discards, and the pause counters of both hosts: ethtool -S | grep -e discard -e pause", "the traffic class of programs against the priority that the switches protect"}
)

// cardOnly are counters that cards have (mlx5, and others by the same names) and adverb's devices have not.
var cardOnly = []Entry{
	{Name: "out_of_sequence", Brief: "requests that came before an earlier one: the network lost or reordered packets", Causes: lossOnTheWay, Checks: lookForLosses, See: []string{"nak 0", "packet_seq_err"}},
	{Name: "packet_seq_err", Brief: "sequence NAKs received: the peer missed a packet, and all behind it was sent again", Causes: lossOnTheWay, Checks: lookForLosses, See: []string{"nak 0", "out_of_sequence"}},
	{Name: "rnr_nak_retry_err", Brief: "RNR NAKs received: the peer had no receive posted, and the message was sent again",
		Causes: []string{"the peer posts receives too late or too few"}, See: []string{"status 13", "rnr_retry"}},
	{Name: "duplicate_request", Brief: "requests that came again: the answer to the first was lost or late"},
	{Name: "read_rsp_out_of_seq", Brief: "READ responses with a gap before them: one was lost", Causes: lossOnTheWay},
	{Name: "roce_adp_retrans", Brief: "repeats by the adaptive retransmission of mlx5, which is quicker than the QP's timeout"},
	{Name: "roce_adp_retrans_to", Brief: "timeouts of the adaptive retransmission"},
	{Name: "roce_slow_restart", Brief: "how often a QP of mlx5 began slowly again after a pause"},
	{Name: "roce_slow_restart_cnps", Brief: "congestion notifications made by the slow restart"},
	{Name: "roce_slow_restart_trans", Brief: "how often a QP changed to the slow restart"},
	{Name: "lifespan", Brief: "no counter: for how many milliseconds the driver keeps values before it asks the card again"},
	{Name: "rx_dct_connect", Brief: "mlx5: connections of the DC transport that were asked for"},
	{Name: "cc_rx_ce_pkts", Brief: "mlx5, optional: packets received with ECN's mark of congestion"},
	{Name: "cc_rx_cnp_pkts", Brief: "mlx5, optional: congestion notifications received"},
	{Name: "cc_tx_cnp_pkts", Brief: "mlx5, optional: congestion notifications sent"},
	{Name: "symbol_error", Also: []string{"SymbolErrorCounter"}, Brief: "errors on the physical link", Causes: []string{"a bad cable or transceiver"}, Checks: []string{"whether it grows: a start of the link makes a few"}},
	{Name: "link_error_recovery", Also: []string{"LinkErrorRecoveryCounter"}, Brief: "how often the link lost its training and found it again", Causes: []string{"a bad cable or transceiver"}},
	{Name: "port_rcv_remote_physical_errors", Also: []string{"PortRcvRemotePhysicalErrors"}, Brief: "InfiniBand: packets that a switch had marked as damaged before"},
	{Name: "port_rcv_switch_relay_errors", Also: []string{"PortRcvSwitchRelayErrors"}, Brief: "InfiniBand: packets that a switch could not forward"},
	{Name: "port_xmit_wait", Also: []string{"PortXmitWait"}, Brief: "ticks in which data waited for credits: the other end of the link takes too slowly", Causes: []string{"congestion beyond this link"}},
	{Name: "port_xmit_constraint_errors", Also: []string{"PortXmitConstraintErrors"}, Brief: "InfiniBand: packets not sent because of their partition or their version"},
	{Name: "port_rcv_constraint_errors", Also: []string{"PortRcvConstraintErrors"}, Brief: "InfiniBand: packets dropped because of their partition or their version"},
	{Name: "local_link_integrity_errors", Also: []string{"LocalLinkIntegrityErrors"}, Brief: "how often the link's errors passed a threshold", Causes: []string{"a bad cable or transceiver"}},
	{Name: "excessive_buffer_overrun_errors", Also: []string{"ExcessiveBufferOverrunErrors"}, Brief: "InfiniBand: buffers of the link that overran"},
	{Name: "VL15_dropped", Also: []string{"VL15Dropped"}, Brief: "InfiniBand: packets of subnet management dropped for lack of a buffer"},
	{Name: "rx_prio0_pause", Also: []string{"rx_prio3_pause", "rx_prio4_pause"}, Brief: "ethtool, mlx5: pause frames (PFC) of a priority received: the switch holds this host back", Causes: []string{"congestion in the switch or beyond"}},
	{Name: "tx_prio0_pause", Also: []string{"tx_prio3_pause", "tx_prio4_pause"}, Brief: "ethtool, mlx5: pause frames (PFC) of a priority sent: this host cannot take what comes",
		Causes: []string{"PCIe or memory is too slow: settings of PCIe, IOMMU, NUMA; ACS sends peer-to-peer traffic around"}},
	{Name: "rx_discards_phy", Brief: "ethtool, mlx5: packets dropped for lack of a buffer: PFC is not on for their priority", Causes: lossOnTheWay},
	{Name: "outbound_pci_stalled_wr", Brief: "ethtool, mlx5: per cent of time in which writes waited for PCIe credits", Causes: []string{"a slow or narrow PCIe link: lspci -vv, LnkSta"}},
}

// moreOfCounters has the causes and checks of adverb's counters, by the counters' names. Package verbs has a line for each.
var moreOfCounters = []Entry{
	{Name: "local_ack_timeout_err", Causes: []string{"the peer or its host is gone, or its answers are lost", "the last packets of a message were lost: no later packet makes the peer send a NAK", "a timeout that is shorter than the path's delay under load"},
		Checks: []string{"whether packets arrive at the peer at all: its port counters", "whether connections fail (status 12) or go on"}, See: []string{"status 12", "timeout 14"}},
	{Name: "implied_nak_seq_err", Causes: lossOnTheWay, Checks: lookForLosses},
	{Name: "out_of_buffer", Brief: "messages that found no receive posted: on cards those of RC too, each of which got an RNR NAK; on adverb's devices those of UC and UD, which are dropped",
		Causes: []string{"the program posts receives too late or too few"}, See: []string{"status 13", "send_rnr_err"}},
	{Name: "req_cqe_error", Causes: []string{"any failed completion of a send work request; flushed ones may be among them"}, Checks: []string{"req_cqe_error less req_cqe_flush_error are the failures that came first"}, See: []string{"status 12", "status 10"}},
	{Name: "req_cqe_flush_error", Follows: true, See: []string{"status 5"}}, {Name: "resp_cqe_flush_error", Follows: true, See: []string{"status 5"}},
	{Name: "resp_cqe_error", Checks: []string{"resp_cqe_error less resp_cqe_flush_error are the failures that came first"}, See: []string{"status 1"}},
	{Name: "req_remote_access_errors", See: []string{"status 10"}},
	{Name: "req_remote_invalid_request", See: []string{"status 9"}},
	{Name: "resp_remote_access_errors", See: []string{"status 10"}},
	{Name: "resp_local_length_error", See: []string{"status 1"}},
	{Name: "rcvd_rnr_err", See: []string{"status 13", "rnr_retry"}},
	{Name: "send_rnr_err", See: []string{"status 13"}},
	{Name: "rcvd_seq_err", Causes: lossOnTheWay, Checks: lookForLosses, See: []string{"nak 0"}},
	{Name: "send_seq_err", Causes: lossOnTheWay, Checks: lookForLosses, See: []string{"nak 0"}},
	{Name: "out_of_seq_request", Causes: lossOnTheWay, Checks: lookForLosses, See: []string{"nak 0"}},
	{Name: "retry_exceeded_err", See: []string{"status 12"}},
	{Name: "retry_rnr_exceeded_err", See: []string{"status 13"}},
	{Name: "path_mtu_exceeded_err", See: []string{"path_mtu"}},
	{Name: "rx_icrc_encapsulated", Causes: []string{"a packet was changed on the way: NAT, a tunnel or a middlebox that rewrites headers", "damage on a link"}, See: []string{"ICRC"}},
	{Name: "np_ecn_marked_roce_packets", Causes: []string{"congestion, which switches mark: that is how ECN is meant to work. Losses beside it mean that the marks come too late"}},
	{Name: "np_cnp_sent", See: []string{"np_ecn_marked_roce_packets"}},
	{Name: "rp_cnp_handled", Causes: []string{"the paths of this host's traffic are congested, and its QPs slow down"}},
	{Name: "rp_cnp_ignored", Causes: []string{"congestion control is off for the priority, at this host"}},
	{Name: "bad_pkey_cntr", Causes: []string{"the ends are of different partitions"}, See: []string{"pkey_index"}},
	{Name: "qkey_viol_cntr", See: []string{"qkey"}},
	{Name: "link_downed", Also: []string{"LinkDownedCounter"}, Causes: []string{"a bad cable or transceiver, a switch that restarts, an interface that is set down"}, See: []string{"event 10"}},
	{Name: "port_xmit_discards", Also: []string{"PortXmitDiscards"}}, {Name: "port_rcv_errors", Also: []string{"PortRcvErrors"}},
	{Name: "port_xmit_data", Checks: []string{"four bytes count as one, on cards too"}},
	{Name: "port_rcv_data", Checks: []string{"four bytes count as one, on cards too"}},
	{Name: "drop_overflow", Causes: []string{"net.core.rmem_max is small"}, Checks: []string{"sysctl net.core.rmem_max"}},
}

func counterEntries() (list []Entry) {
	more, own := map[string]Entry{}, map[string]bool{}
	for _, e := range moreOfCounters {
		more[e.Name] = e
	}
	for _, d := range verbs.CounterDescs() {
		e := more[d.Name]
		e.Name, e.Brief, e.Tools = d.Name, cmp.Or(e.Brief, d.Help), []string{"adverb stat -v"}
		list, own[d.Name] = append(list, e), true
	}
	for _, e := range cardOnly {
		if !own[e.Name] {
			list, own[e.Name] = append(list, e), true
		}
	}
	return append(list, cardCounterEntries(own)...)
}
