package main

// Captures, and what leaves a program by other ways than packets.
var adoptMutants = []mutant{
	{"a checksum of zero says that there is none", "internal/link/pcap/header.go",
		"	if c == 0 { //", "	if false { //", "./internal/link/pcap", "TestChecksums"},
	{"an odd last byte is not in the checksum", "internal/link/pcap/header.go",
		"	if len(b) > 0 {\n		s +=", "	if false {\n		s +=", "./internal/link/pcap", "TestChecksums"},
	{"all packets of a capture came in", "internal/link/pcap/pcap.go",
		"		way = outbound\n", "", "./internal/link/pcap", "TestDirections"},
}
