package devinfo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// verifyPort is the TCP port at which a peer waits.
const verifyPort = 18516

// Verify is the command verify.
var Verify = &cli.Command{
	Name:  "verify",
	Short: "Run the conformance suite on a device, or between two hosts, and write a report",
	Flags: []cli.Flag{
		{Short: 's', Long: "serve", Help: "be the peer of one run"},
		{Short: 'i', Long: "ib-port", Arg: "<port>", Help: "port of the device (default 1)", Check: clib.DecimalWithin(1, math.MaxUint8)},
		{Short: 'g', Long: "gid-idx", Arg: "<num>", Help: "index in its GID table (default that of an IPv4 address over RoCE v2, or 0)", Check: clib.DecimalWithin(0, math.MaxInt32)},
		{Short: 'p', Long: "port", Arg: "<port>", Help: fmt.Sprintf("TCP port of the peer (default %d)", verifyPort), Check: clib.DecimalWithin(1, math.MaxUint16)},
		{Long: "mlid", Arg: "<lid>", Help: "LID of multicast groups on InfiniBand, by the subnet manager, decimal (default none)", Check: clib.DecimalWithin(0xc000, 0xfffe)},
		{Long: "run", Arg: "<regexp>", Help: "cases whose names match (default all)"},
		{Long: "skip", Arg: "<regexp>", Help: "but not those whose names match"},
		redactFlag,
		cli.JSONFlag,
	},
	Operands: []cli.Values{device.Names, {}},
	Forms: []cli.Form{
		{Args: "<device>", Does: "both sides of each case on one device"},
		{Args: "<device> <host>", Does: "the other side at <host>"},
		{Args: "--serve <device>", Does: "be that other side"},
	},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		cli.PrintForms(w, c, prog)
		fmt.Fprintln(w)
		cli.PrintFlags(w, c)
	},
	More: `The status is 1 if a case has failed. A case that needs what a device does not have is skipped. A device
of the same host may be at the other end:
  PROG --serve soft_lo@127.0.0.2
  PROG soft_lo@127.0.0.1 127.0.0.1
The report names the host's RDMA software, the device with its attributes, and how each case has
ended; --redact leaves out its addresses. Whoever reaches the TCP port of --serve can have the device
run cases, so use it on a network whose hosts you trust.
`,
	Run: runVerify,
}

type verifyFlags struct {
	flags
	serve bool
	gid   int // -1: to be found
	tcp   int
	mlid  int
	run   *regexp.Regexp
	skip  *regexp.Regexp
}

func runVerify(inv *cli.Invocation) int {
	f := verifyFlags{flags: flags{port: 1, verbose: true, host: true}, gid: -1, tcp: verifyPort}
	var bad error
	compile := func(arg string) *regexp.Regexp {
		re, err := regexp.Compile(arg)
		bad = cmp.Or(bad, err)
		return re
	}
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		switch name {
		case "serve":
			f.serve = true
		case "ib-port":
			f.port = clib.Int(arg)
		case "gid-idx":
			f.gid = clib.Int(arg)
		case "port":
			f.tcp = clib.Int(arg)
		case "mlid":
			f.mlid = clib.Int(arg)
		case "run":
			f.run = compile(arg)
		case "skip":
			f.skip = compile(arg)
		case "redact":
			f.redact = true
		case "json":
			f.json = true
		default:
			cli.Undeclared(name)
		}
		return true
	})
	switch {
	case !ok:
		return code
	case bad != nil:
		return inv.Fail(bad, "")
	case len(operands) == 0, len(operands) > 2, f.serve && len(operands) > 1:
		inv.PrintUsage()
		return cli.ExitUsage
	}
	name := operands[0]
	r, code := query(inv, name, f.flags)
	if code != cli.ExitOK {
		return code
	}
	config := verbstest.Config{Port: f.port, GIDIndex: f.gid, MLID: uint16(f.mlid)}
	if f.gid < 0 {
		config.GIDIndex = 0
		if i, ok := device.FirstGID(r.ports[0].gids); ok {
			config.GIDIndex = i
		}
	}
	for _, c := range verbstest.Cases() {
		if (f.run == nil || f.run.MatchString(c.Name)) && (f.skip == nil || !f.skip.MatchString(c.Name)) {
			config.Cases = append(config.Cases, c)
		}
	}
	if f.serve {
		return serveVerify(inv, name, &f, config)
	}
	v := &verification{inv: inv, json: f.json}
	v.out.Host, v.out.GIDIndex = factsOfHost(), config.GIDIndex
	r.card = factsOfCard(r.info.KernelName)
	if f.redact {
		pairs := append(r.redact(), name, r.info.Name)
		if len(operands) > 1 {
			pairs = append(pairs, operands[1], "another host")
		}
		v.texts = strings.NewReplacer(pairs...)
	}
	v.out.Device = r.json()
	if !f.json {
		v.out.Host.print(inv.Stdout)
		r.card.print(inv.Stdout)
		r.print(inv.Stdout, true)
		inv.Printf("GID index %d\n\n", config.GIDIndex)
	}
	var err error
	if len(operands) == 1 {
		err = verbstest.Play(inv.Ctx, config, func() (a, b *verbs.Device, err error) {
			if a, err = verbs.Open(name); err == nil {
				if b, err = verbs.Open(name); err != nil {
					a.Close()
				}
			}
			return a, b, err
		}, v.took)
	} else {
		v.out.Peer = v.text(operands[1])
		err = playAcross(inv.Ctx, config, name, net.JoinHostPort(operands[1], strconv.Itoa(f.tcp)), v.took)
	}
	return v.end(err)
}

