package verbs

import (
	"slices"
	"strings"
)

// CounterDesc describes a counter.
type CounterDesc struct {
	Name  string
	Help  string // one line, without a full stop
	Gauge bool   // it says how things stand, and may fall
}

// DescribeCounter returns the description of a counter by its name.
func DescribeCounter(name string) (CounterDesc, bool) {
	i, ok := counterIndex[name]
	if !ok {
		return CounterDesc{Name: name}, false
	}
	return counterDescs[i], true
}

// CounterDescs returns all counters that this package knows. Devices have some of them.
func CounterDescs() []CounterDesc { return slices.Clone(counterDescs) }

// counterDescs are the counters of the software devices, by whose names they are.
var counterDescs = slices.Concat(rxeCounters, cardCounters, portAttrCounters, portCounters, ownCounters)

// rxeCounters have the names of Linux's rdma_rxe.
var rxeCounters = []CounterDesc{
	{Name: "sent_pkts", Help: "packets that QPs sent"},
	{Name: "rcvd_pkts", Help: "packets that QPs took in"},
	{Name: "duplicate_request", Help: "requests that came again, because the network or the peer repeated them"},
	{Name: "out_of_seq_request", Help: "requests dropped because an earlier one was missing"},
	{Name: "rcvd_rnr_err", Help: "RNR NAKs received: the peer had no receive posted"},
	{Name: "send_rnr_err", Help: "RNR NAKs sent: this end had no receive posted"},
	{Name: "rcvd_seq_err", Help: "sequence NAKs received: the peer missed a packet"},
	{Name: "retry_exceeded_err", Help: "connections that ended because the peer acknowledged nothing, retries included"},
	{Name: "retry_rnr_exceeded_err", Help: "connections that ended because the peer had no receive, retries included"},
	{Name: "completer_retry_err", Help: "how often a requester went back to repeat, for any cause"},
	{Name: "send_err", Help: "packets that the operating system did not take"},
	{Name: "link_downed", Help: "how often the port went down"},
	{Name: "rdma_sends", Help: "SEND work requests that succeeded"},
	{Name: "rdma_recvs", Help: "receives that succeeded"},
}

// cardCounters have the names of Linux's drivers of cards (mlx5, efa).
var cardCounters = []CounterDesc{
	{Name: "retrans_pkts", Help: "packets sent again"},
	{Name: "local_ack_timeout_err", Help: "acknowledge timeouts: nothing came for the QP's timeout"},
	{Name: "implied_nak_seq_err", Help: "gaps in the responses: one was lost"},
	{Name: "out_of_buffer", Help: "UC and UD messages dropped for lack of a receive"},
	{Name: "req_remote_invalid_request", Help: "NAKs received: the peer found a request invalid"},
	{Name: "req_remote_access_errors", Help: "NAKs received: the peer refused access to its memory"},
	{Name: "req_cqe_error", Help: "send work requests that failed"},
	{Name: "req_cqe_flush_error", Help: "send work requests that were flushed"},
	{Name: "resp_cqe_error", Help: "receives that failed"},
	{Name: "resp_cqe_flush_error", Help: "receives that were flushed"},
	{Name: "resp_remote_access_errors", Help: "requests refused for their key, range or access right"},
	{Name: "resp_local_length_error", Help: "messages refused because they were longer than their receive; of UD they are dropped"},
	{Name: "rx_write_requests", Help: "WRITEs of peers that were carried out"},
	{Name: "rx_read_requests", Help: "READ requests of peers that were carried out; a long READ is several"},
	{Name: "rx_atomic_requests", Help: "atomics of peers that were carried out"},
	{Name: "rx_icrc_encapsulated", Help: "packets dropped because their ICRC was wrong: damaged, or changed on the way"},
	{Name: "rp_cnp_handled", Help: "congestion notifications (CNP) received that slow a QP down"},
	{Name: "rp_cnp_ignored", Help: "congestion notifications (CNP) ignored: the QP's packets allow no marks"},
	{Name: "np_cnp_sent", Help: "congestion notifications (CNP) sent: packets came with ECN's mark of congestion"},
	{Name: "np_ecn_marked_roce_packets", Help: "packets that came with ECN's mark of congestion"},
}

