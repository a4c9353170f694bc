// Package rnic is the software RNIC: a device whose RC QPs speak iWARP over TCP. It gives package iwarp's
// QPs their locks, their streams and their way to the program.
//
// Three drive a QP. A post writes on the caller's goroutine until the stream takes no more. A poll that
// finds nothing reads the bytes that have come for the QPs of its CQ, and writes the bytes that wait for
// room. And on Linux one goroutine of the device waits for all its sockets, for one-sided traffic and for
// programs that wait: see poller. A buffer is borrowed until the protocol has used the bytes in it. So an
// idle connection costs no goroutine and no buffer, and while a program polls busily nothing that comes
// wakes a thread.
//
// A stream that is no TCP socket, such as one with TLS, has a goroutine, a buffer and blocking reads. On other
// systems every stream has them.
package rnic
