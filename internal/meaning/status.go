package meaning

import (
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	ofRD  = "The RD service has never been built, so no card of today reports it."
	ofTM  = "It is of the tag matching that some cards of mlx5 had, and that their libraries have given up."
	first = "the first failed completion of the QP, which is the one with another status than 5"
)

// statuses are the causes and checks of each completion status. Its name and its meaning come from package verbs.
var statuses = [...]Entry{
	verbs.WCSuccess: {
		Also: []string{"success"},
		More: "For a SEND or a WRITE that means: the peer's device has acknowledged the message. It does not mean that the peer's program has looked at it.",
	},
	verbs.WCLocLenErr: {
		Also: []string{"local length error", "local length"},
		Causes: []string{
			"a receive is shorter than the message that came: its completion fails with this status, and the sender's with status 9",
			"on UD: the receive has no room for the 40 bytes of the GRH, or the message is longer than the path MTU",
			"a READ asks for more bytes than its SGEs have room for, or a message is longer than the device's largest (max_msg_sz)",
		},
		Checks: []string{"compare the sum of the receive's SGEs with the sender's length; UD needs 40 bytes more", "on mlx5, vendor code 0x68 came with it in reports of receives that were too short"},
		Tools:  []string{"adverb stat -v: resp_local_length_error"}, See: []string{"status 9", "vendor 0x68"},
	},
	verbs.WCLocQPOpErr: {
		Also: []string{"local QP operation error", "local QP operation"},
		Causes: []string{
			"the work request is one that the QP's type or the device does not have: a READ on UC, an atomic on a device without atomics",
			"more SGEs or more inline bytes than the QP was created with, which some providers notice only here",
			"a bind or a local invalidation that breaks a rule",
		},
		Checks: []string{"the capabilities that ibv_create_qp returned (max_send_sge, max_inline_data) against the work request", "the device's atomic_cap and device_cap_flags: ibv_devinfo -v"},
		Tools:  []string{"adverb devinfo -v: capabilities; the completion's Cause says which rule was broken"},
	},
	verbs.WCLocEECOpErr: {Also: []string{"local EE context operation error"}, More: ofRD},
	verbs.WCLocProtErr: {
		Also: []string{"local protection error", "local protection"},
		Causes: []string{
			"the SGE reaches beyond the region, or its lkey is of another region or of one that is closed",
			"the region is of another PD than the QP",
			"a receive or the target of a READ lies in a region without IBV_ACCESS_LOCAL_WRITE",
			"the memory was freed, or a fork has moved it, while the work request was outstanding",
			"GPU memory: the driver for peer memory (nvidia-peermem) or dma-buf is missing, or the GPU took the mapping back",
		},
		Checks: []string{
			"print lkey, address and length of the SGE beside those of the region, at the time of the post",
			"that each region stays registered until the completions of its work requests have come",
			"programs that fork: ibv_fork_init, or RDMAV_FORK_SAFE=1",
		},
		Tools: []string{"adverb res mr: the regions with their keys and ranges", "the completion's Cause says which SGE"}, See: []string{"vendor 0x51", "vendor 0x52"},
	},
	verbs.WCFlushErr: {
		Also: []string{"Work Request Flushed Error", "WR flushed", "flushed because QP in error state", "work request flushed", "flush error"},
		Causes: []string{
			"an earlier work request of the QP has failed: its completion has the cause",
			"the connection was ended, by either end, while work requests were posted: receives that wait are flushed at every orderly end",
			"the program, or its library after a timeout of its own, has moved the QP to ERR",
			"the peer's process has died, and its connection manager or its kernel has said so",
		},
		Checks:  []string{first, "the other end's log at the same second: its QP may have failed first", "asynchronous events of the QP: QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR"},
		Tools:   []string{"adverb stat -v: req_cqe_flush_error, resp_cqe_flush_error", "adverb res qp: the states of QPs"},
		Follows: true, See: []string{"status 12", "vendor 0xf5", "vendor 0xf9"},
	},
	verbs.WCMWBindErr: {
		Also: []string{"memory management operation error", "memory window bind", "bind operation error"},
		Causes: []string{
			"the region lacks IBV_ACCESS_MW_BIND, or the window asks for rights that the region lacks",
			"the range of the window is not inside the region, or region and window are of different PDs",
			"a type 2 window is bound already",
			"in a kernel (NVMe, iSER, NFS, SMB over RDMA) it is a fast registration or a local invalidation (REG_MR, LOCAL_INV): a list of more pages than the region was made for, a key that is not the region's, or a region that is registered already, or no more",
		},
		Checks: []string{"the region's access flags and range against the bind", "in a kernel: whether an earlier completion of the same QP failed, so that a region was left in the wrong state; known defects of the driver and its firmware"},
		Tools:  []string{"adverb res mw, adverb res mr"}, See: []string{"vendor 0x78"},
	},
	verbs.WCBadRespErr: {
		Also: []string{"bad response error", "bad response"},
		Causes: []string{
			"the QPN or the PSN of the connection is an older one's, so that packets of another connection come in",
			"the peer's device or a device on the way has a defect: opcode or length of a response fits no request",
		},
		Checks: []string{"that both ends have exchanged fresh QPNs and PSNs", "a capture of the responses: opcode, PSN, AETH"},
		Tools:  []string{"ADVERB_PCAP=FILE writes a capture; adverb stat -v: unexpected_pkts"},
	},
	verbs.WCLocAccessErr: {
		Also:   []string{"local access error", "local access"},
		Causes: []string{"the region of a receive, of a READ's target or of an atomic's result has no IBV_ACCESS_LOCAL_WRITE", "a receive of a WRITE with immediate met memory that its QP may not write"},
		Checks: []string{"the access flags of ibv_reg_mr"},
		Tools:  []string{"adverb res mr: access flags"},
	},
	verbs.WCRemInvReqErr: {
		Also: []string{"remote invalid request error", "remote invalid request", "invalid request"},
		Causes: []string{
			"the message is longer than the peer's receive: the peer's completion then has status 1",
			"the peer's QP does not allow the operation: qp_access_flags lacks REMOTE_READ, REMOTE_WRITE or REMOTE_ATOMIC, which the default of many programs is",
			"more READs or atomics at a time than the peer's max_dest_rd_atomic, or max_rd_atomic is 0",
			"the path MTUs of the two ends differ: path_mtu must be the same number at both",
			"an atomic whose address is not a multiple of 8",
		},
		Checks: []string{"the peer's completions and asynchronous events at the same second: the requester is told no more than this", "path_mtu, qp_access_flags and max_dest_rd_atomic of both ends"},
		Tools:  []string{"the peer's asynchronous event QP_REQ_ERR, if it runs on adverb: its Cause says why in words", "adverb stat -v: req_remote_invalid_request, at the peer resp_remote_invalid_request"}, See: []string{"nak 1", "status 1"},
	},
	verbs.WCRemAccessErr: {
		Also: []string{"remote access error", "remote access"},
		Causes: []string{
			"the rkey is wrong, stale or of a region that the peer has closed",
			"address and length reach beyond the peer's region: often a byte order or a 32-bit address in the exchange",
			"the region lacks IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC",
			"the region is of another PD than the peer's QP",
			"GPU memory: nvidia-peermem or dma-buf is missing at the peer, or the GPU took the mapping back",
		},
		Checks: []string{"print rkey, address and length at both ends, and compare", "the access flags of the peer's ibv_reg_mr", "that the peer closes regions only when no peer uses them any more"},
		Tools:  []string{"adverb res mr at the peer", "the peer's asynchronous event QP_ACCESS_ERR, if it runs on adverb: its Cause says why in words", "adverb stat -v: req_remote_access_errors"}, See: []string{"nak 2", "vendor 0x88"},
	},
	verbs.WCRemOpErr: {
		Also: []string{"remote operation error", "remote operational error"},
		Causes: []string{
			"the peer's device could not read or write the peer's memory: GPU memory without working peer access (nvidia-peermem, dma-buf, ACS or IOMMU settings), memory that was taken away",
			"the peer's receive names memory that its lkey does not cover: the peer's completion then has status 4",
			"the peer's QP failed while it carried the request out",
		},
		Checks: []string{"the peer's own completion and its kernel's log at the same second", "the same transfer with memory of the host in place of the GPU's"},
		Tools:  []string{"adverb stat -v: req_remote_op_errors, at the peer resp_remote_op_errors"}, See: []string{"nak 3", "vendor 0x89"},
	},
	verbs.WCRetryExceeded: {
		Also: []string{"transport retry counter exceeded", "transport retry count exceeded", "retry exceeded", "UCS_ERR_ENDPOINT_TIMEOUT", "Endpoint timeout"},
		More: "The network answered nothing for all of timeout × (retry_cnt + 1), and cards wait up to four times as long as the code of the timeout says. If it comes with the first message, the path has never worked: the exchange of QPNs went over TCP, and that proves nothing about RoCE. If it comes in the middle of a run, a path that worked has broken, or the peer has.",
		Causes: []string{
			"with the first message: a wrong GID index. The address behind it does not reach the peer's: RoCE v1 in place of v2, a link-local address, another VLAN or another subnet. NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX, MC_GID_INDEX, ib_write_bw -x choose it",
			"with the first message: UDP port 4791 is filtered by a firewall, a security group or a switch, or the rails of a cluster are not connected with each other (NCCL_CROSS_NIC=0)",
			"with the first long message: the path MTU is larger than a link on the way carries, as with path MTU 4096 on a network of 1500 bytes",
			"in the middle: the peer's process has died, or its QP has failed. Its own log has the first error then",
			"in the middle: a link went down, a switch lost a route, or the network loses more than the retries cover: PFC or ECN is not set up the same on all switches",
			"the QPN, PSN, LID or GID that was exchanged is not the peer's, or the peer's QP is not in RTR yet",
			"the timeout is too short for the path: NCCL_IB_TIMEOUT, UCX_RC_TIMEOUT, ib_write_bw -u",
		},
		Checks: []string{
			"show_gids, or adverb gids: the entry of the index must be RoCE v2 and have an address from which ping -I reaches the peer",
			Ping4096 + " to the peer for path MTU 4096, -s 1472 for an Ethernet of 1500",
			"ib_write_bw between the same two devices, with the same GID index and traffic class (-x, --tclass)",
			"counters of both ends before and after: local_ack_timeout_err here with nothing received there means that packets do not arrive; with packets received there, that answers do not come back, or that the peer drops them",
			"the peer's log at the second of the first error, and the switch ports' counters of errors, drops and pauses",
		},
		Tools: []string{
			"adverb rc_pingpong and adverb rping over the same addresses tell whether the path carries RoCE v2",
			"adverb stat -v: retry_exceeded_err, local_ack_timeout_err, path_mtu_exceeded_err",
			"ADVERB_PCAP=FILE at both ends: what left, and what arrived",
		},
		See: []string{"timeout 14", "retry_cnt", "sgid_index", "path_mtu", "vendor 0x81"},
	},
	verbs.WCRNRRetryExceeded: {
		Also: []string{"RNR retry counter exceeded", "RNR retry count exceeded", "receiver not ready", "RNR"},
		Causes: []string{
			"the peer posts receives too late or too few: none was posted when a SEND or a WRITE with immediate came",
			"rnr_retry is small. 7 repeats without end; with 0 the first lack of a receive ends the connection",
			"the peer's process hangs or is starved, and does not post receives anew",
			"both ends count credits differently, so that the sender sends more messages than receives are left",
			"an SRQ has run empty: one slow connection takes the receives of all",
		},
		Checks: []string{"that receives are posted before the QP goes to RTR, or before the connection is accepted", "rnr_retry and min_rnr_timer of both ends", "the counters rnr_nak_retry_err or rcvd_rnr_err here, and out_of_buffer or send_rnr_err at the peer"},
		Tools:  []string{"adverb stat -v: rcvd_rnr_err, at the peer send_rnr_err; recv_queue_wrs says how many receives wait"}, See: []string{"rnr_retry", "min_rnr_timer", "aeth 0x20"},
	},
	verbs.WCLocRDDViolErr:  {Also: []string{"local RDD violation error"}, More: ofRD},
	verbs.WCRemInvRDReqErr: {Also: []string{"remote invalid RD request"}, More: ofRD},
	verbs.WCRemAbortErr: {
		Also:   []string{"aborted error", "remote side aborted", "operation aborted"},
		Causes: []string{"the peer's side has aborted the operation: of RD and of XRC or DC connections that a program has ended in the middle"},
		Checks: []string{"the peer's log"},
	},
	verbs.WCInvEECNErr:     {Also: []string{"invalid EE context number"}, More: ofRD},
	verbs.WCInvEECStateErr: {Also: []string{"invalid EE context state"}, More: ofRD},
	verbs.WCFatalErr: {
		Also:   []string{"fatal error"},
		Causes: []string{"the card's firmware has failed or is being reset", "the PCIe link has gone, or the device was removed"},
		Checks: []string{"the kernel's log: health, fatal, AER", "the asynchronous event DEVICE_FATAL"},
		Tools:  []string{"adverb asyncwatch"}, See: []string{"event 8"},
	},
	verbs.WCRespTimeoutErr: {
		Also:   []string{"response timeout error"},
		Causes: []string{"a request of a kind that is answered, and not merely acknowledged, got no answer in time", "as for status 12"},
		Checks: []string{"those of status 12"}, See: []string{"status 12"},
	},
	verbs.WCGeneralErr: {
		Also:   []string{"general error"},
		Causes: []string{"the provider has no better status: vendor_err may tell more", "on mlx5 a syndrome that its library does not know"},
		Checks: []string{"vendor_err, and the kernel's log"},
	},
	verbs.WCTMErr:            {Also: []string{"TM error"}, More: ofTM},
	verbs.WCTMRndvIncomplete: {Also: []string{"TM software rendezvous"}, More: ofTM},
}

