package verbs

import "fmt"

// WCStatus is how a work request ended (enum ibv_wc_status). A WCStatus is an error, so that
// errors.Is(wc.Err(), verbs.WCRNRRetryExceeded) works. Errors print it by C's name without IBV_:
//
//	WCSuccess          WC_SUCCESS
//	WCLocLenErr        WC_LOC_LEN_ERR
//	WCLocQPOpErr       WC_LOC_QP_OP_ERR
//	WCLocEECOpErr      WC_LOC_EEC_OP_ERR
//	WCLocProtErr       WC_LOC_PROT_ERR
//	WCFlushErr         WC_WR_FLUSH_ERR
//	WCMWBindErr        WC_MW_BIND_ERR
//	WCBadRespErr       WC_BAD_RESP_ERR
//	WCLocAccessErr     WC_LOC_ACCESS_ERR
//	WCRemInvReqErr     WC_REM_INV_REQ_ERR
//	WCRemAccessErr     WC_REM_ACCESS_ERR
//	WCRemOpErr         WC_REM_OP_ERR
//	WCRetryExceeded    WC_RETRY_EXC_ERR
//	WCRNRRetryExceeded WC_RNR_RETRY_EXC_ERR
//	WCLocRDDViolErr    WC_LOC_RDD_VIOL_ERR
//	WCRemInvRDReqErr   WC_REM_INV_RD_REQ_ERR
//	WCRemAbortErr      WC_REM_ABORT_ERR
//	WCInvEECNErr       WC_INV_EECN_ERR
//	WCInvEECStateErr   WC_INV_EEC_STATE_ERR
//	WCFatalErr         WC_FATAL_ERR
//	WCRespTimeoutErr   WC_RESP_TIMEOUT_ERR
//	WCGeneralErr       WC_GENERAL_ERR
//	WCTMErr            WC_TM_ERR
//	WCTMRndvIncomplete WC_TM_RNDV_INCOMPLETE
type WCStatus uint8

// The completion statuses (IBV_WC_*).
const (
	// IBV_WC_SUCCESS: it is done.
	WCSuccess WCStatus = 0
	// IBV_WC_LOC_LEN_ERR: the message is longer than the posted buffer.
	WCLocLenErr WCStatus = 1
	// IBV_WC_LOC_QP_OP_ERR: the QP could not carry the work request out as posted.
	WCLocQPOpErr WCStatus = 2
	// IBV_WC_LOC_EEC_OP_ERR: of RD, which no device has.
	WCLocEECOpErr WCStatus = 3
	// IBV_WC_LOC_PROT_ERR: an SGE names memory that its L_Key does not cover.
	WCLocProtErr WCStatus = 4
	// IBV_WC_WR_FLUSH_ERR: the QP failed before this work request was done.
	WCFlushErr WCStatus = 5
	// IBV_WC_MW_BIND_ERR: the memory window could not be bound.
	WCMWBindErr WCStatus = 6
	// IBV_WC_BAD_RESP_ERR: the peer's response does not fit the request.
	WCBadRespErr WCStatus = 7
	// IBV_WC_LOC_ACCESS_ERR: local memory lacks the access right.
	WCLocAccessErr WCStatus = 8
	// IBV_WC_REM_INV_REQ_ERR: the peer found the request invalid.
	WCRemInvReqErr WCStatus = 9
	// IBV_WC_REM_ACCESS_ERR: the peer refused access to its memory.
	WCRemAccessErr WCStatus = 10
	// IBV_WC_REM_OP_ERR: the peer could not complete the operation.
	WCRemOpErr WCStatus = 11
	// IBV_WC_RETRY_EXC_ERR: the peer did not acknowledge in time, retries included.
	WCRetryExceeded WCStatus = 12
	// IBV_WC_RNR_RETRY_EXC_ERR: the peer had no receive posted, retries included.
	WCRNRRetryExceeded WCStatus = 13
	// IBV_WC_LOC_RDD_VIOL_ERR: of RD, which no device has.
	WCLocRDDViolErr WCStatus = 14
	// IBV_WC_REM_INV_RD_REQ_ERR: of RD, which no device has.
	WCRemInvRDReqErr WCStatus = 15
	// IBV_WC_REM_ABORT_ERR: the peer has aborted the operation.
	WCRemAbortErr WCStatus = 16
	// IBV_WC_INV_EECN_ERR: of RD, which no device has.
	WCInvEECNErr WCStatus = 17
	// IBV_WC_INV_EEC_STATE_ERR: of RD, which no device has.
	WCInvEECStateErr WCStatus = 18
	// IBV_WC_FATAL_ERR: the device failed.
	WCFatalErr WCStatus = 19
	// IBV_WC_RESP_TIMEOUT_ERR: no response in time.
	WCRespTimeoutErr WCStatus = 20
	// IBV_WC_GENERAL_ERR: unspecified error.
	WCGeneralErr WCStatus = 21
	// IBV_WC_TM_ERR: tag matching failed.
	WCTMErr WCStatus = 22
	// IBV_WC_TM_RNDV_INCOMPLETE: tag matching: a rendezvous is not complete.
	WCTMRndvIncomplete WCStatus = 23
)

