// Package bench has the command bench, which measures the software device beside other ways to move data on the same
// machine: TCP, other RDMA stacks over plain sockets, and the limit for all of them.
//
// A table of networks, one of workloads and one of peers list the choices. For each round, workload and peer a cell
// is measured by two processes, a server's and a client's, that are started for it. Those of our own peers are this
// program again: order has the messages between them.
package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

// commandName is a constant because the command runs itself again.
const commandName = "bench"

// Command is the command bench.
var Command = &cli.Command{
	Name:  commandName,
	Short: "Measure the software device beside TCP and other stacks on this machine",
	Flags: []cli.Flag{
		{Short: 'r', Long: "rounds", Arg: "<num>", Help: "measure everything so often (default 5)", Ours: true},
		{Short: 't', Long: "time", Arg: "<duration>", Help: "of each measurement, such as 1s (default 250ms)", Ours: true},
		{Short: 'n', Long: "networks", Arg: "<list>", Help: "some of " + names(networks), Ours: true, Values: values(networks)},
		{Short: 'w', Long: "workloads", Arg: "<list>", Help: "some of those below", Ours: true, Values: values(workloads)},
		{Short: 'p', Long: "peers", Arg: "<list>", Help: "some of those below", Ours: true, Values: values(peers)},
		{Long: "path", Arg: "<table[:text]>", Help: "measure over an emulated bad path: losses or shares, or rows with a text", Ours: true, Values: cli.OneOf("losses", "shares")},
		{Long: "cpus", Arg: "<server,client>", Help: "pin the two ends to these cores, such as 0,1 (default: not pinned)", Ours: true},
		{Long: "plain", Arg: "<file>", Help: "measure this adverb too, which was built without a profile (-pgo=off)", Ours: true, Values: cli.Files},
		{Long: "revision", Arg: "<name>", Help: "of the source, where the program does not know it", Ours: true},
		{Long: "cpuprofile", Arg: "<dir>", Help: "write a CPU profile of each of our own processes there", Ours: true, Values: cli.Files},
		cli.JSONFlag,
	},
	Forms: []cli.Form{{Args: "[options]"}},
	Usage: cli.UsageLine,
	More: "Lists have commas. The workloads are\n" + names(workloads[:len(workloads)/2]) + ",\n" + names(workloads[len(workloads)/2:]) + ".\n" +
		"The peers are\n" + names(peers[:len(peers)/2]) + ",\n" + names(peers[len(peers)/2:]) + ":\n" +
		"the probe does the work that any stack over UDP sockets must do, and no more. The others have their own names.\n" +
		"Those from memcpy on are peers of the network memory. On the others adverb runs with ADVERB_SHM=0.\n" +
		"CORES is the CPU time of the client and of the server in the measured time: an end that polls has 1.\n" +
		"The probe and memcpy are called limits where nothing has beaten them.\n" +
		"As root it makes two network namespaces with a veth pair between them. They end with it.\n" +
		"Compare within a run: another machine, or another hour on this one, has other figures.\n",
	Run: run,
}

// Those of the tables have names.
func (n network) String() string  { return n.name }
func (w workload) String() string { return w.name }
func (p peer) String() string     { return p.name }

// names lists the names of a table.
func names[T fmt.Stringer](table []T) string {
	var list []string
	for _, e := range table {
		list = append(list, e.String())
	}
	return strings.Join(list, ", ")
}

// values are the names of a table, for completion.
func values[T fmt.Stringer](table []T) cli.Values {
	return cli.OneOf(strings.Split(names(table), ", ")...)
}

// pick returns the entries of a table that a list names, in the order of the table.
func pick[T fmt.Stringer](flag, list string, table []T) (picked []T, err error) {
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(table, func(e T) bool { return e.String() == name }) {
			return nil, fmt.Errorf("--%s: there is no %q; there are %s", flag, name, names(table))
		}
	}
	for _, e := range table {
		if slices.Contains(wanted, e.String()) {
			picked = append(picked, e)
		}
	}
	return picked, nil
}

const (
	defaultRounds = 5
	maxRounds     = 1000
	defaultTime   = 250 * time.Millisecond
	minTime       = time.Millisecond
	maxTime       = time.Minute
)

func run(inv *cli.Invocation) int {
	if os.Getenv(envChild) != "" {
		return runChild(inv)
	}
	s := &settings{rounds: defaultRounds, time: defaultTime, networks: networks, peers: peers, workloads: workloads}
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		err := s.set(name, arg)
		inv.Explain(err)
		return err == nil
	})
	if !ok {
		return code
	}
	if len(operands) > 0 {
		inv.Explain(fmt.Errorf("unknown operand %q: bench has flags only", operands[0]))
		inv.PrintUsage()
		return cli.ExitUsage
	}
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o777); err != nil {
			return inv.Fail(err, "")
		}
	}
	if s.path != "" {
		return s.runPath(inv)
	}
	report, err := s.measure(inv.Ctx, inv.Stderr)
	if err != nil {
		return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
	}
	if s.json {
		return inv.PrintJSON(report)
	}
	printReport(inv.Stdout, report)
	return cli.ExitOK
}

// set takes one flag.
func (s *settings) set(name, arg string) (err error) {
	switch name {
	case "rounds":
		s.rounds, err = strconv.Atoi(arg)
		if err != nil || s.rounds < 1 || s.rounds > maxRounds {
			return fmt.Errorf("--rounds %s: rounds are 1 to %d", arg, maxRounds)
		}
	case "time":
		s.time, err = time.ParseDuration(arg)
		if err != nil || s.time < minTime || s.time > maxTime {
			return fmt.Errorf("--time %s: it is a duration such as 300ms, from %v to %v", arg, minTime, maxTime)
		}
	case "networks":
		s.networks, err = pick(name, arg, networks)
	case "workloads":
		s.workloads, err = pick(name, arg, workloads)
	case "peers":
		s.peers, err = pick(name, arg, peers)
	case "path":
		if s.path, s.pathRows, _ = strings.Cut(arg, ":"); pathTables[s.path] == nil {
			return fmt.Errorf("--path %s: the tables are losses and shares", arg)
		}
		if s.time == defaultTime {
			s.time = defaultPathTime
		}
	case "cpus":
		s.cpus, err = parseCPUs(arg)
	case "cpuprofile":
		if arg == "" {
			return errors.New("--cpuprofile: the name of a directory is missing")
		}
		s.profiles = arg
	case "plain":
		if s.plain, err = exec.LookPath(arg); err != nil {
			return fmt.Errorf("--plain: %w: give the file of an adverb that \"go build -pgo=off ./cmd/adverb\" has made", err)
		}
	case "revision":
		s.revision = arg
	case "json":
		s.json = true
	default:
		cli.Undeclared(name)
	}
	return err
}
