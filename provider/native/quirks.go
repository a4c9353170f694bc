//go:build linux && (amd64 || arm64)

package native

// quirks are the workarounds of this package for a driver. docs/guide/cards.md lists all known differences of drivers from the
// verbs.
type quirks struct {
	flushLate bool // a receive that is posted in ERR is flushed by going to ERR once more
}

// vendorRxe is the vendor_id of rdma_rxe.
const vendorRxe = 0xffffff

// quirksOf returns the quirks of a vendor's devices.
func quirksOf(vendor uint32) quirks { return quirks{flushLate: vendor == vendorRxe} }