func playAcross(ctx context.Context, c verbstest.Config, name, peer string, took func(verbstest.Result)) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", peer)
	if err != nil {
		return fmt.Errorf("%w: start adverb verify --serve there", err)
	}
	defer conn.Close()
	return verbstest.PlayAcross(ctx, c, conn, func() (*verbs.Device, error) { return verbs.Open(name) }, took)
}

// serveVerify is the peer of one run.
func serveVerify(inv *cli.Invocation, name string, f *verifyFlags, c verbstest.Config) int {
	l, err := new(net.ListenConfig).Listen(inv.Ctx, "tcp", net.JoinHostPort("", strconv.Itoa(f.tcp)))
	if err != nil {
		return inv.Fail(err, "")
	}
	defer context.AfterFunc(inv.Ctx, func() { l.Close() })()
	inv.Printf("waiting for a peer at TCP port %d\n", f.tcp)
	conn, err := l.Accept()
	l.Close()
	if err == nil {
		defer context.AfterFunc(inv.Ctx, func() { conn.Close() })()
		err = verbstest.Serve(c, conn, func() (*verbs.Device, error) { return verbs.Open(name) })
		conn.Close()
	}
	return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
}

// verification gathers the results of a run.
type verification struct {
	inv   *cli.Invocation
	json  bool
	texts *strings.Replacer // with --redact
	out   struct {
		Host     hostFacts  `json:"host"`
		Device   reportJSON `json:"device"`
		Peer     string     `json:"peer,omitempty"`
		GIDIndex int        `json:"gid_index"`
		Cases    []caseJSON `json:"cases"`
		Passed   int        `json:"passed"`
		Failed   int        `json:"failed"`
		Skipped  int        `json:"skipped"`
	}
}

type caseJSON struct {
	Case    string `json:"case"`
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"`
}

// text replaces the addresses in a text, with --redact.
func (v *verification) text(s string) string {
	if v.texts == nil {
		return s
	}
	return v.texts.Replace(s)
}

func (v *verification) took(r verbstest.Result) {
	c := caseJSON{Case: r.Case, Outcome: r.Outcome.String()}
	if r.Outcome != verbstest.Passed {
		c.Why = v.text(r.Text)
	}
	v.out.Cases = append(v.out.Cases, c)
	*[]*int{&v.out.Passed, &v.out.Skipped, &v.out.Failed}[r.Outcome]++
	if v.json {
		return
	}
	v.inv.Printf("%s  %s\n", c.Outcome, c.Case)
	if c.Why != "" {
		v.inv.Printf("      %s\n", strings.ReplaceAll(c.Why, "\n", "\n      "))
	}
}

func (v *verification) end(err error) int {
	code := v.inv.Finish(err, func(err error) int { return v.inv.Fail(err, "") })
	if v.out.Failed > 0 {
		code = max(code, cli.ExitError)
	}
	if v.json {
		return max(code, v.inv.PrintJSON(&v.out))
	}
	v.inv.Printf("\n%d passed, %d failed, %d skipped\n", v.out.Passed, v.out.Failed, v.out.Skipped)
	return code
}
