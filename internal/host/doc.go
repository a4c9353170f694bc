// Package host lets several processes of one host use the same addresses, though RoCEv2 has one
// UDP port, without a daemon, an owner or privileges.
//
// QPNs are cut into blocks of 4096. A process claims a block by binding an abstract unix socket
// whose name holds the block: the kernel makes that exclusive, within the network namespace, and
// undoes it when the process ends. Each process has a socket of its own on port 4791 of each
// address it uses, and a BPF program on these sockets hands each datagram to the one whose
// process has claimed the block of its destination QPN.
//
//	            4791            program              owner?  yes
//	network ----------> kernel ---------> a socket ---------------> its QP
//	                                         |  no
//	                                         +---> unix socket of the block's owner
//
// The program is the fast path, not the truth. It may be out of date, since the sockets' numbers
// shift when a process ends; so whoever receives a datagram for another's block passes it on to
// the owner's unix socket, and renews the program. A process that is killed or stopped thus
// costs the others nothing but the datagrams of a moment, as a network may lose them; a connection
// with default retries survives that. Where datagrams come in trains, a train may be for several
// processes, and is taken apart.
//
// QP1 is everybody's. What comes for it goes by what it says: a REQ or SIDR_REQ to the process that has
// bound the name of its service ID at that address, any other message of connection management to the owner of the
// block whose number the receiver's communication ID begins with, and what is nobody's to a process
// with a QP1, which tells the sender so: that where it has arrived, or else the one that has bound
// the name for this. The same unix sockets, proofs and bounds serve for it.
//
// Only processes of one user share. The kernel refuses the others' sockets, and messages on the
// unix sockets count only with credentials of the same user.
//
// Where there are no abstract sockets, which is everywhere but on Linux, an address belongs to
// one process.
package host
