// Package diagnose says in words what happened in a capture of RDMA packets.
//
// An [Analyzer] is given the frames of one capture in order. It follows connections from REQ to DREQ and queue pairs
// that it finds midway: which PSNs were sent, repeated, missed, acknowledged and refused. Of iWARP it puts the TCP
// streams together. Its result is a list of [Finding]s by the rules in rules*.go, each with a certainty, frames, a
// display filter for Wireshark and a remedy.
//
// State is bounded, however long a capture is: each kind of record has a limit, and the oldest make room. While a
// capture goes on, [Analyzer.Tick] judges what has been quiet, and [Analyzer.News] has what has become certain.
package diagnose
