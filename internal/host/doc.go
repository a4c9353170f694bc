// Package host lets several processes of one host use the same IP address at the same time. RoCEv2
// has one UDP port, so without help only one process could. It needs no daemon, no owner among the
// processes and no privileges.
//
// QPNs are cut into blocks of 4096. A process claims a block by binding an abstract unix socket
// whose name contains the block's number. The kernel makes the claim exclusive within the network
// namespace, and undoes it when the process ends. Each process has its own UDP socket on port 4791
// of each address that it uses. A BPF program on these sockets picks the receiver of each datagram:
// the process that has claimed the block of the destination QPN.
//
//	            4791            program              owner?  yes
//	network ----------> kernel ---------> a socket ---------------> its QP
//	                                         |  no
//	                                         +---> unix socket of the block's owner
//
// The program is the fast path, not the truth. It may be out of date, because the sockets' numbers
// shift when a process ends. So a process that receives a datagram for another process's block passes
// the datagram on to the owner's unix socket, and renews the program. A process that is killed or stopped
// costs the others only the datagrams of a moment, which a network may lose too. A connection with
// default retries survives the loss. A train may contain datagrams for several processes. Then the train is
// taken apart.
//
// All processes share QP1. The contents of a datagram for QP1 say where it goes:
//
//   - A REQ or SIDR_REQ goes to the process that has bound the name of its service ID at that address.
//   - Any other message of connection management goes to the owner of a block: the receiver's
//     communication ID begins with the block's number.
//   - A message that belongs to nobody goes to a process with a QP1, which tells the sender so: to the process
//     where the message has arrived or, if that has no QP1, to the process that has bound the name for this.
//
// These messages use the same unix sockets, and the same proofs and bounds hold for them.
//
// Only processes of one user share an address. The kernel refuses the UDP sockets of other users,
// and a message on a unix socket counts only with the credentials of the same user. If another user has bound
// the name of a block or a service, the owner of the block or service binds an alias, as alias_linux.go says.
//
// Abstract unix sockets exist on Linux only. Elsewhere an address belongs to one process.
package host
