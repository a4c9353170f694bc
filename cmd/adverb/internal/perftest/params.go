package perftest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Defaults, and limits of the C programs.
const (
	defaultPort     = 18515
	defaultRxDepth  = 512
	defaultCQMod    = 100
	defaultTimeout  = 14
	defaultDuration = 5 // seconds, of --run_infinitely
	defaultJSONFile = "perftest_out.json"

	minIters, maxIters = 5, 100_000_000
	maxTxDepth         = 15000
	maxRxDepth         = 16384
	maxDatagramRx      = 16000 // receives of UD and UC, unless -r says otherwise
	maxNumQP           = 16384
	maxCQMod           = 1024
	maxInline          = 1024
	maxGIDIndex        = 64
	maxAllSize         = 8 << 20 // the largest size of -a
	largeMessage       = 8192    // above it each message has a completion
	peakIters          = 20000   // of a QP: beyond them there is no peak bandwidth, as in C
)

func (k *kind) defaultSize() int {
	switch {
	case k.verb == verbAtomic:
		return 8
	case k.latency:
		return 2
	}
	return 65536
}

func (k *kind) defaultIters() int {
	if k.verb == verbWrite && !k.latency {
		return 5000
	}
	return 1000
}

func (k *kind) defaultTxDepth() int {
	if k.latency {
		return 1
	}
	return 128
}

// params are the values of the flags.
type params struct {
	host   string // of the server; "" for a server
	sender bool   // this end begins: the client, or the server with --reversed

	port     int
	device   string
	ibPort   int
	gidIndex int // -1: none given
	ipv6     bool
	pkey     int
	sourceIP netip.Addr

	qpType     verbs.QPType
	security   *rdmacm.Security // or nil
	qps        int
	all        bool
	size       int
	sizeGiven  bool
	iters      int
	txDepth    int
	rxDepth    int
	mtu        int // bytes; 0: the port's
	timeout    int
	retryCount int
	sl         int
	tclass     int
	tos        int      // -1: not set
	flowLabels []uint32 // of the QPs, in turn; empty: 0
	outs       int
	inline     int // -1: the default
	swap       bool
	cqMod      int
	cqModGiven bool
	vector     int // completion vector
	postList   int
	recvList   int
	srq        bool
	odp        bool
	mrPerQP    bool
	warmUp     bool
	events     bool
	bidi       bool
	reversed   bool
	cmQP       bool // -R
	cmExchange bool // -z or -R
	dontTell   bool // --dont_xchg_versions

	byTime   bool // -D or --run_infinitely
	endless  bool
	duration time.Duration
	margin   time.Duration // -1: a quarter of duration

	pollBatch int  // completions of a poll, at most
	sendImm   bool // SENDs carry immediate data

	rate      float64
	rateUnits string
	burst     int
	gap       time.Duration

	noPeak       bool
	gbits        bool
	reportBoth   bool
	limitBW      float64
	limitRate    float64
	sorted       bool // -H
	unsorted     bool // -U
	output       string
	json         bool
	outJSON      bool
	outJSONFile  string
	waitDestroy  time.Duration
	printVersion bool
}

// xrc reports whether the QPs are those of XRC. Then receives are an SRQ's, and the ends tell each other its number.
func (p *params) xrc() bool { return p.qpType == verbs.QPTypeXRCSend }

// lossy reports whether nothing repeats lost packets.
func (p *params) lossy() bool { return p.qpType == verbs.QPTypeUC || p.qpType == verbs.QPTypeUD }

// parse reads the flags. If ok is false, then the run ends here with status code.
func parse(inv *cli.Invocation, k *kind) (p *params, code int, ok bool) {
	p = &params{port: defaultPort, ibPort: 1, gidIndex: -1, qpType: verbs.QPTypeRC, qps: 1, size: k.defaultSize(),
		iters: k.defaultIters(), txDepth: k.defaultTxDepth(), timeout: defaultTimeout, retryCount: 7, tos: -1, inline: -1,
		cqMod: defaultCQMod, postList: 1, recvList: 1, rateUnits: "g", margin: -1, outJSONFile: defaultJSONFile, rxDepth: 1, pollBatch: pollBatch}
	if k.verb == verbSend {
		p.rxDepth = defaultRxDepth
	}
	var bad error
	operands, code, ok := inv.Parse(cli.ExitError, func(name, arg string) bool {
		if err := p.set(k, name, arg); err != nil && bad == nil {
			bad = fmt.Errorf("--%s: %w", name, err)
		}
		return true
	})
	if !ok {
		return nil, code, false
	}
	if p.printVersion {
		inv.Printf("Version: %s\n", version)
		return nil, cli.ExitOK, false
	}
	switch len(operands) {
	case 0:
	case 1:
		p.host = operands[0]
	default:
		bad = fmt.Errorf("%q: one server alone can be named", operands)
	}
	p.sender = (p.host != "") != p.reversed
	if bad == nil {
		bad = p.settle(k)
	}
	if bad != nil {
		return nil, inv.Fail(bad, " Parser function exited with Error\n"), false
	}
	return p, cli.ExitOK, true
}

