package lab

import "strings"

// known is a case of the conformance suite that does not pass on a driver of Linux.
type known struct {
	outcome string // "fail", or "some" for a case that passes or fails
	cause   string // in the driver's source; docs/guide/cards.md has it in the same words, with a remedy
	kernel  string // the version that it is known of, such as "6.1"; "" for all that the lab has
}

// of reports whether a kernel is one that the case is known of. release is as uname tells it.
func (k known) of(release string) bool { return isOf(release, k.kernel) }

// of reports whether a kernel lacks the capability.
func (l lack) of(release string) bool { return isOf(release, l.kernel) }

// isOf reports whether a release of Linux is of a version, which is "" for all.
func isOf(release, version string) bool {
	return version == "" || strings.HasPrefix(release, version+".")
}

// knownOf are the cases that do not pass, by driver.
var knownOf = map[string]map[string]known{deviceRxe: rxeKnown, deviceSiw: siwKnown}

// hurt are the cases that are left out, since they harm the kernel.
type hurt struct {
	cases string // a regular expression
	cause string // as in known; "" if there is none
}

// hurtOf are the cases that are left out, by driver. Rxe's windows hold their QPs, so to close a QP that has bound one ends in a
// fault of the kernel, in rxe_destroy_qp, or, on later ones, is given up after 50 seconds, and the memory is freed all the same.
var hurtOf = map[string]hurt{
	deviceRxe: {"^mw/type 2: the QP goes$", "a QP that is closed before a window of type 2 that it has bound harms the kernel"},
	deviceSiw: {"^$", ""},
}

// stall is how a driver overlooks data now and then, any case's.
type stall struct {
	times int // so often a case that has run out of time runs again
	cause string
}

// stallOf is by driver. Siw's siw_qp_llp_data_ready gives up where it does not get the QP's lock, and nothing comes back to the
// data.
var stallOf = map[string]stall{deviceSiw: {3, "data that have arrived stay unread now and then, until more arrive"}}

const notPromised = "it is not guaranteed"

// Why cases do not pass on rdma_rxe. Of groups: the driver has the interface take frames of an IPv6 group, and the host's IP stack
// drops what it is no member of; the connection manager joins.
const (
	rxeSQE      = "there is no state SQE: a failed send takes a UC or UD QP to ERR"
	rxeCapacity = "queues hold more than QP.Query says: 2^n-1 work requests, and on Linux 6.12 the place of a send is free before the send is polled"
	rxeIOVA     = "an IOVA is refused unless it lies as far into a page as the memory does"
	rxeFlush    = "sends that are done and not completed are flushed where a later one fails"
	rxeLastWQE  = "QP_LAST_WQE_REACHED is never raised"
	rxeDrain    = "in SQD and behind it, draining ends, and what was posted meanwhile is sent, with the next work request alone"
	rxeGroup    = "a group that a QP is attached to brings nothing unless the host has joined it"
	rxeBounds   = "the bounds of a window are those of its region"
	rxeEarly    = "a receive that fails completes before its QP is in ERR"
	rxePlaces   = "rxe has FLUSH and ATOMIC WRITE from Linux 6.2 on"
)

var rxeKnown = map[string]known{
	"state/walk":                            {"some", rxeDrain, ""},
	"state/values out of range":             {"fail", "a P_Key index beyond the table, and an MTU beyond the port's, are taken", ""},
	"rc/full queues":                        {"some", rxeCapacity, ""},
	"event/communication established":       {"fail", "COMM_EST is never raised", ""},
	"event/send queue drained":              {"some", rxeDrain, ""},
	"mr/zero based":                         {"some", rxeIOVA, ""},
	"mr/iova":                               {"some", rxeIOVA, ""},
	"uc/send queue error":                   {"fail", rxeSQE, ""},
	"ud/send queue error":                   {"fail", rxeSQE, ""},
	"ud/Q_Key":                              {"fail", "the QP's own Q_Key does not take the place of one whose top bit is set", ""},
	"ud/multicast":                          {"fail", rxeGroup, ""},
	"ud/multicast to many QPs":              {"fail", rxeGroup, ""},
	"srq/last WQE":                          {"fail", rxeLastWQE, "6.1"},
	"srq/message too long":                  {"fail", rxeLastWQE, "6.1"},
	"mw/type 1: access and bounds":          {"fail", rxeBounds, ""},
	"mw/type 2: access and bounds":          {"fail", rxeBounds, ""},
	"mw/type 2: send with invalidate":       {"fail", "a receive does not tell which key a SEND has invalidated", ""},
	"mw/type 2: send with a bad invalidate": {"fail", "a SEND that invalidates a wrong key fails the receive, and is answered by no NAK", ""},
	"mw/type 2: refused binds":              {"fail", "of the key that a bind names, only the low 8 bits count", ""},
	"cq/solicited":                          {"fail", "a receive that is flushed raises no event of a CQ that is armed for solicited ones", "6.12"},
	"ud/address handles":                    {"some", "an AH is looked up when its datagram is sent, which may be after it was closed: the QP fails", "6.12"},
	"mw/type 1: refused binds":              {"some", rxeFlush, "6.12"},
	"rc/error: bad lkey of a receive":       {"some", rxeEarly, ""},
	"rc/error: message too long":            {"some", rxeEarly, ""},
	"rc/error: bad lkey of a send":          {"some", rxeFlush, "6.12"},
	"mw/type 2: posted in a list":           {"some", rxeFlush, "6.12"},
	"rc/flush to a file":                    {"fail", "memory for FLUSHes to storage must be persistent memory", "6.12"},
}

