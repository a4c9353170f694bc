package meaning_test

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/meaning"
)

// lines are printed by programs, libraries and kernels when RDMA fails. With each is the entry that must be found first,
// and those that must be found besides. The forms are those of public reports.
var lines = []struct {
	program, line string
	first         string // the title up to its name
	also          []string
}{
	// NCCL
	{"NCCL", "NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "status 12", []string{"vendor 0x81"}},
	{"NCCL", "[0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<36315> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2", "status 12", []string{"vendor 0x81"}},
	{"NCCL", "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<53908> with status=12 opcode=129 len=1048576 vendor err 129 (Recv) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_10", "status 12", []string{"vendor 0x81"}},
	{"NCCL", "NET/IB : Got completion from peer 10.0.0.2<44206> with status=5 opcode=32656 len=32659 vendor err 249 (Recv)", "status 5", []string{"vendor 0xf9"}},
	{"NCCL", "NET/IB : Got completion from peer 10.0.0.2<47534> with error 5, opcode 48, len 32764, vendor err 244", "status 5", []string{"vendor 0xf4"}},
	{"NCCL", "NET/IB/GIN: Got completion from peer 10.0.0.2<1> with status=10 opcode=4 len=8 vendor err 136 (IPut)", "status 10", []string{"vendor 0x88"}},
	{"NCCL", "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", "errno 110 of ibv_modify_qp", nil},
	{"NCCL", "ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.1.1", "errno 110 of ibv_modify_qp to RTR", []string{"setting: sgid_index"}},
	{"NCCL", "NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable", "errno 101 of ibv_modify_qp", nil},
	{"NCCL", "NCCL WARN Call to ibv_modify_qp failed with error No such device", "errno 19 of ibv_modify_qp", nil},
	{"NCCL", "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22", "errno 22 of ibv_modify_qp", nil},
	{"NCCL", "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "errno 12 of ibv_reg_mr", nil},
	{"NCCL", "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address", "errno 14 of ibv_reg_mr", nil},
	{"NCCL", "NCCL WARN Call to ibv_create_qp failed with error Invalid argument", "errno 22 of ibv_create_qp", nil},
	{"NCCL", "NCCL INFO NCCL_IB_GID_INDEX set by environment to 0.", "setting: sgid_index", nil},

	// As they stand in public reports.
	{"NCCL", "ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 opcode=32616 len=0 vendor err 129 (Recv) localGid fd00:1148::ff21 remoteGidsfd00:1148::ff20", "status 12", []string{"vendor 0x81"}},
	{"NCCL", "NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12 opcode=32698 len=32696 vendor err 129 (Send)", "status 12", []string{"vendor 0x81"}},
	{"NCCL", "NCCL WARN Call to ibv_modify_qp failed with 113 No route to host, on dev mlx5_bond_0:1, curr state INIT, next state RTR, local GID index 3", "errno 113 of ibv_modify_qp to RTR", nil},
	{"UCX", "[ast1815:6807 :0:6807] ib_mlx5_log.c:115  FATAL: Error on mlx5_3:1 QP 0xe6d7 wqe[7821]: Transport retry count exceeded (synd 0x15 vend 0x81) opcode SEND", "status 12", []string{"vendor 0x81"}},
	{"UCX", "UCX ERROR ibv_reg_mr failed: Bad address", "errno 14 of ibv_reg_mr", nil},
	{"nvme", "[82886.743081] nvme nvme1: Connect rejected: status 8 (invalid service ID).", "reject 8", nil},
	{"nvme", "[82886.743467] nvme nvme1: rdma_resolve_addr wait failed (-104).", "errno 104", nil},
	{"SPDK", "nvme_rdma.c: 421:nvme_rdma_validate_cm_event: *ERROR*: Expected RDMA_CM_EVENT_ESTABLISHED but received RDMA_CM_EVENT_REJECTED (8) from CM event channel (status = 28)", "reject 28", nil},
	{"SPDK", "[2020-07-23 13:13:41.560157] nvme_rdma.c:1103:nvme_rdma_connect: *ERROR*: RDMA connect error -74", "errno 74", nil},
	{"SPDK", "[2021-03-09 13:03:41.899003] nvme_rdma.c:1070:nvme_rdma_connect: *ERROR*: RDMA connect error -99", "errno 99", nil},
	{"SPDK", "nvme_fabric.c: 466:nvme_fabric_qpair_connect: *ERROR*: Connect command failed, rc -125, trtype:RDMA adrfam:IPv4", "errno 125", nil},
	{"SPDK", "Error 110 on rdma_accept\nUnable to add the qpair to a poll group.", "errno 110 of rdma_accept", nil},
	{"SPDK", "nvme_qpair.c: 475:spdk_nvme_qpair_process_completions: *ERROR*: CQ error, abort requests after transport retry counter exceeded", "status 12", nil},
	{"SPDK", "nvmf_rdma_qpair_initialize: *ERROR*: Failed to create qpair: errno 12: Cannot allocate memory", "errno 12 of ibv_create_qp", nil},
	{"Mooncake", "E0605 17:54:16.878770 178707 rdma_context.cpp:198] Failed to register memory 0x7f56e6600000: Numerical result out of range [34]", "errno 34 of ibv_reg_mr", nil},
	{"Mooncake", "E20260821 12:30:19.433391 rdma_context.cpp:1343] DMA BUF supported required for GPU RDMA without nvidia-peermem", "setting: nvidia_peermem", nil},
	{"Mooncake", "RdmaTransport: No available RNIC", "message: No IB devices found", nil},
	{"libfabric", "libfabric:ofi_rxm:cq:rxm_cq_read_write_error():819<warn> fi_cq_readerr: err: 5, prov_err: remote access error (10)", "status 10", nil},
	{"mlx5", "00000000 00008813 10012abe 0dd0c1d3", "status 10", []string{"vendor 0x88"}},
	{"Ceph", "20 Infiniband post_chunkibv_post_srq_recv failed (12) Cannot allocate memory", "errno 12 of ibv_post_recv", nil},
	{"uccl", "ibv_post_send return error 12", "errno 12 of ibv_post_send", nil},

	// UCX
	{"UCX", "[compute001:31180:0:31180] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)", "status 12", []string{"vendor 0x81"}},
	{"UCX", "RC QP 0x14e4 wqe[446]: Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)", "status 12", []string{"vendor 0x81"}},
	{"UCX", "ib_mlx5_log.c:139  Remote QP on mlx5_0:1/IB (synd 0x14 vend 0x89 hw_synd 0/0)", "status 11", []string{"vendor 0x89"}},
	{"UCX", "Error on QP 0xdb87 wqe[0]: Remote access (synd 0x13 vend 0x88) opcode RDMA_WRITE", "status 10", []string{"vendor 0x88"}},
	{"UCX", "rc_verbs_iface.c:124  send completion with error: local protection error [qpn 0xf9db wrid 0x149vendor_err 0x51]", "status 4", []string{"vendor 0x51"}},
	{"UCX", "UCX  ERROR Send completion with error on qp 0x2a8af: remote invalid request error syndrome 0x8a", "status 9", nil},
	{"UCX", "dc_mlx5.c:456  UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Invalid argument", "errno 22 of ibv_modify_qp to RTR", nil},
	{"UCX", "ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)", "errno 12 of ibv_create_cq", []string{"setting: memlock"}},
	{"UCX", "ib_md.c:340  UCX  ERROR ibv_reg_mr(address=0x7f1bae800000, length=39845888, access=0xf) failed: Cannot allocate memory", "errno 12 of ibv_reg_mr", nil},
	{"UCX", "create qp: failed on ibv_cmd_create_qp with 22", "errno 22 of ibv_create_qp", nil},

	// mlx5: the library's dump, and the kernel's
	{"mlx5", "mlx5: host1: got completion with error:\n00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n00000001 00000000 00000000 00000000\n00000000 92005204 0a00082f 0000c5d2\n", "status 4", []string{"vendor 0x52"}},
	{"mlx5", "mlx5: host1: got completion with error:\n00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n00000000 00008813 08006214 0000f6d2", "status 10", []string{"vendor 0x88"}},
	{"mlx5", "00000000 00008a12 1002a8af 0001a2d2", "status 9", []string{"vendor 0x8a"}},
	{"mlx5", "infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n00000030: 00 00 00 00 00 00 81 15 08 00 62 14 00 00 f6 d2\n", "status 12", []string{"vendor 0x81"}},
	{"mlx5", "infiniband rocep33s0f0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9", "status 5", []string{"vendor 0xf9"}},

	// perftest, pingpongs, rping
	{"perftest", " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0", "status 12", []string{"vendor 0x81"}},
	{"perftest", "Completion with error at client\n  Failed status 4: wr_id 0 syndrom 0x51\nscnt=828, ccnt=700", "status 4", []string{"vendor 0x51"}},
	{"perftest", "Failed to modify QP 0x1c9 to RTR\nUnable to Connect the HCA's through the link", "errno 110 of ibv_modify_qp to RTR", nil},
	{"perftest", "Couldn't connect to 10.0.0.2:18515\nUnable to open file descriptor for socket connection: Connection timed out", "errno 110 of connect", nil},
	{"perftest", "Couldn't allocate MR\nfailed to create mr\nFailed to create MR", "errno 12 of ibv_reg_mr", nil},
	{"perftest", "Couldn't allocate MR\nERRNO: Bad address.", "errno 14 of ibv_reg_mr", nil},
	{"perftest", "Unable to create QP.\nFailed to create QP.\n Couldn't create IB resources", "errno 22 of ibv_create_qp", nil},
	{"pingpong", "Failed status transport retry counter exceeded (12) for wr_id 2", "status 12", nil},
	{"pingpong", "Failed status RNR retry counter exceeded (13) for wr_id 2", "status 13", nil},
	{"pingpong", "Failed to modify QP to RTR\nCouldn't connect to remote QP", "errno 110 of ibv_modify_qp to RTR", nil},
	{"rping", "cma event RDMA_CM_EVENT_ADDR_ERROR, error -19", "errno 19 of rdma_resolve_addr", []string{"cm-event 1"}},
	{"rping", "cma event RDMA_CM_EVENT_UNREACHABLE, error -110", "errno 110 of rdma_connect", []string{"cm-event 7"}},
	{"rping", "cma event RDMA_CM_EVENT_REJECTED, error 8", "reject 8", []string{"cm-event 8"}},
	{"rping", "rdma_resolve_addr: No such device", "errno 19 of rdma_resolve_addr", nil},
	{"rping", "rdma_resolve_addr src 10.0.0.1 dst 10.0.0.2: errno -19", "errno 19 of rdma_resolve_addr", nil},
	{"rping", "rdma_bind_addr: Cannot assign requested address", "errno 99 of rdma_bind_addr", nil},
	{"rping", "cq completion failed status 5", "status 5", nil},
	{"ucmatose", "cmatose: event: RDMA_CM_EVENT_ROUTE_ERROR, error: -110", "errno 110 of rdma_resolve_route", []string{"cm-event 3"}},
	{"librdmacm", "rdma_create_event_channel: No such device", "errno 19 of rdma_create_event_channel", nil},
	{"librdmacm", "rdma_create_qp failed with error 22: Invalid argument", "errno 22 of rdma_create_qp", nil},

	// SPDK, NVMe, Ceph, libfabric, Mooncake, Open MPI
	{"SPDK", "rdma.c:3778:nvmf_rdma_log_wc_status: *ERROR*: Error on CQ 0xffff4c0921f0, (qp state 1 ibv_state 6) request 0x281468000176408, type SEND, opcode 0, status: (12): transport retry counter exceeded rqpair 0x2c1cc180 byte_len 4096", "status 12", nil},
	{"SPDK", "nvme_rdma_qpair_process_completions: ERROR: CQ error on Queue Pair 0x7f6c540008e0, Response Index 140103243123656 (12): transport retry counter exceeded", "status 12", nil},
	{"SPDK", "CQ error on Queue Pair 0x7efd94490ac0, Opcode 128, Response Index 139627583889688 (4): local protection error\nnvme_qpair.c: 453:spdk_nvme_qpair_process_completions: *ERROR*: CQ error, abort requests after transport retry counter exceeded", "status 4", nil},
	{"SPDK", "nvme_rdma.c: 421:nvme_rdma_validate_cm_event: *ERROR*: Expected RDMA_CM_EVENT_ESTABLISHED but received RDMA_CM_EVENT_REJECTED (8) from CM event channel (status = 28)", "reject 28", []string{"cm-event 8"}},
	{"SPDK", "Expected RDMA_CM_EVENT_ESTABLISHED but received RDMA_CM_EVENT_REJECTED (8) from CM event channel (status = 8)", "reject 8", []string{"cm-event 8"}},
	{"NVMe", "nvme nvme0: Connect rejected: status 8 (invalid service ID).", "reject 8", nil},
	{"NVMe", "nvme nvme0: Connect rejected: status 28 (consumer defined) nvme status 9 (Unrecognized)", "reject 28", []string{"nvme 9"}},
	{"NVMe", "nvme nvme0: Connect rejected: status 28 (consumer defined) nvme status 6 (resource not found).", "reject 28", []string{"nvme 6"}},
	{"adverb", "15:58:59 ERROR CM-REJ-26: The connection was rejected", "reject 26", nil}, {"", "CM-REJ-3", "reject 3", nil}, {"", "cm-rej-26", "reject 26", nil}, {"", "nvme 6", "nvme 6", nil},
	{"NBS", "BLOCKSTORE_RDMA ERROR: [14277968156095900595] SEND C6258863.0.1B3: IBV_WC_RETRY_EXC_ERR", "status 12", nil},
	{"Ceph", "Infiniband modify_qp_to_rtr: failed to transition to RTR state: (113) No route to host", "errno 113 of ibv_modify_qp to RTR", nil},
	{"Ceph", "RDMAStack handle_tx_event connection between server and client not working. Disconnect this now: RETRY_EXC_ERR (12)", "status 12", nil},
	{"libfabric", "fi_mr_reg failed, ret is:-12, Cannot allocate memory", "errno 12 of ibv_reg_mr", nil},
	{"libfabric", "ibv_create_qp: Cannot allocate memory(12)", "errno 12 of ibv_create_qp", nil},
	{"Mooncake", "rdma_endpoint.cpp:385] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Connection timed out [110]", "errno 110 of ibv_modify_qp to RTR", nil},
	{"Mooncake", "Failed to modify QP to RTS: Invalid argument [22]", "errno 22 of ibv_modify_qp to RTS", nil},
	{"Mooncake", "[Handshake] Failed to modify QP to INIT: Invalid argument [22]", "errno 22 of ibv_modify_qp to INIT", nil},
	{"Mooncake", "rdma_context.cpp:450] Failed to query GID 244 on rocep153s0/: No data available [61]", "errno 61 of ibv_query_gid", nil},
	{"Mooncake", "Failed to register memory 0x2e1cbac200: Bad address [14]", "errno 14 of ibv_reg_mr", nil},
	{"Mooncake", "No suitable GID found on rocep153s0", "setting: sgid_index", nil},
	{"async-rdma", "ibv_reg_mr err, arguments: len:2097152, err info:Os { code: 12, kind: OutOfMemory, message: \"Cannot allocate memory\" }", "errno 12 of ibv_reg_mr", nil},
	{"the-geek", "failed to modify QP to RTR: Connection timed out", "errno 110 of ibv_modify_qp to RTR", nil},
	{"adverb", "MADs REJ reason 28", "reject 28", nil},
	{"adverb", "work request 0x2a on qp 0x000011: WC_REM_ACCESS_ERR: the peer refused access to its memory", "status 10", nil},

	{"mlx5", "mlx5_core 0000:3b:00.0: mlx5_cmd_check:810: CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x6231d), err(-22)", "errno 22 of ibv_create_qp", nil},
	{"mlx5", "mlx5_cmd_check:810: INIT2RTR_QP(0x503) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x1), err(-22)", "errno 22 of ibv_modify_qp to RTR", nil},
	{"NVMe", "nvme nvme0: failed to connect queue: 1 ret=-110", "errno 110 of rdma_connect", nil},
	{"NVMe", "nvme nvme1: rdma_resolve_addr wait failed (-110).", "errno 110 of rdma_resolve_addr", nil},
	{"isert", "isert: isert_print_wc: recv failure: transport retry counter exceeded (12) vend_err 81", "status 12", []string{"vendor 0x81"}},
	{"isert", "isert_print_wc: login recv failure: WR flushed (5) vend_err f9", "status 5", []string{"vendor 0xf9"}},
	{"NFS", "rpcrdma: connection to 10.0.0.1:20049 closed (-103)", "errno 103", nil},
	{"Lustre", "LNet: 3:0:(o2iblnd_cb.c:2692:kiblnd_rejected()) 10.0.0.2@o2ib rejected: no listener at 987", "reject 8", nil},
	{"a program", "ibv_poll_cq: wc.status=9", "status 9", nil},
	{"a program", "Could not allocate CQ: Cannot allocate memory", "errno 12 of ibv_create_cq", nil},
	{"libibverbs", "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.", "setting: memlock", nil},
	{"perftest", "No IB devices found", "message: No IB devices found", nil},

	// More public reports, of programs that print no status.
	{"NCCL", "misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "errno 95 of ibv_reg_mr", nil},
	{"NCCL", "misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed", "errno 12 of ibv_create_cq", nil},
	{"NCCL", "NCCL WARN NET/IB : No device found.", "message: No IB devices found", nil},
	{"NCCL", "NCCL WARN Call to ibv_query_port failed with error Invalid argument", "errno 22 of ibv_query_port", nil},
	{"UCX", "ib_iface.c:988  UCX  ERROR iface=0x224c8a10: failed to create UD QP TX wr:256 sge:6 inl:64 resp:0 RX wr:4096 sge:1 resp:0: Cannot allocate memory", "errno 12 of ibv_create_qp", nil},
	{"UCX", "dc_mlx5.c:505  UCX  ERROR mlx5dv_create_qp(DCT) failed: Invalid argument", "errno 22 of ibv_create_qp", nil},
	{"UCX", "mlx5dv_devx_obj_create(DCT) failed, syndrome 0: Remote I/O error", "errno 121", nil},
	{"UCX", "UCX ERROR Endpoint timeout", "status 12", nil},
	{"UCX", "UCX ERROR mlx5_0:1 has no active ports", "port 1", nil},
	{"NVSHMEM", "transport/ibrc/ibrc.cpp:417: non-zero status: 110 ibv_modify_qp failed", "errno 110 of ibv_modify_qp", nil},
	{"NVSHMEM", "transport/ibrc/ibrc.cpp:417: non-zero status: 101 ibv_modify_qp failed", "errno 101 of ibv_modify_qp", nil},
	{"libfabric", "na_ofi_cq_read(): fi_cq_readerr got err: 5(Input/output error), prov_errno: -5(Input/output error).", "errno 5 of fi_cq_readerr", nil},
	{"libfabric", "libfabric:18218:ofi_rxm:cq:rxm_cq_read_write_error():1236<warn> fi_cq_readerr: err: Input/output error (5), prov_err: remote access error (10)", "status 10", nil},
	{"libfabric", "libfabric:62384:verbs:eq:vrb_set_rnr_timer():474<warn> Unable to modify QP attribute", "errno 22 of ibv_modify_qp", nil},
	{"Mooncake", "mlx5_bond_0/1: QP 51291 error: local length error (0x8e 0x0 0x0)", "status 1", nil},
	{"Mooncake", "Received context async event local access violation work queue error for context mlx5_bond_0", "event 3", nil},
	{"Mooncake", "rdma_context.cpp:116] Failed to create completion queue: Cannot allocate memory [12]", "errno 12 of ibv_create_cq", nil},
	{"SPDK", "rdma.c:2171:spdk_nvmf_process_ib_event: *NOTICE*: Async event: GID table change", "event 18", nil},
	{"SPDK", "rdma.c:3129:nvmf_process_ib_event Failed to send LAST_WQE_REACHED event for rqpair 0x7f6d60dd05d0 (rc=22)", "event 16", nil},
	{"SPDK", "rdma_verbs.c: 113:spdk_rdma_qp_disconnect: *ERROR*: rdma_disconnect failed, errno Invalid argument (22)", "errno 22 of rdma_disconnect", nil},
	{"SPDK", "Expected RDMA_CM_EVENT_DISCONNECTED but received RDMA_CM_EVENT_TIMEWAIT_EXIT (15) from CM event channel (status = 0)", "cm-event 15", nil},
	{"NVMe", "nvme nvme1: rdma connection establishment failed (-22)", "errno 22 of rdma_connect", nil},
	{"mlx5", "mlx5_cmd_check:810:(pid 923941): create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x35e6ec)", "errno 22 of ibv_reg_mr", nil},
	{"mlx5", "mlx5_cmd_check:810:(pid 1): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x1)", "errno 12 of ibv_create_qp", nil},
	{"mlx5", "mlx5_core 0000:61:00.0: wait_func_handle_exec_timeout:1104:(pid 141183): cmd[22]: CREATE_DCT(0x710) No done completion", "errno 5", nil},
	{"mlx5", "mlx5_core 0000:61:00.0: poll_health:720:(pid 0): device's health compromised - reached miss count", "event 8", nil},
	{"mlx5", "mlx5_core 0000:12:00.0 ens1: Link down", "port 1", nil},
	{"mlx5", "mlx5_core 0000:12:00.0: Port module event: module 0, Cable unplugged", "port 1", nil},
	{"rxe", "rdma_rxe: qp#17 moved to error state", "qp-state 6", nil},
	{"NFS", "rpcrdma: frwr_wc_fastreg: WR_FLUSH_ERR (5/0xf9)", "status 5", nil},
	{"SRP", "scsi host6: ib_srp: failed SEND status RNR retry counter exceeded (13) for CQE", "status 13", nil},
	{"SRP", "scsi host8: ib_srp: REJ reason 0xa", "reject 10", nil},
	{"Lustre", "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.126.87@o2ib: 403055 seconds", "errno 110", nil},
	{"infiniband-diags", "src/query_smp.c:199; umad (DR path slid 0; dlid 0; 0,1,10,19 Attr 0x11:0) bad status 110; Connection timed out", "errno 110 of umad_send", nil},
	{"infiniband-diags", "GUID 0xb859 port ALL: [SymbolErrorCounter == 19817 (19.353K)] [LinkDownedCounter == 37 (37.000)] [PortXmitDiscards == 8 (8.000)]", "counter: symbol_error", []string{"counter: link_downed", "counter: port_xmit_discards"}},
	{"perftest", "ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\nFailed to exchange data between server and clients", "errno 104 of connect", nil},
	{"perftest", "IB device mlx5_0 not found\n Unable to find the Infiniband/RoCE device", "message: No IB devices found", nil},
	{"perftest", " Port number 1 state is Down\n Couldn't set the link layer\n Couldn't get context for the device", "port 1", nil},
	{"perftest", "Event: RDMA_CM_EVENT_REJECTED; error: -111.", "errno 111 of rdma_connect", nil},
	{"libibverbs", "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0", "errno 38 of ibv_open_device", nil},
	{"libibverbs", "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.", "errno 38 of ibv_open_device", nil},
	{"a program", "ERROR: ibv_exp_reg_mr() failed: Cannot allocate memory", "errno 12 of ibv_reg_mr", nil},
	{"a program", "failed to post RDMA write: Cannot allocate memory", "errno 12 of ibv_post_send", nil},
	{"a program", "rdmacm address resolution failed: Cannot assign requested address", "errno 99 of rdma_resolve_addr", nil},
	{"a program", "ibv_query_device: Function not implemented", "errno 38 of ibv_query_port", nil},
	{"a kernel module", "IB_WC_RNR_RETRY_EXC_ERR", "status 13", nil},
	{"a switch", "PFC storm detected on Ethernet12", "setting: pfc", nil},
	{"", "IBV_ACCESS_REMOTE_WRITE", "setting: qp_access_flags", nil}, {"", "ibv_fork_init failed", "setting: fork", nil}, {"", "XRC", "header: XRCETH", nil}, {"", "XRC SEND_ONLY", "opcode 0xa4", nil}, {"", "UD SEND_ONLY", "opcode 0x64", nil}, {"", "FLUSH", "opcode 0x1c", nil},

	// counters, settings and states
	{"rdma statistic", "link rocep8s0f0/1 out_of_sequence 44", "counter: out_of_sequence", nil},
	{"a program", "timeout=14 retry_cnt 7 rnr_retry 0", "setting: retry_cnt", []string{"setting: rnr_retry"}},
	{"ibv_devinfo", "state: PORT_DOWN (1)", "port 1", nil},
	{"ibv_devinfo", "active_mtu:             1024 (3)", "mtu 3", []string{"setting: path_mtu"}},
	{"ibv_asyncwatch", "async event (port 1) IBV_EVENT_PORT_ERR", "event 10", nil},

	// Health of mlx5's cards: no number of it is that of a completion.
	{"mlx5", "mlx5_core 0000:04:00.0: print_health_info:431:(pid 0): synd 0x1: firmware internal error", "health 0x01", []string{"event 8"}},
	{"mlx5", "mlx5_core 0000:04:00.0: synd 0x1: firmware internal error", "health 0x01", nil},
	{"mlx5", "mlx5_core 0000:04:00.0: print_health_info:431:(pid 0): synd 0x10: High temperature", "health 0x10", nil},
	{"mlx5", "mlx5_core 0000:04:00.0: print_health_info:432:(pid 0): ext_synd 0x8ce1", "message: assert_var", nil},
	{"mlx5", "mlx5_core 0000:04:00.0: print_health_info:425:(pid 0): assert_var[0] 0x00000001", "message: assert_var", nil},
	{"mlx5", "mlx5_core 0000:04:00.0: poll_health:800:(pid 0): Fatal error 1 detected", "message: poll_health: Fatal error 1 detected", nil},
	{"", "health 0x7", "health 0x07", nil},

	{"rping", "connect error -1", "message: connect error -1", nil},
	{"rping", "cma event RDMA_CM_EVENT_REJECTED, error 8\nwait for CONNECTED state 4\nconnect error -1", "reject 8", []string{"message: connect error -1"}},
	{"perftest", "Couldn't connect to node1:18515", "errno 111 of connect", []string{"errno 110 of connect"}},
	{"libfabric", "libfabric:518212:core:core:fi_getinfo_():1021<warn> fi_getinfo: provider ofi_rxm returned -61 (No data available)", "errno 61 of fi_getinfo", nil},
	{"Intel MPI", "MPIDI_OFI_mpi_init_hook(1061): OFI addrinfo() failed (ofi_init.c:1061:MPIDI_OFI_mpi_init_hook:No data available)", "errno 61 of fi_getinfo", []string{"message: MPI_Init failed"}},
	{"librdmacm", "rdma_create_ep: No data available", "errno 61 of rdma_create_ep", nil},
	{"the kernel", "__ib_cache_gid_add: unable to add gid fe80:0000:0000:0000:0000:0000:0000:0001 error=-28", "errno 28 of ib_cache_gid_add", nil},
	{"NVMe", "nvme nvme0: MEMREG for CQE 0x00000000a1b2c3d4 failed with status memory management operation error (6)", "status 6", nil},
	{"NFS", "rpcrdma: fastreg: memory management operation error (6/0x78)", "status 6", []string{"vendor 0x78"}},
	{"NFS", "rpcrdma: frwr_wc_localinv: WR_FLUSH_ERR (5/0xf9)", "status 5", []string{"vendor 0xf9"}},
	{"GDRCopy", "gdr_open error: /dev/gdrdrv: No such file or directory", "message: gdr_open error", nil},
	{"a program", "rdma event 8 status 8", "reject 8", []string{"cm-event 8"}},
	{"a program", "got rdma_cm event 1, error -19", "errno 19 of rdma_resolve_addr", []string{"cm-event 1"}},
	{"perftest", "Unexpected CM event bl blka 8", "cm-event 8", nil},

	// Compilers, the loader and MPI.
	{"gcc", "ctx.c:3:10: fatal error: infiniband/verbs.h: No such file or directory", "message: infiniband/verbs.h", nil},
	{"clang", "ctx.c:3:10: fatal error: 'rdma/rdma_cma.h' file not found", "message: infiniband/verbs.h", nil},
	{"ld", "/usr/bin/ld: cannot find -libverbs: No such file or directory", "message: cannot find -libverbs", nil},
	{"ld", "/usr/bin/ld: cannot find -lverbs", "message: cannot find -libverbs", nil},
	{"ld", "ctx.c:(.text+0x1a): undefined reference to `ibv_open_device'", "message: cannot find -libverbs", nil},
	{"ld.so", "./prog: error while loading shared libraries: libibverbs.so.1: cannot open shared object file: No such file or directory", "message: libibverbs.so.1", nil},
	{"MPICH", "Fatal error in PMPI_Init: Other MPI error, error stack:", "message: MPI_Init failed", nil},
	{"Open MPI", "It looks like MPI_INIT failed for some reason; your parallel process is", "message: MPI_Init failed", nil},

	// Texts of statuses that are plain English, beside what makes them statuses.
	{"pingpong", "Failed status fatal error (19) for wr_id 2", "status 19", nil},
	{"SPDK", "status: (7): bad response error", "status 7", nil},
	{"a program", "CQE: general error", "status 21", nil},
	{"a program", "wc: invalid request", "status 9", nil},
	{"", "fatal error", "status 19", nil}, {"", "remote access", "status 10", nil},

	// questions of users
	{"", "12", "status 12", []string{"reject 12", "errno 12"}},
	{"", "status 12", "status 12", nil}, {"", "wc 13", "status 13", nil}, {"", "wc status 13", "status 13", nil},
	{"", "IBV_WC_RETRY_EXC_ERR", "status 12", nil}, {"", "retry_exc_err", "status 12", nil}, {"", "WCRetryExceeded", "status 12", nil},
	{"", "synd 0x15 vend 0x81", "status 12", []string{"vendor 0x81"}}, {"", "synd 0x15", "syndrome 0x15", []string{"status 12"}},
	{"", "vendor err 129", "vendor 0x81", nil}, {"", "vendor 0x81", "vendor 0x81", nil}, {"", "0x81", "vendor 0x81", []string{"opcode 0x81"}},
	{"", "reject 28", "reject 28", nil}, {"", "rej reason 8", "reject 8", nil}, {"", "IB_CM_REJ_STALE_CONN", "reject 10", nil},
	{"", "ibv_modify_qp RTR 110", "errno 110 of ibv_modify_qp to RTR", nil}, {"", "ibv_modify_qp RTR ETIMEDOUT", "errno 110 of ibv_modify_qp to RTR", nil},
	{"", "ibv_reg_mr 12", "errno 12 of ibv_reg_mr", nil}, {"", "rdma_bind_addr 98", "errno 98 of rdma_bind_addr", nil},
	{"", "ibv_reg_mr", "errno 12 of ibv_reg_mr", []string{"errno 14 of ibv_reg_mr"}}, {"", "errno 110", "errno 110", nil}, {"", "-110", "errno 110", nil}, {"", "EADDRINUSE", "errno 98", nil},
	{"", "Connection timed out", "errno 110", nil}, {"", "rdma_resolve_addr -113", "errno 113 of rdma_resolve_addr", nil},
	{"", "RDMA_CM_EVENT_UNREACHABLE", "cm-event 7", nil}, {"", "event 10", "event 10", nil}, {"", "IBV_EVENT_PORT_ERR", "event 10", nil}, {"", "async event 3", "event 3", nil},
	{"", "rnr-timer 12", "rnr-timer 12", nil}, {"", "rnr timer 0", "rnr-timer 0", nil}, {"", "min_rnr_timer 12", "rnr-timer 12", nil}, {"", "timeout 14", "timeout 14", nil}, {"", "timeout", "setting: timeout", nil},
	{"", "NCCL_IB_TIMEOUT=22", "timeout 22", nil}, {"", "mtu 5", "mtu 5", nil}, {"", "mtu 4096", "mtu 5", nil}, {"", "path_mtu 3", "mtu 3", nil},
	{"", "nak 2", "nak 2", nil}, {"", "aeth 0x62", "aeth 0x62", nil}, {"", "opcode 0x0a", "opcode 0x0a", nil}, {"", "bth opcode 4", "opcode 0x04", nil}, {"", "BTH", "header: BTH", nil}, {"", "reth", "header: RETH", nil},
	{"", "gid 2", "gid 2", nil}, {"", "RoCE v1", "gid 1", nil}, {"", "qp state 6", "qp-state 6", nil}, {"", "QPS_ERR", "qp-state 6", nil}, {"", "port 1", "port 1", nil}, {"", "sidr 1", "sidr 1", nil},
	{"", "out_of_sequence", "counter: out_of_sequence", nil}, {"", "rnr_retry", "setting: rnr_retry", nil}, {"", "max_inline_data", "setting: max_inline_data", nil}, {"", "ulimit -l", "setting: memlock", nil},
	{"", "flush error", "status 5", nil}, {"", "RNR", "status 13", nil}, {"", "RDMA_WRITE_ONLY_WITH_IMM", "opcode 0x0b", nil}, {"", "cm_tx_retries_req", "counter: cm_tx_retries_req", nil},
}

// is reports whether a title is the wanted one up to the name.
func is(title, want string) bool {
	rest, ok := strings.CutPrefix(title, want)
	return ok && (rest == "" || rest[0] == ':')
}

func titles(found []meaning.Finding) (list []string) {
	for _, f := range found {
		list = append(list, f.Title())
	}
	return list
}

func TestExplain(t *testing.T) {
	for _, tt := range lines {
		found := meaning.Explain(tt.line)
		if len(found) == 0 || !is(found[0].Title(), tt.first) {
			t.Errorf("%s: %q: found %q, want %s first", tt.program, tt.line, titles(found), tt.first)
			continue
		}
		for _, want := range tt.also {
			ok := false
			for _, f := range found {
				ok = ok || is(f.Title(), want)
			}
			if !ok {
				t.Errorf("%s: %q: found %q, want %s among them", tt.program, tt.line, titles(found), want)
			}
		}
	}
}
