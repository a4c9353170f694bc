// Package rdmaio lets Go programs read and write a peer's memory as [io.ReaderAt] and [io.WriterAt], and call
// procedures with bulk data.
//
// A [Requester] issues READs, WRITEs and atomics on a QP for any number of goroutines. Each call waits
// for its own completion, takes a context, and may be given up at any time: the memory that the device
// still uses stays with the requester until the device is done.
//
//	r, err := rdmaio.NewRequester(conn.QP(), nil)
//	err = r.Read(ctx, buf, remote)
//
// A [Region] is memory of the peer, with the methods ReadAt and WriteAt. The memory's owner makes a [Span] of
// the memory, and sends the Span, which is 20 bytes, to the peer:
//
//	peer := r.Region(span)
//	io.Copy(file, io.NewSectionReader(peer, 0, peer.Size()))
//
// A [Client] calls the methods of a [Server]. Arguments and answers are messages of some kilobytes. Larger data
// does not travel in messages: the client lends memory to the call, and the server reads the lent memory as
// [Call.In] and writes the lent memory as [Call.Out]:
//
//	out, err := client.Bulk().Get(ctx, 10<<20)
//	answer, err := client.Call(ctx, "load", []byte("name"), rdmaio.Bulk{Out: out})
//	use(out.Bytes())
//	out.Release()
//
// # Calls that are given up
//
// If the context of a call ends, the call returns at once. The device, or the server, may still be at work
// on the call's memory. So buffers that were handed to a call which has failed belong to this package: the
// package releases these buffers when nobody can touch the buffers any more. Buffers of calls that went well
// are the caller's as before. The slices that Read, Write and the methods of Region take are copied, and
// always free again.
//
// # Trust
//
// A server that knows a key can reach all of the client's pool of bulk memory, and no other memory. A client
// reaches none of the server's. Client and server do not trust each other's messages: a peer that breaks the
// protocol ends the connection. The owner of a region may change the region while a peer reads the region:
// docs/guide/memory.md says what READ promises in this case.
package rdmaio
