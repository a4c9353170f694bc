// Package fabric simulates subnets of InfiniBand: channel adapters, switches, routers and cables, and the subnet
// managers that bring them into service. It is pure: a caller hands packets in, takes packets out, and calls Settle,
// which moves everything as far as it gets. So one order of calls always has one result.
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
// # Subnets
//
// A subnet ends at the ports of routers. Its manager gives it a prefix, which is the first half of its ports' GIDs. For a
// GID of another prefix, subnet administration answers with the LID of a router's port, and with a hop limit. The router
// asks subnet administration behind it for the LID of the packet's destination. See Router.
//
// # Left out
//
// Credits are counted, and flow control packets are not sent for them. Virtual lanes are not arbitrated by weight, and
// M_Keys protect nothing. Groups end at a router. Only links of one speed are known.
package fabric
