package perftest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
)

// flagDef is a flag, and which of the programs have it.
type flagDef struct {
	cli.Flag
	has func(k *kind) bool // nil for all

	// refused says why the flag can have no effect here. A program that is given it ends with that reason, instead of
	// measuring something else than the user asked for.
	refused string
}

func isBandwidth(k *kind) bool { return !k.latency }
func isLatency(k *kind) bool   { return k.latency }
func isSend(k *kind) bool      { return k.verb == verbSend }
func isWrite(k *kind) bool     { return k.verb == verbWrite }
func isAtomic(k *kind) bool    { return k.verb == verbAtomic }
func carriesData(k *kind) bool { return k.verb == verbSend || k.verb == verbWrite }

// flagTable has the flags of all the programs, in the order of their help.
var flagTable = slices.Concat(taken, refused)

// taken are the flags that have their effect here, or need none.
var taken = []flagDef{
	{Flag: cli.Flag{Short: 'a', Long: "all", Help: "all sizes, the powers of two from 2 to 2^23"}, has: func(k *kind) bool { return k.verb != verbAtomic }},
	{Flag: cli.Flag{Short: 'A', Long: "atomic_type", Arg: "<type>", Help: "FETCH_AND_ADD (default) or CMP_AND_SWAP",
		Values: cli.OneOf("CMP_AND_SWAP", "FETCH_AND_ADD")}, has: isAtomic},
	{Flag: cli.Flag{Short: 'b', Long: "bidirectional", Help: "both ways at the same time"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'c', Long: "connection", Arg: "<type>", Help: "QP type"}},
	{Flag: cli.Flag{Short: 'd', Long: "ib-dev", Arg: "<dev>", Help: "RDMA device (default first device found)", Values: device.Names}},
	{Flag: cli.Flag{Short: 'D', Long: "duration", Arg: "<s>", Help: "measure for so many seconds, margins included"}},
	{Flag: cli.Flag{Short: 'e', Long: "events", Help: "sleep until a CQ event (default poll)"}, has: func(k *kind) bool { return k.verb != verbWrite }},
	{Flag: cli.Flag{Short: 'X', Long: "vector", Arg: "<vector>", Help: "completion vector: which of the device's interrupts raises events, from 0 on"}, has: func(k *kind) bool { return k.verb != verbWrite }},
	{Flag: cli.Flag{Short: 'f', Long: "margin", Arg: "<s>", Help: "seconds of -D, or 250ms, at each of its ends that do not count (default a quarter)"}},
	{Flag: cli.Flag{Short: 'F', Long: "CPU-freq", Help: "do not warn of CPU frequencies: has no effect, nothing depends on them"}},
	{Flag: cli.Flag{Short: 'h', Long: "help", Help: "print this text"}},
	{Flag: cli.Flag{Short: 'H', Long: "report-histogram", Help: "print all results, sorted"}, has: isLatency},
	{Flag: cli.Flag{Long: "report-histogrm", Help: "the same, as the C programs spell it"}, has: isLatency},
	{Flag: cli.Flag{Short: 'i', Long: "ib-port", Arg: "<port>", Help: "port of the device (default 1)"}},
	{Flag: cli.Flag{Short: 'I', Long: "inline_size", Arg: "<size>", Help: "largest message to post inline"}, has: carriesData},
	{Flag: cli.Flag{Short: 'l', Long: "post_list", Arg: "<n>", Help: "post lists of <n> send work requests (default 1)"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "recv_post_list", Arg: "<n>", Help: "post lists of <n> receives (default 1)"}, has: func(k *kind) bool { return isBandwidth(k) && isSend(k) }},
	{Flag: cli.Flag{Short: 'm', Long: "mtu", Arg: "<mtu>", Help: "path MTU (default the port's)", Values: device.MTUs}},
	{Flag: cli.Flag{Short: 'n', Long: "iters", Arg: "<iters>", Help: "messages of each QP, at least 5"}},
	{Flag: cli.Flag{Short: 'N', Long: "noPeak", Help: "no peak bandwidth (default peak for up to 20000 messages)"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'o', Long: "outs", Arg: "<num>", Help: "outstanding READs or atomics (default the device's limit)"}, has: func(k *kind) bool { return k.verb.oneSidedRead() }},
	{Flag: cli.Flag{Short: 'p', Long: "port", Arg: "<port>", Help: "port of the server, for TCP or with -R for rdma_cm (default 18515)"}},
	{Flag: cli.Flag{Short: 'q', Long: "qp", Arg: "<num>", Help: "QPs (default 1)"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'Q', Long: "cq-mod", Arg: "<num>", Help: "messages to a completion (default 100, or 1 for messages above 8192 bytes)"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'r', Long: "rx-depth", Arg: "<dep>", Help: "receives to have posted; with --use-srq, in the SRQ (default 512)"}, has: isSend},
	{Flag: cli.Flag{Short: 'R', Long: "rdma_cm", Help: "connect the QPs by rdma_cm"}},
	{Flag: cli.Flag{Short: 's', Long: "size", Arg: "<size>", Help: "bytes in a message; K and M are 1024 and 1024 K"}},
	{Flag: cli.Flag{Short: 'S', Long: "sl", Arg: "<sl>", Help: "service level"}},
	{Flag: cli.Flag{Short: 't', Long: "tx-depth", Arg: "<dep>", Help: "send work requests to have posted"}},
	{Flag: cli.Flag{Short: 'T', Long: "tos", Arg: "<tos>", Help: "type of service, with -R: IPv4 TOS or IPv6 traffic class"}},
	{Flag: cli.Flag{Short: 'u', Long: "qp-timeout", Arg: "<code>", Help: "acknowledge timeout, 4.096 us x 2^code (default 14)"}},
	{Flag: cli.Flag{Short: 'U', Long: "report-unsorted", Help: "print all results, in their order"}, has: isLatency},
	{Flag: cli.Flag{Short: 'V', Long: "version", Help: "print the version of the exchange that this end speaks"}},
	{Flag: cli.Flag{Short: 'w', Long: "limit_bw", Arg: "<bw>", Help: "fail if the average bandwidth is lower"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'y', Long: "limit_msgrate", Arg: "<rate>", Help: "fail if the message rate is lower"}, has: isBandwidth},
	{Flag: cli.Flag{Short: 'x', Long: "gid-index", Arg: "<index>", Help: "own GID, by its place in the port's table (default first of IPv4)"}},
	{Flag: cli.Flag{Short: 'z', Long: "comm_rdma_cm", Help: "exchange addresses over rdma_cm, and connect the QPs by them"}},
	{Flag: cli.Flag{Long: "burst_size", Arg: "<n>", Help: "messages at once with --rate_limit (default -t)"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "rate_limit", Arg: "<rate>", Help: "send no faster, by the clock"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "rate_units", Arg: "<unit>", Help: "of --rate_limit: g Gb/s (default), M MiB/s, p messages/s", Values: cli.OneOf("g", "M", "p")}, has: isBandwidth},
	{Flag: cli.Flag{Long: "rate_limit_type", Arg: "<type>", Help: "SW alone", Values: cli.OneOf("SW")}, has: isBandwidth},
	{Flag: cli.Flag{Long: "dont_xchg_versions", Help: "do not exchange versions, buffer sizes and MTU"}},
	{Flag: cli.Flag{Long: "cqe_poll", Arg: "<n>", Help: "completions to take by a poll, at most (default 16)"}},
	{Flag: cli.Flag{Long: "flow_label", Arg: "<label,...>", Help: "IPv6 flow labels of the packets, of each QP the next"}},
	{Flag: cli.Flag{Long: "ipv6", Help: "take an IPv6 address as GID"}},
	{Flag: cli.Flag{Long: "latency_gap", Arg: "<us>", Help: "wait so long before each message"}, has: isLatency},
	{Flag: cli.Flag{Long: "mr_per_qp", Help: "register a region for each QP"}},
	{Flag: cli.Flag{Long: "odp", Help: "register memory on demand"}},
	{Flag: cli.Flag{Long: "out_json", Help: "write the report to a file as well"}},
	{Flag: cli.Flag{Long: "out_json_file", Arg: "<file>", Help: "that file (default perftest_out.json)", Values: cli.Files}},
	{Flag: cli.Flag{Long: "output", Arg: "<value>", Help: "print one number: bandwidth, message_rate or latency", Values: cli.OneOf("bandwidth", "message_rate", "latency")}},
	{Flag: cli.Flag{Long: "perform_warm_up", Help: "send a queue full of messages first"}, has: func(k *kind) bool { return isBandwidth(k) && !isSend(k) }},
	{Flag: cli.Flag{Long: "pkey_index", Arg: "<index>", Help: "P_Key of the QPs, by its place in the port's table"}},
	{Flag: cli.Flag{Long: "report-both", Help: "with -b, print each direction as well"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "report_gbits", Help: "report Gb/s, not MiB/s"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "retry_count", Arg: "<num>", Help: "retries of a packet with -R (default 7)"}},
	{Flag: cli.Flag{Long: "reversed", Help: "the server sends"}},
	{Flag: cli.Flag{Long: "run_infinitely", Help: "run until Ctrl-C, and report every -D seconds (default 5)"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "source_ip", Arg: "<addr>", Help: "own address for the exchange"}},
	{Flag: cli.Flag{Long: "bind_source_ip", Arg: "<addr>", Help: "the same, as newer programs call it"}},
	{Flag: cli.Flag{Long: "ipv6-addr", Help: "exchange over IPv6: no effect, the version of <host> is used"}},
	{Flag: cli.Flag{Long: "send_with_imm", Help: "SENDs carry immediate data"}, has: isSend},
	{Flag: cli.Flag{Long: "disable_dynamic_polling", Help: "no effect: --cqe_poll alone says how many completions a poll takes"}, has: isBandwidth},
	{Flag: cli.Flag{Long: "disable_numa", Help: "no effect: the test is bound to no NUMA node"}},
	{Flag: cli.Flag{Long: "tclass", Arg: "<value>", Help: "traffic class: IPv4 TOS or IPv6 traffic class"}},
	{Flag: cli.Flag{Long: "use-srq", Help: "receive through a shared receive queue"}, has: isSend},
	{Flag: cli.Flag{Long: "use_old_post_send", Help: "post by ibv_post_send: there is no other way here"}},
	{Flag: cli.Flag{Long: "disable_pcie_relaxed", Help: "no relaxed ordering: no effect on software devices"}},
	{Flag: cli.Flag{Long: "wait_destroy", Arg: "<s>", Help: "wait before the QPs are destroyed"}},
	{Flag: cm.PSKFlag},
	{Flag: cli.JSONFlag},
}

