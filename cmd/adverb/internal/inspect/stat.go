package inspect

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// Stat is the command stat.
var Stat = &cli.Command{
	Name:  "stat",
	Short: "Show the counters of the devices of running programs",
	Flags: []cli.Flag{
		watchFlag, intervalFlag, countFlag,
		{Short: 'q', Long: "qp", Help: "a line for each QP"},
		{Short: 'v', Long: "verbose", Help: "all counters that are not 0, by their names"},
		jsonFlag,
		{Long: "prometheus", Arg: "<[host]:port>", Help: "serve the counters at http://host:port/metrics; :9400 for this host"},
	},
	Operands: []cli.Values{device.Names},
	Forms:    []cli.Form{{Args: "[options] [<dev>]"}},
	Usage:    usage,
	More: `Each program of this user that has a device open answers (for root, each of any user). Without -w the
table has totals since the device was opened, with -w what came since the line before:

  SENT, RCVD   packets, and their bytes from the BTH to the ICRC; with -w in a second. Of iWARP devices
               FPDUs, and their bytes of payload
  REPEAT       packets sent again
  TIMEOUT      acknowledge timeouts: nothing came for the QP's timeout
  RNR          NAKs for lack of a receive, both ways
  OUTOFSEQ     requests dropped because an earlier one was missing
  DROPPED      packets dropped: damaged, for no QP, from strangers, for lack of a receive or of room

TCP repeats what iWARP loses, and does not tell.

With --prometheus the programs are asked when a server of Prometheus asks, and --qp adds the counters of
each QP. The names are those of package adverbprom, with the labels pid and command besides. Who can reach
the port can read them: without a host it is 127.0.0.1, and 0.0.0.0:9400 or [::]:9400 is every address.

A program that runs with ADVERB_WATCH=0 does not answer. If others do not answer, or cannot all be asked
within 10 s, the tool says so, and its status is 1. Linux only.
`,
	Run: runStat,
}

func usage(w io.Writer, c *cli.Command, prog string) {
	fmt.Fprintf(w, "Usage:\n  %s %s\n\n", prog, c.Forms[0].Args)
	cli.PrintFlags(w, c)
}

func runStat(inv *cli.Invocation) int {
	var (
		o             options
		perQP, byName bool
		address       string
	)
	operands, code, ok := inv.Parse(cli.ExitUsage, func(flag, arg string) bool {
		known, ok := o.set(inv, flag, arg)
		switch {
		case known:
			return ok
		case flag == "qp":
			perQP = true
		case flag == "verbose":
			byName = true
		case flag == "prometheus":
			address = arg
		default:
			cli.Undeclared(flag)
		}
		return true
	})
	if !ok {
		return code
	}
	dev, ok := oneDevice(inv, operands)
	if !ok {
		return cli.ExitUsage
	}
	want := watch.WantStat
	if perQP {
		want = watch.WantQPStat
	}
	if address != "" {
		if o != (options{}) || byName {
			inv.Errorf("%s: --prometheus goes with --qp and with a device alone\n", inv.Prog)
			return cli.ExitUsage
		}
		return export(inv, address, want, dev)
	}
	o.growth = o.watch && !o.json
	s := stat{inv: inv, perQP: perQP, byName: byName, watch: o.watch}
	return o.run(inv, want, dev, s.print)
}

// stat prints counters.
type stat struct {
	inv           *cli.Invocation
	perQP, byName bool
	watch         bool
	before        map[source]map[string]uint64
}

// source is whose counters they are.
type source struct {
	pid    int
	device string
	qpn    uint32 // 0 for the device
}

// counted is one line: a device, or a QP.
type counted struct {
	source
	process *watch.Process
	device  *watch.Device
	qp      *watch.QP // or nil
	values  map[string]uint64
}

func (s *stat) print(all []watch.Process, since time.Duration) int {
	var lines []counted
	for i := range all {
		p := &all[i]
		for j := range p.Devices {
			d := &p.Devices[j]
			if !s.perQP {
				lines = append(lines, counted{source{p.PID, d.Name, 0}, p, d, nil, d.Counters})
				continue
			}
			for k := range d.QP {
				q := &d.QP[k]
				lines = append(lines, counted{source{p.PID, d.Name, q.QPN}, p, d, q, q.Counters})
			}
		}
	}
	latest := map[source]map[string]uint64{}
	for i := range lines {
		l := &lines[i]
		latest[l.source] = l.values
		if before := s.before[l.source]; before != nil {
			l.values = growth(before, l.values)
		}
	}
	s.before = latest
	switch {
	case s.watch && since == 0: // nothing to compare with
	case s.byName:
		s.printNames(lines)
	default:
		s.printTable(lines, since)
	}
	return cli.ExitOK
}

