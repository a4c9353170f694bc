// Package ladder draws captures of RDMA traffic as ladders: a line for each end, and between the lines an arrow for each
// packet, in the order of time. A [Collector] reads captures, of which each may show one end, both, or each packet twice.
// [Collector.Ladder] follows the queue pairs, and marks what was lost, repeated and refused, and why. A ladder is printed
// as text, as an SVG picture, as a page for a browser or as a trace for Perfetto, which depend on the captures alone.
//
//	read     captures to packets, bounded
//	pair     the two records of a packet that was captured at both ends
//	ends     who sent to whom, also between the QPs of one address
//	follow   the sequence of each QP: gaps, repeats and their causes
//	rows     the packets that were asked for; runs of equal packets become one row
//	words    a packet in words
//	iwarp    the MPA frames and FPDUs that package diagnose finds in TCP's streams
//	events   what software devices have recorded beside packets
//	text, svg, perfetto
//	html     the page; pack: its columns; page/: its script and style
package ladder