// flags returns the program's flags, with its defaults in their help.
func (k *kind) flags() (list []cli.Flag) {
	for _, d := range flagTable {
		if d.has != nil && !d.has(k) {
			continue
		}
		f := d.Flag
		switch f.Long {
		case "connection":
			f.Help += ", " + strings.Join(k.typeNames(), ", ") + " (default RC)"
			f.Values = cli.OneOf(k.typeNames()...)
		case "iters":
			f.Help += fmt.Sprintf(" (default %d)", k.defaultIters())
		case "size":
			f.Help += fmt.Sprintf(" (default %d)", k.defaultSize())
		case "tx-depth":
			f.Help += fmt.Sprintf(" (default %d)", k.defaultTxDepth())
		}
		if d.refused != "" {
			f.Help = "refused: " + d.refused
		}
		list = append(list, f)
	}
	return list
}

// refusal returns why a flag is refused, or "".
func refusal(name string) string {
	i := slices.IndexFunc(flagTable, func(d flagDef) bool { return d.Long == name })
	if i < 0 {
		return ""
	}
	return flagTable[i].refused
}

// number reads a whole number as the C programs do: the prefixes 0x and 0 count, and nothing may follow it. what
// names the flag in the error.
func number(what, arg string, lowest, highest int) (int, error) {
	n, err := strconv.ParseInt(arg, 0, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s argument %s should be int", what, arg)
	case err != nil || n < int64(lowest) || n > int64(highest):
		return 0, fmt.Errorf("%s should be between %d and %d", what, lowest, highest)
	}
	return int(n), nil
}
