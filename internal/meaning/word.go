package meaning

import "strings"

// glossary has the words of docs/learn/glossary.md that are no code, header, counter or setting: those have entries of
// their own.
var glossary = []Entry{
	{Name: "access flags", Brief: "the permissions of a region: LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC", Tools: []string{"adverb demo keys"}},
	{Name: "ACK", Brief: "acknowledgement: the packet says up to which PSN all has come", Tools: []string{"adverb demo send --see"}},
	{Name: "adaptive routing", Brief: "switches choose a path for each packet"},
	{Name: "AH", Brief: "address handle: where a datagram goes"},
	{Name: "asynchronous event", Brief: "something that a device tells without being asked, such as a port that goes down"},
	{Name: "atomic", Brief: "FETCH_ADD or COMPARE_SWAP of 8 remote bytes", Tools: []string{"adverb demo atomic"}},
	{Name: "CM", Brief: "connection manager: REQ, REP, RTU and DREQ, DREP between QPs 1"},
	{Name: "completion", Brief: "the same as CQE, as a program gets it: ibv_wc, verbs.WC"},
	{Name: "CQ", Also: []string{"CQE"}, Brief: "completion queue, and an entry of it", Tools: []string{"adverb demo send"}},
	{Name: "credit", Brief: "a receive that the sender knows of"},
	{Name: "DDP", Brief: "direct data placement: a packet says itself where its bytes belong"},
	{Name: "device", Brief: "the thing that a program opens: a card's port or ports, or a software device", Tools: []string{"adverb devices"}},
	{Name: "DMA", Brief: "a device reads or writes memory by itself"},
	{Name: "doorbell", Brief: "the write by which a program tells a card that there are new WQEs"},
	{Name: "DPDK", Brief: "a library by which a program drives a network card itself, without the kernel; the CPU still makes the packets"},
	{Name: "ECN", Brief: "a mark on IP packets that met congestion"},
	{Name: "fence", Brief: "begin only when READs and atomics before are done"},
	{Name: "GID", Brief: "the address of a port, of 128 bits; in RoCE version 2 an IP address", Tools: []string{"adverb gids"}},
	{Name: "go-back-N", Brief: "after a loss all packets from the lost one on are sent again", Tools: []string{"adverb demo loss"}},
	{Name: "GUID", Brief: "a number of 64 bits that no other device has", Tools: []string{"adverb devinfo"}},
	{Name: "HCA", Brief: "host channel adapter: an RDMA card"},
	{Name: "InfiniBand", Also: []string{"IB"}, Brief: "the network for which all this was made, with switches and cables of its own"},
	{Name: "inline", Brief: "the data are in the WQE itself, and the buffer is free at once"},
	{Name: "invalidate", Brief: "to take back a key, one's own or, by SEND with invalidate, the peer's"},
	{Name: "IPoIB", Brief: "IP over InfiniBand; the CM needs it there for addresses"},
	{Name: "iWARP", Brief: "RDMA over TCP"},
	{Name: "kernel bypass", Brief: "a program hands work to the device without asking the kernel"},
	{Name: "LID", Brief: "an InfiniBand address within a subnet; RoCE has none"},
	{Name: "lkey", Brief: "local key: names a region in one's own WQEs"},
	{Name: "LRH", Brief: "local route header: LIDs, on InfiniBand alone"},
	{Name: "memory window", Brief: "a key for a part of a region, which can be taken back"},
	{Name: "MR", Brief: "memory region: registered memory"},
	{Name: "MSN", Brief: "message sequence number: how many messages the responder has completed"},
	{Name: "MTT", Brief: "memory translation table of a card: virtual to physical addresses"},
	{Name: "MTU", Also: []string{"path MTU"}, Brief: "the most bytes of payload in a packet: 256 to 4096", Tools: []string{"adverb demo mtu"}},
	{Name: "NAK", Brief: "the responder refuses"},
	{Name: "OFED", Brief: "OpenFabrics Enterprise Distribution: drivers, libraries and tools in one package; today's distributions have them as rdma-core"},
	{Name: "one-sided", Brief: "READ, WRITE and atomics: the remote program has no part in them"},
	{Name: "PD", Brief: "protection domain: QPs and regions of one PD work together, others do not"},
	{Name: "pin", Brief: "to keep pages of memory where they are"},
	{Name: "P_Key", Brief: "partition key: who may talk to whom, on InfiniBand"},
	{Name: "poll", Brief: "to look into a CQ"},
	{Name: "port", Brief: "a connector of a card; also a UDP port, 4791 for RoCE version 2"},
	{Name: "post", Brief: "to put a work request into a queue"},
	{Name: "PSN", Brief: "packet sequence number, of 24 bits"},
	{Name: "QP states", Brief: "RESET, INIT, RTR (ready to receive), RTS (ready to send), SQD, SQE, ERR"},
	{Name: "QP", Also: []string{"QPN"}, Brief: "queue pair, and its number. QP 1 is the CM's"},
	{Name: "RC", Also: []string{"UC", "UD"}, Brief: "reliable connection, unreliable connection, unreliable datagram"},
	{Name: "RDMA", Brief: "remote direct memory access"},
	{Name: "READ", Also: []string{"WRITE"}, Brief: "one-sided operations"},
	{Name: "requester", Also: []string{"responder"}, Brief: "who began an operation; who answers"},
	{Name: "rkey", Brief: "remote key: opens a region to peers", Tools: []string{"adverb demo keys"}},
	{Name: "RNIC", Brief: "a card for iWARP, as an HCA is for InfiniBand and RoCE"},
	{Name: "RoCE", Brief: "RDMA over converged Ethernet; version 2 is over UDP"},
	{Name: "SEND", Brief: "a message that the receiver puts where its receive says", Tools: []string{"adverb demo send"}},
	{Name: "SGE", Also: []string{"SGL"}, Brief: "scatter/gather element: address, length, lkey; and a list of them"},
	{Name: "SIDR", Brief: "by this the CM finds the QP of a datagram service"},
	{Name: "signaled", Brief: "of a work request: there shall be a CQE"},
	{Name: "solicited", Brief: "of a message: wake the receiver, if it waits for such messages"},
	{Name: "SQ", Also: []string{"RQ", "SRQ"}, Brief: "send queue, receive queue, and a receive queue that QPs share"},
	{Name: "subnet manager", Brief: "the program that gives InfiniBand ports their addresses; RoCE has none"},
	{Name: "syndrome", Brief: "the first byte of the AETH: which kind of answer"},
	{Name: "TCA", Brief: "target channel adapter: as HCA, in a device such as a disk, and with fewer duties"},
	{Name: "verbs", Brief: "the API: the operations on QPs, CQs and MRs"},
	{Name: "WC", Also: []string{"WR"}, Brief: "work completion and work request: CQE and WQE in the API"},
	{Name: "work queue", Brief: "a send queue or a receive queue"},
	{Name: "WQE", Brief: "work queue element: an order to the device. Some say \"wookie\", and \"cookie\" for CQE"},
	{Name: "wr_id", Brief: "a number that a program gives to a work request, and finds in the completion"},
	{Name: "zero copy", Brief: "no CPU copies the data on the way between the buffers of two programs"},
}

// findWord finds a word of the glossary, or what its letters stand for, which is the whole text: logs have many of them,
// in other meanings.
func findWord(t *text) (found []Finding) {
	for _, e := range Of(KindWord) {
		long, _, _ := strings.Cut(strings.ReplaceAll(e.Brief, ",", ":"), ":") // "queue pair, and its number"
		if strings.EqualFold(long, t.raw) {
			found = append(found, Finding{Entry: e, By: t.raw, rank: rankBare})
		}
		for _, name := range append([]string{e.Name}, e.Also...) {
			if strings.EqualFold(name, t.raw) {
				found = append(found, Finding{Entry: e, By: t.raw, rank: rankAsked})
			}
		}
	}
	return found
}
