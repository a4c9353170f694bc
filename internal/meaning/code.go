package meaning

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

func mtuEntries() (list []Entry) {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		bytes := m.Bytes()
		list = append(list, Entry{
			Number: int(m), Name: m.String(), Also: []string{"IBV_MTU_" + strconv.Itoa(bytes)},
			Brief: fmt.Sprintf("a packet has %d bytes of payload at most", bytes),
			More: fmt.Sprintf("With all headers of RoCE v2 it is %d bytes of IPv4 and %d of IPv6, in the longest case, a WRITE ONLY with immediate data. An Ethernet of MTU 1500 carries 1024. Hosts reckon with %d bytes of headers, so 4096 needs an interface of %d; and each switch on the way must carry such packets.",
				bytes+longestIPv4, bytes+longestIPv4+ipv6More, hostsReckon, 4096+hostsReckon),
			See: []string{"path_mtu"},
		})
	}
	return list
}

const (
	// longestIPv4 are the bytes of IPv4, UDP, BTH, RETH, immediate data and ICRC, which a packet has beside its payload.
	// XRC has 4 bytes more.
	longestIPv4 = 20 + 8 + 12 + 16 + 4 + 4
	ipv6More    = 20

	// hostsReckon are the bytes that Linux, and adverb, leave for headers when they choose a port's active MTU: those of
	// IPv6 and of an atomic.
	hostsReckon = 96
)

// Ping4096 tries whether the way carries path MTU 4096: its packets are as long as the longest of RC, by IPv4 and IPv6.
const Ping4096 = "ping -M do -s 4132"

func gidEntries() []Entry {
	list := []Entry{
		{Number: int(verbs.GIDTypeIB), Also: []string{"IBV_GID_TYPE_IB", "IB/RoCE v1"}, Brief: "a GID of InfiniBand; older libraries and sysfs say it of RoCE v1 as well"},
		{Number: int(verbs.GIDTypeRoCEv1), Also: []string{"IBV_GID_TYPE_ROCE_V1"}, Brief: "RoCE v1: Ethernet type 0x8915, which no router forwards",
			Causes: []string{"the index of RoCE v1 is mostly the lower one of an address, so that a default of 0 takes it"}, Checks: []string{"take the entry with the same address that is of RoCE v2, at both ends"}},
		{Number: int(verbs.GIDTypeRoCEv2), Also: []string{"IBV_GID_TYPE_ROCE_V2"}, Brief: "RoCE v2: UDP port 4791 over IPv4 or IPv6",
			More: "The GID is the address: ::ffff:10.0.0.1 is IPv4, fe80::… is link-local and leaves its link never."},
	}
	for i := range list {
		list[i].Name = verbs.GIDType(list[i].Number).String()
		list[i].Tools = []string{"adverb gids, which is show_gids"}
		list[i].See = []string{"sgid_index"}
	}
	return list
}

var qpStateTexts = [...]struct{ brief, more string }{
	verbs.QPStateReset: {"as new: takes no work requests", "Next is INIT: PKEY_INDEX, PORT, and ACCESS_FLAGS or QKEY."},
	verbs.QPStateInit:  {"takes receives, and no packets yet", "Next is RTR: AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER for RC. Post receives here, so that none is missing when the first message comes."},
	verbs.QPStateRTR:   {"ready to receive: answers packets, and sends no requests", "Next is RTS: TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN, MAX_QP_RD_ATOMIC for RC."},
	verbs.QPStateRTS:   {"ready to send, and to receive", "This is the state of a connection that works."},
	verbs.QPStateSQD:   {"the send queue drains, or is drained", "A program asks for it, to change attributes of a running QP."},
	verbs.QPStateSQE:   {"the send queue of a UC or UD QP has failed; it still receives", "A failed completion has the cause. A change to RTS repairs it."},
	verbs.QPStateErr:   {"all work requests are flushed with status 5", "The first failed completion has the cause. Only a change to RESET leads out of it."},
}

func qpStateEntries() (list []Entry) {
	for s, t := range qpStateTexts {
		e := Entry{Number: s, Name: verbs.QPState(s).String(), Also: []string{strings.TrimPrefix(verbs.QPState(s).String(), "QPS_")}, Brief: t.brief, More: t.more, Tools: []string{"adverb res qp: the states of QPs"}}
		if verbs.QPState(s) == verbs.QPStateErr {
			e.Follows, e.See = true, []string{"status 5"}
		}
		list = append(list, e)
	}
	return list
}

func portEntries() []Entry {
	list := []Entry{
		{Number: int(verbs.PortNop), Brief: "no change of state: of requests, and never a port's state"},
		{Number: int(verbs.PortDown), Brief: "the port has no link, or its network interface is down",
			Causes: []string{"no cable, a failed transceiver, a switch port that is off", "RoCE: ip link set … up was forgotten", "InfiniBand in place of Ethernet, or the other way around: link_layer"},
			Checks: []string{"phys_state of ibv_devinfo: POLLING or DISABLED is a cable or a setting, LINK_UP is not the cable", "ip link; ethtool"}, See: []string{"event 10"}},
		{Number: int(verbs.PortInit), Brief: "InfiniBand: the link is up, and no subnet manager has configured the port",
			Causes: []string{"no subnet manager runs: start opensm, or the switch's"}, Checks: []string{"sminfo"}},
		{Number: int(verbs.PortArmed), Brief: "InfiniBand: the subnet manager has configured the port, and not released it yet"},
		{Number: int(verbs.PortActive), Brief: "the port works"},
		{Number: int(verbs.PortActiveDefer), Brief: "InfiniBand: the link has failed a moment ago, and may come back"},
	}
	for i := range list {
		list[i].Name = verbs.PortState(list[i].Number).String()
		list[i].Tools = []string{"adverb devinfo"}
	}
	return list
}
