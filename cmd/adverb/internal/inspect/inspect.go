// Package inspect has the commands that look into programs which have devices open: the counters of their devices,
// and the open objects.
package inspect

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// Limits that this implementation chose.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = 24 * time.Hour
)

var (
	watchFlag    = cli.Flag{Short: 'w', Long: "watch", Help: "print again and again, until Ctrl-C"}
	intervalFlag = cli.Flag{Short: 'i', Long: "interval", Arg: "<seconds>", Help: "between two prints of --watch (default 1)"}
	countFlag    = cli.Flag{Short: 'c', Long: "count", Arg: "<n>", Help: "end --watch after so many prints"}
	jsonFlag     = cli.Flag{Long: "json", Help: "print JSON with stable snake_case keys"}
)

// options are the values of the flags that both commands have.
type options struct {
	watch    bool
	interval time.Duration
	count    int // 0 sets no limit
	json     bool
	growth   bool // print the growth since the latest look, so the first look prints nothing
}

// set takes a flag over. known is false for a flag that only one command has.
func (o *options) set(inv *cli.Invocation, flag, arg string) (known, ok bool) {
	switch flag {
	case "watch":
		o.watch = true
	case "json":
		o.json = true
	case "interval":
		s, err := strconv.ParseFloat(arg, 64)
		if o.interval = time.Duration(s * float64(time.Second)); err != nil || !(s >= minInterval.Seconds() && s <= maxInterval.Seconds()) {
			inv.Explain(fmt.Errorf("--interval=%s: a number of seconds from %v to %v is needed", watch.Clean(arg), minInterval.Seconds(), maxInterval.Seconds()))
			return true, false
		}
	case "count":
		n, err := strconv.Atoi(arg)
		if o.count = n; err != nil || n < 1 {
			inv.Explain(fmt.Errorf("--count=%s: a number from 1 on is needed", watch.Clean(arg)))
			return true, false
		}
	default:
		return false, false
	}
	return true, true
}

// run asks, and hands the answers to print, once or for as long as --watch says. since is the time since the latest
// look, and 0 in the first.
func (o *options) run(inv *cli.Invocation, want watch.Want, dev string, print func(all []watch.Process, since time.Duration) int) int {
	interval := o.interval
	if interval == 0 {
		interval = time.Second
	}
	inv.Endless = o.watch
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last time.Time
	first := 1 // that is printed
	if o.growth {
		first = 0
	}
	for n := first; ; n++ {
		all, silent, err := watch.Ask(inv.Ctx, want)
		if err != nil {
			return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
		}
		code := cli.ExitOK
		for _, err := range silent {
			inv.Explain(err)
			code = cli.ExitError
		}
		now, since := time.Now(), time.Duration(0)
		if !last.IsZero() {
			since = now.Sub(last)
		}
		last = now
		all = pick(all, dev)
		for _, p := range all {
			if p.Alone != "" {
				inv.Explain(fmt.Errorf("pid %d shares neither memory nor its addresses with other programs: %s", p.PID, p.Alone))
			}
		}
		switch {
		case o.growth && n == 0:
			print(all, 0)
		case o.json:
			code = max(code, inv.PrintJSON(all))
		default:
			code = max(code, print(all, since))
		}
		if !o.watch || o.count > 0 && n == o.count {
			if len(all) == 0 && !o.json {
				inv.Explain(none(dev, len(silent) == 0))
			}
			return code
		}
		select {
		case <-tick.C:
		case <-inv.Ctx.Done():
			return inv.Finish(inv.Ctx.Err(), nil)
		}
	}
}

// oneDevice returns the device that the operands name, "" for all. More than one are refused: a reader of the output
// would take it for the answer to all of them.
func oneDevice(inv *cli.Invocation, operands []string) (dev string, ok bool) {
	switch len(operands) {
	case 0:
		return "", true
	case 1:
		return operands[0], true
	}
	inv.Errorf("%s: %q: one device can be named\n", inv.Prog, operands)
	inv.PrintUsage()
	return "", false
}

// none says that no program has such an object. That is known only if all have answered.
func none(dev string, all bool) error {
	programs, what := "program of this user", "a device"
	if !all {
		programs = "program that has answered"
	}
	if dev != "" {
		what = "device " + watch.Clean(dev)
	}
	return fmt.Errorf("no %s has %s open", programs, what)
}

// pick leaves only the devices called dev, or all for "", and makes the programs' texts fit to print.
func pick(all []watch.Process, dev string) []watch.Process {
	picked := []watch.Process{}
	for _, p := range all {
		p.Command, p.Alone = watch.Clean(p.Command), watch.CleanText(p.Alone)
		devices := []watch.Device{}
		for _, d := range p.Devices {
			if dev == "" || d.Name == dev {
				d.Name, d.Netdev = watch.Clean(d.Name), watch.Clean(d.Netdev)
				devices = append(devices, d)
			}
		}
		if p.Devices = devices; len(devices) > 0 {
			picked = append(picked, p)
		}
	}
	return picked
}

// table prints rows, of which the first is the heading. Text of programs is cleaned.
func table(w io.Writer, rows [][]string, flags uint) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', flags)
	for _, r := range rows {
		for i := range r {
			r[i] = watch.Clean(r[i])
		}
		line := strings.Join(r, "\t")
		if flags&tabwriter.AlignRight != 0 {
			line += "\t" // or the last column is not aligned
		}
		fmt.Fprintln(t, line)
	}
	t.Flush()
}

// amount prints a number with a unit of thousands, in at most five characters.
func amount(v float64) string {
	const units = " kMGTPE"
	i := 0
	for v >= 9999.5 && i < len(units)-1 {
		v /= 1000
		i++
	}
	if i == 0 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + units[i:i+1]
}

// sortedKeys returns the names of counters: known ones in the order of order, then the others by name.
func sortedKeys(m map[string]uint64, order map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		x, knownA := order[a]
		y, knownB := order[b]
		switch {
		case knownA && knownB:
			return x - y
		case knownA:
			return -1
		case knownB:
			return 1
		}
		return strings.Compare(a, b)
	})
	return keys
}

// short leaves out the prefix of a name such as QPT_RC.
func short(name string) string {
	for _, p := range []string{"QPT_", "QPS_"} {
		name = strings.TrimPrefix(name, p)
	}
	return name
}
