// Package lanes finds, makes and takes the lanes between the processes of one host. A lane is memory that two processes
// of one user share (package shm). By lanes the packets of a QP need no network.
//
// A lane leads one way, from an address of this process to an address of the process that owns a block of QPNs. The
// sender makes the lane when a QP is connected, before the QP's first packet. So the packets of a QP never change the
// way, and cannot overtake one another.
//
//	sender                                            receiver
//	connect to @adverb/lane/<block>    ---------->    accept
//	SO_PEERCRED: my user?                             SO_PEERCRED: my user?
//	addresses                          ---------->    is the address mine?
//	is there a lane to the receiver?   <----------    yes, and the receiver's name
//	addresses, the lane's memfd, bell  ---------->    is the memfd sealed and right?
//	                                   <----------    yes, and the receiver's bell
//
// A process has several blocks. By the receiver's name, a random number, the sender knows that another block is of a
// receiver to which it has a lane, and takes that lane.
//
// The connection stays open. By it the sender tells which files it lends (see package shm), and the receiver tells which
// of them it has mapped:
//
//	a file's name, size, memfd         ---------->    sealed? mapped
//	                                   <----------    the file's name
//	the name of a withdrawn file       ---------->    unmapped
//
// By the same connection the sender asks for access to regions of the receiver's:
//
//	slot, QPNs, rkey                   ---------->    may the QP access the region?
//	mapped                             <----------    slot, rights, bounds, memfd; or no rights
//	unmapped                           <----------    slot of an access that is revoked
//
// The connection breaks when either process ends, however it ends. Then the sender goes back to UDP, and the receiver
// gives the memory back. An abstract name is of one network namespace. A process without lanes, or of another
// user, does not answer with yes, and its packets go by UDP for as long as the QP is connected.
//
// Only Linux has lanes.
package lanes
