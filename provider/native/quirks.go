//go:build linux && (amd64 || arm64)

package native

// quirks are the workarounds of this package for a driver. docs/guide/cards.md lists all known differences of drivers from the
// verbs.
type quirks struct {
	flushLate bool // a receive that is posted in ERR is flushed by going to ERR once more
	someSGE   bool // a receive without bytes is refused, unless it has an SGE
	someWRs   bool // a QP without places for sends, or for receives, cannot be made
	oneSGE    bool // a READ goes into the first of its SGEs, and what the others should have had is lost
	noState   bool // a query of a QP leaves out its state
}

// These are the vendor_id of software devices of Linux.
const (
	vendorRxe = 0xffffff
	vendorSiw = 0x626d74
)

// quirksOf returns the quirks of a vendor's devices.
func quirksOf(vendor uint32) quirks {
	siw := vendor == vendorSiw
	return quirks{flushLate: vendor == vendorRxe, someSGE: siw, someWRs: siw, oneSGE: siw, noState: siw}
}

// leastRecvSGEs returns how many SGEs a receive needs.
func (q quirks) leastRecvSGEs() int {
	if q.someSGE {
		return 1
	}
	return 0
}
