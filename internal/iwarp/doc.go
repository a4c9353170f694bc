// Package iwarp is the protocol of one iWARP queue pair over a byte stream: DDP (RFC 5041) and RDMAP
// (RFC 5040, with the atomics and immediate data of RFC 7306), framed by MPA (package mpa).
//
// A [QP] is pure: it knows no clock, lock, goroutine or socket.
//
//	Post         a work request goes into the send queue
//	Fill, Wrote  what is to be written to the stream, straight from registered memory; how much of it was
//	Receive      bytes that came from the stream
//	Room, Filled where the next bytes belong in registered memory, so that they need no copy
//	Completions, Events, State, Failure
//	             what came of all that
//
// iWARP has no acknowledgements of its own: TCP has. So a SEND or WRITE is complete when the stream has
// taken its bytes, and says nothing of the peer. A fault that the peer finds later arrives as a
// Terminate message, and ends the connection. Only READs and atomics have answers. There is no retry
// and no RNR NAK: a SEND that finds no receive posted ends the connection.
package iwarp