// portAttrCounters are those of struct ibv_port_attr.
var portAttrCounters = []CounterDesc{
	{Name: "bad_pkey_cntr", Help: "packets dropped because they were of another partition"},
	{Name: "qkey_viol_cntr", Help: "datagrams dropped because they had another Q_Key than the QP"},
}

// portCounters are those of the InfiniBand specification, as Linux spells them. With iWARP a packet is an
// FPDU, which is one piece of a message in the stream.
var portCounters = []CounterDesc{
	{Name: "port_xmit_data", Help: "bytes sent divided by 4, from the BTH to the ICRC; with iWARP those of the TCP streams"},
	{Name: "port_rcv_data", Help: "bytes received divided by 4, from the BTH to the ICRC; with iWARP those of the TCP streams"},
	{Name: "port_xmit_packets", Help: "packets sent"},
	{Name: "port_rcv_packets", Help: "packets received, those included that are dropped then"},
	{Name: "port_rcv_errors", Help: "packets dropped because they were damaged or malformed"},
	{Name: "port_xmit_discards", Help: "packets that the operating system did not take"},
}

// ownCounters have names that only adverb has.
var ownCounters = []CounterDesc{
	{Name: "sent_bytes", Help: "bytes of the packets that QPs sent, from the BTH to the ICRC"},
	{Name: "rcvd_bytes", Help: "bytes of the packets that QPs took in, from the BTH to the ICRC"},
	{Name: "shm_sent_pkts", Help: "of the packets sent, those that went to QPs of this host by shared memory"},
	{Name: "shm_rcvd_pkts", Help: "of the packets taken in, those that came from QPs of this host by shared memory"},
	{Name: "shm_fast_sends", Help: "SENDs that took the fast path of shared memory to a process of this host"},
	{Name: "shm_direct_ops", Help: "work requests carried out on shared memory of a process of this host, without a packet"},
	{Name: "shm_lost_pkts", Help: "packets lost because the process that they were for has not read the shared memory"},
	{Name: "loss_probes", Help: "packets sent again, after some silence, to learn whether those that were not acknowledged have arrived"},
	{Name: "path_mtu_exceeded_err", Help: "connections that ended because the network loses packets of the path MTU, and carries smaller ones"},
	{Name: "needless_probes", Help: "of loss_probes, those that the peer answered though nothing was lost: it was slow"},
	{Name: "needless_repeats", Help: "how often packets that were to be sent again proved to be late, and not lost"},
	{Name: "paths_left", Help: "how often a QP with several paths left one that loses more than others"},
	{Name: "path_probes", Help: "packets by which a QP with several paths tried one that it had left or did not use"},
	{Name: "held_request", Help: "requests that came before an earlier one, and were kept for their turn"},
	{Name: "rdma_writes", Help: "WRITE work requests that succeeded"},
	{Name: "rdma_reads", Help: "READ work requests that succeeded"},
	{Name: "rdma_atomics", Help: "atomic work requests that succeeded"},
	{Name: "rdma_atomic_writes", Help: "ATOMIC WRITE work requests that succeeded"},
	{Name: "rdma_flushes", Help: "FLUSH work requests that succeeded"},
	{Name: "rx_atomic_write_requests", Help: "ATOMIC WRITEs of peers that were carried out"},
	{Name: "rx_flush_requests", Help: "FLUSHes of peers that were carried out"},
	{Name: "rx_write_bytes", Help: "bytes that WRITEs of peers placed in memory"},
	{Name: "send_seq_err", Help: "sequence NAKs sent: a packet of the peer was missing"},
	{Name: "req_remote_op_errors", Help: "NAKs received: the peer could not carry a request out"},
	{Name: "resp_remote_invalid_request", Help: "requests refused as invalid"},
	{Name: "resp_remote_op_errors", Help: "requests that this end could not carry out"},
	{Name: "repeated_responses", Help: "responses to READs and atomics that had come before, since a part of the READ was asked for again"},
	{Name: "unexpected_pkts", Help: "packets dropped because nothing waited for them"},
	{Name: "uc_missed_pkts", Help: "UC: packets that never came or came too late, by the gaps in their numbers"},
	{Name: "uc_lost_msgs", Help: "UC: messages dropped because a packet of theirs was missing"},
	{Name: "drop_malformed", Help: "datagrams dropped because they were no RoCEv2 packets"},
	{Name: "drop_no_qp", Help: "packets dropped because no QP had their number"},
	{Name: "drop_source", Help: "packets dropped because they did not come from the QP's peer"},
	{Name: "sec_forged_pkts", Help: "packet security: packets dropped because they were not the peer's, or changed on the way"},
	{Name: "sec_replayed_pkts", Help: "packet security: packets dropped because they had come before, or were far behind others"},
	{Name: "sec_plain_pkts", Help: "packet security: packets dropped because they were not encrypted"},
	{Name: "sec_no_key_pkts", Help: "packets dropped because they were encrypted, and the QP had no packet security"},
	{Name: "drop_overflow", Help: "datagrams lost because the receive buffer of the socket was full, as far as the system tells, or the process that they were for took none"},
	{Name: "iw_tx_fpdus", Help: "iWARP: FPDUs sent, which are the pieces of messages in the stream"},
	{Name: "iw_rx_fpdus", Help: "iWARP: FPDUs received"},
	{Name: "iw_tx_bytes", Help: "iWARP: bytes of payload sent, without headers"},
	{Name: "iw_rx_bytes", Help: "iWARP: bytes of payload received, without headers"},
	{Name: "iw_tx_terminates", Help: "iWARP: Terminate messages sent: this end refused a message of the peer"},
	{Name: "iw_rx_terminates", Help: "iWARP: Terminate messages received: the peer refused a message of this end"},
	{Name: "iw_rx_crc_errors", Help: "iWARP: FPDUs whose CRC was wrong, each of which ends its connection"},
	{Name: "window_pkts", Help: "RC: packets that may be unacknowledged", Gauge: true},
	{Name: "inflight_pkts", Help: "RC: packets that are unacknowledged", Gauge: true},
	{Name: "rtt_ns", Help: "RC: smoothed round trip, 0 while unknown", Gauge: true},
	{Name: "rate_limit_bytes", Help: "bytes in a second that congestion control allows, 0 if it sets no rate", Gauge: true},
	{Name: "send_queue_wrs", Help: "send work requests that are not complete", Gauge: true},
	{Name: "recv_queue_wrs", Help: "receives that wait for messages; 0 with an SRQ", Gauge: true},
}

