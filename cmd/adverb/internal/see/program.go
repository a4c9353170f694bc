package see

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

// quitTime is how long a program may take to end when it is interrupted.
const quitTime = 5 * time.Second

// watch runs a program, reads the captures that it leaves, and returns its exit status.
func watch(inv *cli.Invocation, c *captures, program []string, apart bool) (status int, err error) {
	dir, err := os.MkdirTemp("", "adverb-see-")
	if err != nil {
		return cli.ExitError, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	status, err = start(inv, program, filepath.Join(dir, "%p.pcapng"), apart)
	if err != nil {
		return status, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return status, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Size() == 0 { // a process that was killed before it wrote
			continue
		}
		if err := c.readOne(filepath.Join(dir, e.Name()), nil); err != nil {
			return status, err
		}
	}
	if len(entries) == 0 {
		err := fmt.Errorf("see: %s opened no software device", program[0])
		if status == cli.ExitOK && len(program) > 2 && program[1] == "demo" { // a scene, on a network in memory
			err = fmt.Errorf("%w: %s --see draws a scene's packets", err, strings.Join(program[:3], " "))
		}
		inv.Explain(err)
	}
	return status, nil
}

// start runs a program to its end. The output of the program comes before the ladder, or stays apart from it.
func start(inv *cli.Invocation, program []string, capture string, apart bool) (status int, err error) {
	path, err := exec.LookPath(program[0])
	if err != nil && program[0] == toolName {
		path, err = os.Executable() // this program, which need not be installed
	}
	if err != nil {
		return cli.ExitError, err
	}
	cmd := exec.CommandContext(inv.Ctx, path)
	cmd.Args = program
	cmd.Env = append(os.Environ(), "ADVERB_PCAP="+capture)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inv.Stdin, inv.Stdout, inv.Stderr
	if apart {
		cmd.Stdout = inv.Stderr
	}
	cmd.Cancel = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err == nil || errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return cmd.Process.Kill() // Windows has no interrupt for others
	}
	cmd.WaitDelay = quitTime
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case inv.Interrupted(): // which is how programs end that wait for others: their packets are drawn
		return cli.StatusInterrupted, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	case err != nil:
		return cli.ExitError, err
	}
	return cli.ExitOK, nil
}