func statusEntries() (list []Entry) {
	for s := range statuses {
		list = append(list, statusEntry(verbs.WCStatus(s)))
	}
	return list
}

func statusEntry(s verbs.WCStatus) Entry {
	e := statuses[s]
	e.Kind, e.Number, e.Name = KindStatus, int(s), s.String()
	_, e.Brief, _ = strings.Cut(s.Error(), ": ")
	if s == verbs.WCSuccess {
		e.Brief = "the work request is done"
	}
	return e
}

// wcOpcodes are the opcodes of completions, and what completed.
var wcOpcodes = []struct {
	opcode verbs.WCOpcode
	brief  string
}{
	{verbs.WCSend, "a SEND, with immediate data or invalidation or without"}, {verbs.WCRDMAWrite, "an RDMA WRITE, with immediate data or without"}, {verbs.WCRDMARead, "an RDMA READ"},
	{verbs.WCCompSwap, "an atomic COMPARE_SWAP"}, {verbs.WCFetchAdd, "an atomic FETCH_ADD"}, {verbs.WCBindMW, "a bind of a memory window"}, {verbs.WCLocalInv, "a local invalidation"},
	{verbs.WCFlush, "a FLUSH"}, {verbs.WCAtomicWrite, "an ATOMIC WRITE"},
	{verbs.WCRecv, "a receive, which took a SEND"}, {verbs.WCRecvRDMAWithImm, "a receive, which took the immediate data of a WRITE"},
}

func wcOpcodeEntries() (list []Entry) {
	for _, o := range wcOpcodes {
		list = append(list, Entry{
			Number: int(o.opcode), Name: o.opcode.String(), Brief: o.brief,
			More: "It holds in a completion without error alone: of a failed one only wr_id, status, qp_num and vendor_err count, and the opcode may be any number.",
		})
	}
	return list
}
