package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// Res is the command res.
var Res = &cli.Command{
	Name:     "res",
	Short:    "Show the objects that running programs have open on devices",
	Flags:    []cli.Flag{watchFlag, intervalFlag, countFlag, jsonFlag},
	Operands: []cli.Values{cli.OneOf(kindNames()...), device.Names},
	Forms:    []cli.Form{{Args: "[options] [pd|cq|qp|mr|mw|srq|cm_id] [<dev>]"}},
	Usage:    usage,
	More: `Each program of this user that has a device open answers (for root, each of any user). Without a kind
the objects of all kinds are counted.

A program that runs with ADVERB_WATCH=0 does not answer. If others do not answer, or cannot all be asked
within 10 s, the tool says so, and its status is 1. Linux only.
`,
	Run: runRes,
}

// kind is a kind of objects.
type kind struct {
	name string
	head []string
	rows func(d *watch.Device) [][]string
}

var kinds = []kind{
	{"pd", []string{"PD"}, func(d *watch.Device) (rows [][]string) {
		for _, p := range d.PD {
			rows = append(rows, []string{p})
		}
		return rows
	}},
	{"cq", []string{"CQ", "CQE"}, func(d *watch.Device) (rows [][]string) {
		for _, c := range d.CQ {
			rows = append(rows, []string{c.Name, strconv.Itoa(c.Entries)})
		}
		return rows
	}},
	{"qp", []string{"LQPN", "TYPE", "STATE", "RQPN", "RGID", "MTU", "RQ-PSN", "SQ-PSN", "PD", "SRQ", "CARRIER"}, func(d *watch.Device) (rows [][]string) {
		for _, q := range d.QP {
			rqpn, mtu := "-", "-"
			if q.DestGID != "" {
				rqpn, mtu = fmt.Sprintf("0x%06x", q.DestQPN), strconv.Itoa(q.PathMTU)
			}
			rows = append(rows, []string{fmt.Sprintf("0x%06x", q.QPN), short(q.Type), short(q.State), rqpn, orDash(q.DestGID), mtu,
				fmt.Sprintf("0x%06x", q.RQPSN), fmt.Sprintf("0x%06x", q.SQPSN), q.PD, orDash(q.SRQ), orDash(watch.Clean(q.Carrier))})
		}
		return rows
	}},
	{"mr", []string{"LKEY", "RKEY", "IOVA", "MRLEN", "PD", "ACCESS"}, func(d *watch.Device) (rows [][]string) {
		for _, m := range d.MR {
			rows = append(rows, []string{fmt.Sprintf("0x%08x", m.LKey), fmt.Sprintf("0x%08x", m.RKey), fmt.Sprintf("%#x", m.Addr),
				strconv.Itoa(m.Length), m.PD, strings.ReplaceAll(m.Access, "ACCESS_", "")})
		}
		return rows
	}},
	{"mw", []string{"RKEY", "TYPE", "PD"}, func(d *watch.Device) (rows [][]string) {
		for _, m := range d.MW {
			rows = append(rows, []string{fmt.Sprintf("0x%08x", m.RKey), m.Type, m.PD})
		}
		return rows
	}},
	{"srq", []string{"SRQ", "MAX-WR", "MAX-SGE", "PD", "SRQN", "CQ"}, func(d *watch.Device) (rows [][]string) {
		for _, s := range d.SRQ {
			n := "-"
			if s.SRQN != 0 { // of XRC
				n = fmt.Sprintf("0x%06x", s.SRQN)
			}
			rows = append(rows, []string{s.Name, strconv.Itoa(s.MaxWR), strconv.Itoa(s.MaxSGE), s.PD, n, orDash(s.CQ)})
		}
		return rows
	}},
	{"cm_id", []string{"LQPN", "TYPE", "STATE", "SRC-ADDR", "DST-ADDR"}, func(d *watch.Device) (rows [][]string) {
		for _, c := range d.CMID {
			qpn := "-"
			if c.QPN != 0 {
				qpn = fmt.Sprintf("0x%06x", c.QPN)
			}
			rows = append(rows, []string{qpn, orDash(short(c.Type)), c.State, c.Local, orDash(c.Remote)})
		}
		return rows
	}},
}

func kindNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func runRes(inv *cli.Invocation) int {
	var o options
	operands, code, ok := inv.Parse(cli.ExitUsage, func(flag, arg string) bool {
		known, ok := o.set(inv, flag, arg)
		if !known {
			cli.Undeclared(flag)
		}
		return ok
	})
	if !ok {
		return code
	}
	var of *kind
	if len(operands) > 0 {
		if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == operands[0] }); i >= 0 {
			of, operands = &kinds[i], operands[1:]
		}
	}
	dev, ok := oneDevice(inv, operands)
	if !ok {
		return cli.ExitUsage
	}
	return o.run(inv, watch.WantRes, dev, func(all []watch.Process, _ time.Duration) int {
		if of != nil {
			printObjects(inv, all, of)
		} else {
			printCounts(inv, all)
		}
		if o.watch {
			inv.Printf("\n")
		}
		return cli.ExitOK
	})
}

// printCounts prints how many objects of each kind there are.
func printCounts(inv *cli.Invocation, all []watch.Process) {
	names := append(kindNames(), "ah")
	rows := [][]string{{"PID", "COMMAND", "DEVICE"}}
	for _, n := range names {
		rows[0] = append(rows[0], strings.ToUpper(n))
	}
	for _, p := range all {
		for _, d := range p.Devices {
			row := []string{strconv.Itoa(p.PID), p.Command, d.Name}
			for _, n := range names {
				row = append(row, strconv.Itoa(d.Count[n]))
			}
			rows = append(rows, row)
		}
	}
	table(inv.Stdout, rows, 0)
}

// printObjects prints the objects of a kind.
func printObjects(inv *cli.Invocation, all []watch.Process, of *kind) {
	rows := [][]string{append([]string{"PID", "COMMAND", "DEVICE"}, of.head...)}
	for _, p := range all {
		for _, d := range p.Devices {
			listed := of.rows(&d)
			for _, r := range listed {
				rows = append(rows, append([]string{strconv.Itoa(p.PID), p.Command, d.Name}, r...))
			}
			if more := d.Count[of.name] - len(listed); more > 0 {
				rows = append(rows, []string{strconv.Itoa(p.PID), p.Command, d.Name, fmt.Sprintf("and %d more", more)})
			}
		}
	}
	table(inv.Stdout, rows, 0)
}
