package diagnose

var networkRules = map[ruleID]rule{
	pfc: {"PFC", Warning, Proven, OfNetwork, "Pause frames stop the traffic",
		[]string{"Somebody behind this port cannot take more: a slow receiver or card. Follow the pauses to the port that sends them first. A storm that does not end: a PFC watchdog."}, ""},
	cnp: {"CNP", Warning, Proven, OfNetwork, "The network is congested",
		[]string{"A queue on the way fills, and CNPs tell senders to slow down. Find the congested port by its ECN counters: incast, or a link that is slower than the senders."}, ""},
	ecnNoCNP: {"ECN-NOCNP", Warning, Likely, OfSetup, "Packets are marked as congested, and nobody tells their senders",
		[]string{"Turn on the notification point at the receivers (roce_np: /sys/class/net/IFACE/ecn/roce_np/enable/PRIORITY)."}, "the CNPs took a way that was not captured."},
	ecnOff: {"ECN-OFF", Warning, Hint, OfSetup, "Packets are lost, and not marked: their senders do not allow ECN",
		[]string{"Set the traffic class to 106 (DSCP 26, ECT): UCX_IB_TRAFFIC_CLASS, NCCL_IB_TC, or cma_roce_tos."}, ""},
	cnpDSCP: {"CNP-DSCP", Info, Hint, OfSetup, "CNPs have the priority of the data",
		[]string{"Give CNPs a strict priority of their own (usually DSCP 48), so that they do not wait in the queue of which they tell."}, ""},
	dscpMix: {"DSCP-MIX", Warning, Likely, OfSetup, "Packets of a queue pair have different priorities",
		[]string{"Set the same traffic class at both ends, and trust DSCP at all ports: a port that does not may mark packets anew. Else some go through a class that may lose."}, "the two directions have their own classes on purpose."},
	ecmp: {"ECMP", Info, Likely, OfNetwork, "All queue pairs of two hosts share one UDP source port",
		[]string{"Routers that spread flows by ports lead all of them over one path. Use more queue pairs with flow labels of their own (rdma_udp_sport)."}, "there is only one path."},
	portSrc: {"PORT-SRC", Info, Proven, OfCapture, "Source ports are those of other protocols",
		[]string{"Wireshark takes such packets for something else, as TFTP: tshark -d udp.port==4791,infiniband."}, ""},
}