// cmMessages are the messages of the connection manager as names of counters have them, in the order of
// their attribute IDs.
var cmMessages = []string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"}

// cmCounters are the directories that Linux has below /sys/class/infiniband_cm.
var cmCounters = []CounterDesc{
	{Name: "cm_tx_msgs", Help: "connection manager: messages sent"},
	{Name: "cm_tx_retries", Help: "connection manager: messages sent again"},
	{Name: "cm_rx_msgs", Help: "connection manager: messages received"},
	{Name: "cm_rx_duplicates", Help: "connection manager: messages received that came again, or meant nothing any more"},
}

func init() {
	for _, c := range cmCounters {
		for _, m := range cmMessages {
			counterDescs = append(counterDescs, CounterDesc{Name: c.Name + "_" + m, Help: c.Help + ", of type " + strings.ToUpper(m)})
		}
	}
	counterDescs = append(counterDescs,
		CounterDesc{Name: "cm_rx_unknown", Help: "connection manager: messages for connections that are not known"},
		CounterDesc{Name: "cm_rx_malformed", Help: "connection manager: messages that make no sense"},
		CounterDesc{Name: "cm_rx_foreign", Help: "connection manager: messages for a connection from another address than its peer's"},
		CounterDesc{Name: "cm_rx_refused", Help: "connection manager: requests beyond a backlog"},
		CounterDesc{Name: "cm_tx_dropped", Help: "connection manager: messages that were not sent in time"},
		CounterDesc{Name: "cm_tx_smaller_mtu", Help: "connection manager: requests for a smaller path MTU than the port's, since larger packets to the address were lost"},
		CounterDesc{Name: "cm_evicted", Help: "connection manager: records forgotten early because there were too many"},
		CounterDesc{Name: "cm_conns", Help: "connection manager: connections, those included that have just ended", Gauge: true},
		CounterDesc{Name: "cm_listeners", Help: "connection manager: ports listened on", Gauge: true},
		CounterDesc{Name: "cm_requests", Help: "connection manager: requests that are not answered yet", Gauge: true},
	)
	for i, d := range counterDescs {
		counterIndex[d.Name] = i
	}
}

var counterIndex = map[string]int{} // of counterDescs, by name