// set takes one flag.
func (p *params) set(k *kind, name, arg string) (err error) {
	if why := refusal(name); why != "" {
		return errors.New(why)
	}
	whole := func(v *int, what string, lowest, highest int) {
		*v, err = number(what, arg, lowest, highest)
	}
	seconds := func(v *time.Duration, what string, lowest int) {
		*v, err = duration(what, arg, lowest)
	}
	switch name {
	case "port":
		whole(&p.port, "Port", 1, math.MaxUint16)
	case "ib-dev":
		p.device = arg
	case "ib-port":
		whole(&p.ibPort, "IB Port", 1, math.MaxUint8)
	case "gid-index":
		whole(&p.gidIndex, "Gid index", 0, maxGIDIndex)
	case "ipv6":
		p.ipv6 = true
	case "pkey_index":
		whole(&p.pkey, "Pkey index", 0, math.MaxUint16)
	case "source_ip", "bind_source_ip":
		p.sourceIP, err = netip.ParseAddr(arg)
	case "connection":
		p.qpType, err = k.qpType(arg)
	case "qp":
		whole(&p.qps, "num of Qps", 1, maxNumQP)
	case "all":
		p.all = true
	case "size":
		p.size, err = parseSize(arg)
		p.sizeGiven = true
	case "iters":
		whole(&p.iters, "Iteration num", minIters, maxIters)
	case "tx-depth":
		whole(&p.txDepth, "Tx depth", 1, maxTxDepth)
	case "rx-depth":
		whole(&p.rxDepth, "Rx depth", 1, maxRxDepth)
	case "mtu":
		whole(&p.mtu, "MTU", 0, 4096)
		if _, ok := verbs.MTUFromBytes(p.mtu); !ok && p.mtu != 0 && err == nil {
			err = fmt.Errorf("invalid MTU - %d: choose from {256,512,1024,2048,4096}", p.mtu)
		}
	case "qp-timeout":
		whole(&p.timeout, "QP Timeout", 0, 31)
	case "retry_count":
		whole(&p.retryCount, "Retry Count", 0, 7)
	case "sl":
		whole(&p.sl, "Service Level", 0, 15)
	case "tclass":
		whole(&p.tclass, "traffic class", 0, math.MaxUint8)
	case "tos":
		whole(&p.tos, "TOS", 0, math.MaxUint8)
	case "flow_label":
		p.flowLabels = nil
		for text := range strings.SplitSeq(arg, ",") {
			label := 0
			if label, err = number("flow label", text, 0, 1<<20-1); err != nil {
				break
			}
			p.flowLabels = append(p.flowLabels, uint32(label))
		}
	case "cqe_poll":
		whole(&p.pollBatch, "CQEs to poll", 1, maxRxDepth)
	case "outs":
		whole(&p.outs, "Outstanding Reads", 1, math.MaxUint8)
	case "inline_size":
		whole(&p.inline, "Max inline", 0, maxInline)
	case "atomic_type":
		switch arg {
		case "CMP_AND_SWAP":
			p.swap = true
		case "FETCH_AND_ADD":
			p.swap = false
		default:
			err = errors.New("invalid Atomic type! please choose from {CMP_AND_SWAP,FETCH_AND_ADD}")
		}
	case "cq-mod":
		whole(&p.cqMod, "CQ moderation", 1, maxCQMod)
		p.cqModGiven = true
	case "post_list":
		whole(&p.postList, "Send Post List size", 1, maxTxDepth)
	case "recv_post_list":
		whole(&p.recvList, "Receive Post List size", 1, maxRxDepth)
	case "vector":
		whole(&p.vector, "EQN", 0, math.MaxInt32)
	case "duration":
		seconds(&p.duration, "Duration period", 1)
		p.byTime = true
	case "margin":
		seconds(&p.margin, "Margin", 0)
	case "run_infinitely":
		p.endless = true
	case "rate_limit":
		if p.rate, err = strconv.ParseFloat(arg, 64); err != nil || !(p.rate > 0) || math.IsInf(p.rate, 1) {
			err = errors.New("rate limit must be a positive floating point number")
		}
	case "rate_units":
		if p.rateUnits = arg; !slices.Contains([]string{"M", "g", "p"}, arg) {
			err = errors.New("invalid rate limit units. Please use M,g or p")
		}
	case "rate_limit_type":
		if arg != "SW" {
			err = errors.New("HW and PP limits are a card's: use SW")
		}
	case "burst_size":
		whole(&p.burst, "Burst size", 0, math.MaxInt32)
	case "latency_gap":
		var us int
		whole(&us, "Latency gap time", 0, math.MaxInt32)
		p.gap = time.Duration(us) * time.Microsecond
	case "limit_bw":
		p.limitBW, err = limit(arg)
	case "limit_msgrate":
		p.limitRate, err = limit(arg)
	case "output":
		p.output = arg
	case "psk":
		p.security, err = cm.ReadPSK(arg)
	case "out_json_file":
		p.outJSONFile = arg
	case "wait_destroy":
		seconds(&p.waitDestroy, "wait_destroy", 0)
	case "CPU-freq", "use_old_post_send", "disable_pcie_relaxed", "ipv6-addr", "disable_dynamic_polling", "disable_numa":
	default:
		p.setSwitch(name)
	}
	return err
}

