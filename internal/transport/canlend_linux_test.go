//go:build !adverb_portable

package transport

// canLend says that another process can map a region's memory.
const canLend = true
