package main

import (
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/verbs"
)

// pingpongKind is what sets the four pingpong programs apart, beside their options.
type pingpongKind struct {
	qpType verbs.QPType
	srq    bool  // one queue of receives for all QPs, which errors name by their numbers
	fill   byte  // what messages are filled with
	grh    int   // bytes in front of a received message
	size   int64 // default of -s
	numQP  int   // default of -q

	endMessages    int    // in the exchange of addresses, each way; unused ones are zero
	needsLID       bool   // where the link layer is not Ethernet
	parseLine      bool   // a failed completion has a second line
	localFormat    string // of the line about the own end
	gidLine        string // when the own GID cannot be read
	onDemandLine   string // when -o cannot be had
	sizeAtLeastOne bool   // -s 0 is refused
}

const (
	pingFill = 0x7b
	pingQKey = 0x11111111

	localAddressFormat   = "  local address:  LID 0x%04x, QPN %v, PSN %v, GID %v\n"
	localAddressFormatUD = "  local address:  LID 0x%04x, QPN %v, PSN %v: GID %v\n"
	remoteAddressFormat  = "  remote address: LID 0x%04x, QPN %v, PSN %v, GID %v\n"

	connectedGIDLine = "can't read sgid of index %d"
	otherGIDLine     = "Could not get local gid for gid index %d"

	srqMaxQP = 256 // so many addresses go through the exchange of srq_pingpong
)

var (
	pingpongRC = pingpongKind{qpType: verbs.QPTypeRC, fill: pingFill, size: 4096, numQP: 1, endMessages: 1,
		needsLID: true, parseLine: true, localFormat: localAddressFormat, gidLine: connectedGIDLine,
		onDemandLine: "The device isn't ODP capable or does not support RC send and receive with ODP"}
	pingpongUC = pingpongKind{qpType: verbs.QPTypeUC, fill: pingFill, size: 4096, numQP: 1, endMessages: 1,
		needsLID: true, localFormat: localAddressFormat, gidLine: connectedGIDLine}
	pingpongUD = pingpongKind{qpType: verbs.QPTypeUD, fill: pingFill, size: 1024, numQP: 1, endMessages: 1,
		grh: verbs.GRHSize, localFormat: localAddressFormatUD, gidLine: otherGIDLine}
	pingpongSRQ = pingpongKind{qpType: verbs.QPTypeRC, srq: true, size: 4096, numQP: 16, endMessages: srqMaxQP,
		localFormat: localAddressFormat, gidLine: otherGIDLine, sizeAtLeastOne: true,
		onDemandLine: "The device isn't ODP capable or does not support RC send, receive and srq with ODP"}
)

var rcPingpongCmd = pingpongCommand("rc", "over a reliable connection", "pdismrnlegoOPtcjNU", &pingpongRC)

var ucPingpongCmd = pingpongCommand("uc", "over an unreliable connection", "pdismrnlegc", &pingpongUC)

var udPingpongCmd = pingpongCommand("ud", "as unreliable datagrams", "pdisrnlegc", &pingpongUD)

var srqPingpongCmd = pingpongCommand("srq", "over connections that share a receive queue", "pdismqrnleogc", &pingpongSRQ)

// pingpongCommand makes a command of the options that letters name, in their order.
func pingpongCommand(name, how, letters string, k *pingpongKind) *command {
	c := &command{
		name:    name + "_pingpong",
		classic: "ibv_" + name + "_pingpong",
		short:   "Bounce messages between two programs " + how,
		usage: func(w io.Writer, c *command, prog string) {
			fmt.Fprintf(w, "Usage:\n")
			fmt.Fprintf(w, "  %s            wait for a client\n", prog)
			fmt.Fprintf(w, "  %s <host>     be the client of the server at <host>\n\n", prog)
			printOptions(w, c)
		},
		more: pingpongMore,
		run:  func(inv *invocation) int { return runPingpong(inv, k) },
	}
	if k.qpType != verbs.QPTypeRC {
		c.more += "Nothing repeats what the network loses: both ends then wait until Ctrl-C.\n"
	}
	for _, letter := range []byte(letters) {
		o := pingpongOptions[letter]
		o.short = letter
		switch letter {
		case 's':
			o.help += fmt.Sprintf(" (default %d)", k.size)
		case 'n':
			if k.srq {
				o.help = "messages each way, of all QPs together (default 1000)"
			}
		}
		c.options = append(c.options, o)
	}
	return c
}

const pingpongMore = `Two terminals of one machine; between two machines <host> is the server's name or address:
  PROG
  PROG localhost
Without -g an Ethernet port takes its first IPv4 address as GID; the C program does not and
fails, so give -g there. "adverb gids" lists them. The other end may be the C program. Where
only one process may use an address, which is so outside Linux, two ends on one machine take
an address each, as in -d soft_lo0@127.0.0.1 and -d soft_lo0@127.0.0.2.
`

var pingpongOptions = map[byte]option{
	'p': {long: "port", arg: "<port>", help: "TCP port for the exchange of addresses (default 18515)"},
	'd': {long: "ib-dev", arg: "<dev>", help: "RDMA device (default first device found)"},
	'i': {long: "ib-port", arg: "<port>", help: "port of the device (default 1)"},
	's': {long: "size", arg: "<size>", help: "bytes in a message"},
	'm': {long: "mtu", arg: "<size>", help: "path MTU (default 1024)"},
	'q': {long: "num-qp", arg: "<num>", help: "queue pairs (default 16)"},
	'r': {long: "rx-depth", arg: "<dep>", help: "receives to have posted (default 500)"},
	'n': {long: "iters", arg: "<iters>", help: "messages each way (default 1000)"},
	'l': {long: "sl", arg: "<sl>", help: "service level"},
	'e': {long: "events", help: "sleep until a CQ event (default poll)"},
	'g': {long: "gid-idx", arg: "<gid index>", help: "own GID, by its place in the port's table"},
	'o': {long: "odp", help: "register memory on demand"},
	'O': {long: "iodp", help: "register all memory on demand, implicitly"},
	'P': {long: "prefetch", help: "prefetch memory that is registered on demand"},
	't': {long: "ts", help: "take completion timestamps"},
	'c': {long: "chk", help: "check the data received"},
	'j': {long: "dm", help: "use memory of the device"},
	'N': {long: "new_send", help: "post by the work request builders"},
	'U': {long: "allow-cc-unprotected", help: "allow memory that confidential computing leaves unprotected"},
}