// setSwitch takes a flag without argument.
func (p *params) setSwitch(name string) {
	v, ok := map[string]*bool{
		"events": &p.events, "bidirectional": &p.bidi, "rdma_cm": &p.cmQP, "comm_rdma_cm": &p.cmExchange,
		"noPeak": &p.noPeak, "report-histogram": &p.sorted, "report-unsorted": &p.unsorted, "version": &p.printVersion,
		"dont_xchg_versions": &p.dontTell, "mr_per_qp": &p.mrPerQP, "odp": &p.odp, "out_json": &p.outJSON,
		"perform_warm_up": &p.warmUp, "report-both": &p.reportBoth, "report_gbits": &p.gbits, "reversed": &p.reversed,
		"use-srq": &p.srq, "json": &p.json, "send_with_imm": &p.sendImm, "report-histogrm": &p.sorted,
	}[name]
	if !ok {
		cli.Undeclared(name)
	}
	*v = true
}

func (k *kind) qpType(arg string) (verbs.QPType, error) {
	for _, t := range k.types() {
		if typeName(t) == arg {
			return t, nil
		}
	}
	return 0, fmt.Errorf("invalid Connection type %s: %s has %s", arg, k.name, strings.Join(k.typeNames(), ", "))
}

// parseSize reads a size, which may end in K or M.
func parseSize(arg string) (int, error) {
	factor := 1
	switch {
	case strings.HasSuffix(arg, "K"):
		arg, factor = arg[:len(arg)-1], 1<<10
	case strings.HasSuffix(arg, "M"):
		arg, factor = arg[:len(arg)-1], 1<<20
	}
	n, err := number("Message Size", arg, 1, math.MaxInt32)
	if err != nil || n > math.MaxInt32/factor {
		return 0, fmt.Errorf("message size should be between %d and %d", 1, math.MaxInt32)
	}
	return n * factor, nil
}

// duration reads a time: a whole number of seconds, as the C programs have it, or a Go duration such as 250ms.
func duration(what, arg string, lowest int) (time.Duration, error) {
	d, err := time.ParseDuration(arg)
	if err != nil || arg == "0" {
		n, err := number(what, arg, lowest, math.MaxInt32)
		return time.Duration(n) * time.Second, err
	}
	if d < time.Duration(lowest)*time.Second || d > math.MaxInt32*time.Second {
		return 0, fmt.Errorf("%s %s should be between %ds and %ds", what, arg, lowest, math.MaxInt32)
	}
	return d, nil
}

func limit(arg string) (float64, error) {
	v, err := strconv.ParseFloat(arg, 64)
	if err != nil || !(v >= 0) {
		return 0, fmt.Errorf("%s is no limit: give a number, 0 or more", arg)
	}
	return v, nil
}

