// Package run has the command run: an unmodified program, in any language, sees the software devices as devices of the
// kernel.
//
//	run.go            the command, in the process that the user starts
//	serve_linux.go    the supervisor's process: which devices there are, and where
//	uverbs_linux.go   /dev/infiniband/uverbsN, on internal/uverbs
//	memory_linux.go   the program's memory
//	owner_linux.go    which process has a device open
package run

import (
	"fmt"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/supervisor"
)

// Command is the command run.
var Command = &cli.Command{
	Name:  "run",
	Short: "Run a program in C, or any language, with the software devices",
	Flags: []cli.Flag{
		{Short: 'd', Long: "device", Arg: "<dev>", Help: "show this device alone, such as soft_eth0 (default all)", Values: device.Names},
		{Long: "memory", Arg: "<how>", Help: "how the device has the program's memory: auto (default) maps it, copy does not", Values: cli.OneOf(memoryAuto, memoryCopy)},
		{Short: 'v', Long: "verbose", Help: "tell of the calls that fail, on standard error"},
		{Long: "check", Help: "say what this machine allows, and exit with 1 if no program can be run"},
	},
	Forms:       []cli.Form{{Args: "[--] <program> [<argument>...]"}, {Args: "--check"}},
	Usage:       cli.UsageLine,
	RunsProgram: true,
	More: `The program, and all programs that it starts, find one RDMA device for each network interface, as if the
kernel had the module rdma_rxe: soft_eth0 is shown to them as rxe_eth0. No kernel module, no root and no
card is needed, and nothing of the program is changed. Linux only, on amd64 and arm64.

The devices behind it are those of this tool. So the other end may be a program in Go, a program under
another "adverb run", a Linux kernel or a card.
`,
	Run: run,
}

// Options for the supervisor's process.
const (
	deviceOption  = "device="
	verboseOption = "verbose"
	copiesOption  = "copies"
)

// Values of --memory.
const (
	memoryAuto = "auto"
	memoryCopy = "copy"
)

func run(inv *cli.Invocation) int {
	var options []string
	check := false
	args, code, ok := inv.Parse(cli.ExitUsage, func(flag, arg string) bool {
		switch flag {
		case "device":
			options = append(options, deviceOption+arg)
		case "memory":
			switch arg {
			case memoryAuto:
			case memoryCopy:
				options = append(options, copiesOption)
			default:
				return false
			}
		case "verbose":
			options = append(options, verboseOption)
		case "check":
			check = true
		default:
			cli.Undeclared(flag)
		}
		return true
	})
	switch {
	case !ok:
		return code
	case check && len(args) == 0:
		return report(inv)
	case len(args) == 0 || check:
		inv.PrintUsage()
		return cli.ExitUsage
	}
	p, err := supervisor.Find(args, options)
	if err != nil {
		inv.Explain(err)
		return 127
	}
	s := supervisor.Run(p)
	if err := s.Err(); err != nil {
		inv.Explain(fmt.Errorf("run %s: %w", args[0], err))
	}
	s.Exit()
	return cli.ExitError
}

// report prints the findings about the machine.
func report(inv *cli.Invocation) int {
	code := cli.ExitOK
	for _, f := range supervisor.Check() {
		switch {
		case f.OK:
			inv.Printf("%-28s yes\n", f.Name)
			continue
		case f.Needed:
			inv.Printf("%-28s NO: %s\n", f.Name, f.Lost)
			code = cli.ExitError
		default:
			inv.Printf("%-28s no: %s\n", f.Name, f.Lost)
		}
		if f.Remedy != "" {
			inv.Printf("%-28s %s\n", "", f.Remedy)
		}
	}
	return code
}
