//go:build !linux || adverb_portable

package transport

// canLend says that no other process can map a region's memory here.
const canLend = false
