package lab

import "strings"

// known is a case of the conformance suite that does not pass on a driver of Linux.
type known struct {
	outcome string // "fail", or "some" for a case that passes or fails
	cause   string // in the driver's source
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

// hurtOf are the cases that are left out, as a regular expression: to close a QP that has bound a window ends in a fault of the
// kernel, in rxe_destroy_qp, since rxe's windows hold their QPs.
var hurtOf = map[string]string{deviceRxe: "^mw/type 2: the QP goes$", deviceSiw: "^$"}

// stalls is how many times a case that has run out of time runs again, by driver. Siw leaves data unread now and then, any case's:
// its siw_qp_llp_data_ready gives up where it does not get the QP's lock, and nothing comes back to the data.
var stalls = map[string]int{deviceSiw: 3}

const notPromised = "it is not guaranteed"

// Why cases do not pass on rdma_rxe.
const (
	rxeSQE      = "rxe has no state SQE: a failed send takes a UC or UD QP to ERR"
	rxeCapacity = "rxe makes queues with room for 2^n-1 work requests, and does not tell; later ones tell, and free the place of a send that is done and not polled"
	rxeIOVA     = "the kernel takes an IOVA only that lies as far into a page as the memory does"
	rxeFlush    = "rxe flushes what a send queue has done and not completed, where a later work request fails"
	rxeLastWQE  = "rxe raises no LAST_WQE_REACHED"
	rxeDrain    = "rxe ends a draining, and sends what was posted in SQD, with the next work request alone"
	rxeGroup    = "rxe has the interface take frames for an IPv6 group; the host's IP joins by the connection manager alone"
	rxeBounds   = "rxe holds a request to the bounds of the region, and not to the window's"
	rxePlaces   = "rxe has FLUSH and ATOMIC WRITE from Linux 6.2 on"
)

var rxeKnown = map[string]known{
	"state/walk":                            {"some", rxeDrain, ""},
	"state/values out of range":             {"fail", "rxe takes a P_Key index beyond the table, and an MTU beyond the port's", ""},
	"rc/full queues":                        {"some", rxeCapacity, ""},
	"event/communication established":       {"fail", "rxe raises no COMM_EST", ""},
	"event/send queue drained":              {"some", rxeDrain, ""},
	"mr/zero based":                         {"some", rxeIOVA, ""},
	"mr/iova":                               {"some", rxeIOVA, ""},
	"uc/send queue error":                   {"fail", rxeSQE, ""},
	"ud/send queue error":                   {"fail", rxeSQE, ""},
	"ud/Q_Key":                              {"fail", "rxe does not put the QP's own Q_Key in the place of one whose top bit is set", ""},
	"ud/multicast":                          {"fail", rxeGroup, ""},
	"ud/multicast to many QPs":              {"fail", rxeGroup, ""},
	"srq/limit":                             {"fail", rxeLastWQE, "6.1"},
	"srq/last WQE":                          {"fail", rxeLastWQE, "6.1"},
	"srq/message too long":                  {"fail", rxeLastWQE, "6.1"},
	"mw/type 1: access and bounds":          {"fail", rxeBounds, ""},
	"mw/type 2: access and bounds":          {"fail", rxeBounds, ""},
	"mw/type 2: send with invalidate":       {"fail", "rxe completes the receive without the key that was invalidated", ""},
	"mw/type 2: send with a bad invalidate": {"fail", "rxe completes the receive with an error, and sends no NAK", ""},
	"mw/type 2: refused binds":              {"fail", "rxe takes the low 8 bits of the key that a bind names, and does not look at the others", ""},
	"cq/solicited":                          {"fail", "rxe does not take the flush of a receive for solicited", "6.12"},
	"ud/address handles":                    {"some", "rxe looks at the AH of a datagram when it sends it, which may be after the program has closed it", "6.12"},
	"mw/type 1: refused binds":              {"some", rxeFlush, "6.12"},
	"rc/error: bad lkey of a receive":       {"some", "rxe completes a receive that fails before its QP is in ERR", ""},
	"rc/error: message too long":            {"some", "rxe completes a receive that fails before its QP is in ERR", ""},
	"rc/error: bad lkey of a send":          {"some", rxeFlush, "6.12"},
	"mw/type 2: posted in a list":           {"some", rxeFlush, "6.12"},
	"rc/flush to a file":                    {"fail", "rxe registers memory for FLUSHes to storage where it is persistent memory alone", "6.12"},
}

// Why cases do not pass on siw.
const (
	siwImm    = "siw has no WRITE with immediate data"
	siwOneSGE = "siw reads into one SGE alone"
	siwOrder  = "siw completes a SEND before an earlier READ"
	siwStatus = "siw completes what a fault ends with WC_LOC_QP_OP_ERR or WC_GENERAL_ERR, or does not complete it, and a later SEND before it"
	siwEvents = "siw raises QP_FATAL, and no LAST_WQE_REACHED"
	siwSRQ    = "rdma-core has no query_srq for siw"
	siwIOVA   = "siw knows a region by the addresses of its memory alone, and the kernel takes few others"
	siwCQs    = "a process gets 144 pages for the rings of CQs and QPs on siw: the 145th CQ of pyverbs fails too"
)

// siwKnown are the cases that do not pass on siw. Some depend on who is quicker: a fault, or what was posted behind it.
var siwKnown = map[string]known{
	"rc/write with immediate":                    {"fail", siwImm, ""},
	"rc/inline":                                  {"fail", siwImm, ""},
	"rc/empty messages need no key":              {"fail", siwImm, ""},
	"rc/scatter and gather":                      {"fail", siwOneSGE, ""},
	"rc/signal all":                              {"some", siwOrder, ""},
	"rc/full queues":                             {"fail", "siw frees the place of a send when TCP has taken it, not when it is polled", ""},
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
	"cq/solicited":                               {"fail", "siw takes no receive for solicited", ""},
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
	"state/walk":                                 {"fail", "siw has no state RESET, and tells INIT", "6.12"},
	"cm/negotiation":                             {"fail", "siw swaps the two depths of READs when asked for them", ""},
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
