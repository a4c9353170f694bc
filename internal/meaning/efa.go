package meaning

import "github.com/adverb-rdma/adverb/verbs"

// efaStatuses are the statuses of AWS's EFA, which its library hands on as vendor_err, and the status of the completion that
// it makes of each.
var efaStatuses = []struct {
	code   int
	name   string
	status verbs.WCStatus
	brief  string
}{
	{1, "FLUSHED", verbs.WCFlushErr, "flushed, since the QP was destroyed"},
	{2, "LOCAL_ERROR_QP_INTERNAL_ERROR", verbs.WCLocQPOpErr, "the QP failed within the device"},
	{3, "LOCAL_ERROR_UNSUPPORTED_OP", verbs.WCLocQPOpErr, "an operation that the device does not have: READ and WRITE are on newer types of instances alone"},
	{4, "LOCAL_ERROR_INVALID_AH", verbs.WCLocQPOpErr, "the address handle is not valid"},
	{5, "LOCAL_ERROR_INVALID_LKEY", verbs.WCLocProtErr, "an lkey that names no region, or not this memory"},
	{6, "LOCAL_ERROR_BAD_LENGTH", verbs.WCLocLenErr, "the message is too long"},
	{7, "REMOTE_ERROR_BAD_ADDRESS", verbs.WCRemAccessErr, "an rkey that names no region of the peer, or not this memory"},
	{8, "REMOTE_ERROR_ABORT", verbs.WCRemAbortErr, "the peer has reset the connection"},
	{9, "REMOTE_ERROR_BAD_DEST_QPN", verbs.WCRemInvRDReqErr, "the peer has no such QP, or it is in ERR: mostly its process has ended"},
	{10, "REMOTE_ERROR_RNR", verbs.WCRNRRetryExceeded, "the peer had no receive posted"},
	{11, "REMOTE_ERROR_BAD_LENGTH", verbs.WCRemInvReqErr, "the message is longer than the peer's receive"},
	{12, "REMOTE_ERROR_BAD_STATUS", verbs.WCBadRespErr, "the peer answered with a status that is not known"},
	{13, "LOCAL_ERROR_UNRESP_REMOTE", verbs.WCRespTimeoutErr, "the peer does not answer any more: its process or its instance has gone"},
	{14, "REMOTE_ERROR_UNKNOWN_PEER", verbs.WCRemOpErr, "the peer has no address handle for this end, which a READ or a WRITE needs"},
	{15, "LOCAL_ERROR_UNREACH_REMOTE", verbs.WCRespTimeoutErr, "the peer has never answered: security groups must let all traffic of the group in and out"},
	{18, "REMOTE_ERROR_FEATURE_MISMATCH", verbs.WCRemInvReqErr, "the two ends do not have the same features: types of instances, versions"},
}

func efaEntries() (list []Entry) {
	for _, s := range efaStatuses {
		e := statusEntry(s.status)
		list = append(list, Entry{
			Number: s.code, Name: "EFA_IO_COMP_STATUS_" + s.name, Brief: "EFA: " + s.brief, Follows: e.Follows, See: []string{e.Words()},
			More: "The completion has " + e.Words() + ", and this number as vendor_err.",
		})
	}
	return list
}