// Why cases do not pass on siw. The 145th CQ of pyverbs fails too.
const (
	siwImm    = "there is no WRITE with immediate data"
	siwOneSGE = "a READ fills the first of its SGEs alone, and the rest is lost"
	siwOrder  = "a SEND completes before an earlier READ"
	siwStatus = "what a fault ends has WC_LOC_QP_OP_ERR or WC_GENERAL_ERR, or never completes, and a later SEND completes before it"
	siwEvents = "QP_FATAL is raised, and QP_LAST_WQE_REACHED never"
	siwSRQ    = "rdma-core has no query of an SRQ"
	siwIOVA   = "a region is known by the addresses of its memory alone: no IOVA, and no zero-based region"
	siwCQs    = "a process gets 144 pages for the rings of its CQs, QPs and SRQs"
)

// siwKnown are the cases that do not pass on siw. Some depend on who is quicker: a fault, or what was posted behind it.
var siwKnown = map[string]known{
	"rc/write with immediate":                    {"fail", siwImm, ""},
	"rc/inline":                                  {"fail", siwImm, ""},
	"rc/empty messages need no key":              {"fail", siwImm, ""},
	"rc/scatter and gather":                      {"fail", siwOneSGE, ""},
	"rc/signal all":                              {"some", siwOrder, ""},
	"rc/full queues":                             {"fail", "the place of a send is free when TCP has taken it, and not when it is polled", ""},
	"rc/error: write with a bad rkey":            {"fail", siwStatus, ""},
	"rc/error: write beyond the region":          {"fail", siwStatus, ""},
	"rc/error: write before the region":          {"fail", siwStatus, ""},
	"rc/error: read beyond the region":           {"fail", siwStatus, ""},
	"rc/error: write to a region without access": {"fail", siwStatus, ""},
	"rc/error: read of a region without access":  {"fail", siwStatus, ""},
	"rc/error: write to a QP without access":     {"fail", siwStatus, ""},
	"rc/error: read by a QP without access":      {"fail", siwStatus, ""},
	"rc/error: message too long":                 {"some", siwStatus, ""},
	"rc/error: bad lkey of a send":               {"fail", siwStatus, ""},
	"rc/error: bad lkey of a receive":            {"some", siwStatus, ""},
	"cq/solicited":                               {"fail", "a CQ that is armed for solicited completions raises no event for a receive", ""},
	"mr/allocated":                               {"some", siwStatus, ""},
	"mr/registered":                              {"some", siwStatus, ""},
	"mr/zero based":                              {"fail", siwIOVA, ""},
	"mr/iova":                                    {"fail", siwIOVA, ""},
	"mr/overlapping":                             {"some", siwStatus, ""},
	"mr/close in flight":                         {"some", siwStatus, ""},
	"mr/rereg keeps addresses":                   {"fail", siwIOVA, ""},
	"srq/limit":                                  {"fail", siwSRQ, ""},
	"srq/attributes":                             {"fail", siwSRQ, ""},
	"srq/last WQE":                               {"fail", siwEvents, ""},
	"srq/message too long":                       {"fail", siwEvents, ""},
	"rc/error: write to a region of another PD":  {"some", siwStatus, ""},
	"state/walk":                                 {"fail", "a QP in RESET says that it is in INIT", "6.12"},
	"cm/negotiation":                             {"fail", "a query of a QP swaps MaxRDAtomic and MaxDestRDAtomic", ""},
	"cm/many at a time":                          {"fail", siwCQs, ""},
}

// lack is a capability of the conformance suite that a driver has not.
type lack struct {
	why    string
	kernel string // as in known
}

// lacksOf are the capabilities that a driver has not, by driver. Cases that need one are skipped.
var lacksOf = map[string]map[string]lack{
	deviceRxe: {
		"LastWordLast": {notPromised, ""}, "ExactEvents": {notPromised, ""}, "OverrunStatus": {notPromised, ""},
		"Rereg": {"rdma-core has no rereg_mr for rxe", ""}, "Timestamps": {"rxe has no clock", ""}, "XRC": {"rxe has none", ""},
		"AtomicWrites": {rxePlaces, "6.1"}, "FlushGlobal": {rxePlaces, "6.1"}, "FlushPersistent": {rxePlaces, "6.1"},
	},
	deviceSiw: {
		"LastWordLast": {notPromised, ""}, "ExactEvents": {notPromised, ""}, "OverrunStatus": {notPromised, ""},
		"Rereg": {"rdma-core has no rereg_mr for siw", ""}, "Timestamps": {"siw has no clock", ""}, "XRC": {"siw has none", ""},
		"AtomicWrites": {"siw has none", ""}, "FlushGlobal": {"siw has none", ""}, "FlushPersistent": {"siw has none", ""},
		"ByHand": {"iWARP's connections belong to the connection manager", ""}, "UC": {"iWARP has RC alone", ""}, "UD": {"iWARP has RC alone", ""},
		"SendImm": {"iWARP has no SEND with immediate data", ""}, "RNR": {"iWARP has no RNR NAK", ""}, "SQD": {"iWARP has no such state", ""},
		"Atomics": {"siw has none", ""}, "MWType1": {"siw has none", ""}, "MWType2": {"siw has none", ""}, "Multicast": {"iWARP has none", ""},
	},
}
