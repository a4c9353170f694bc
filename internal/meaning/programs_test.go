package meaning_test

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/meaning"
)

// sources are texts of libraries and programs, as their sources have them, with the numbers and names that they print.
// Each is explained, and first by the entry whose title begins so.
var sources = []struct {
	source string
	texts  [][2]string // a line, and the title of its first entry up to the name
}{
	{"libibverbs: ibv_event_type_str, as NCCL prints it", [][2]string{
		{"CQ error", "event 0"}, {"local work queue catastrophic error", "event 1"}, {"invalid request local work queue error", "event 2"}, {"local access violation work queue error", "event 3"},
		{"communication established", "event 4"}, {"send queue drained", "event 5"}, {"path migrated", "event 6"}, {"path migration request error", "event 7"}, {"local catastrophic error", "event 8"},
		{"port active", "event 9"}, {"port error", "event 10"}, {"LID change", "event 11"}, {"P_Key change", "event 12"}, {"SM change", "event 13"}, {"SRQ catastrophic error", "event 14"},
		{"SRQ limit reached", "event 15"}, {"last WQE reached", "event 16"}, {"client reregistration", "event 17"}, {"GID table change", "event 18"}, {"WQ fatal", "event 19"},
		{"Device link speed change", "event 20"}, {"P_Key table change", "event 12"},
	}},
	{"the kernel: ib_event_msg", [][2]string{
		{"QP fatal error", "event 1"}, {"QP request error", "event 2"}, {"QP access error", "event 3"}, {"path migration successful", "event 6"}, {"path migration error", "event 7"},
		{"device fatal error", "event 8"}, {"P_key change", "event 12"}, {"SRQ error", "event 14"}, {"client reregister", "event 17"}, {"GID changed", "event 18"},
	}},
	{"libibverbs: ibv_wc_status_str", [][2]string{
		{"success", "status 0"}, {"local length error", "status 1"}, {"local QP operation error", "status 2"}, {"local EE context operation error", "status 3"}, {"local protection error", "status 4"},
		{"Work Request Flushed Error", "status 5"}, {"memory management operation error", "status 6"}, {"bad response error", "status 7"}, {"local access error", "status 8"},
		{"remote invalid request error", "status 9"}, {"remote access error", "status 10"}, {"remote operation error", "status 11"}, {"transport retry counter exceeded", "status 12"},
		{"RNR retry counter exceeded", "status 13"}, {"local RDD violation error", "status 14"}, {"remote invalid RD request", "status 15"}, {"aborted error", "status 16"},
		{"invalid EE context number", "status 17"}, {"invalid EE context state", "status 18"}, {"fatal error", "status 19"}, {"response timeout error", "status 20"}, {"general error", "status 21"},
		{"TM error", "status 22"}, {"TM software rendezvous", "status 23"},
	}},
	{"libibverbs", [][2]string{
		{"libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.", "setting: memlock"}, {"libibverbs: Fatal: kernel ABI version 7 doesn't match library version 6.", "errno 38 of ibv_open_device"},
		{"libibverbs: Warning: Driver mlx5 does not support the kernel ABI of 5 (supports 1 to 1) for device /sys/class/infiniband/mlx5_0", "errno 38 of ibv_open_device"},
		{"libibverbs: Warning: fork()-safety requested but init failed", "setting: fork"},
	}},
	{"pingpong, cmatose", [][2]string{
		{"Couldn't get local LID", "message: Couldn't get local LID"}, {"Couldn't listen to port 18515", "message: Couldn't listen to port"}, {"Couldn't get port info", "errno 22 of ibv_query_port"},
		{"can't read sgid of index 3", "errno 61 of ibv_query_gid"}, {"IB device 'mlx5_9' wasn't found", "message: No IB devices found"}, {"No RDMA devices were detected", "message: No IB devices found"},
		{"Work completion error 12", "status 12"}, {"Requested size larger than port MTU (1024)", "message: Requested size larger than port MTU"}, {"Couldn't connect to remote QP", "errno 22 of ibv_modify_qp"},
		{"cmatose: failure connecting: Invalid argument", "errno 22 of rdma_connect"}, {"cmatose: bind address failed: Address already in use", "errno 98 of rdma_bind_addr"},
		{"cmatose: resolve route failed: Connection timed out", "errno 110 of rdma_resolve_route"}, {"error polling cq -1", "message: poll CQ failed"},
	}},
	{"perftest", [][2]string{
		{" Unable to init the socket connection", "message: Unable to init the socket connection"}, {"Problem in resolving basic address and port", "message: Unable to init the socket connection"},
		{"Unexpected CM event bl blka 8", "cm-event 8"}, {"unexpected CM event 10", "cm-event 10"}, {"bad event waiting for connect request 9", "cm-event 9"}, {"Received 10 times ADDR_ERROR - aborting", "cm-event 1"},
		{"Requested mtu is higher than active mtu ", "message: Requested mtu is higher than active mtu"}, {" Found Incompatibility issue with GID types.", "message: Found Incompatibility issue with GID types"},
		{" Did not get Message for 120 Seconds, exiting..", "message: Did not get Message for 120 Seconds"}, {"poll CQ failed -1", "message: poll CQ failed"}, {" Did not detect devices ", "message: No IB devices found"},
		{"Failed to resolve RDMA CM address for cm node 0.", "errno 19 of rdma_resolve_addr"}, {" Bad wc status 12", "status 12"}, {"Poll send CQ error status=12 qp 0", "status 12"},
		{"Requested QP size might be too big. Try reducing TX depth and/or inline size.", "errno 22 of ibv_create_qp"}, {"DMA-BUF is not supported on this GPU", "setting: nvidia_peermem"},
		{" Unable to Connect the HCA's through the link", "errno 22 of ibv_modify_qp"}, {" Couldn't create IB resources", "message: Couldn't create IB resources"},
	}},
	{"rping", [][2]string{
		{"wait for CONNECTED state 10", "message: wait for CONNECTED state 10"}, {"waiting for addr/route resolution state 11", "message: wait for CONNECTED state 10"}, {"wait for RDMA_READ_ADV state 10", "message: wait for CONNECTED state 10"},
		{"rping client failed: -1", "message: rping client failed"}, {"data mismatch!", "message: data mismatch"}, {"recv_buf reg_mr failed", "errno 12 of ibv_reg_mr"}, {"cma detected device removal!!!!", "cm-event 11"},
	}},
	{"NCCL", [][2]string{
		{"NET/IB : mlx5_0:1 Got async event : port error", "event 10"}, {"NET/IB : mlx5_0:1 async fatal event: local catastrophic error", "event 8"}, {"NET/IB : mlx5_0:1 GID table changed", "event 18"},
		{"NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)", "event 9"}, {"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "message: ncclRemoteError"},
		{"remote process exited or there was a network error", "message: ncclRemoteError"}, {"unhandled system error (run with NCCL_DEBUG=INFO for details)", "message: ncclSystemError"},
		{"NET/IB : No IP interface found.", "message: NET/IB : No IP interface found"}, {"NET/IB : Unable to open device mlx5_0", "errno 13 of ibv_open_device"}, {"NET/IB : Unable to query port_num 1", "errno 22 of ibv_query_port"},
		{"NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE.", "message: NET/IB : incompatible devices"},
	}},
	{"UCX", [][2]string{
		{"select.c:627  UCX  ERROR no active messages transport to <no debug data>: posix/memory - Destination is unreachable, tcp/lo - Destination is unreachable", "message: Destination is unreachable"},
		{"ucp_context.c:969  UCX  WARN  network device 'mlx5_9:1' is not available, please use one or more of: 'eth0'(tcp), 'mlx5_0:1'(ib)", "message: is not available, please use one or more of"},
		{"rdmacm client (ep=0x1 id=0x2) got error event RDMA_CM_EVENT_REJECTED, event status Connection refused (-111)", "errno 111 of rdma_connect"},
		{"error modifying QP to RTR: Connection timed out", "errno 110 of ibv_modify_qp to RTR"},
		{"Send completion (wr_id=0x0 with error: transport retry counter exceeded", "status 12"},
	}},
	{"Open MPI", [][2]string{
		{"The InfiniBand retry count between two MPI processes has been\nexceeded.  \"Retry count\" is defined in", "status 12"},
		{"The OpenFabrics \"receiver not ready\" retry count on a per-peer\nconnection between two MPI processes has been exceeded.", "status 13"},
		{"The OpenFabrics (openib) BTL failed to initialize while trying to\nallocate some locked memory.  This typically can indicate that the\nmemlock limits are set too low.", "setting: memlock"},
		{"WARNING: It appears that your OpenFabrics subsystem is configured to only\nallow registering part of your physical memory.", "message: registering part of your physical memory"},
		{"No OpenFabrics connection schemes reported that they were able to be\nused on a specific port.", "message: No OpenFabrics connection schemes"},
		{"WARNING: There was an error initializing an OpenFabrics device.", "message: error initializing an OpenFabrics device"},
		{"but there are no active ports detected (or Open MPI was unable to use", "port 1"}, {"WARNING: No preset parameters were found for the device that Open MPI\ndetected:", "message: No preset parameters were found"},
		{"Failed to create a completion queue (CQ):", "errno 12 of ibv_create_cq"}, {"default subnet GID prefix was detected on more than one of these", "message: default subnet GID prefix"},
		{"By default, for Open MPI 4.0 and later, infiniband ports on a device\nare not used by default.", "message: btl_openib_allow_ib"},
	}},
	{"the kernel", [][2]string{
		{"nvme nvme0: I/O 12 QID 3 timeout, reset controller", "message: nvme: I/O timeout"}, {"nvme nvme1: I/O tag 5 (6005) type 4 opcode 0x1 (Write) QID 3 timeout", "message: nvme: I/O timeout"},
		{"nvme nvme0: starting error recovery", "message: nvme: starting error recovery"}, {"nvme nvme0: Reconnecting in 10 seconds...", "message: nvme: starting error recovery"},
		{"modprobe: FATAL: Module rdma_rxe not found in directory /lib/modules/6.1.0-13-cloud-amd64", "message: modprobe: FATAL: Module rdma_rxe not found"},
		{"nvidia-peermem: nvidia_p2p_get_pages failed: -22", "message: nvidia_p2p_get_pages failed"},
	}},
	{"other cards", [][2]string{
		{"seq_err_naks_rcvd 12", "counter: seq_err_naks_rcvd"}, {"max_retry_exceeded", "counter: max_retry_exceeded"}, {"to_retransmits", "counter: to_retransmits"}, {"res_oos_drop_count", "counter: oos_drop_count"},
		{"missing_resp", "counter: missing_resp"}, {"rnr_naks_rcvd", "counter: rnr_naks_rcvd"}, {"dup_req", "counter: dup_req"}, {"unrecoverable_err", "counter: unrecoverable_err"}, {"rx_roce_discards", "counter: rx_roce_discards"},
		{"tx_cnp_pkts", "counter: tx_cnp_pkts"}, {"rx_cnp_pkts", "counter: rx_cnp_pkts"}, {"rx_ecn_marked_pkts", "counter: rx_ecn_marked_pkts"}, {"link bnxt_re0/1 res_rx_range_err 3", "counter: res_rx_range_err"},
		{"cnpHandled", "counter: cnpHandled"}, {"RxECNMrkd", "counter: RxECNMrkd"}, {"iwRdmaInv", "counter: iwRdmaInv"}, {"ip4InDiscards", "counter: ip4InDiscards"}, {"ip6InDiscards", "counter: ip4InDiscards"},
		{"     rx_prio3_discards: 77", "counter: rx_prio3_discards"}, {"     rx_prio7_discards: 77", "counter: rx_prio3_discards"}, {"rx_prio5_cong_discard", "counter: rx_prio5_cong_discard"},
		{"rx_out_of_buffer", "counter: rx_out_of_buffer"}, {"rx_vport_rdma_unicast_packets", "counter: rx_vport_rdma_unicast_packets"},
		{"infiniband irdma0: abnormal ae_id = 0x50a bool qp=1 qp_id = 5", "ae 0x50a"}, {"AEQ: ae_id = 0x108 bool qp=1 qp_id = 7 tcp_state=0 iwarp_state=0 ae_src=9", "ae 0x108"}, {"abnormal ae_id = 0xb0b bool qp=0 qp_id = 0", "message: abnormal ae_id"},
		{"ae 0x20d", "ae 0x20d"}, {"IRDMA_AE_LLP_TOO_MANY_RETRIES", "ae 0x50a"},
		{"hns3 0000:7d:00.0 hns_0: error cqe status 0x15:", "status 12"}, {"bnxt_en 0000:19:00.0: QPLIB: cmdq[0x4b9]=0x15 status 0x5", "message: QPLIB: cmdq"}, {"bnxt_en 0000:19:00.0: cmdq[0x41d]=0x3 timedout (20000)msec", "message: QPLIB: cmdq"},
		{"infiniband bnxt_re0: Failed to allocate HW AH", "errno 110 of ibv_create_ah"}, {"siw: QP[4]: init TERM: layer 0, type 1, code 2, in tx no", "message: TERM: layer, type, code"},
	}},
	{"EFA", [][2]string{{"EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS", "efa 7"}, {"efa 9", "efa 9"}, {"libfabric:12:efa:cq: Unreachable remote (err 13) status 8", "errno 13"}}},
	{"more lines", [][2]string{
		{"ibv_poll_cq returned status 12", "status 12"}, {"ib_srpt: receiving failed for ioctx 0x1 with status 5", "status 5"},
		{"mlx5_0: got completion with error: 00000000 00000000 00000000 00008914 08001234 0000a2d2", "status 11"}, {"mlx5: node1: got completion with error:", "message: got completion with error"},
		{"Completion with error at client", "message: got completion with error"}, {"RDMA CM event error: event 8", "cm-event 8"}, {"port error (10)", "event 10"}, {"siw: TERMINATE layer 0x0 etype 1 code 3", "message: TERM"},
		{"hns_roce error cqe status(0x16)", "status 13"}, {"nvmet_rdma: rejecting, sts 5", "nvme 5"}, {"nvme nvme0: address error (1): status -113 id 00000000abcdef", "errno 113 of rdma_resolve_addr"},
		{"nvme nvme0: rejected (8): status 8 id 0000000012345678", "reject 8"}, {"librdmacm: Fatal: unable to get RDMA device list", "message: No IB devices found"}, {"MVAPICH2: Got FATAL event 3", "event 3"},
		{"ERRNO: No space left on device. Failed to create AH", "errno 28"}, {"ibv_create_comp_channel failed: Too many open files", "errno 24"}, {"client DISCONNECT EVENT...", "cm-event 10"},
		{"RDMAStack handle_tx_event connection between server and client not working. Disconnect this now", "status 12"}, {"kiblnd_rejected() 10.0.0.1@o2ib rejected: o2iblnd fatal error", "reject 28"},
		{"rdma_rxe: bad ICRC from 10.0.0.1", "message: bad ICRC"}, {"mlx5_core 0000:17:00.0: poll_health: fatal error", "message: poll_health: Fatal error 1 detected"}, {"bnxt_en 0000:17:00.0: bnxt_re: __wait_for_resp timeout", "message: QPLIB: cmdq"},
	}},
	{"opcodes of completions", [][2]string{
		{"IBV_WC_RECV_RDMA_WITH_IMM", "wc-opcode 129"}, {"opcode 128", "wc-opcode 128"}, {"opcode 129", "opcode 0x81"}, {"wc opcode 128", "wc-opcode 128"}, {"opcode 4", "opcode 0x04"},
	}},
}

func TestSources(t *testing.T) {
	for _, s := range sources {
		for _, tt := range s.texts {
			found := meaning.Explain(tt[0])
			if len(found) == 0 || !is(found[0].Title(), tt[1]) && found[0].Title() != tt[1] {
				t.Errorf("%s: %q: found %q, want %s first", s.source, tt[0], titles(found), tt[1])
			}
		}
	}
}

// The texts of events are found in the lines in which programs print them, and not in others.
func TestEventTexts(t *testing.T) {
	for _, tt := range sources[0].texts {
		line := "NET/IB : mlx5_0:1 Got async event : " + tt[0]
		found := meaning.Explain(line)
		if len(found) == 0 || !is(found[0].Title(), tt[1]) {
			t.Errorf("%q: found %q, want %s first", line, titles(found), tt[1])
		}
	}
	for _, line := range []string{"eth0: port error counter reset", "bridge: port active now", "CQ error, abort requests"} {
		for _, f := range meaning.Explain(line) {
			if strings.HasPrefix(f.Title(), "event") {
				t.Errorf("%q: found %s", line, f.Title())
			}
		}
	}
}
