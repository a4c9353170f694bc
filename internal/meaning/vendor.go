package meaning

import "github.com/adverb-rdma/adverb/verbs"

// Vendor codes of mlx5 are not documented. These pairs of a status and a code stand in public reports of failures, again and
// again with the same status, so that a code is at least a name for a way to fail. Codes of other drivers are numbers of
// their own.

const undocumented = "The manufacturer does not document it: what is said here is read off public reports, in which it always came with this status."

func vendorEntries() []Entry {
	list := []Entry{
		{Number: 0x51, Brief: "mlx5, with status 4 of a requester: memory of a send work request could not be read", See: []string{"status 4"},
			Causes: []string{"the lkey or the range of an SGE is wrong, or its region was closed", "GPU memory that the card cannot reach: nvidia-peermem, dma-buf, MMIO and IOMMU settings of the host"}},
		{Number: 0x52, Brief: "mlx5, with status 4 of a requester: an SGE that its lkey does not cover", See: []string{"status 4"},
			Causes: []string{"the lkey or the range of an SGE is wrong, or its region was closed"}},
		{Number: 0x68, Brief: "mlx5, with status 1 of a responder: the message is longer than the receive", See: []string{"status 1", "status 9"},
			Causes: []string{"a receive that is shorter than the sender's message"}},
		{Number: 0x78, Brief: "mlx5, with status 6 in a kernel: a fast registration or a local invalidation failed", See: []string{"status 6"},
			Causes: []string{"a region in the wrong state, or a key that is not its own: often after another failure of the same QP"}},
		{Number: 0x81, Brief: "mlx5, with status 12: the peer did not acknowledge, retries included", See: []string{"status 12"},
			Causes: []string{"those of status 12"}, Checks: []string{"those of status 12"}},
		{Number: 0x88, Brief: "mlx5, with status 10: the peer refused access to its memory", See: []string{"status 10"},
			Causes: []string{"those of status 10: a wrong or stale rkey, a range outside the region, a missing access flag, a closed region"}, Checks: []string{"those of status 10"}},
		{Number: 0x89, Brief: "mlx5, with status 11: the peer could not carry the request out", See: []string{"status 11"},
			Causes: []string{"the peer's memory cannot be reached by its card, or the peer's receive names memory that is not its own"}, Checks: []string{"the peer's own completion: it may have status 4"}},
		{Number: 0x8a, Brief: "mlx5, with status 9: the peer found the request invalid", See: []string{"status 9"},
			Causes: []string{"those of status 9: message longer than the receive, operation not allowed by the QP, too many READs at a time"}, Checks: []string{"those of status 9"}},
		{Number: 0xf4, Brief: "mlx5, with status 5: flushed", Follows: true, See: []string{"status 5"}},
		{Number: 0xf5, Brief: "mlx5, with status 5: a send work request was flushed", Follows: true, See: []string{"status 5"}},
		{Number: 0xf9, Brief: "mlx5, with status 5: a receive was flushed", Follows: true, See: []string{"status 5"}},
	}
	for i := range list {
		list[i].More = undocumented
	}
	return list
}

// syndromes are the syndromes of error CQEs of mlx5, and the statuses that libmlx5 makes of them.
var syndromes = []struct {
	number int
	status verbs.WCStatus
}{
	{0x01, verbs.WCLocLenErr}, {0x02, verbs.WCLocQPOpErr}, {0x04, verbs.WCLocProtErr}, {0x05, verbs.WCFlushErr},
	{0x06, verbs.WCMWBindErr}, {0x10, verbs.WCBadRespErr}, {0x11, verbs.WCLocAccessErr}, {0x12, verbs.WCRemInvReqErr},
	{0x13, verbs.WCRemAccessErr}, {0x14, verbs.WCRemOpErr}, {0x15, verbs.WCRetryExceeded}, {0x16, verbs.WCRNRRetryExceeded},
	{0x22, verbs.WCRemAbortErr},
}

// statusOfSyndrome returns the status that libmlx5 makes of a syndrome.
func statusOfSyndrome(n int) (verbs.WCStatus, bool) {
	for _, s := range syndromes {
		if s.number == n {
			return s.status, true
		}
	}
	return 0, false
}

func syndromeEntries() (list []Entry) {
	for _, s := range syndromes {
		st := statusEntry(s.status)
		list = append(list, Entry{
			Number: s.number, Brief: "mlx5: status " + st.Digits() + ", " + st.Name + ": " + st.Brief,
			Follows: st.Follows, See: []string{st.Words()},
			More: "The driver prints it as syndrome, UCX as synd. In a dump of an error CQE it is the eighth byte of the last 16, and vendor_err the seventh.",
		})
	}
	return list
}

// wqeOpcodes are the opcodes of mlx5's send work requests, as an error CQE has them.
var wqeOpcodes = map[byte]string{
	0x00: "NOP", 0x01: "SEND_WITH_INV", 0x08: "RDMA_WRITE", 0x09: "RDMA_WRITE_WITH_IMM", 0x0a: "SEND", 0x0b: "SEND_WITH_IMM",
	0x10: "RDMA_READ", 0x11: "ATOMIC_CMP_AND_SWP", 0x12: "ATOMIC_FETCH_AND_ADD", 0x25: "UMR",
}
