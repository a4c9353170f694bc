package pingpong

import (
	"fmt"
	"io"
	"math"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// kind has the properties that distinguish the pingpong programs, beside their flags.
type kind struct {
	qpType verbs.QPType
	srq    bool  // all QPs share a receive queue, and errors name a QP by its number
	fill   byte  // the content of messages
	grh    int   // bytes that stand in front of a received message
	size   int64 // default of -s

	sizeInCHelp int64 // the default in the C program's help, where that is wrong

	numQP int // default of -q
	iters int // default of -n, where it is not 1000

	endMessages    int    // how many go each way in the exchange of addresses; unused ones are zero
	needsLID       bool   // a port that is not Ethernet must have a LID
	parseLine      bool   // a failed completion has a second line
	localFormat    string // of the line about this end
	gidLine        string // the error line for a GID that cannot be read
	onDemandLine   string // the error line for -o on a device without it
	sizeAtLeastOne bool   // -s 0 is refused
}

const (
	fillByte = 0x7b
	qkey     = 0x11111111

	localAddressFormat   = "  local address:  LID 0x%04x, QPN %v, PSN %v, GID %v\n"
	localAddressFormatUD = "  local address:  LID 0x%04x, QPN %v, PSN %v: GID %v\n"
	remoteAddressFormat  = "  remote address: LID 0x%04x, QPN %v, PSN %v, GID %v\n"

	connectedGIDLine = "can't read sgid of index %d"
	otherGIDLine     = "Could not get local gid for gid index %d"

	srqMaxQP = 256 // the number of addresses in the exchange of srq_pingpong
)

var (
	kindRC = kind{qpType: verbs.QPTypeRC, fill: fillByte, size: 4096, numQP: 1, endMessages: 1,
		needsLID: true, parseLine: true, localFormat: localAddressFormat, gidLine: connectedGIDLine,
		onDemandLine: "The device isn't ODP capable or does not support RC send and receive with ODP"}
	kindUC = kind{qpType: verbs.QPTypeUC, fill: fillByte, size: 4096, numQP: 1, endMessages: 1,
		needsLID: true, localFormat: localAddressFormat, gidLine: connectedGIDLine}
	kindUD = kind{qpType: verbs.QPTypeUD, fill: fillByte, size: 1024, sizeInCHelp: 2048, numQP: 1, endMessages: 1,
		grh: verbs.GRHSize, localFormat: localAddressFormatUD, gidLine: otherGIDLine}
	kindSRQ = kind{qpType: verbs.QPTypeRC, srq: true, size: 4096, numQP: 16, endMessages: srqMaxQP,
		localFormat: localAddressFormat, gidLine: otherGIDLine, sizeAtLeastOne: true,
		onDemandLine: "The device isn't ODP capable or does not support RC send, receive and srq with ODP"}
)

// The commands, but XSRQ.
var (
	RC  = newCommand("rc", "over a reliable connection", "pdismrnlegoOPtcjNU", &kindRC)
	UC  = newCommand("uc", "over an unreliable connection", "pdismrnlegc", &kindUC)
	UD  = newCommand("ud", "as unreliable datagrams", "pdisrnlegc", &kindUD)
	SRQ = newCommand("srq", "over connections that share a receive queue", "pdismqrnleogc", &kindSRQ)
)

// newCommand makes a command with the flags that letters name, in their order.
func newCommand(name, how, letters string, k *kind) *cli.Command {
	c := &cli.Command{
		Name:    name + "_pingpong",
		Classic: []string{"ibv_" + name + "_pingpong"},
		Short:   "Bounce messages between two programs " + how,
		Flags:   cli.PickFlags(flagTable, letters),
		Forms: []cli.Form{
			{Does: "wait for a client"},
			{Args: "<host>", Does: "be the client of the server at <host>"},
		},
		Usage: usage,
		More:  more,
		Run:   func(inv *cli.Invocation) int { return run(inv, k) },
	}
	if k.qpType != verbs.QPTypeRC {
		c.More += "Nothing repeats lost packets: both ends then wait until Ctrl-C, or 10 s for the\n" +
			"first message.\n"
	}
	for i := range c.Flags {
		switch f := &c.Flags[i]; f.Short {
		case 's':
			if k.sizeAtLeastOne {
				f.Check = clib.Within(1, math.MaxUint32)
			}
			f.Help += fmt.Sprintf(" (default %d", k.size)
			if k.sizeInCHelp != 0 {
				f.Help += fmt.Sprintf("; the C program's help says %d", k.sizeInCHelp)
			}
			f.Help += ")"
		case 'n':
			if k.srq {
				f.Help = "messages each way, of all QPs together (default 1000)"
			}
		}
	}
	return c
}

func usage(w io.Writer, c *cli.Command, prog string) {
	fmt.Fprintf(w, "Usage:\n")
	for _, f := range c.Forms {
		fmt.Fprintf(w, "  %s %-10s %s\n", prog, f.Args, f.Does)
	}
	fmt.Fprintln(w)
	cli.PrintFlags(w, c)
}

const more = `Two terminals of one machine; between two machines <host> is the server's name or address:
  PROG
  PROG localhost
Without -g an Ethernet port takes its first IPv4 address as GID; the C program does not and
fails, so give -g there. "adverb gids" lists them. The other end may be the C program. Where
only one process may use an address, which is so outside Linux, two ends on one machine take
an address each, as in -d soft_lo0@127.0.0.1 and -d soft_lo0@127.0.0.2.
`

// flagTable has the flags of all pingpong programs by their letters.
var flagTable = map[byte]cli.Flag{
	'p': {Long: "port", Arg: "<port>", Help: "TCP port for the exchange of addresses (default 18515)", Check: clib.Within(0, maxTCPPort)},
	'd': {Long: "ib-dev", Arg: "<dev>", Help: "RDMA device (default first device found)", Values: device.Names},
	'i': {Long: "ib-port", Arg: "<port>", Help: "port of the device (default 1)", Check: clib.Within(1, math.MaxUint8)},
	's': {Long: "size", Arg: "<size>", Help: "bytes in a message", Check: clib.Within(0, math.MaxUint32)},
	'm': {Long: "mtu", Arg: "<size>", Help: "path MTU (default 1024)", Values: device.MTUs, Check: checkMTU},
	'q': {Long: "num-qp", Arg: "<num>", Help: "queue pairs (default 16)", Check: clib.Within(1, math.MaxInt32)},
	'r': {Long: "rx-depth", Arg: "<dep>", Help: "receives to have posted (default 500)", Check: clib.Within(1, math.MaxInt32)},
	'n': {Long: "iters", Arg: "<iters>", Help: "messages each way (default 1000)", Check: clib.Within(0, math.MaxInt32)},
	'l': {Long: "sl", Arg: "<sl>", Help: "service level", Check: clib.Within(0, 15)},
	'e': {Long: "events", Help: "sleep until a CQ event (default poll)"},
	'g': {Long: "gid-idx", Arg: "<gid index>", Help: "own GID, by its place in the port's table", Check: clib.Within(-1, math.MaxInt32)},
	'o': {Long: "odp", Help: "register memory on demand"},
	'O': {Long: "iodp", Help: "register all memory on demand, implicitly"},
	'P': {Long: "prefetch", Help: "prefetch memory that is registered on demand"},
	't': {Long: "ts", Help: "take completion timestamps"},
	'c': {Long: "chk", Help: "check the data received"},
	'j': {Long: "dm", Help: "use memory of the device"},
	'N': {Long: "new_send", Help: "post by the work request builders"},
	'U': {Long: "allow-cc-unprotected", Help: "allow memory that confidential computing leaves unprotected"},
}
