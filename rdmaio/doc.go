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
// A [Region] is memory of the peer, with the methods ReadAt and WriteAt. Its owner makes a [Span] of it,
// and sends that to the peer, which is 20 bytes:
//
//	peer := r.Region(span)
//	io.Copy(file, io.NewSectionReader(peer, 0, peer.Size()))
//
// A [Client] calls the methods of a [Server]. Arguments and answers are messages of some kilobytes. What is
// larger does not travel in them: the client lends memory to the call, and the server reads [Call.In] of it
// and writes [Call.Out]:
//
//	out, err := client.Bulk().Get(ctx, 10<<20)
//	answer, err := client.Call(ctx, "load", []byte("name"), rdmaio.Bulk{Out: out})
//	use(out.Bytes())
//	out.Release()
//
// # Calls that are given up
//
// If the context of a call ends, the call returns at once. The device, or the server, may still be at work
// on its memory. So buffers that were handed to a call which has failed belong to this package: it
// releases them when nobody can touch them any more. Buffers of calls that went well are the caller's as
// before. The slices that Read, Write and the methods of Region take are copied, and always free again.
//
// # Trust
//
// A server that knows a key can reach all of the client's pool of bulk memory, and no other memory. A client
// reaches none of the server's. Neither believes what the other says: a peer that breaks the protocol
// ends the connection. The owner of a region may change it while it is read: docs/guide/memory.md says
// what READ promises then.
package rdmaio
