// Package ucma is the kernel's side of /dev/infiniband/rdma_cm, on the connection manager of this module: it carries
// out the commands that librdmacm writes, as rdma_ucm does in Linux, and hands out events.
//
//	program                       here                     rdmacm
//	command, by write        ->   File.Do            ->    ID
//	GET_EVENT                <-   queue of the File  <-    EventChannel
//	poll of the descriptor   <-   a byte for each event that waits
//
// A [File] is one opening of rdma_cm. A [Manager] is the common part of the files of a program: IDs, which go from
// file to file, and the devices that they use.
//
// Whoever serves the program's calls gives a [Caller] with each: how to read and write the program's memory, and which
// file is behind a descriptor. A GET_EVENT that finds nothing fails with [ErrWouldBlock]: its answer is EAGAIN under
// O_NONBLOCK, and otherwise waits for [File.Readable]. The program gets the reading end of a pipe as its descriptor, so
// that poll needs no call. All that the program wrote is input.
//
// The program's QPs are its own. The program makes them by uverbs, and takes them through their states with the
// attributes that INIT_QP_ATTR answers. CONNECT and ACCEPT name a QP by its number. So the IDs here have no QP, and the
// connecting end says by an ACCEPT without parameters that its QP is in service. An ID and a context of uverbs have the
// device in common, which the program knows by the node GUID.
//
// Errors and states are Linux's. These are the differences:
//
//   - Port spaces are those of rdmacm. IPoIB's is refused.
//   - Addresses of AF_IB lead somewhere on RoCE, too. A path of the program's gives its MTU, traffic class and lifetime.
//   - Ports below 1024 need no privilege. An address that no device has is ENODEV, also where the host does not have it.
//   - A listener's backlog counts the requests that the program has not answered. Linux counts those that it has not
//     read.
//   - A request whose peer has given up before the program has read it is not seen at all. Linux has it read, and its
//     ACCEPT fails.
//   - ECE is taken and not sent: no peer of this device has options to offer, and events say so. A peer that is rejected
//     for its options hears that the program has said no.
//   - A peer's wish to disconnect is answered at once. Linux answers when the program disconnects, too.
//   - REUSEADDR is for the port that an ID gets afterwards. Linux has it share the one that it has, too.
//   - An ID joins a group once: EBUSY.
//   - An ID that looks for its peer gets ENOMEM while the program leaves many events unread.
package ucma
