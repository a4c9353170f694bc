//go:build linux && (amd64 || arm64)

package native

// quirks are the workarounds of this package for a driver. docs/guide/cards.md lists all known differences of drivers from the
// verbs.
type quirks struct {
	flushLate bool // a receive that is posted in ERR is flushed by going to ERR once more
	someSGE   bool // a receive without an SGE is refused, and a READ without one takes that which its place had before
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

// least returns how many SGEs a work request needs. Such is one that brings bytes to this end.
func (q quirks) least(such bool) int {
	if q.someSGE && such {
		return 1
	}
	return 0
}