// growth is verbs.Counters.Since for maps.
func growth(before, now map[string]uint64) map[string]uint64 {
	g := make(map[string]uint64, len(now))
	for name, v := range now {
		if d, ok := verbs.DescribeCounter(name); !ok || !d.Gauge {
			v -= min(v, before[name])
		}
		g[name] = v
	}
	return g
}

// column is a column of the table of counters.
type column struct {
	head  string
	sum   []string // the counters that it adds up
	rate  bool     // with --watch in a second
	gauge bool     // of a QP alone
}

var columns = []column{
	{head: "SENT", sum: []string{"sent_pkts", "iw_tx_fpdus"}, rate: true},
	{head: "BYTES", sum: []string{"sent_bytes", "iw_tx_bytes"}, rate: true},
	{head: "RCVD", sum: []string{"rcvd_pkts", "iw_rx_fpdus"}, rate: true},
	{head: "BYTES", sum: []string{"rcvd_bytes", "iw_rx_bytes"}, rate: true},
	{head: "REPEAT", sum: []string{"retrans_pkts"}},
	{head: "TIMEOUT", sum: []string{"local_ack_timeout_err"}},
	{head: "RNR", sum: []string{"rcvd_rnr_err", "send_rnr_err"}},
	{head: "OUTOFSEQ", sum: []string{"out_of_seq_request"}},
	{head: "DROPPED", sum: []string{"rx_icrc_encapsulated", "drop_malformed", "drop_no_qp", "drop_source", "drop_overflow",
		"bad_pkey_cntr", "qkey_viol_cntr", "out_of_buffer", "resp_local_length_error", "unexpected_pkts",
		"iw_rx_crc_errors"}},
	{head: "WINDOW", sum: []string{"window_pkts"}, gauge: true},
	{head: "FLIGHT", sum: []string{"inflight_pkts"}, gauge: true},
}

func (s *stat) printTable(lines []counted, since time.Duration) {
	head := []string{"PID", "COMMAND", "DEVICE"}
	if s.perQP {
		head = append(head, "QP", "TYPE", "STATE")
	} else {
		head = append(head, "QPS")
	}
	for _, c := range columns {
		if c.gauge && !s.perQP {
			continue
		}
		name := c.head
		if c.rate && since > 0 {
			name += "/s"
		}
		head = append(head, name)
	}
	rows := [][]string{head}
	for _, l := range lines {
		row := []string{strconv.Itoa(l.pid), l.process.Command, l.device.Name}
		if s.perQP {
			row = append(row, fmt.Sprintf("0x%06x", l.qp.QPN), short(l.qp.Type), short(l.qp.State))
		} else {
			row = append(row, strconv.Itoa(l.device.Count["qp"]))
		}
		for _, c := range columns {
			if c.gauge && !s.perQP {
				continue
			}
			var v float64
			for _, name := range c.sum {
				v += float64(l.values[name])
			}
			if c.rate && since > 0 {
				v /= since.Seconds()
			}
			row = append(row, amount(v))
		}
		rows = append(rows, row)
	}
	table(s.inv.Stdout, rows, tabwriter.AlignRight)
	s.endPrint()
}

// endPrint separates the outputs of --watch.
func (s *stat) endPrint() {
	if s.watch {
		s.inv.Printf("\n")
	}
}

// order is the place of each known counter in the list.
var order = func() map[string]int {
	m := map[string]int{}
	for i, d := range verbs.CounterDescs() {
		m[d.Name] = i
	}
	return m
}()

func (s *stat) printNames(lines []counted) {
	for _, l := range lines {
		s.inv.Printf("%d %s %s", l.pid, l.process.Command, l.device.Name)
		if l.qp != nil {
			s.inv.Printf(" qp 0x%06x %s", l.qp.QPN, watch.Clean(short(l.qp.Type)))
		}
		s.inv.Printf("\n")
		rows := [][]string{}
		for _, values := range []map[string]uint64{l.values, l.port()} {
			for _, name := range sortedKeys(values, order) {
				if v := values[name]; v != 0 {
					d, _ := verbs.DescribeCounter(name)
					rows = append(rows, []string{"  " + name, strconv.FormatUint(v, 10), d.Help})
				}
			}
		}
		t := tabwriter.NewWriter(s.inv.Stdout, 0, 0, 2, ' ', 0)
		for _, r := range rows {
			fmt.Fprintf(t, "%s\t%s\t%s\n", watch.Clean(r[0]), r[1], r[2])
		}
		t.Flush()
	}
	s.endPrint()
}

// port returns the counters of the port, which a device's list has at its end when they are totals.
func (l *counted) port() map[string]uint64 {
	if l.qp != nil {
		return nil
	}
	m := map[string]uint64{}
	for name, v := range l.device.Port {
		if _, ok := l.values[name]; !ok { // both have the same values
			m[name] = v
		}
	}
	return m
}
