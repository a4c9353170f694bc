// Package rnic is the software RNIC: a device whose RC QPs speak iWARP over TCP. It gives package iwarp's
// QPs their locks, their streams and their way to the program.
//
// Who drives a QP: a post writes on the caller's goroutine until the stream takes no more. A poll that
// finds nothing reads what has come for the QPs of its CQ. And for each connected QP one goroutine is
// parked in Go's network poller, for one-sided traffic and for programs that wait. It has no buffer: on
// Linux the poller calls back when bytes are there, and a buffer is borrowed until they are used. So an
// idle connection costs a parked goroutine of a few KiB. A set of descriptors of our own, read by a few
// goroutines, would save that, and lose what the poller is good at: no wakeup while somebody reads anyway.
// Only while a stream takes no more does a second goroutine wait for that.
//
// A stream that is no TCP socket, such as one with TLS, has a buffer and blocking reads.
package rnic
