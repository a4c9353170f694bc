// Package fabric simulates a subnet of InfiniBand: channel adapters, switches and cables, and the subnet managers that
// bring them into service. It is pure: a caller hands packets in, takes packets out, and calls Settle, which moves
// everything as far as it gets. So one order of calls always has one result.
//
// # Packets
//
// A packet is what is on a cable, from the LRH to the VCRC. A switch looks up the packet's LID in its linear forwarding
// table, or in its multicast forwarding table. Nothing is lost by congestion: a packet leaves only if the other end of
// the cable has granted credits for its virtual lane, and waits where it is until then. Packets of virtual lane 15, the
// subnet managers' own, need none.
//
// # Management
//
// A port whose cable works is in INIT, and carries SMPs only. A subnet manager asks its way from node to node by
// directed routes, gives LIDs, computes routes by the number of hops, writes the switches' tables, and takes the ports
// to ARMED and ACTIVE. All of that goes by packets of QP0, each with its MAD, so a capture shows it (see Tap). What a
// manager asks and nobody answers, it asks again a few times: the fabric has no time, and a question counts as lost
// when nothing moves any more. Ports ask subnet administration for paths and groups by packets of QP1.
//
// # Left out
//
// Credits are counted, and flow control packets are not sent for them. Virtual lanes are not arbitrated by weight,
// M_Keys protect nothing, and there are no routers, so there is one subnet. Only links of one speed are known.
package fabric
