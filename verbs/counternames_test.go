package verbs

import (
	"slices"
	"strings"
	"testing"
)

// The names that Linux has, as of version 6.12: of rdma_rxe in rxe_hw_counters.c, of mlx5 in counters.c,
// of efa in efa_verbs.c, of ports below /sys/class/infiniband/…/ports/1/counters.
const (
	linuxRXE = `sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err
		ack_deferred retry_exceeded_err retry_rnr_exceeded_err completer_retry_err send_err link_downed rdma_sends rdma_recvs`
	linuxCards = `rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence
		duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err lifespan
		resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors
		resp_remote_access_errors resp_cqe_flush_error req_cqe_flush_error req_transport_retries_exceeded
		req_rnr_retries_exceeded roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps
		roce_slow_restart_trans rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent rx_icrc_encapsulated
		retrans_bytes retrans_pkts retrans_timeout_events unresponsive_remote_events impaired_remote_conn_events`
	linuxPortAttr = `bad_pkey_cntr qkey_viol_cntr`
	linuxPort     = `symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
		port_rcv_switch_relay_errors port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors
		local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped port_xmit_data port_rcv_data
		port_xmit_packets port_rcv_packets port_xmit_wait unicast_xmit_packets unicast_rcv_packets
		multicast_xmit_packets multicast_rcv_packets`
	linuxCM = `cm_tx_msgs cm_tx_retries cm_rx_msgs cm_rx_duplicates`
)

// A name that claims to be Linux's is Linux's, and one that is Linux's does not claim to be ours.
func TestCounterNamesOfLinux(t *testing.T) {
	all := strings.Fields(linuxRXE + " " + linuxCards + " " + linuxPortAttr + " " + linuxPort + " " + linuxCM)
	for _, g := range []struct {
		of    string
		descs []CounterDesc
		names string
	}{
		{"rdma_rxe", rxeCounters, linuxRXE}, {"cards", cardCounters, linuxCards},
		{"struct ibv_port_attr", portAttrCounters, linuxPortAttr}, {"ports", portCounters, linuxPort},
		{"the connection manager", cmCounters, linuxCM},
	} {
		for _, d := range g.descs {
			if !slices.Contains(strings.Fields(g.names), d.Name) {
				t.Errorf("%s is listed as a counter of Linux's %s, which have none of that name, want one of them", d.Name, g.of)
			}
		}
	}
	for _, d := range ownCounters {
		if slices.Contains(all, d.Name) {
			t.Errorf("%s is listed as a name of our own, and is Linux's, want none of Linux's", d.Name)
		}
	}
}
