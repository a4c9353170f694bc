//go:build linux && (amd64 || arm64)

package native

// quirk is where a driver differs from the verbs.
type quirk struct {
	driver   string
	vendor   uint32 // vendor_id of the devices
	versions string
	effect   string
	remedy   string
	sets     quirks // the workaround of this package
}

// quirks are the workarounds of this package for a driver.
type quirks struct {
	flushLate bool // a receive that is posted in ERR is flushed by going to ERR once more
}

// vendor_id of software devices.
const (
	vendorRxe = 0xffffff
	vendorSiw = 0x626d74
)

// driverQuirks are those that are known. docs/guide/cards.md tells users of them.
var driverQuirks = []quirk{
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a receive that is posted in ERR is never flushed", "the QP is told to go to ERR once more", quirks{flushLate: true}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "WC_LOC_QP_OP_ERR or WC_REM_OP_ERR where the specification has WC_LOC_LEN_ERR, WC_LOC_PROT_ERR or WC_REM_INV_REQ_ERR", "none: the status is passed on", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a P_Key index beyond the table and an MTU beyond the port's are taken", "none", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "queues are longer than QP.Query says", "none: the driver does not tell", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "EINVAL closing a region with a bound window", "ErrBusy", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "COMM_EST and QP_LAST_WQE_REACHED are never raised", "none: wait for the connection manager's event, and for the flushed receives", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a draining ends, and a send that was posted in SQD goes out, with the next work request alone", "none", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a request by a window is held to the bounds of the region alone", "none: the peer is to be trusted with the region", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a receive does not tell which key a SEND has invalidated", "none: the program knows which it has given", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a QP that has bound a window of type 2 cannot be closed before the window: the kernel faults", "none: close the window first", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "the QP's own Q_Key does not take the place of one whose top bit is set", "none: name the Q_Key", quirks{}},
	{"rdma_rxe", vendorRxe, "Linux 6.1", "a QP that is attached to a group gets nothing of it unless the host has joined by IP", "none: join by rdmacm", quirks{}},
	{"all on Ethernet", 0, "all", "WC_GRH on the receives of connected QPs", "the flag is taken off", quirks{}},
	{"all", 0, "all", "an IOVA must lie as far into a page as the memory does", "the error says so", quirks{}},
}

// quirksOf returns the quirks of the devices of a vendor.
func quirksOf(vendor uint32) (all quirks) {
	for _, q := range driverQuirks {
		if q.vendor == vendor {
			all.flushLate = all.flushLate || q.sets.flushLate
		}
	}
	return all
}
