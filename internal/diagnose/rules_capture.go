package diagnose

var captureRules = map[ruleID]rule{
	capNone: {"CAP-NONE", Info, Proven, OfCapture, "The capture has no RoCE packets",
		[]string{
			"A card sends RDMA past the system's network stack, so tcpdump on the Ethernet interface does not see it.",
			"Capture the RDMA device instead: tcpdump -i mlx5_0, if libpcap was built with its RDMA sniffer.",
			"Or mirror the port at the switch. Software devices (rxe, adverb) show their packets on the interface, and adverb writes captures itself: ADVERB_PCAP.",
		}, "RoCE goes inside a tunnel or cipher that is not known here, or to another UDP port."},
	capCut: {"CAP-CUT", Info, Proven, OfCapture, "The file ends too early",
		[]string{"Stop the capturing program by Ctrl-C, so that it writes out its buffer.", "A program that writes its own packets (ADVERB_PCAP) must close its connections or devices before it exits."}, ""},
	capOneWay: {"CAP-ONEWAY", Info, Proven, OfCapture, "Only one direction was captured",
		[]string{"Mirror both directions of the port (rx and tx), or capture on a host.", "Whether requests were answered, and when, cannot be said without the answers."},
		"the requests were really unanswered: then their sender would repeat them."},
	capSnap: {"CAP-SNAP", Info, Proven, OfCapture, "The capture has cut packets off",
		[]string{"Capture whole packets: tcpdump -s 0.", "ICRCs and CM messages of cut packets cannot be checked."}, ""},
	capDup: {"CAP-DUP", Info, Proven, OfCapture, "The capture has packets twice",
		[]string{"That is the capture and not the network: both ends are in one process, tcpdump ran on all interfaces, or the switch mirrors both ports.", "Each packet is judged once here. For Wireshark, drop the copies: editcap -d in.pcap out.pcap."},
		"the network really doubles each packet, as a loop does."},
	capTrain: {"CAP-TRAIN", Info, Proven, OfCapture, "Packets were captured in one piece with others",
		[]string{"The system leaves it to the card to cut long datagrams, or joins packets that come. The network never sees them so, and nothing has to be done.", "For Wireshark, which takes them for damaged packets, turn that off during the capture: ethtool -K IFACE tx-udp-segmentation off gro off."}, ""},
	capHole: {"CAP-HOLE", Info, Likely, OfCapture, "The capture itself has lost packets",
		[]string{"Packets are missing here that the receiver has, since it acknowledged them or went on. Give the capture a larger buffer (tcpdump -B 65536), or write less (-s 128)."},
		"the packets took a way that was not captured."},
}
