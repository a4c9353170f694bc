// Package rsocket is net.Conn and net.Listener over RDMA. Programs that talk through package net run on
// it unchanged: examples has net/http with crypto/tls and HTTP/2, gRPC, and a Redis client and server.
//
//	l, err := rsocket.Listen("rsocket", ":7471")
//	http.Serve(l, handler)
//
//	client := &http.Client{Transport: &http.Transport{DialContext: rsocket.DialContext}}
//
// The program imports a provider of devices too, such as provider/soft. Connections are made by the
// connection manager (package rdmacm), so addresses are IP addresses and ports. On the wire the package
// speaks the protocol of librdmacm's rsockets (rsocket.h), over RoCE and over iWARP. The other end may be a C
// program that uses them. The lab shows it with rstream, riostream and rcopy of rdma-core.
//
// # Semantics
//
// They are those of package net's TCP connections: deadlines, CloseRead and CloseWrite, io.EOF after
// the peer's end, errors that are *net.OpError. errors.Is finds in them:
//
//   - os.ErrDeadlineExceeded, with Timeout true: a deadline has passed.
//   - net.ErrClosed: this end has called Close.
//   - syscall.EPIPE, from Write: the peer has called Close, or this end CloseWrite.
//   - syscall.ECONNRESET: the peer has called Close and has not read all that was sent, or SetLinger(0) before,
//     its program has ended without Close, or it breaks the protocol. The text tells the last from the others.
//     Bytes that the peer has written before are read first.
//   - syscall.ETIMEDOUT, with Timeout true: the peer does not answer, when dialing or later.
//   - syscall.ECONNREFUSED, syscall.EADDRINUSE and others, from Dial and Listen: see package rdmacm.
//   - syscall.ENOMEM, syscall.EMFILE and their like, from Accept, with Temporary true: a limit of the host left no room
//     for the connection of a peer. The text names the limit, and the peer's Dial says that this end lacks resources.
//
// A test makes the same calls of both packages, and compares the results. Two things stay different:
//
//   - A connection that has failed keeps its error. Each call that follows returns it, where one of TCP returns
//     it once, and then io.EOF from Read and syscall.EPIPE from Write.
//   - A Write to a peer that has called Close fails at once, with syscall.EPIPE, even with no bytes. TCP takes
//     the first one, and loses it.
//
// There is no file descriptor, so a Conn is no syscall.Conn. Nor are there out-of-band data.
//
// # How it works
//
// Each end has a ring of registered memory that the peer fills by RDMA WRITE with immediate data (over iWARP by a WRITE
// and a SEND), and tells the peer which half of it is free again. Write copies into a send ring, and the device does the
// rest. Within a host Write copies straight into the peer's ring: see verbs.QP.TryWrite. Read copies out of the receive
// ring. WriteTo, which io.Copy uses, has the other side write from that ring, and so saves a copy. ReadFrom holds no
// more than a piece of its source, and nothing of the connection while its source has nothing to read. A source that
// fills long pieces reads straight into the send ring, by UDP.
//
// WriteAt writes into memory that the peer has mapped by Map, beside the stream (riomap, riowrite).
//
// With Config.Security the packets are authenticated and encrypted. No C program can be at the other end then.
//
// # What a connection holds
//
// One QP, one CQ and two memory regions; no goroutine and no timer, unless a deadline is set. A call that waits takes the
// completions itself, and sleeps by the CQ's event. So idle connections cost no CPU but for the keep-alive: a packet and
// its acknowledgement every 15 s.
//
// An end of an idle connection takes 48 KiB of Go's heap at most, some 11 KiB in the kernel, and those pages of its rings
// that data have been in: some 60 KiB in all, in a control group as well. Go keeps up to as much heap again until it
// collects. The most that an end takes is by Config: both rings, 2 MiB each by default, and the queues, 0.2 MiB for
// DefaultDepth. Pages and queues that were in use once stay until Close. On Linux each region takes a file descriptor while
// the process has less than half of those in use that RLIMIT_NOFILE allows.
//
// A Listener has a goroutine, and one for each connection that is being made or waits for its turn.
//
// While a program calls neither Read nor Write, its end takes no completions. The peer goes on until
// the ring is full, and so with package net.
package rsocket