var wcStatusNames = names[WCStatus]{"WC", map[WCStatus]string{
	WCSuccess:          "WC_SUCCESS",
	WCLocLenErr:        "WC_LOC_LEN_ERR",
	WCLocQPOpErr:       "WC_LOC_QP_OP_ERR",
	WCLocEECOpErr:      "WC_LOC_EEC_OP_ERR",
	WCLocProtErr:       "WC_LOC_PROT_ERR",
	WCFlushErr:         "WC_WR_FLUSH_ERR",
	WCMWBindErr:        "WC_MW_BIND_ERR",
	WCBadRespErr:       "WC_BAD_RESP_ERR",
	WCLocAccessErr:     "WC_LOC_ACCESS_ERR",
	WCRemInvReqErr:     "WC_REM_INV_REQ_ERR",
	WCRemAccessErr:     "WC_REM_ACCESS_ERR",
	WCRemOpErr:         "WC_REM_OP_ERR",
	WCRetryExceeded:    "WC_RETRY_EXC_ERR",
	WCRNRRetryExceeded: "WC_RNR_RETRY_EXC_ERR",
	WCLocRDDViolErr:    "WC_LOC_RDD_VIOL_ERR",
	WCRemInvRDReqErr:   "WC_REM_INV_RD_REQ_ERR",
	WCRemAbortErr:      "WC_REM_ABORT_ERR",
	WCInvEECNErr:       "WC_INV_EECN_ERR",
	WCInvEECStateErr:   "WC_INV_EEC_STATE_ERR",
	WCFatalErr:         "WC_FATAL_ERR",
	WCRespTimeoutErr:   "WC_RESP_TIMEOUT_ERR",
	WCGeneralErr:       "WC_GENERAL_ERR",
	WCTMErr:            "WC_TM_ERR",
	WCTMRndvIncomplete: "WC_TM_RNDV_INCOMPLETE",
}}

// ofRD is the meaning of a status that the RD service alone has.
const ofRD = "of the RD service, which no device has"

// wcStatusMeaning names the failure and where to look, as far as this end can know.
var wcStatusMeaning = map[WCStatus]string{
	WCLocLenErr:        "the message is longer than the posted buffer",
	WCLocQPOpErr:       "the QP could not carry the work request out as posted",
	WCLocEECOpErr:      ofRD,
	WCLocProtErr:       "an SGE names memory that its lkey does not cover in this PD",
	WCFlushErr:         "the QP went to the error state before this work request was done; the first failed completion says why",
	WCMWBindErr:        "the memory window could not be bound",
	WCBadRespErr:       "the peer's response does not fit the request",
	WCLocAccessErr:     "local memory lacks the access right that the operation needs",
	WCRemInvReqErr:     "the peer found the request invalid: too long for its receive buffer, an operation its QP does not take (its access flags), of another path MTU than its own, or malformed; an asynchronous event there may say which",
	WCRemAccessErr:     "the peer refused access to its memory: check the rkey, the range, the MR's remote access flags and its QP's access flags",
	WCRemOpErr:         "the peer could not complete the operation for a cause of its own",
	WCRetryExceeded:    "the peer did not acknowledge in time, retries included: is it up, in RTR or RTS, reachable, and are QPN and GID its own?",
	WCRNRRetryExceeded: "the peer had no receive posted, retries included: post receives earlier or raise rnr_retry (7 retries without end)",
	WCLocRDDViolErr:    ofRD,
	WCRemInvRDReqErr:   ofRD,
	WCRemAbortErr:      "the peer has aborted the operation",
	WCInvEECNErr:       ofRD,
	WCInvEECStateErr:   ofRD,
	WCFatalErr:         "the device failed",
	WCRespTimeoutErr:   "no response in time",
	WCGeneralErr:       "the device names no cause: vendor_err may tell more",
	WCTMErr:            "tag matching failed",
	WCTMRndvIncomplete: "tag matching: a rendezvous is not complete",
}

