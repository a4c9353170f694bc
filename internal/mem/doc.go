// Package mem is the registered memory of a device: protection domains, memory regions, memory
// windows, and the keys that open them.
//
// A transport opens memory by a key, gets a [Span] of bytes that stay in place until it releases
// them, and copies. A region that is being deregistered opens no more, and its Close waits for the
// spans that are open.
//
//	remote request: PD.Open(key, va, n, access) -> Span -> Place, Fetch, CompareSwap, FetchAdd -> Release
//	scatter/gather list: PD.Gather, PD.Scatter
//
// The packets of a train use the same region, most often. A [Keeper] keeps the region in place from one packet to the
// next.
//
// The package knows neither device nor queue pair. Lookups and copies take no lock: the counts that
// keep memory in place are atomics. [PD], and the regions and windows that a PD makes, implement
// the provider interfaces of package verbs, so a device embeds a PD and has memory.
package mem
