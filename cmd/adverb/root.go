package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// commands is what the tool can do, in the order of its help.
var commands = []*command{
	devicesCmd,
	devinfoCmd,
	gidsCmd,
	rcPingpongCmd,
	ucPingpongCmd,
	udPingpongCmd,
	srqPingpongCmd,
	rpingCmd,
	rdmaServerCmd,
	rdmaClientCmd,
	asyncwatchCmd,
	cmatoseCmd,
	udaddyCmd,
	mckeyCmd,
	cmtimeCmd,
	demoCmd,
}

// command is a subcommand of adverb and, through a symlink, the program of its classic name.
type command struct {
	name    string // as in "adverb devinfo"
	classic string // as in "ibv_devinfo", or ""
	also    string // a second classic name, or ""
	short   string // one line for the list of commands

	options []option
	usage   func(w io.Writer, c *command, prog string)
	more    string // for --help, below the options; PROG stands for the program's name
	run     func(*invocation) int
}

// Exit statuses of the tool itself; commands have their classic ones.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// invocation is one run of a command.
type invocation struct {
	ctx    context.Context
	cmd    *command
	prog   string // argv[0]; "adverb devinfo" for a subcommand
	args   []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	isName bool // called by its classic name, which leaves -h undefined
}

func (inv *invocation) printf(format string, args ...any) { fmt.Fprintf(inv.stdout, format, args...) }

// errorf prints a line of the classic program to stderr.
func (inv *invocation) errorf(format string, args ...any) { fmt.Fprintf(inv.stderr, format, args...) }

// explain prints what the classic line leaves out, on a line of its own, so that whoever
// matches the classic line still finds it.
func (inv *invocation) explain(err error) {
	if err != nil {
		fmt.Fprintf(inv.stderr, "adverb: %v\n", err)
	}
}

// fail prints a classic line and the cause, and returns the status of a failed run.
func (inv *invocation) fail(cause error, format string, args ...any) int {
	inv.errorf(format, args...)
	inv.explain(cause)
	return exitError
}

// options are the command's, with --help, and -h where the classic program's -h, an error, need
// not be kept.
func (inv *invocation) options() []option {
	all := slices.Clone(inv.cmd.options)
	if slices.ContainsFunc(all, func(o option) bool { return o.long == "help" }) {
		return all
	}
	o := option{long: "help", help: "print this text", ours: true}
	if !inv.isName {
		o.short = 'h'
	}
	return append(all, o)
}

func (inv *invocation) printUsage() { inv.cmd.usage(inv.stdout, inv.cmd, inv.prog) }

func (inv *invocation) printHelp() {
	fmt.Fprintf(inv.stdout, "%s\n\n", inv.cmd.short)
	inv.printUsage()
	heading := "\nOptions:\n"
	if inv.cmd.classic != "" {
		heading = "\nBeyond the classic options:\n"
	}
	for _, o := range inv.options() {
		if o.ours {
			fmt.Fprint(inv.stdout, heading)
			heading = ""
			printOption(inv.stdout, o)
		}
	}
	if inv.cmd.more != "" {
		fmt.Fprintf(inv.stdout, "\n%s", strings.ReplaceAll(inv.cmd.more, "PROG", inv.prog))
	}
}

// run runs the tool and returns its exit status. argv[0] selects a command if it is a classic name.
func run(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	prog := "adverb"
	var args []string
	if len(argv) > 0 {
		prog, args = argv[0], argv[1:]
	}
	base := strings.TrimSuffix(filepath.Base(prog), ".exe")
	for _, c := range commands {
		if c.classic != "" && (base == c.classic || base == c.also) {
			return c.run(&invocation{ctx: ctx, cmd: c, prog: prog, args: args, isName: true,
				stdin: stdin, stdout: stdout, stderr: stderr})
		}
	}
	code := exitOK
	root := newRoot(&code)
	root.SetArgs(append([]string{}, args...)) // SetArgs(nil) would take os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "adverb: %v\n", err)
		return exitUsage
	}
	return code
}

func newRoot(code *int) *cobra.Command {
	var names []string
	for _, c := range commands {
		if c.classic != "" {
			names = append(names, c.classic)
		}
	}
	root := &cobra.Command{
		Use:   "adverb",
		Short: "RDMA verbs with no card",
		Long: "adverb runs RDMA verbs programs with no card: its software devices speak RoCEv2 over plain UDP.\n" +
			"Through a symlink of a classic name it is that program: " + strings.Join(names, ", ") + ".",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range commands {
		invoke := func(cmd *cobra.Command, args []string) *invocation {
			return &invocation{ctx: cmd.Context(), cmd: c, prog: "adverb " + c.name, args: args,
				stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
		}
		sub := &cobra.Command{
			Use:                c.name,
			Short:              c.short,
			DisableFlagParsing: true, // classic flags need getopt's rules
			RunE: func(cmd *cobra.Command, args []string) error {
				*code = c.run(invoke(cmd, args))
				return nil
			},
		}
		if c.classic != "" {
			sub.Aliases = []string{c.classic}
		}
		sub.SetHelpFunc(func(cmd *cobra.Command, _ []string) { invoke(cmd, nil).printHelp() })
		root.AddCommand(sub)
	}
	return root
}
