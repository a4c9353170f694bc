// Package ucma is the kernel's side of /dev/infiniband/rdma_cm, on the connection manager of this module: it carries
// out the commands that librdmacm writes, as rdma_ucm does in Linux, and hands out events.
//
//	program                       here                     rdmacm
//	command, by write        ->   File.Do            ->    ID
//	GET_EVENT                <-   queue of the File  <-    EventChannel
//	poll of the descriptor   <-   a byte for each event that waits
//
// A [File] is one opening of rdma_cm. A [Manager] is what the files of a program have in common: IDs, which go from
// file to file, and the devices that they use.
//
// The program's QPs are its own. The program makes them by uverbs, and takes them through their states with the
// attributes that INIT_QP_ATTR answers. CONNECT and ACCEPT name a QP by its number. So the IDs here have no QP, and the
// connecting end says by an ACCEPT without parameters that its QP is in service. An ID and a context of uverbs have the
// device in common, which the program knows by the node GUID.
//
// Errors and states are Linux's. These are the differences:
//
//   - Port spaces are those of rdmacm. IPoIB's is refused, and so are the addresses of AF_IB. Then librdmacm goes on with the
//     commands for IP addresses.
//   - A listener's backlog counts the requests that the program has not answered. Linux counts those that it has not read.
//   - A request whose peer has given up before the program has read it is not seen at all. Linux has it read, and its ACCEPT
//     fails.
//   - ECE is taken and not sent: no peer of this device has options to offer, and events say so.
//   - A peer's wish to disconnect is answered at once. Linux answers when the program disconnects, too.
//   - An ID that is bound already shares its port as it did then: REUSEADDR comes too late for it, and succeeds.
package ucma
