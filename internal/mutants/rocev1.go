package main

const ether = "internal/link/ether/"

// roceV1Mutants are of RoCEv1, and of the packet sockets that carry it, whose tests need root.
var roceV1Mutants = []mutant{
	{"what fills a short frame up is of the packet", "internal/link/v1.go",
		"	return packet[GRHSize:end:end], true\n", "	return packet[GRHSize:], true\n", "./internal/link", "TestGRH"},
	{"any packet of IPv6 is one of RoCEv1", "internal/link/v1.go",
		" || b[6] != grhNextHeader", "", "./internal/link", "TestGRH"},
	{"the MAC address of a group of IPv4 has 24 bits of the group's", "internal/link/v1.go",
		"b[13] & 0x7f, b[14]", "b[13], b[14]", "./internal/link", "TestV1"},
	{"the traffic class is lost in a GRH", "internal/link/v1.go",
		"	d.TrafficClass = b[0]<<4 | b[1]>>4\n", "	d.TrafficClass = b[1] >> 4\n", "./internal/link", "TestGRH"},
	{"a flow of RoCEv1 may begin nowhere", wire + "icrc.go",
		"	if !src.IsValid() || !dst.IsValid() {\n		return Flow{}\n", "	if !dst.IsValid() {\n		return Flow{}\n", "./internal/wire", "TestICRCv1"},
	{"the ICRC of RoCEv1 covers no destination", wire + "icrc.go",
		"NewGlobalFlow(sgid, dgid, 0, ", "NewGlobalFlow(sgid, sgid, 0*uint8(dgid[0]), ", "./internal/wire", "TestICRCv1"},
	{"two programs have one address of RoCEv1", ether + "link_linux.go",
		"	err = unix.Bind(l.claim, &unix.SockaddrUnix{Name: name})\n", "	_ = name\n", "./" + ether, "TestTaken"},
	{"the filter lets no group of IPv6 pass", ether + "link_linux.go",
		"	when(0xff) // a group of IPv6\n", "	when(0xfe)\n", "./" + ether, "TestConformance$/IPv6"},
	{"a frame to a group that nobody joined is received", ether + "recv_linux.go",
		" || d.Dst != r.to && !r.groups.has(d.Dst.Addr())", "", "./" + ether, "TestConformance$/IPv4"},
	{"a host's own members of a group get nothing", ether + "send_linux.go",
		"			s.prepare(d, s.l.loopback, mac, true)\n", "", "./" + ether, "TestConformance$/Itself"},
	{"frames whose neighbor does not answer are no error", ether + "send_linux.go",
		"	s.errors += uint64(n)\n", "", "./" + ether, "TestNoNeighbor"},
	{"GIDs of RoCEv1 never come first", ether + "netdev.go",
		"	if n.o.First {\n", "	if false {\n", "./" + ether, "TestAddrs"},
	{"first puts GIDs of RoCEv1 behind the others", "provider/soft/rocev1.go",
		"First: order == firstV1", "First: order == lastV1", "./provider/soft", "TestRoCEv1Table"},
	{"ADVERB_ROCEV1=1 gives no GIDs of RoCEv1", "provider/soft/rocev1.go",
		"		return lastV1, nil\n", "		return noV1, nil\n", "./provider/soft", "TestRoCEv1Table"},
}