// String returns the C library's name without IBV_, such as WC_RETRY_EXC_ERR.
func (s WCStatus) String() string { return wcStatusNames.name(s) }

// Error returns the name of the status and, where there is more to say, its meaning.
func (s WCStatus) Error() string {
	if m, ok := wcStatusMeaning[s]; ok {
		return s.String() + ": " + m
	}
	return s.String()
}

// WCOpcode is the kind of work request that completed (enum ibv_wc_opcode).
type WCOpcode uint8

// The completion opcodes (IBV_WC_*). Those of receives have WCRecv's bit set.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

var wcOpcodeNames = names[WCOpcode]{"WC", map[WCOpcode]string{
	WCSend: "WC_SEND", WCRDMAWrite: "WC_RDMA_WRITE", WCRDMARead: "WC_RDMA_READ",
	WCCompSwap: "WC_COMP_SWAP", WCFetchAdd: "WC_FETCH_ADD", WCBindMW: "WC_BIND_MW",
	WCLocalInv: "WC_LOCAL_INV", WCFlush: "WC_FLUSH", WCAtomicWrite: "WC_ATOMIC_WRITE", WCRecv: "WC_RECV", WCRecvRDMAWithImm: "WC_RECV_RDMA_WITH_IMM",
}}

// String returns the C library's name without IBV_, such as WC_RDMA_READ.
func (o WCOpcode) String() string { return wcOpcodeNames.name(o) }

// WCFlags qualify a completion (enum ibv_wc_flags).
type WCFlags uint8

// The completion flags (IBV_WC_*).
const (
	WCFlagGRH     WCFlags = 1 << 0 // UD: the first GRHSize bytes of the buffer hold a GRH
	WCFlagWithImm WCFlags = 1 << 1 // WC.Imm is the immediate data
	WCFlagWithInv WCFlags = 1 << 3 // WC.Imm is the R_Key that the peer invalidated
)

var wcFlagNames = []flagName{
	{uint64(WCFlagGRH), "WC_GRH"}, {uint64(WCFlagWithImm), "WC_WITH_IMM"}, {uint64(WCFlagWithInv), "WC_WITH_INV"},
}

// String joins the names of the set bits by "|".
func (f WCFlags) String() string { return flagNames(uint64(f), wcFlagNames) }

// WC is a work completion (struct ibv_wc). If Status is not WCSuccess, only ID, Status, QPN, QP,
// VendorErr, Cause and, where there is one, Timestamp hold.
type WC struct {
	ID      uint64 // wr_id: that of the work request
	Status  WCStatus
	Op      WCOpcode
	Flags   WCFlags
	SL      uint8  // sl: UD on InfiniBand: the service level that the datagram came with; on RoCE the header's type, as ConnectX has it
	ByteLen uint32 // byte_len: bytes received or read; not set for sends and writes
	Imm     uint32 // imm_data in host order, with WCFlagWithImm; invalidated_rkey with WCFlagWithInv
	QPN     QPN    // qp_num: the local QP
	SrcQPN  QPN    // src_qp: UD: the sender's QP

	VendorErr uint32 // vendor_err: the provider's own number for the failure
	QP        *QP    // the local QP itself, which C leaves to a map of the program's; it may be closed by now
	Cause     error  // the provider's own account of the failure, or nil

	// Timestamp is when the request was complete, if its CQ was made for that: see [CQAttr].Timestamps. Otherwise it is 0.
	Timestamp uint64 // ibv_wc_read_completion_ts, ibv_wc_read_completion_wallclock_ns

	// UD on InfiniBand; 0 on RoCE.
	SLID         uint16 // slid: the sender's LID
	PKeyIndex    uint16 // pkey_index: QP1 alone
	DLIDPathBits uint8  // dlid_path_bits: which of our port's LIDs it was sent to; not for multicast
}

// Err returns nil for WCSuccess, and a [*WCError] otherwise. errors.Is finds the status in it. Its
// text says which rule was broken and by which request, as far as this end can know.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{WC: *wc}
}

// WCError is the error of a failed completion.
type WCError struct{ WC WC }

func (e *WCError) Error() string {
	s := fmt.Sprintf("work request %#x on qp %v: %v", e.WC.ID, e.WC.QPN, e.WC.Status.Error())
	if e.WC.Cause != nil {
		s += " (" + e.WC.Cause.Error() + ")"
	}
	return s
}

// Unwrap returns the status and the provider's cause.
func (e *WCError) Unwrap() []error {
	if e.WC.Cause == nil {
		return []error{e.WC.Status}
	}
	return []error{e.WC.Status, e.WC.Cause}
}
