package meaning

import "github.com/adverb-rdma/adverb/verbs"

// irdmaEvents are the asynchronous events of Intel's driver irdma, by their codes, and the status of the completions that
// the driver makes of them. Code, name and status are the driver's.
var irdmaEvents = []struct {
	code   int
	name   string
	status verbs.WCStatus // 0: it names none
	brief  string
}{
	{0x0102, "AMP_UNALLOCATED_STAG", verbs.WCLocProtErr, "a key names a region that is closed"},
	{0x0103, "AMP_INVALID_STAG", verbs.WCLocProtErr, "a key names no region"},
	{0x0104, "AMP_BAD_QP", verbs.WCLocQPOpErr, "the region or window is of another QP"},
	{0x0105, "AMP_BAD_PD", verbs.WCLocProtErr, "the region is of another PD than the QP"},
	{0x0106, "AMP_BAD_STAG_KEY", verbs.WCLocProtErr, "the last 8 bits of a key are not the region's: an old key"},
	{0x0107, "AMP_BAD_STAG_INDEX", verbs.WCLocProtErr, "a key is beyond the table of regions"},
	{0x0108, "AMP_BOUNDS_VIOLATION", verbs.WCLocProtErr, "the range reaches beyond the region"},
	{0x0109, "AMP_RIGHTS_VIOLATION", verbs.WCLocAccessErr, "the region's access flags do not allow it"},
	{0x010a, "AMP_TO_WRAP", verbs.WCLocProtErr, "address and length run past the end of the address space"},
	{0x010c, "AMP_FASTREG_VALID_STAG", 0, "fast registration of a region that is registered already"},
	{0x010d, "AMP_FASTREG_MW_STAG", 0, "fast registration by the key of a window"},
	{0x010e, "AMP_FASTREG_INVALID_RIGHTS", 0, "fast registration with access flags that do not go together"},
	{0x0110, "AMP_FASTREG_INVALID_LENGTH", 0, "fast registration of a length that the region was not made for"},
	{0x0111, "AMP_INVALIDATE_SHARED", 0, "invalidation of a region that is shared"},
	{0x0112, "AMP_INVALIDATE_NO_REMOTE_ACCESS_RIGHTS", verbs.WCRemAccessErr, "a peer may not invalidate this key"},
	{0x0113, "AMP_INVALIDATE_MR_WITH_BOUND_WINDOWS", 0, "invalidation of a region with a bound window"},
	{0x0114, "AMP_MWBIND_VALID_STAG", verbs.WCMWBindErr, "bind of a window that is bound already"},
	{0x0115, "AMP_MWBIND_OF_MR_STAG", 0, "bind by the key of a region"},
	{0x0116, "AMP_MWBIND_TO_ZERO_BASED_STAG", 0, "bind to a region whose addresses begin with 0"},
	{0x0117, "AMP_MWBIND_TO_MW_STAG", 0, "bind to a window in place of a region"},
	{0x0118, "AMP_MWBIND_INVALID_RIGHTS", verbs.WCMWBindErr, "the window asks for rights that the region lacks"},
	{0x0119, "AMP_MWBIND_INVALID_BOUNDS", verbs.WCMWBindErr, "the window reaches beyond the region"},
	{0x011a, "AMP_MWBIND_TO_INVALID_PARENT", 0, "the region of a window is closed or of another PD"},
	{0x011b, "AMP_MWBIND_BIND_DISABLED", verbs.WCMWBindErr, "the region does not allow windows"},
	{0x011c, "PRIV_OPERATION_DENIED", 0, "the QP may not do this"},
	{0x011d, "AMP_INVALIDATE_TYPE1_MW", 0, "invalidation of a window of type 1"},
	{0x011e, "AMP_MWBIND_ZERO_BASED_TYPE1_MW", 0, "a window of type 1 whose addresses begin with 0"},
	{0x011f, "AMP_FASTREG_INVALID_PBL_HPS_CFG", 0, "fast registration with a list of pages that the card does not take"},
	{0x0120, "AMP_MWBIND_WRONG_TYPE", 0, "a window of the other type"},
	{0x0121, "AMP_FASTREG_PBLE_MISMATCH", 0, "fast registration with a list of pages that does not fit the region"},
	{0x0132, "UDA_XMIT_DGRAM_TOO_LONG", verbs.WCLocLenErr, "a datagram longer than the path MTU"},
	{0x0133, "UDA_XMIT_BAD_PD", verbs.WCLocProtErr, "an address handle of another PD"},
	{0x0134, "UDA_XMIT_DGRAM_TOO_SHORT", verbs.WCLocLenErr, "a datagram that is too short"},
	{0x0135, "UDA_L4LEN_INVALID", verbs.WCLocLenErr, "a datagram with a wrong length"},
	{0x0201, "BAD_CLOSE", 0, "iWARP: TCP was closed in the middle of a message"},
	{0x0202, "RDMAP_ROE_BAD_LLP_CLOSE", 0, "iWARP: the peer has closed TCP in the middle of a message"},
	{0x0203, "CQ_OPERATION_ERROR", 0, "a CQ failed: mostly it ran over"},
	{0x0205, "RDMA_READ_WHILE_ORD_ZERO", 0, "a READ on a connection that allows none: initiator_depth 0"},
	{0x0206, "STAG_ZERO_INVALID", 0, "key 0, which only a kernel may use"},
	{0x0207, "IB_RREQ_AND_Q1_FULL", verbs.WCGeneralErr, "the peer sends more READs at a time than it may"},
	{0x0208, "IB_INVALID_REQUEST", verbs.WCRemInvReqErr, "the peer found the request invalid, or this end the peer's"},
	{0x020a, "WQE_UNEXPECTED_OPCODE", verbs.WCLocQPOpErr, "a work request that the QP does not have"},
	{0x020b, "WQE_INVALID_PARAMETER", 0, "a work request with a wrong field"},
	{0x020c, "WQE_INVALID_FRAG_DATA", 0, "a work request with a wrong SGE"},
	{0x020d, "IB_REMOTE_ACCESS_ERROR", verbs.WCRemAccessErr, "the peer refused access to its memory, or this end the peer"},
	{0x020e, "IB_REMOTE_OP_ERROR", verbs.WCRemOpErr, "the peer could not carry the request out"},
	{0x0220, "WQE_LSMM_TOO_LONG", 0, "iWARP: the first message of the driver was too long"},
	{0x0223, "INVALID_REQUEST", 0, "a request that is not valid"},
	{0x0301, "DDP_INVALID_MSN_GAP_IN_MSN", 0, "iWARP: a message number was left out"},
	{0x0303, "DDP_UBE_DDP_MESSAGE_TOO_LONG_FOR_AVAILABLE_BUFFER", verbs.WCLocLenErr, "a message longer than the receive"},
	{0x0304, "DDP_UBE_INVALID_DDP_VERSION", 0, "iWARP: a wrong version of DDP"},
	{0x0305, "DDP_UBE_INVALID_MO", verbs.WCLocLenErr, "iWARP: a wrong offset within a message"},
	{0x0306, "DDP_UBE_INVALID_MSN_NO_BUFFER_AVAILABLE", 0, "iWARP: a message came, and no receive was posted"},
	{0x0307, "DDP_UBE_INVALID_QN", 0, "iWARP: a wrong queue number"},
	{0x0308, "DDP_NO_L_BIT", 0, "iWARP: a segment without the mark of the last"},
	{0x0311, "RDMAP_ROE_INVALID_RDMAP_VERSION", 0, "iWARP: a wrong version of RDMAP"},
	{0x0312, "RDMAP_ROE_UNEXPECTED_OPCODE", 0, "iWARP: an opcode that was not expected"},
	{0x0313, "ROE_INVALID_RDMA_READ_REQUEST", 0, "iWARP: a READ that is not valid"},
	{0x0314, "ROE_INVALID_RDMA_WRITE_OR_READ_RESP", 0, "iWARP: a WRITE or an answer to a READ that is not valid"},
	{0x0316, "ROCE_RSP_LENGTH_ERROR", verbs.WCRemOpErr, "an answer to a READ has another length than was asked for"},
	{0x0380, "ROCE_EMPTY_MCG", 0, "a multicast packet for a group without QPs"},
	{0x0381, "ROCE_BAD_MC_IP_ADDR", 0, "a multicast packet with a wrong address"},
	{0x0382, "ROCE_BAD_MC_QPID", 0, "a multicast group with a wrong QP"},
	{0x0383, "MCG_QP_PROTOCOL_MISMATCH", 0, "a multicast group with a QP of the other protocol"},
	{0x0401, "INVALID_ARP_ENTRY", 0, "the card has no MAC address for the peer"},
	{0x0402, "INVALID_TCP_OPTION_RCVD", 0, "iWARP: a TCP option that the card does not take"},
	{0x0403, "STALE_ARP_ENTRY", 0, "the peer's MAC address is old"},
	{0x0406, "INVALID_AH_ENTRY", 0, "an address handle that is not valid"},
	{0x0501, "LLP_CLOSE_COMPLETE", 0, "iWARP: the connection is closed: no failure"},
	{0x0502, "LLP_CONNECTION_RESET", 0, "iWARP: the peer has reset TCP"},
	{0x0503, "LLP_FIN_RECEIVED", 0, "iWARP: the peer has closed TCP: no failure of its own"},
	{0x0504, "LLP_RECEIVED_MARKER_AND_LENGTH_FIELDS_DONT_MATCH", 0, "iWARP: MPA's frames are out of step"},
	{0x0505, "LLP_RECEIVED_MPA_CRC_ERROR", verbs.WCRemOpErr, "a packet with a wrong CRC"},
	{0x0507, "LLP_SEGMENT_TOO_SMALL", verbs.WCRemOpErr, "a packet that is too short for its headers"},
	{0x0508, "LLP_SYN_RECEIVED", 0, "iWARP: a SYN on a connection that stands"},
	{0x0509, "LLP_TERMINATE_RECEIVED", 0, "iWARP: the peer has ended the connection with an error, and says which one"},
	{0x050a, "LLP_TOO_MANY_RETRIES", verbs.WCRetryExceeded, "the peer did not answer, retries included"},
	{0x050b, "LLP_TOO_MANY_KEEPALIVE_RETRIES", 0, "the peer did not answer keep-alives"},
	{0x050c, "LLP_DOUBT_REACHABILITY", 0, "the peer does not answer: the card doubts that it is there"},
	{0x050e, "LLP_CONNECTION_ESTABLISHED", 0, "iWARP: connected: no failure"},
	{0x050f, "LLP_TOO_MANY_RNRS", verbs.WCRNRRetryExceeded, "the peer had no receive, retries included"},
	{0x0520, "RESOURCE_EXHAUSTION", 0, "the card has no resources left"},
	{0x0601, "RESET_SENT", 0, "iWARP: this end has reset TCP, as it was asked to"},
	{0x0602, "TERMINATE_SENT", 0, "iWARP: this end has ended the connection with an error"},
	{0x0603, "RESET_NOT_SENT", 0, "iWARP: a reset that was asked for was not sent"},
	{0x0700, "LCE_QP_CATASTROPHIC", verbs.WCFatalErr, "the QP failed within the card"},
	{0x0701, "LCE_FUNCTION_CATASTROPHIC", 0, "the card's function failed"},
	{0x0702, "LCE_CQ_CATASTROPHIC", 0, "a CQ failed within the card"},
	{0x0900, "QP_SUSPEND_COMPLETE", 0, "the QP is suspended: no failure"},
}

func irdmaEntries() (list []Entry) {
	for _, e := range irdmaEvents {
		entry := Entry{Number: e.code, Name: "IRDMA_AE_" + e.name, Brief: "irdma: " + e.brief}
		if e.status != 0 {
			words := statusEntry(e.status)
			entry.See = []string{words.Words()}
			entry.More = "Completions of the QP then have " + words.Words() + " or are flushed; older drivers may report another status."
			entry.Causes = []string{"those of " + words.Words()}
		}
		list = append(list, entry)
	}
	return list
}

var irdmaForm = &pattern{text: `\bae_id[ :=]+(0x[0-9a-f]{1,4})\b`}

// findIrdma finds a code of irdma, as its driver prints it.
func findIrdma(t *text) (found []Finding) {
	numbers(irdmaForm, t.lower, func(at int, by string, n int) {
		found = append(found, finding(rankCode, at, by, KindIrdma, n)...)
	})
	return found
}