// settle makes the flags agree with each other, as the C programs do, or says which cannot.
func (p *params) settle(k *kind) error {
	p.srq = p.srq || p.xrc()
	if p.cmQP {
		p.cmExchange = true
	}
	if p.margin < 0 {
		p.margin = (p.duration / 4).Truncate(time.Second)
	}
	if err := p.conflict(k); err != nil {
		return err
	}
	if p.endless && !p.byTime {
		p.duration = defaultDuration * time.Second
	}
	p.byTime = p.byTime || p.endless
	if p.byTime {
		p.noPeak = true
	} else {
		p.txDepth = min(p.txDepth, p.iters)
		if k.verb == verbSend {
			if p.lossy() && p.rxDepth == defaultRxDepth {
				p.rxDepth = min(p.iters, maxDatagramRx)
			}
			p.rxDepth = min(p.rxDepth, p.iters)
		}
	}
	p.noPeak = p.noPeak || p.iters > peakIters || k.latency || k.verb == verbSend && !p.sender && !p.bidi
	p.settleModeration()
	if k.verb.oneSidedRead() || p.inline < 0 && !k.latency {
		p.inline = 0
	}
	if p.all {
		p.size = maxAllSize
	}
	if p.burst == 0 {
		p.burst = p.txDepth
	}
	if p.postList > p.txDepth {
		return fmt.Errorf("--post_list %d: the send queue has room for %d: raise -t", p.postList, p.txDepth)
	}
	if k.verb != verbSend {
		return nil
	}
	if p.srq && p.qps > p.rxDepth {
		return fmt.Errorf("--use-srq: -r %d is not enough for %d QPs: each needs a receive", p.rxDepth, p.qps)
	}
	if n := p.rxDepth; p.srq {
		n /= p.qps
		if p.recvList > n {
			return fmt.Errorf("--recv_post_list %d: each QP has %d receives of the SRQ: raise -r", p.recvList, n)
		}
	} else if p.recvList > n {
		return fmt.Errorf("--recv_post_list %d: the receive queue has room for %d: raise -r", p.recvList, n)
	}
	return nil
}

// settleModeration finds how many messages share a completion.
func (p *params) settleModeration() {
	switch {
	case p.cqModGiven:
	case p.postList > 1:
		p.cqMod = p.postList
	case p.size > largeMessage && p.qpType != verbs.QPTypeUD && !p.all && !p.events:
		p.cqMod = 1
	}
	p.cqMod = min(p.cqMod, p.txDepth)
}

// conflict says which flags exclude each other.
func (p *params) conflict(k *kind) error {
	outputs := []string{"bandwidth", "message_rate"}
	if k.latency {
		outputs = []string{"latency"}
	}
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{k.verb == verbAtomic && p.sizeGiven && p.size != k.defaultSize(), "Message size cannot be changed for Atomic tests"},
		{!p.byTime && !p.endless && p.iters%p.postList != 0, "Number of iterations must be a multiple of post list size"},
		{!p.byTime && !p.endless && p.iters%p.recvList != 0, "Number of iterations must be a multiple of receive post list size"},
		{p.cqModGiven && p.postList > 1 && p.postList%p.cqMod != 0, "Post list size must be a multiple of CQ moderation"},
		{p.byTime && p.events, "Duration mode doesn't work with events."},
		{p.byTime && p.all, "Duration mode doesn't support running on all sizes."},
		{p.byTime && !p.endless && p.duration <= 2*p.margin, "The margins leave nothing of the duration: give a longer -D or a shorter -f"},
		{p.byTime && (p.sorted || p.unsorted), "-H and -U print each result, and -D makes too many of them: give -n instead"},
		{p.cmQP && p.qpType == verbs.QPTypeUC, "UC is not supported in librdmacm"},
		{p.cmQP && p.xrc(), "XRC does not support RDMA_CM: without -R the ends exchange the numbers of their QPs"},
		{p.security != nil && p.xrc(), "--psk: the connection manager agrees on the keys, and connects no QPs of XRC"},
		{p.tos >= 0 && !p.cmQP, "TOS only valid for rdma_cm based QP: without -R give --tclass"},
		{p.security != nil && !p.cmQP, "--psk: the connection manager agrees on the keys, so give -R as well"},
		{p.security != nil && p.qpType == verbs.QPTypeUD, "--psk: datagrams come from anybody, so no two ends have keys for them"},
		{p.endless && p.events, "run_infinitely does not support events"},
		{p.endless && p.all, "run_infinitely doesn't support running on all sizes."},
		{p.endless && p.bidi && k.verb == verbSend, "run_infinitely mode is not supported in SEND Bidirectional BW test"},
		{p.endless && p.rate > 0, "run_infinitely does not support rate limit"},
		{p.endless && p.json, "run_infinitely has no end at which JSON could be printed"},
		{p.burst > 0 && p.rate == 0, "Can't enable burst mode when rate limiter is off"},
		{p.rate > 0 && (k.verb == verbAtomic || k.verb == verbSend && p.bidi), "SW Rate limiter can't be executed on ATOMIC or bidirectional SEND tests"},
		{p.output != "" && !slices.Contains(outputs, p.output), "Output verbosity level can be: " + strings.Join(outputs, ", ")},
		{p.output != "" && p.json, "--output and --json exclude each other"},
		{p.warmUp && p.postList > 1, "--perform_warm_up and --post_list exclude each other"},
	} {
		if c.wrong {
			return errors.New(c.text)
		}
	}
	return nil
}
